"""Reading the folders that trainings leave: ``config.json``, and the weights that belong to it.

Whatever is wrong with a folder is one clear error that names the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from temperance.errors import InvalidInput, TemperanceError
from temperance.models import read_safetensors

__all__ = [
    "MEMBERS",
    "MODEL",
    "FolderKind",
    "as_written",
    "class_digest",
    "kind_of",
    "read_config",
    "read_weights",
]

_CONFIG = "config.json"


@dataclass(frozen=True)
class FolderKind:
    """What a finished folder is.

    Attributes:
        format: the word in its ``config.json``.
        version: of that format.
        verb: what writes it.
        weights: name of the file of weights.
        keys: what its ``config.json`` has at the least.
    """

    format: str
    version: int
    verb: str
    weights: str
    keys: tuple[str, ...]


_COMMON = ("model", "class_map", "preprocess", "temperature", "sha256", "probe")
MODEL = FolderKind(
    "temperance-model", 1, "train", "model.safetensors", (*_COMMON, "posthoc_temperature")
)
MEMBERS = FolderKind(
    "temperance-ensemble", 1, "ensemble", "members.safetensors", (*_COMMON, "ensemble", "posthoc")
)


def kind_of(folder: Path) -> FolderKind:
    """Say what a folder was written by.

    Args:
        folder: an output folder of ``temperance train`` or ``temperance ensemble``.

    Returns:
        Its kind.

    Raises:
        InvalidInput: if it is no finished folder of either.
    """
    kinds = (MODEL, MEMBERS)
    word = _read(folder, kinds).get("format")
    found = next((kind for kind in kinds if kind.format == word), None)
    if found is None:
        raise _foreign(folder, kinds, _named(word))
    return found


def read_config(folder: Path, kind: FolderKind) -> dict[str, Any]:
    """Read ``config.json`` of a folder, and check that it is of this kind and whole.

    Args:
        folder: the output folder.
        kind: what it should be.

    Returns:
        The whole of the file.

    Raises:
        InvalidInput: if it is missing, no JSON, foreign, of another version, or lacks an entry.
    """
    config = _read(folder, (kind,))
    word, version = config.get("format"), config.get("format_version")
    if (word, version) != (kind.format, kind.version):
        raise _foreign(folder, (kind,), f"{_named(word)}, version {version!r}")
    missing = [key for key in kind.keys if key not in config]
    if missing:
        raise InvalidInput(
            str(folder / _CONFIG),
            expected=f"the entries {', '.join(kind.keys)}",
            found=f"no {', '.join(missing)}",
            fix="Copy the file again from where it was written.",
        )
    _check_classes(folder, config)
    return config


def class_digest(class_map: Mapping[str, Any]) -> str:
    """Digest of the classes in their order, which is that of the outputs.

    Args:
        class_map: ``ClassMap.to_dict()``.

    Returns:
        SHA-256 of names and keys.

    Example:
        >>> first = class_digest({"names": ["cat", "dog"], "keys": []})
        >>> first == class_digest({"names": ["dog", "cat"], "keys": []})
        False
    """
    order = [list(class_map["names"]), list(class_map.get("keys", ()))]
    return hashlib.sha256(json.dumps(order).encode()).hexdigest()


def _check_classes(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a list of classes that is not the one that the outputs were trained for."""
    path = folder / _CONFIG
    with as_written(folder):
        found = class_digest(config["class_map"])
    if config.get("class_map_sha256", found) != found:
        raise InvalidInput(
            f"{path}: class_map",
            expected="the classes in the order that the model was trained with",
            found="other names, or another order (their hash differs)",
            fix="Copy the file again from where it was written; to show other names, map them in "
            "what reads the predictions, or remove class_map_sha256 if you are sure of the order.",
        )


def read_weights(folder: Path, kind: FolderKind, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read the weights of a folder, and check that they are those of its config.

    Args:
        folder: the output folder.
        kind: what it is.
        config: what ``read_config`` gave.

    Returns:
        Tensors by name.

    Raises:
        InvalidInput: if they are missing, truncated, or other ones.
    """
    path = folder / kind.weights
    fix = f"Copy {kind.weights} and {_CONFIG} from the same output folder."
    if not path.is_file():
        raise InvalidInput(
            str(path), expected=f"the weights beside {_CONFIG}", found="no such file", fix=fix
        )
    state = read_safetensors(path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != config["sha256"]:
        raise InvalidInput(
            str(path),
            expected=f"the weights that {_CONFIG} was written with",
            found="other weights (their hash differs)",
            fix=fix,
        )
    return state


@contextmanager
def as_written(folder: Path) -> Iterator[None]:
    """Turn what goes wrong with values of a config inside into an error that names the file.

    A model that is not known here, and a missing package, are said as they are.
    """
    path, fix = folder / _CONFIG, "Copy the file again from where it was written."
    try:
        yield
    except InvalidInput as error:
        if error.subject.startswith(str(folder)):
            raise
        raise InvalidInput(
            f"{path}: {error.subject}", expected=error.expected, found=error.found, fix=fix
        ) from error
    except TemperanceError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [""]
        said = " ".join(line.strip() for line in lines[:2])[:160]
        raise InvalidInput(
            str(path),
            expected="the values that it was written with",
            found=f"some that cannot be used ({type(error).__name__}: {said})",
            fix=fix,
        ) from error


# ------------------------------------------------------------------ the file
def _read(folder: Path, kinds: Sequence[FolderKind]) -> dict[str, Any]:
    path = folder / _CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise _unfinished(folder, kinds) from None
    except (OSError, ValueError) as error:
        raise InvalidInput(
            str(path), expected="JSON", found=str(error), fix="Copy the file again."
        ) from error
    if not isinstance(config, dict):
        raise _foreign(folder, kinds, f"a {type(config).__name__}")
    return config


def _unfinished(folder: Path, kinds: Sequence[FolderKind]) -> InvalidInput:
    """There is no config: say whether the folder, or the end of the job, is missing."""
    verbs = _verbs(kinds)
    fix = "Name the folder that was given as --out."
    if not folder.is_dir():
        found = "a file" if folder.exists() else "no such folder"
    elif any((folder / kind.weights).exists() for kind in kinds):
        found, fix = f"weights without their {_CONFIG}", f"Copy {_CONFIG} to them."
    elif (folder / "report.json").exists():
        found, fix = "a report without a model: no training came to an end", "See report.html."
    elif (folder / "plan.json").exists():
        found = "a training that was stopped (no config.json)"
        fix = "Go on with it: the same command with --resume."
    else:
        found = "no config.json"
    return InvalidInput(
        str(folder), expected=f"the output folder of a finished {verbs}", found=found, fix=fix
    )


def _foreign(folder: Path, kinds: Sequence[FolderKind], found: str) -> InvalidInput:
    expected = " or ".join(f"{k.format}, version {k.version}" for k in kinds)
    return InvalidInput(
        str(folder / _CONFIG),
        expected=f"the format {expected}",
        found=found,
        fix=f"Use an output folder of {_verbs(kinds)}, and a release that knows its version.",
    )


def _verbs(kinds: Sequence[FolderKind]) -> str:
    return "temperance " + " or ".join(kind.verb for kind in kinds)


def _named(word: Any) -> str:
    return "no format" if word is None else str(word)
