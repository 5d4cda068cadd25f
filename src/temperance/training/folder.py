"""Find pictures in folders: one folder per class, with or without train, val and test above."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from temperance.errors import InvalidInput
from temperance.training.dataset import Found, FoundPart, part_name

__all__ = ["SUFFIXES", "find_folder", "is_junk"]

_COMMON = {".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
SUFFIXES = frozenset(_COMMON | {".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".tga"})
_JUNK = frozenset({"__macosx", "__pycache__", "@eadir", "thumbs.db", "desktop.ini", "lost+found"})
_SHOWN = 5


def is_junk(name: str) -> bool:
    """Whether a file or folder is hidden or left by a tool, and so never data."""
    return name.startswith(".") or name.lower() in _JUNK


@dataclass
class _Skipped:
    """What was left out, to be named once."""

    root: Path
    folders: list[Path] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def notices(self) -> tuple[str, ...]:
        found = (
            ("hidden or foreign folders", self.folders),
            ("files that are no pictures of a class", self.files),
        )
        return tuple(
            f"skipped {len(paths)} {what}: {_shown([str(p.relative_to(self.root)) for p in paths])}"
            for what, paths in found
            if paths
        )


def find_folder(root: Path) -> Found:
    """Find the pictures of a folder; nothing is opened.

    Class names are the names of the class folders of ``train``, in plain character order; an empty
    one stays a class. Pictures may lie in folders below. Hidden and foreign folders are skipped.

    Args:
        root: folder with one folder per class, or with ``train`` and ``val`` / ``test`` above.

    Returns:
        Pictures, their class names as labels, and what was skipped.

    Raises:
        InvalidInput: if there are fewer than two classes with pictures, two folders for the same
            part, or a folder that cannot be read.
    """
    skipped = _Skipped(root)
    folders = _folders(root, skipped)
    parts = _part_folders(root, folders, skipped)
    found, names = {}, dict[str, list[str]]()
    for part, folder in (parts or {"train": root}).items():
        classes = _folders(folder, skipped) if parts else folders
        names[part] = [c.name for c in classes]
        found[part] = _find_part(root, classes, skipped)
    _check_classes(root, found["train"], names["train"], skipped)
    extra = sorted({n for part in names.values() for n in part} - set(names["train"]))
    warnings = tuple(
        f"the empty folder {name} is no class: train does not have it"
        for name in extra
        if not any(name in part.labels for part in found.values())
    )
    return Found(
        "images",
        found,
        class_names=tuple(names["train"]),
        notices=skipped.notices(),
        warnings=warnings,
    )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda e: e.name)
    except OSError as error:
        raise InvalidInput(
            str(folder),
            expected="a folder that can be read",
            found=error.strerror or str(error),
            fix="Check its name and its permissions.",
        ) from error


def _is_output(folder: Path) -> bool:
    """Whether a folder is what an earlier training wrote."""
    return (folder / "plan.json").is_file() and (folder / "runs").is_dir()


def _folders(folder: Path, skipped: _Skipped) -> list[Path]:
    """Folders right below, in plain character order; whatever else is there is noted."""
    kept = list[Path]()
    for entry in _entries(folder):
        path = Path(entry.path)
        if entry.is_dir():
            junk = is_junk(entry.name) or _is_output(path)
            (skipped.folders if junk else kept).append(path)
        else:
            skipped.files.append(path)
    return kept


def _part_folders(root: Path, folders: Sequence[Path], skipped: _Skipped) -> dict[str, Path]:
    """Folders of train, val and test; none if the folders are classes (one may be called train)."""
    named = [(part_name(f.name) if _has_folders(f) else None, f) for f in folders]
    parts: dict[str, Path] = {}
    for part, folder in named:
        if part in parts:
            raise InvalidInput(
                str(root),
                expected=f"one folder for {part}",
                found=f"{parts[part].name} and {folder.name}",
                fix="Merge them or remove one.",
            )
        if part is not None:
            parts[part] = folder
    others = [folder for part, folder in named if part is None]
    if not parts or (others and len(parts) == 1):
        return {}
    if "train" not in parts:
        raise InvalidInput(
            str(root),
            expected="a folder train beside " + " and ".join(f.name for f in parts.values()),
            found="none",
            fix="Add it, or pass the folder whose classes are to be trained on.",
        )
    skipped.folders += others
    return {part: parts[part] for part in ("train", "val", "test") if part in parts}


def _has_folders(folder: Path) -> bool:
    return any(e.is_dir() and not is_junk(e.name) for e in _entries(folder))


def _find_part(root: Path, classes: Sequence[Path], skipped: _Skipped) -> FoundPart:
    paths, labels = list[Path](), list[str]()
    for folder in classes:
        pictures = list(_pictures(folder, skipped))
        paths += pictures
        labels += [folder.name] * len(pictures)
    ids = tuple(p.relative_to(root).as_posix() for p in paths)
    return FoundPart(tuple(paths), labels, ids)


def _pictures(
    folder: Path, skipped: _Skipped, above: frozenset[str] = frozenset()
) -> Iterator[Path]:
    """Pictures in and below a folder; a link that leads back up is not followed again."""
    above = above | {os.path.realpath(folder)}
    for entry in _entries(folder):
        path = Path(entry.path)
        if entry.is_dir():
            if is_junk(entry.name) or os.path.realpath(path) in above:
                skipped.folders.append(path)
            else:
                yield from _pictures(path, skipped, above)
        elif path.suffix.lower() in SUFFIXES and not is_junk(entry.name):
            yield path
        else:
            skipped.files.append(path)


def _check_classes(root: Path, train: FoundPart, classes: Sequence[str], skipped: _Skipped) -> None:
    nonempty = sorted(set(train.labels))
    if len(nonempty) >= 2:
        return
    loose = sum(p.suffix.lower() in SUFFIXES for p in skipped.files)
    raise InvalidInput(
        str(root),
        expected="two folders with pictures or more, one per class",
        found=f"{len(classes)} class folders, {len(nonempty)} with pictures"
        + (f" ({nonempty[0]})" if nonempty else "")
        + (f", and {loose} pictures outside of any" if loose else ""),
        fix="Put the pictures of every class into a folder of its own.",
    )


def _shown(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
