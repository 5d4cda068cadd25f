"""One training of the study: what is trained, on what, how long."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Cell", "member_of"]


@dataclass(frozen=True)
class Cell:
    """A training, and what it is for.

    Attributes:
        part: the question that it belongs to: ``rate``, ``regime``, ``table``, ``members``,
            ``tau``.
        dataset: see ``sets.SETS``.
        net: see ``nets.NETS``.
        width: of the net.
        method: see ``methods.METHODS``.
        members: M.
        seed: of weights, data order and members.
        train_rows: rows to train.
        epochs: passes over them.
        lr: peak learning rate (cosine to 0).
        optimizer: ``adamw`` or ``sgd``, see ``temperance.training.loop.OPTIMIZERS``.
        augment: of pictures in training.
        start: where gamma starts (sigma only, as all that follow).
        spread: standard deviation around it.
        rate: learning rate of gamma, in those of the rest.
        tau: of the diversity term.
        strength: of the diversity term, paper's form.
    """

    part: str
    dataset: str
    net: str
    width: int
    method: str
    members: int = 4
    seed: int = 0
    train_rows: int = 4000
    epochs: int = 12
    lr: float = 2e-3
    optimizer: str = "adamw"
    augment: str = "none"
    start: float = 2.0
    spread: float = 1.0
    rate: float = 10.0
    tau: float = 0.2
    strength: float = 1e-4

    @property
    def key(self) -> str:
        """Of what is trained; the question does not change it."""
        content = {k: v for k, v in asdict(self).items() if k != "part"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Give the cell as plain values."""
        return asdict(self)


def member_of(cell: Cell, member: int) -> Cell:
    """The single model that is a member of a deep ensemble."""
    seed = cell.seed * 100 + member
    content = {**cell.to_dict(), "method": "single", "members": 1, "seed": seed}
    return Cell(**content)
