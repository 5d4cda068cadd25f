"""Sets of letters: every character that enough fonts have, drawn once per font, 32x32 gray.

Letters that look alike (O and 0, capital and small x) are told apart by size or not at all, as in
any reading of single letters. Pictures that are equal in two fonts are kept once per class.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import fetch
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from prepared import Raw

Maker = Callable[[Path], Raw]

SIDE, SIZE, BASELINE = 32, 22, 24  # pixels: of the picture, of the letters, of their feet
_MOST_FACES = 120  # fonts per character; faces are taken in the order of a fixed shuffle
_LEAST_FACES = 12


def _characters(*ranges: tuple[int, int], kinds: str) -> str:
    points = [p for first, last in ranges for p in range(first, last + 1)]
    return "".join(chr(p) for p in points if unicodedata.category(chr(p)) in kinds.split())


LATIN = _characters((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A), kinds="Nd Lu Ll")
GREEK = _characters((0x391, 0x3A9), (0x3B1, 0x3C9), kinds="Lu Ll")
CYRILLIC = _characters((0x410, 0x44F), kinds="Lu Ll")
ACCENTS = _characters((0xC0, 0x17F), kinds="Lu Ll")
KANA = _characters((0x3041, 0x3096), (0x30A1, 0x30FA), kinds="Lo")
SYMBOLS = _characters((0x2190, 0x22FF), (0x25A0, 0x26FF), kinds="Sm So")


@cache
def _faces(raw: Path, packages: tuple[str, ...]) -> tuple[Path, ...]:
    """Scalable fonts of the packages, in a fixed order; a file that is there twice is used once."""
    tree = fetch.debian(raw, [f"fonts-{p}" for p in packages])
    by_name = {
        p.name: p for p in sorted(tree.rglob("*")) if p.suffix.lower() in (".ttf", ".otf", ".ttc")
    }
    names = sorted(by_name)
    order = np.random.default_rng(0).permutation(len(names))
    return tuple(by_name[names[i]] for i in order)


@cache
def _opened(path: Path) -> tuple[frozenset[int], ImageFont.FreeTypeFont] | None:
    """Code points that a font has, and the font; None for damaged and unusual ones."""
    from fontTools.ttLib import TTFont

    try:
        with TTFont(path, fontNumber=0, lazy=True) as table:
            there = frozenset(table.getBestCmap() or ())
        return there, ImageFont.truetype(str(path), SIZE, layout_engine=ImageFont.Layout.BASIC)
    except Exception:  # each kind of damage has an error of its own
        return None


def draw(character: str, font: ImageFont.FreeTypeFont) -> np.ndarray | None:
    """One letter on a common baseline, in the middle; None where it is empty or does not fit."""
    canvas = Image.new("L", (SIDE, SIDE))
    try:
        left, _, right, _ = font.getbbox(character, anchor="ls")
        x = (SIDE - (right - left)) / 2 - left
        ImageDraw.Draw(canvas).text((x, BASELINE), character, fill=255, font=font, anchor="ls")
    except OSError:  # FreeType refuses this letter's hinting
        return None
    pixels = np.asarray(canvas)
    return pixels if pixels.max() > 127 and right - left <= SIDE else None


def _letters(raw: Path, characters: str, packages: Iterable[str]) -> Raw:
    seen: set[tuple[str, bytes]] = set()
    rows: dict[str, list[np.ndarray]] = {c: [] for c in characters}
    for path in _faces(raw, tuple(packages)):
        if (opened := _opened(path)) is None:
            continue
        there, font = opened
        for character in characters:
            if ord(character) not in there or len(rows[character]) >= _MOST_FACES:
                continue
            pixels = draw(character, font)
            if pixels is not None and (character, pixels.tobytes()) not in seen:
                seen.add((character, pixels.tobytes()))
                rows[character].append(pixels)
    kept = {c: r for c, r in rows.items() if len(r) >= _LEAST_FACES}
    y = [f"U+{ord(c):04X} {unicodedata.name(c)}" for c, r in kept.items() for _ in r]
    return Raw(np.stack([p for r in kept.values() for p in r])[..., None], np.array(y))


def _typefaces(raw: Path) -> Raw:
    """Which font a letter comes from: fonts are the classes, letters and digits the rows."""
    x, y, families = [], [], set()
    for path in _faces(raw, tuple(fetch.LATIN_FONTS)):
        if (opened := _opened(path)) is None:
            continue
        there, font = opened
        family = font.getname()[0]  # one face of each family
        if family in families or not {ord(c) for c in LATIN} <= there:
            continue
        drawn = [draw(c, font) for c in LATIN]
        if sum(p is not None for p in drawn) < 50 or len(families) == 150:
            continue
        families.add(family)
        x += [p for p in drawn if p is not None]
        y += [f"{family} ({path.stem})"] * sum(p is not None for p in drawn)
    return Raw(np.stack(x)[..., None], np.array(y))


MAKERS: Mapping[str, Maker] = {
    "glyphs-latin": lambda raw: _letters(raw, LATIN, fetch.LATIN_FONTS),
    "glyphs-greek": lambda raw: _letters(raw, GREEK, fetch.LATIN_FONTS),
    "glyphs-cyrillic": lambda raw: _letters(raw, CYRILLIC, fetch.LATIN_FONTS),
    "glyphs-accents": lambda raw: _letters(raw, ACCENTS, fetch.LATIN_FONTS),
    "glyphs-kana": lambda raw: _letters(raw, KANA, fetch.KANA_FONTS),
    "glyphs-symbols": lambda raw: _letters(raw, SYMBOLS, (*fetch.LATIN_FONTS, *fetch.KANA_FONTS)),
    "typefaces": _typefaces,
}
