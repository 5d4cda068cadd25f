"""Facts that travel inside an exported file: classes, temperatures, preprocessing, version."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temperance.errors import InvalidInput, NotFound, need
from temperance.export.deploy import Exportable
from temperance.version import __version__

__all__ = ["ENTRY", "PREFIX", "metadata_of", "read_metadata"]

PREFIX = "temperance."
"""Of every key in the metadata of an ONNX file; the values are JSON."""

ENTRY = "temperance.json"
"""Name of the extra file inside a ``.pt2`` or TorchScript file."""


def metadata_of(found: Exportable) -> dict[str, Any]:
    """Give what is written into a file: our own facts, and those of the options.

    Args:
        found: what is exported.

    Returns:
        Plain values by name.

    Raises:
        InvalidInput: if a value of the options cannot be written as JSON, or a name is no text, or
            one of ours.
    """
    options, posthoc = found.options, found.posthoc
    own = {
        "version": __version__,
        "output": options.output,
        "members": found.members,
        "posthoc_in_graph": {"temperatures": list(posthoc.temperatures), "when": posthoc.when}
        if posthoc.temperatures
        else None,
    }
    bad = [k for k in options.metadata if not isinstance(k, str) or not k or k in own]
    if bad:
        raise InvalidInput(
            "metadata",
            expected=f"names that are texts, and none of {', '.join(own)}",
            found=repr(bad[0]),
            fix="Call it something else: these say what the file is.",
        )
    data = {**options.metadata, **own}
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            "metadata",
            expected="texts, finite numbers, lists and mappings",
            found=str(error),
            fix="Leave out what JSON cannot hold.",
        ) from error
    return data


def read_metadata(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Read the facts in a file that was exported; nothing of the graph is run.

    Args:
        path: an ``.onnx``, ``.pt2`` or TorchScript file.

    Returns:
        Plain values by name: ``version``, ``output``, ``members``, ``posthoc_in_graph``, and what
        was passed as metadata; of ``export_folder`` also ``classes``, ``preprocess``,
        ``temperature`` and ``posthoc_of_folder``.

    Raises:
        NotFound: if there is no such file.
        InvalidInput: if there are no such facts in it.
        MissingPackage: for an ONNX file without the package onnx.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFound(str(file), found="no such file", fix="Check the path.")
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            names = [n for n in archive.namelist() if n.rpartition("/")[2] == ENTRY]
            if names:
                return dict(json.loads(archive.read(names[0])))
        raise _foreign(file)
    onnx = need("onnx", "onnx")
    try:
        proto = onnx.load(file, load_external_data=False)
    except Exception as error:  # protobuf's own, a child of none that is public
        raise _foreign(file) from error
    properties = {p.key: p.value for p in proto.metadata_props if p.key.startswith(PREFIX)}
    if not properties:
        raise _foreign(file)
    return {k.removeprefix(PREFIX): json.loads(v) for k, v in properties.items()}


def _foreign(file: Path) -> InvalidInput:
    return InvalidInput(
        str(file),
        expected="a file that temperance has exported",
        found="another one",
        fix="Export the model with temperance export.",
    )
