"""Reports as artifacts in MLflow, TensorBoard and Weights & Biases: one plain function for each.

What is logged is an output folder of any verb (``report.json``, ``report.html``, ``plots/*.png``),
or a ``Report`` of ``evaluate``, for which the three are made. The figures become metrics, too. A
tracker is imported only when its function is called; to call one later, as a callback, bind it with
``functools.partial``.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from temperance.errors import InvalidInput, need
from temperance.files import write_bytes
from temperance.records import Report, dumps

__all__ = ["Logged", "figures_of", "log_to_mlflow", "log_to_tensorboard", "log_to_wandb"]

Source = str | os.PathLike[str] | Report
_FILES = ("report.json", "report.html")
_SKIP = {
    *("runs", "reports", "per_class", "reliability", "settings", "inputs", "others", "plan"),
    *("differences", "against_norm", "against_deep", "comparison", "histories", "history"),
}
_ESTIMATE = {"value", "interval"}
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_\-./ ]")  # MLflow is the strictest of the three


@dataclass(frozen=True)
class Logged:
    """What went to a tracker.

    Attributes:
        figures: numbers by the name under which they are there.
        files: names of the files, under the prefix.
    """

    figures: Mapping[str, float]
    files: tuple[str, ...]


def log_to_mlflow(
    source: Source, *, run_id: str | None = None, prefix: str = "temperance", step: int = 0
) -> Logged:
    """Log figures and files of a report to an MLflow run.

    Args:
        source: an output folder with a ``report.json``, or a ``Report``.
        run_id: of the run; the active one if absent.
        prefix: in front of the names of metrics, and folder of the artifacts.
        step: of the metrics.

    Returns:
        What was logged.

    Raises:
        MissingPackage: without mlflow (``mlflow-skinny`` is enough).
        InvalidInput: if there is no report, or no run: none is started behind your back.

    Example:
        >>> from temperance.integrations.trackers import log_to_mlflow
        >>> with mlflow.start_run():  # doctest: +SKIP
        ...     log_to_mlflow("runs/digits")
    """
    mlflow = need("mlflow", "mlflow")
    active = mlflow.active_run()
    if run_id is None and active is None:
        raise InvalidInput(
            "MLflow run",
            expected="an active run, or its id",
            found="none",
            fix="Call it inside `with mlflow.start_run():`, or pass run_id.",
        )
    chosen = run_id or active.info.run_id
    with _gathered(source, prefix) as (folder, logged):
        mlflow.log_metrics(dict(logged.figures), step=step, run_id=chosen)
        mlflow.log_artifacts(str(folder), artifact_path=prefix, run_id=chosen)
    return logged


def log_to_tensorboard(
    source: Source, writer: Any, *, prefix: str = "temperance", step: int = 0
) -> Logged:
    """Log figures and pictures of a report to TensorBoard, and put its files beside the events.

    Args:
        source: an output folder with a ``report.json``, or a ``Report``.
        writer: a ``SummaryWriter``, which stays open; or a log folder, for which one is opened.
        prefix: in front of the names, and folder of the files in the log folder.
        step: of scalars and pictures.

    Returns:
        What was logged.

    Raises:
        MissingPackage: for a folder, without tensorboard.
        InvalidInput: if there is no report, or the writer is none.

    Example:
        >>> from temperance.integrations.trackers import log_to_tensorboard
        >>> log_to_tensorboard("runs/digits", "logs")  # doctest: +SKIP
    """
    if isinstance(writer, str | os.PathLike):
        need("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        with _gathered(source, prefix):  # nothing is opened for what is no report
            pass
        with SummaryWriter(os.fspath(writer)) as opened:
            return log_to_tensorboard(source, opened, prefix=prefix, step=step)
    if not hasattr(writer, "add_scalar"):
        raise InvalidInput(
            "writer",
            expected="a SummaryWriter, or a log folder",
            found=f"a {type(writer).__name__}",
            fix="Pass the log folder.",
        )
    with _gathered(source, prefix) as (folder, logged):
        for name, value in logged.figures.items():
            writer.add_scalar(name, value, step)
        for name in logged.files:
            if name.endswith(".png"):
                picture = _pixels(folder / name)
                label = f"{prefix}/{name.removesuffix('.png')}"
                writer.add_image(label, picture, step, dataformats="HWC")
        shutil.copytree(folder, Path(writer.log_dir) / prefix, dirs_exist_ok=True)
        writer.flush()
    return logged


def log_to_wandb(
    source: Source,
    run: Any = None,
    *,
    prefix: str = "temperance",
    step: int | None = None,
    module: ModuleType | Any = None,
) -> Logged:
    """Log figures, pictures and files of a report to a run of Weights & Biases.

    Args:
        source: an output folder with a ``report.json``, or a ``Report``.
        run: what ``wandb.init`` gave; the current run if absent.
        prefix: in front of the names of figures, and name of the artifact.
        step: of the figures; the run's own count if absent.
        module: stands in for the package wandb.

    Returns:
        What was logged.

    Raises:
        MissingPackage: without wandb.
        InvalidInput: if there is no report, or no run.

    Example:
        >>> from temperance.integrations.trackers import log_to_wandb
        >>> with wandb.init(project="digits") as run:  # doctest: +SKIP
        ...     log_to_wandb("runs/digits", run)
    """
    wandb = need("wandb", "wandb") if module is None else module
    chosen = wandb.run if run is None else run
    if chosen is None:
        raise InvalidInput(
            "Weights & Biases run",
            expected="a run",
            found="none",
            fix="Pass what wandb.init() gave.",
        )
    with _gathered(source, prefix) as (folder, logged):
        pictures = {
            f"{prefix}/{name.removesuffix('.png')}": wandb.Image(str(folder / name))
            for name in logged.files
            if name.endswith(".png")
        }
        chosen.log({**logged.figures, **pictures}, step=step)
        artifact = wandb.Artifact(_NOT_IN_A_NAME.sub("_", prefix).replace("/", "-"), type="report")
        artifact.add_dir(str(folder))
        chosen.log_artifact(artifact)
    return logged


def figures_of(source: Source, *, prefix: str = "temperance") -> dict[str, float]:
    """Give the figures of a report by the names that they have in a tracker.

    Figures of single runs, of single classes, and differences stay in ``report.json``.

    Args:
        source: an output folder with a ``report.json``, or a ``Report``.
        prefix: in front of the names.

    Returns:
        Finite numbers by name, for instance ``"temperance/arms/bn_T_4/nll"``.

    Raises:
        InvalidInput: if there is no report, or the prefix is no relative path.

    Example:
        >>> from temperance import evaluate
        >>> from temperance.integrations.trackers import figures_of
        >>> report = evaluate(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
        >>> figures_of(report)["temperance/accuracy"]
        1.0
    """
    _check_prefix(prefix)
    data = json.loads(dumps(source)) if isinstance(source, Report) else _read(Path(source))
    found = {
        _NOT_IN_A_NAME.sub("_", "/".join((prefix, *path))): value for path, value in _walk(data, ())
    }
    suggestion = data.get("suggestion")
    if isinstance(suggestion, Mapping):
        name = _NOT_IN_A_NAME.sub("_", f"{prefix}/suggested_temperature")
        found[name] = float(suggestion["temperature"])
    return found


# ------------------------------------------------------------------ what is logged
def _check_prefix(prefix: Any) -> None:
    """It is a folder inside of the run: nothing is written elsewhere."""
    text = str(prefix)
    if not all(part.strip(". ") for part in text.split("/")) or Path(text).is_absolute():
        raise InvalidInput(
            "prefix",
            expected="a name, or names with / between them",
            found=repr(prefix),
            fix="Pass prefix='temperance'.",
        )


@contextmanager
def _gathered(source: Source, prefix: str) -> Iterator[tuple[Path, Logged]]:
    """A folder with the files and nothing else, and what is in it."""
    figures = figures_of(source, prefix=prefix)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if isinstance(source, Report):
            _write(source, folder)
        else:
            _copy(Path(source), folder)
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        yield folder, Logged(figures, tuple(files))


def _copy(source: Path, folder: Path) -> None:
    for name in _FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    pictures = sorted((source / "plots").glob("*.png"))
    if pictures:
        (folder / "plots").mkdir()
    for picture in pictures:
        shutil.copyfile(picture, folder / "plots" / picture.name)


def _write(report: Report, folder: Path) -> None:
    """What the verbs write for their own results, for a report in hand."""
    from temperance.evaluation import html, plots
    from temperance.evaluation.prepare import prepare_reliability

    png = plots.png_bytes(plots.plot_reliability(prepare_reliability({"Reliability": report})))
    (folder / "plots").mkdir()
    write_bytes(folder / "plots" / "reliability.png", png)
    write_bytes(folder / "report.json", dumps(report).encode())
    columns = (html.Column("Figure"), html.Column("Value", "number", 4))
    rows = tuple((name, estimate) for name, estimate in report.metrics.items())
    sections: list[html.Section] = [
        html.Table(columns, rows, caption="95 % intervals where they can be given"),
        html.Figure(png, alt="Reliability diagram"),
    ]
    page = html.render_html(
        sections,
        title="Report",
        subtitle=f"{report.n:,} rows, {report.n_classes} classes",
        footer="All figures are in report.json.",
    )
    html.save_html(page, folder / "report.html")


def _read(folder: Path) -> dict[str, Any]:
    file = folder / "report.json"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(
            str(file),
            expected="the report of a temperance verb",
            found=getattr(error, "strerror", None) or f"no JSON ({error})",
            fix="Name the folder that was given as --out.",
        ) from error
    if not isinstance(data, dict) or "record" not in data:
        raise InvalidInput(
            str(file),
            expected="the report of a temperance verb",
            found="another file",
            fix="Name the folder that was given as --out.",
        )
    return data


def _walk(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every estimate and its path, in which items of lists stand by their names."""
    if isinstance(value, Mapping):
        number = value.get("value")
        if value.keys() >= _ESTIMATE:
            if isinstance(number, int | float) and math.isfinite(number):
                yield path, float(number)
            return
        doubled = {"report"} if "figures" in value else set()
        for key, part in value.items():
            if key not in _SKIP | doubled:
                yield from _walk(part, path if key == "metrics" else (*path, key))
    elif isinstance(value, list):
        for part in value:
            arm = part.get("arm") if isinstance(part, Mapping) else None
            named = arm if isinstance(arm, Mapping) else part
            if isinstance(named, Mapping) and isinstance(named.get("name"), str):
                yield from _walk(part, (*path, named["name"]))


def _pixels(file: Path) -> Any:
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(file.read_bytes())) as picture:
        return np.asarray(picture.convert("RGB"))
