"""Mean and variance of rows that come in pieces, exact in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from temperance.errors import InvalidInput

__all__ = ["Moments"]

_CHUNK = 8192  # rows merged together: bounds the memory of float64 copies


class Moments:
    """Count, mean, sum of squared deviations, smallest and largest, merged piece by piece.

    Args:
        width: number of features.

    Reference:
        Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm for computing sample
        variances", 1979, Stanford STAN-CS-79-773.
    """

    def __init__(self, width: int) -> None:
        self.rows, self.batches = 0, 0
        self.mean = torch.zeros(width, dtype=torch.float64)
        self.squares = torch.zeros(width, dtype=torch.float64)
        self.lowest = torch.full((width,), torch.inf, dtype=torch.float64)
        self.highest = -self.lowest

    def add(self, x: Tensor) -> None:
        """Merge rows of shape ``[n, M]``, any floating type, any device; n may be 0."""
        for part in x.split(_CHUNK) if len(x) else ():
            self._merge(part.to("cpu", torch.float64))

    def result(self) -> tuple[Tensor, Tensor]:
        """Mean and unbiased variance, float64; fewer than two rows raise InvalidInput."""
        if self.rows < 2:
            raise InvalidInput(
                "loader",
                expected="two rows of features or more",
                found=f"{self.rows} in {self.batches} batches",
                fix="Pass the training data; an iterator that was used up yields nothing.",
            )
        return self.mean, self.squares / (self.rows - 1)

    def constant(self) -> Tensor:
        """Which features had one and the same value in every row, exactly."""
        return self.lowest == self.highest

    def _merge(self, x: Tensor) -> None:
        n = self.rows + len(x)
        mean = x.mean(0)
        delta = mean - self.mean
        self.squares += ((x - mean) ** 2).sum(0) + delta**2 * (self.rows * len(x) / n)
        self.mean += delta * (len(x) / n)
        self.lowest = torch.minimum(self.lowest, x.amin(0))
        self.highest = torch.maximum(self.highest, x.amax(0))
        self.rows = n
