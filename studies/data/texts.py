"""Sets of texts: requests, package descriptions, names, words, quotations, verses, definitions."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import fetch
import numpy as np
from pictures import SHARED
from prepared import Raw
from tables import read_object

Maker = Callable[[Path], Raw]

LANGUAGES = (
    *("american-english", "brazilian", "bulgarian", "catalan", "danish", "dutch", "esperanto"),
    *("faroese", "french", "galician", "irish", "italian", "manx", "ngerman", "bokmaal"),
    *("nynorsk", "polish", "portuguese", "spanish", "swedish", "ukrainian"),
)
"""Files of the word lists."""


def _raw(pairs: Iterable[tuple[str, str]], *, least: int, most: int = 1 << 30) -> Raw:
    """Texts and classes without copies; classes with rows enough, and at most ``most`` of each."""
    rows = sorted({(text, label) for text, label in pairs if text})
    order = np.random.default_rng(0).permutation(len(rows))
    by_class: dict[str, list[str]] = {}
    for i in order:
        by_class.setdefault(rows[i][1], []).append(rows[i][0])
    kept = {label: texts[:most] for label, texts in by_class.items() if len(texts) >= least}
    x = np.array([text for label in sorted(kept) for text in kept[label]], dtype=object)
    return Raw(x, np.array([label for label in sorted(kept) for _ in kept[label]]))


def _clinc(_: Path) -> Raw:
    x, y, split = [], [], []
    for code, part in enumerate(("train", "val", "test")):
        with (SHARED / "clinc150" / f"{part}.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                x.append(row["text"])
                y.append(row["label"])
                split.append(code)
    return Raw(np.array(x, dtype=object), np.array(y), np.array(split))


def _debian_sections(_: Path) -> Raw:
    """Short descriptions of the packages that apt knows, and the section of each."""
    out = subprocess.run(["apt-cache", "dumpavail"], check=True, capture_output=True, text=True)
    pairs = []
    for entry in out.stdout.split("\n\n"):
        fields = dict(re.findall(r"^(Description|Section): (.*)$", entry, flags=re.MULTILINE))
        if len(fields) == 2:
            pairs.append((fields["Description"], fields["Section"].rpartition("/")[2]))
    return _raw(pairs, least=30)


def _locale_languages(raw: Path) -> Raw:
    """Names of languages and countries in the languages of CLDR: which language is it?"""
    main = fetch.npm(raw, "cldr-localenames-full@48.2.0") / "main"
    pairs = []
    for path in sorted(main.glob("*/*.json")):
        kind = path.stem
        if kind not in ("languages", "territories"):
            continue
        locale = path.parent.name
        names = json.loads(path.read_text("utf-8"))["main"][locale]["localeDisplayNames"][kind]
        for code, name in names.items():
            if name != code and "-alt-" not in code:
                pairs.append((name, locale.partition("-")[0]))
    return _raw(pairs, least=40, most=300)


def _word_lists(raw: Path) -> Raw:
    """Words of at least four letters from Debian's spelling lists: which language is it?"""
    folder = fetch.debian(raw, fetch.WORD_LISTS) / "usr/share/dict"
    pairs = []
    for name in LANGUAGES:
        content = (folder / name).read_bytes()
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            text = content.decode("latin-1")
        words = sorted({w for w in text.split() if len(w) >= 4 and w.isalpha() and w.islower()})
        chosen = np.random.default_rng(0).permutation(len(words))[:1000]
        pairs += [(words[i], name) for i in chosen]
    return _raw(pairs, least=300)


def _fortunes(raw: Path) -> Raw:
    folder = fetch.debian(raw, ("fortunes", "fortunes-min")) / "usr/share/games/fortunes"
    pairs = []
    for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.suffix):
        parts = re.split(r"^%$", path.read_text("utf-8", "replace"), flags=re.MULTILINE)
        pairs += [(" ".join(text.split()), path.name) for text in parts]
    return _raw(pairs, least=60)


def _bible(raw: Path) -> Raw:
    """Verses of the King James Version: which of the 66 books is it?"""
    tree = fetch.debian(raw, ("bible-kjv", "bible-kjv-text"))
    command = [str(tree / "usr/bin/bible"), "-l900", "-p", str(tree / "usr/lib")]
    out = subprocess.run(
        [*command, "Gen1:1-Rev22:21"],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    book, pairs = "", []
    for line in out.stdout.splitlines():
        if verse := re.match(r"\s+\d+ (.*)", line):
            pairs.append((verse[1].strip(), book))
        elif chapter := re.match(r"(\S.*) \d+$", line):
            book = chapter[1]
    return _raw(pairs, least=20)


def _wordnet(raw: Path) -> Raw:
    """Definitions of WordNet 3.0, and the lexicographer's file (field of meaning) of each."""
    folder = fetch.debian(raw, ("wordnet-base",)) / "usr/share/wordnet"
    pairs = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text("utf-8").splitlines():
            if not line.startswith("  "):
                gloss = line.partition("|")[2].partition(";")[0].strip()
                pairs.append((gloss, f"{part} {line.split()[1]}"))
    return _raw(pairs, least=60)


def _foods(raw: Path) -> Raw:
    """Reviews of foods, great or not; the first 60 words."""
    pairs = []
    for part in ("training_data", "testing_data"):
        frame = read_object(raw, "modeldata", part)
        for text, score in zip(frame["review"].tolist(), frame["score"].tolist(), strict=True):
            pairs.append((" ".join(str(text).split()[:60]), str(score)))
    return _raw(pairs, least=60)


def _tate(raw: Path) -> Raw:
    """Titles of works in the Tate galleries, and the medium of each."""
    frame = read_object(raw, "modeldata", "tate_text")
    titles, media = frame["title"].tolist(), frame["medium"].tolist()
    pairs = ((str(t), str(m)) for t, m in zip(titles, media, strict=True))
    return _raw(pairs, least=40)


def _computing(raw: Path) -> Raw:
    """Definitions of FOLDOC, a dictionary of computing: which field? The first 50 words."""
    tree = fetch.debian(raw, ("dict-foldoc",))
    with gzip.open(tree / "usr/share/dictd/foldoc.dict.dz", "rt", encoding="utf-8") as file:
        content = file.read()
    tagged = re.compile(r"^\s*<([a-z -]+)[^>]*>\s*(.*)", flags=re.DOTALL)
    found = (tagged.match(entry) for entry in re.split(r"^(?=\S).*$", content, flags=re.MULTILINE))
    pairs = ((" ".join(m[2].split()[:50]), m[1].strip()) for m in found if m)
    return _raw(pairs, least=30)


MAKERS: Mapping[str, Maker] = {
    "clinc150": _clinc,
    "debian-sections": _debian_sections,
    "locale-languages": _locale_languages,
    "word-lists": _word_lists,
    "fortunes": _fortunes,
    "bible-books": _bible,
    "wordnet-fields": _wordnet,
    "food-reviews": _foods,
    "tate-media": _tate,
    "computing-terms": _computing,
}
SINGLE_WORDS = ("locale-languages", "word-lists")
"""Sets whose rows are names and words: spelling says more than meaning."""
