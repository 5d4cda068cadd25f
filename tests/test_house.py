"""The house: the one direction of imports, the public surface, start-up, packaging."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import temperance

ROOT = Path(temperance.__file__).parent
PROJECT = ROOT.parent.parent
ORDER = {
    name: rank
    for rank, names in enumerate(
        [
            ("errors", "arrays", "files", "label_values", "labels", "records", "serial", "version"),
            ("models",),
            ("task",),
            ("rules",),
            ("head",),
            ("ensemble",),
            ("evaluation",),
            ("training",),
            ("export",),
            ("study",),
            ("integrations",),
            ("cli",),
        ]
    )
    for name in names
}
MODULES = sorted(m.name for m in pkgutil.walk_packages([str(ROOT)], "temperance."))


def room_of(module: str) -> str:
    return module.split(".")[1]


def imports_of(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("temperance."):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("temperance."))


def test_every_room_has_a_place_in_the_order():
    assert {room_of(m) for m in MODULES} <= set(ORDER)


def test_imports_go_one_way():
    wrong = [
        f"{path.relative_to(ROOT)} imports {imported}"
        for path in ROOT.rglob("*.py")
        if path.parent != ROOT or path.stem != "__init__"
        for imported in imports_of(path)
        for mine in [path.relative_to(ROOT).parts[0].removesuffix(".py")]
        if ORDER[room_of(imported)] > ORDER[mine]
        or (ORDER[room_of(imported)] == ORDER[mine] and room_of(imported) != mine and ORDER[mine])
    ]
    assert not wrong


def test_rules_see_no_data_and_plots_compute_nothing():
    for path in (ROOT / "rules").glob("*.py"):
        assert "numpy" not in path.read_text(encoding="utf-8"), path
    assert "temperance.task" not in (ROOT / "evaluation" / "plots.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MODULES)
def test_modules_say_what_they_offer(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    offered = getattr(module, "__all__", None)
    assert offered is not None or name.startswith("temperance.cli."), f"{name} has no __all__"
    for public in offered or ():
        assert hasattr(module, public), f"{name}.__all__ names {public}, which is not there"


def test_files_are_small():
    long = {p.name: n for p in ROOT.rglob("*.py") if (n := len(p.read_text().splitlines())) > 400}
    assert not long


def test_public_names_are_complete_and_documented():
    assert set(temperance.__all__) == set(temperance._HOMES)
    for name in temperance.__all__:
        thing = getattr(temperance, name)
        assert name in dir(temperance)
        if callable(thing):
            text = inspect.getdoc(thing) or ""
            assert "Example:" in text or inspect.isclass(thing), f"{name} has no example"
    with pytest.raises(AttributeError):
        temperance.nothing  # noqa: B018


def fresh(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["suggest", "--features", "512", "--classes", "10"], ["rules"]]
)
def test_start_up_imports_neither_torch_nor_sklearn(arguments):
    result = fresh(
        "import sys\n"
        "from temperance.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "heavy = {'torch', 'sklearn', 'scipy', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert result.returncode == 0, result.stderr


def test_every_module_imports_without_the_optional_packages():
    blocked = ["timm", "torchvision", "transformers", "pyarrow", "pandas", "faiss", "lightning"]
    blocked += ["ray", "onnx", "onnxscript", "onnxruntime", "skorch", "mlflow", "wandb"]
    blocked += ["pytorch_lightning", "accelerate", "datasets", "peft", "tensorboard"]
    result = fresh(
        "import sys, importlib\n"
        f"blocked = {blocked!r}\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in blocked: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, No())\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
    )
    assert result.returncode == 0, result.stderr


def test_the_wheel_holds_every_module(tmp_path):
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    result = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path, PROJECT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(p.relative_to(ROOT.parent)) for p in ROOT.rglob("*.py")}
    assert wanted <= inside
    assert {"temperance/py.typed", "temperance/rules/budget.json"} <= inside
    assert not any(name.startswith(("tests", "benchmarks", "studies")) for name in inside)
