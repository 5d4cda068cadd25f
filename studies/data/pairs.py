"""The list of pairs of data set and representation that the studies use.

``HELD_OUT`` was named before any temperature was tried on any of them: no rule, coefficient or
heuristic is ever fitted on these data sets; they are for the final check only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import glyphs
import pictures
import tables
import texts
from prepare import wanted_files

from temperance.errors import InvalidInput, NotFound
from temperance.files import write_bytes
from temperance.study.data import load
from temperance.study.outcome import StudyData

HELD_OUT = (
    "fashion-mnist",  # photographs of clothes, 10 classes
    "glyphs-kana",  # letters, 176 classes
    "wordnet-fields",  # texts, 43 classes
    "word-lists",  # words of 21 languages
    "satellite",  # a table, 6 classes
    "vowel",  # a table, 11 classes
    "german-credit",  # a table, 2 classes that overlap
)
BUNDLED = ("iris", "wine", "breast_cancer")  # tables that scikit-learn ships
CORE_TEST_ROWS = 250  # fewer tell too little of a difference between temperatures
_CORE = {
    "picture": (
        "pixels",
        "pca:64",
        "random-relu:512",
        "random-conv:256",
        "net:128",
        "efficientnet-lite0:4",
        "efficientnet-lite0:7",
    ),
    "text": ("tfidf-svd:32", "tfidf-svd:512", "char-svd:128", "minilm", "net:128"),
    "table": ("standardized", "standardized|random-relu:256", "standardized|rff:128", "net:64"),
}
_HEADER = """\
# Pairs of data set and representation of the studies, made by prepare.py --pairs.
# M: features, C: classes, train/val/test: rows; core: the shorter list, at most seven for a data
# set, of sets with 250 test rows or more. held_out: data sets that nothing is ever fitted on.
"""


def names_of_sets() -> dict[str, str]:
    """Kind of every data set."""
    kinds = dict.fromkeys((*BUNDLED, *tables.MAKERS), "table")
    kinds |= dict.fromkeys((*pictures.MAKERS, *glyphs.MAKERS), "picture")
    return kinds | dict.fromkeys(texts.MAKERS, "text")


def representations(name: str, kind: str, first: StudyData) -> Iterator[str]:
    """Representations of a data set; PCA widths that its rows do not allow are left out later."""
    n_train = len(first.y["train"])
    files = [] if name in BUNDLED else wanted_files(name, kind, n_train)
    files = [file for file in files if not file.startswith("letters:")]  # ids are no features
    if kind == "picture":
        yield from ("pixels", "pca:16", "pca:64", "pca:256", "pca-white:64")
        yield from ("random-relu:512", "random-conv:256", *files)
    elif kind == "text":
        yield from files
        if name in texts.SINGLE_WORDS:
            yield "char-svd:512|random-relu:1024"
        else:
            yield from ("minilm|pca:64", "tfidf-svd:512|random-relu:1024")
    else:
        width = max(2, first.x["train"].shape[1] // 2)
        yield from ("standardized", f"standardized|pca:{width}")
        yield from ("standardized|random-relu:256", "standardized|rff:128", *files)


def write_pairs(cache: Path, path: Path) -> None:
    """Load every pair once and write the list of those that there are."""
    lines = []
    for name, kind in names_of_sets().items():
        try:
            first = load(name, "char-svd:32" if kind == "text" else "input", data_root=cache)
        except NotFound:
            print(f"not prepared: {name}", flush=True)
            continue
        for features in representations(name, kind, first):
            try:
                data = load(name, features, data_root=cache)
            except (InvalidInput, NotFound) as error:  # a width above the rank; a missing file
                print(f"left out: {name} {features}: {error}", flush=True)
                continue
            lines.append(_line(name, features, kind, data))
            print(lines[-1], flush=True)
    held = ",\n".join(f"  {json.dumps(name)}" for name in HELD_OUT)
    text = f"{_HEADER}held_out = [\n{held},\n]\npairs = [\n" + "\n".join(lines) + "\n]\n"
    write_bytes(path, text.encode())


def _line(name: str, features: str, kind: str, data: StudyData) -> str:
    rows = {split: len(y) for split, y in data.y.items()}
    core = features in _CORE[kind] or (name in texts.SINGLE_WORDS and features == "char-svd:512")
    facts = {
        "dataset": name,
        "features": features,
        "kind": kind,
        "M": int(data.x["train"].shape[1]),
        "C": data.n_classes,
        **rows,
        "core": core and rows["test"] >= CORE_TEST_ROWS,
    }
    return "  { " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in facts.items()) + " },"
