"""What a training leaves behind to be used: ``model.safetensors`` and ``config.json``.

The weights are those of the folded model, without norm and T in front of its outputs; the config
has all that a prediction needs. Loading checks that the two belong together.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput
from temperance.evaluation.temperature_fit import check_temperature
from temperance.files import write_bytes
from temperance.head import insert
from temperance.labels import ClassMap
from temperance.models import logits_of
from temperance.training.bundle_config import (
    MODEL,
    as_written,
    class_digest,
    read_config,
    read_weights,
)
from temperance.training.nets import build_net
from temperance.training.preprocess import Preprocess
from temperance.version import __version__

__all__ = ["Bundle", "load_bundle", "save_bundle"]

_PROBE_ROWS, _PROBE_SEED = 4, 0
_PROBE_TOLERANCE = 1e-3  # relative; another machine's kernels differ by about 1e-6


@dataclass(frozen=True, eq=False)
class Bundle:
    """A model that is ready to predict.

    Attributes:
        model: the net, in eval mode.
        class_map: its classes, in the order of its outputs.
        preprocess: what turns rows into its inputs.
        posthoc_temperature: divides its logits in a prediction.
        config: the whole of ``config.json``.
    """

    model: nn.Module
    class_map: ClassMap
    preprocess: Preprocess
    posthoc_temperature: float
    config: Mapping[str, Any]


def save_bundle(folder: Path, model: nn.Module, config: Mapping[str, Any]) -> None:
    """Write a model and its config; the config last, since it makes the folder count.

    Args:
        folder: where to.
        model: the net in eval mode, folded where it can be.
        config: ``model``, ``class_map``, ``preprocess``, ``temperature``, ``posthoc_temperature``
            and whatever else belongs in it.
    """
    from safetensors.torch import save

    state = {k: v.detach().cpu().contiguous().clone() for k, v in model.state_dict().items()}
    content = save(state, metadata={"format": "pt"})  # two entries would come in any order
    shape = tuple(config["preprocess"]["shape"])
    whole = {
        "format": MODEL.format,
        "format_version": MODEL.version,
        "temperance_version": __version__,
        **config,
        "sha256": hashlib.sha256(content).hexdigest(),
        "class_map_sha256": class_digest(config["class_map"]),
        "probe": {
            "seed": _PROBE_SEED,
            "logits": _probe_logits(model, shape).tolist(),
        },
    }
    text = json.dumps(whole, indent=2, allow_nan=False, ensure_ascii=False)
    write_bytes(folder / MODEL.weights, content)
    write_bytes(folder / "config.json", text.encode())


def load_bundle(folder: str | os.PathLike[str]) -> Bundle:
    """Load what ``temperance train`` wrote, and check it.

    Args:
        folder: the output folder.

    Returns:
        The model with all that a prediction needs.

    Raises:
        InvalidInput: if a file is missing, truncated, foreign or of another version, or if the
            model does not give the outputs that were stored with it.
    """
    folder = Path(folder)
    config = read_config(folder, MODEL)
    state = read_weights(folder, MODEL, config)
    with as_written(folder):
        preprocess = Preprocess.from_dict(config["preprocess"])
        classes = ClassMap.from_dict(config["class_map"])
        posthoc = config["posthoc_temperature"]["value"]
        check_temperature(posthoc)
        model = _rebuild(config, preprocess)
        model.load_state_dict(state)
        model.eval()
        _check_probe(model, preprocess, config, folder / MODEL.weights)
    return Bundle(model, classes, preprocess, float(posthoc), config)


def _rebuild(config: Mapping[str, Any], preprocess: Preprocess) -> nn.Module:
    """Build the net that the weights belong to."""
    spec = config["model"]
    net = build_net(
        spec["name"],
        input_shape=tuple(spec["input_shape"]),
        n_classes=len(config["class_map"]["names"]),
        seed=0,
        feature_dim=spec["feature_dim"],
    ).module
    if not config["temperature"]["folded"]:
        example = torch.zeros(2, *preprocess.shape)
        norm = config["temperature"]["norm"]
        insert(net, config["temperature"]["value"], norm=norm, example=example)
    return net


def _probe_logits(model: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Logits of a fixed, drawn input: the fingerprint of a model."""
    generator = torch.Generator().manual_seed(_PROBE_SEED)
    x = torch.randn(_PROBE_ROWS, *shape, generator=generator)
    with torch.inference_mode():
        return logits_of(model(x)).double()


def _check_probe(
    model: nn.Module, preprocess: Preprocess, config: Mapping[str, Any], path: Path
) -> None:
    expected = torch.tensor(config["probe"]["logits"], dtype=torch.float64)
    found = _probe_logits(model, preprocess.shape)
    scale = float(expected.abs().max().clamp_min(1e-12))
    error = float((found - expected).abs().max()) / scale
    if not error <= _PROBE_TOLERANCE:
        raise InvalidInput(
            str(path),
            expected="the outputs that were stored with the model",
            found=f"outputs that differ by {error:.2g} of their size",
            fix="Load it with the releases of temperance, torch and timm that wrote it.",
        )
