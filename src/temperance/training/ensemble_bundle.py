"""What ``temperance ensemble`` leaves behind to be used: ``members.safetensors`` and a config.

Loading rebuilds the net, converts it, loads the weights strictly, and checks that every member
gives the outputs that were stored with it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from temperance.ensemble import Ensemble, convert, predict_members
from temperance.errors import InvalidInput
from temperance.evaluation.member_temperature import POOLING, apply_member_temperatures
from temperance.evaluation.temperature_fit import check_temperature
from temperance.files import write_bytes
from temperance.head import insert
from temperance.labels import ClassMap
from temperance.training.bundle_config import (
    MEMBERS,
    as_written,
    class_digest,
    read_config,
    read_weights,
)
from temperance.training.nets import build_net
from temperance.training.preprocess import Preprocess
from temperance.version import __version__

__all__ = ["MemberBundle", "load_members", "save_members"]

_PROBE_ROWS, _PROBE_SEED = 4, 0
_PROBE_TOLERANCE = 1e-3  # relative; another machine's kernels differ by about 1e-6


@dataclass(frozen=True, eq=False)
class MemberBundle:
    """An ensemble that is ready to predict.

    Attributes:
        ensemble: the members in one backbone, in evaluation mode.
        class_map: the classes, in the order of the outputs.
        preprocess: what turns rows into inputs.
        when: post-hoc temperatures ``before`` or ``after`` the members are averaged.
        posthoc_temperatures: one for each member, or one for their mean.
        config: the whole of ``config.json``.
    """

    ensemble: Ensemble
    class_map: ClassMap
    preprocess: Preprocess
    when: str
    posthoc_temperatures: tuple[float, ...]
    config: Mapping[str, Any]

    def log_probs(self, logits: ArrayLike) -> NDArray[np.float64]:
        """Give the log-probabilities of the ensemble, after its post-hoc temperatures.

        Args:
            logits: of the members, shape ``[members, batch, classes]``.

        Returns:
            Shape ``[batch, classes]``.
        """
        return apply_member_temperatures(logits, self.posthoc_temperatures, when=self.when)


def save_members(folder: Path, ensemble: Ensemble, config: Mapping[str, Any]) -> None:
    """Write an ensemble and its config; the config last, since it makes the folder count.

    Args:
        folder: where to.
        ensemble: the members, in evaluation mode, on the CPU.
        config: ``model``, ``ensemble``, ``class_map``, ``preprocess``, ``temperature``, ``posthoc``
            and whatever else belongs in it.
    """
    from safetensors.torch import save

    state = {k: v.detach().cpu().contiguous().clone() for k, v in ensemble.state_dict().items()}
    content = save(state, metadata={"format": "pt"})  # two entries would come in any order
    shape = tuple(config["preprocess"]["shape"])
    whole = {
        "format": MEMBERS.format,
        "format_version": MEMBERS.version,
        "temperance_version": __version__,
        **config,
        "sha256": hashlib.sha256(content).hexdigest(),
        "class_map_sha256": class_digest(config["class_map"]),
        "probe": {"seed": _PROBE_SEED, "logits": _probe_logits(ensemble, shape).tolist()},
    }
    text = json.dumps(whole, indent=2, allow_nan=False, ensure_ascii=False)
    write_bytes(folder / MEMBERS.weights, content)
    write_bytes(folder / "config.json", text.encode())


def load_members(folder: str | os.PathLike[str]) -> MemberBundle:
    """Load what ``temperance ensemble`` wrote, and check it.

    Args:
        folder: the output folder.

    Returns:
        The ensemble with all that a prediction needs.

    Raises:
        InvalidInput: if a file is missing, truncated, foreign or of another version, or if the
            members do not give the outputs that were stored with them.
    """
    folder = Path(folder)
    config = read_config(folder, MEMBERS)
    state = read_weights(folder, MEMBERS, config)
    with as_written(folder):
        preprocess = Preprocess.from_dict(config["preprocess"])
        classes = ClassMap.from_dict(config["class_map"])
        ensemble = _rebuild(config, preprocess)
        when, temperatures = _posthoc(config["posthoc"], ensemble.members)
        ensemble.load_state_dict(state, strict=True)
        ensemble.eval()
        _check_probe(ensemble, preprocess, config, folder / MEMBERS.weights)
    return MemberBundle(ensemble, classes, preprocess, when, temperatures, config)


def _posthoc(record: Mapping[str, Any], members: int) -> tuple[str, tuple[float, ...]]:
    """The temperatures that the report fitted, and whether they go before or after the mean."""
    when, temperatures = record["when"], record["temperatures"]
    if when not in POOLING:
        raise ValueError(f"posthoc.when is {when!r}, not {' or '.join(POOLING)}")
    wanted = members if when == "before" else 1
    if len(temperatures) != wanted:
        raise ValueError(f"{len(temperatures)} posthoc.temperatures, not {wanted} ({when})")
    for temperature in temperatures:
        check_temperature(temperature)
    return when, tuple(map(float, temperatures))


def _rebuild(config: Mapping[str, Any], preprocess: Preprocess) -> Ensemble:
    """Build the ensemble that the weights belong to."""
    spec, how, head = config["model"], config["ensemble"], config["temperature"]
    net = build_net(
        spec["name"],
        input_shape=tuple(spec["input_shape"]),
        n_classes=len(config["class_map"]["names"]),
        seed=0,
        feature_dim=spec["feature_dim"],
    ).module
    example = torch.zeros(2, *preprocess.shape)
    insert(net, head["value"], norm=head["norm"], example=example)
    return convert(
        net,
        how["members"],
        init=how["init"],
        protocol=how["protocol"],
        spread=1.0,  # distinct members show where the rows have to be copied
        example=example,
    )


def _probe_logits(ensemble: Ensemble, shape: tuple[int, ...]) -> Tensor:
    """Logits of a fixed, drawn input: the fingerprint of the members."""
    generator = torch.Generator().manual_seed(_PROBE_SEED)
    x = torch.randn(_PROBE_ROWS, *shape, generator=generator)
    return predict_members(ensemble, x).double()


def _check_probe(
    ensemble: Ensemble, preprocess: Preprocess, config: Mapping[str, Any], path: Path
) -> None:
    expected = torch.tensor(config["probe"]["logits"], dtype=torch.float64)
    found = _probe_logits(ensemble, preprocess.shape)
    scale = float(expected.abs().max().clamp_min(1e-12))
    error = float((found - expected).abs().max()) / scale
    if not error <= _PROBE_TOLERANCE:
        raise InvalidInput(
            str(path),
            expected="the outputs that were stored with the members",
            found=f"outputs that differ by {error:.2g} of their size",
            fix="Load it with the releases of temperance, torch and timm that wrote it.",
        )
