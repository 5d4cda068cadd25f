"""Tensors on disk: safetensors only, never pickle, never half a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temperance.errors import InvalidInput, NotFound
from temperance.files import write_bytes

__all__ = ["check_tensors", "read_safetensors", "write_safetensors"]


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read tensors from a safetensors file, onto the CPU.

    Args:
        path: the file. Pickle files (``.pt``, ``.pth``, ``.bin``) are refused unopened, since
            unpickling can run code.

    Returns:
        Tensors by name.

    Raises:
        NotFound: if there is no such file.
        InvalidInput: if it is no safetensors file, or is cut short.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    if not path.is_file():
        folder = path.is_dir()
        raise NotFound(
            str(path),
            found="a folder, not a file" if folder else "no such file",
            fix="Name the .safetensors file in it." if folder else "Check the path.",
        )
    with path.open("rb") as file:
        start = file.read(10)
    whole = start[8:9] == b"{"  # behind the length of its header, whose first byte may be any
    if not whole and (start[:4] == b"PK\x03\x04" or start[:1] == b"\x80"):
        raise _bad_file(
            path,
            "a pickle or zip archive",
            "If you trust its origin, convert it once: from temperance.models import "
            "write_safetensors; write_safetensors('weights.safetensors', torch.load(path, "
            "map_location='cpu', weights_only=True)).",
        )
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise _bad_file(path, f"something else ({error})", "Copy or download it again.") from error


def write_safetensors(path: str | os.PathLike[str], state: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file, whole or not at all.

    Args:
        path: the file; replaced if it exists.
        state: tensors by name; shared ones are written once per name.

    Raises:
        InvalidInput: if a value is no dense tensor with values (an extra state of a module, a
            sparse or a meta tensor), or if the file's folder does not exist.
    """
    from safetensors.torch import save

    check_tensors(state)
    _check_storable(state)
    path = Path(path)
    _check_place(path)
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        tensor = value.detach().cpu().contiguous()
        pointer = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if pointer in seen else tensor
        seen.add(pointer)
    metadata = {"format": "pt", "temperature": "divides logits"}
    write_bytes(path, save(tensors, metadata=metadata))


def check_tensors(state: Any) -> None:
    """Raise InvalidInput unless a state dict maps names to tensors (or to torch's extra states)."""
    if not isinstance(state, Mapping):
        raise InvalidInput(
            "state dict",
            expected="tensors by name",
            found=f"a {type(state).__name__}",
            fix="Pass model.state_dict().",
        )
    for name, value in state.items():
        if isinstance(value, Tensor) or str(name).endswith("_extra_state"):
            continue
        raise InvalidInput(
            "state dict",
            expected="tensors by name",
            found=f"{name!r}: {type(value).__name__}",
            fix=f"The weights may be one level deeper: pass checkpoint[{name!r}]."
            if isinstance(value, Mapping)
            else "Pass model.state_dict(), without other entries.",
        )


def _check_storable(state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        found = f"{name!r}: {type(value).__name__}"
        if isinstance(value, Tensor):
            if value.layout == torch.strided and not value.is_meta:
                continue
            found = f"{name!r}: {'a meta tensor' if value.is_meta else value.layout}"
        raise InvalidInput(
            "state dict",
            expected="dense tensors, all that a safetensors file can hold",
            found=found,
            fix="Leave it out of the state dict, or store it as a dense tensor.",
        )


def _check_place(path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidInput(
            str(path),
            expected="a file in a folder that exists",
            found="a folder" if path.is_dir() else f"no folder {path.parent}",
            fix="Name a file." if path.is_dir() else "Make the folder first.",
        )


def _bad_file(path: Path, found: str, fix: str) -> InvalidInput:
    return InvalidInput(str(path), expected="a whole safetensors file", found=found, fix=fix)
