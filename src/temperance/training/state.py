"""Stopping a training and going on to the same result: its whole state in one safetensors file."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from temperance.errors import InvalidInput
from temperance.files import write_bytes
from temperance.models import read_safetensors
from temperance.training.loop import Training

__all__ = ["restore", "save"]


def save(training: Training, path: Path) -> None:
    """Write weights, optimizer state, epoch and curves; under a temporary name first."""
    tensors = {f"model/{k}": v for k, v in training.model.state_dict().items()}
    for number, slots in training.optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer/{number}/{k}": v for k, v in slots.items() if v is not None})
    facts = {"seed": training.seed, "epoch": training.epoch, "history": training.history}
    whole = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    write_bytes(path, to_bytes(whole, metadata={"training": json.dumps(facts)}))


def restore(training: Training, path: Path) -> None:
    """Bring a newly started run to the state that ``save`` wrote.

    Raises:
        InvalidInput: if the file is truncated, foreign, or of another training.
    """
    tensors = read_safetensors(path)
    with safe_open(path, framework="pt") as file:
        facts = json.loads((file.metadata() or {}).get("training", "{}"))
    model = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
    if facts.get("seed") != training.seed or set(model) != set(training.model.state_dict()):
        raise InvalidInput(
            str(path),
            expected=f"the state of this training with seed {training.seed}",
            found=f"that of another (seed {facts.get('seed')}, {len(model)} tensors)",
            fix="Delete the file, or start into another folder.",
        )
    training.model.load_state_dict(model)
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer/"):
            _, number, name = key.split("/", 2)
            slots.setdefault(int(number), {})[name] = value
    whole = training.optimizer.state_dict()
    training.optimizer.load_state_dict({**whole, "state": slots})
    training.epoch = int(facts["epoch"])
    training.history = {k: list(v) for k, v in facts["history"].items()}
