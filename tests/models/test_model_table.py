"""A sample of studies/models: the verbs on real models of three libraries, and the table itself."""

import sys
from pathlib import Path

import pytest
import torch

STUDY = Path(__file__).parents[2] / "studies" / "models"

# Fast ones, of all kinds: linear and convolutional, one head and two, with and without norms.
SAMPLE = {
    "torchvision": ("mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1"),
    "timm": ("mobilenetv3_small_050", "pit_ti_distilled_224", "test_nfnet", "test_resnet"),
    "transformers": (
        "BertForSequenceClassification",
        "RobertaForSequenceClassification",
        "GPT2ForSequenceClassification",
        "ConvNextForImageClassification",
        "DeiTForImageClassificationWithTeacher",
    ),
}


@pytest.fixture(scope="module")
def study():
    """The modules of the study, which lies beside the package."""
    names = ("configs", "members", "page", "sources", "table", "verbs")
    assert not {*names} & {*sys.modules}
    sys.path.insert(0, str(STUDY))
    try:
        import page
        import sources
        import table
        import verbs

        yield {"page": page, "sources": sources, "table": table, "verbs": verbs}
    finally:
        sys.path.remove(str(STUDY))
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def rows(study):
    return study["table"].read_rows(STUDY / "rows.jsonl")


@pytest.mark.parametrize(
    ("library", "name"), [(library, name) for library in SAMPLE for name in SAMPLE[library]]
)
def test_a_model_does_what_the_table_says(library, name, study, rows):
    pytest.importorskip(library)
    case = next(c for c in study["sources"].cases(library) if c.name == name)
    threads = torch.get_num_threads()
    new = study["table"].run_case(case)
    assert torch.get_num_threads() == threads
    old = rows[library, case.family, name]
    same = ("size", "head", "kind", "in_features", "advertised", "declared", "outcome")
    assert {k: new[k] for k in same} == {k: old[k] for k in same}, new["note"]
    verbs = ("find", "insert", "fold", "remove", "convert")
    assert {k: new[k] for k in verbs} == {k: old[k] for k in verbs}, new["note"]


def test_the_sample_has_all_kinds(rows):
    sample = [r for (library, _, name), r in rows.items() if name in SAMPLE[library]]
    assert {r["kind"] for r in sample} == {r["kind"] for r in rows.values() if r["kind"]}
    assert {len(r["head"]) for r in sample} == {1, 2}
    assert {r["convert"] for r in sample} == {r["convert"] for r in rows.values()}
    assert any(r["advertised"] for r in sample)


def test_the_page_is_that_of_the_rows(study, rows, tmp_path):
    study["page"].write_page(rows.values(), tmp_path / "table.md")
    page = (STUDY / "table.md").read_text(encoding="utf-8")
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == page
    for library, found in study["page"].counts(rows.values()).items():
        families = {family for where, family, _ in rows if where == library}
        numbers = [len(families), sum(found.values()), *(found[o] for o in study["page"].OUTCOMES)]
        assert f"| {library} | {' | '.join(map(str, numbers))} |" in page


def test_nothing_failed_and_every_refusal_says_what_to_do(rows):
    assert not [key for key, row in rows.items() if row["outcome"] == "failed"]
    for row in rows.values():
        refused = [n for n in row["note"] if " refused: " in n]
        assert bool(refused) == (row["outcome"] == "refused"), row["name"]
        assert all(note.rstrip().endswith(".") and note.count(". ") for note in refused)


def test_the_table_is_whole(rows):
    timm = pytest.importorskip("timm")
    torchvision = pytest.importorskip("torchvision")
    tried = {(library, name) for library, _, name in rows}
    wanted = torchvision.models.list_models(module=torchvision.models)
    assert {name for name in wanted if ("torchvision", name) not in tried} == set()
    families = {family for library, family, _ in rows if library == "timm"}
    assert len(families) >= 60
    known = set(timm.list_modules())  # a later timm has more, an earlier one less
    assert len(families & known) > 0.9 * len(known)
