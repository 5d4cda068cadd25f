"""FiLM-Ensemble: every BatchNorm has a scale and a shift for each member.

Reference:
    M. O. Turkoglu et al., "FiLM-Ensemble: probabilistic deep learning via feature-wise linear
    modulation", NeurIPS 2022, arXiv 2206.00050; code of the authors: prs-eth/FILM-Ensemble,
    ``models/CBN.py``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from temperance.ensemble.norms import FoundNorm, find_norms
from temperance.ensemble.rival_layers import by_member, check_number, check_whole, copied
from temperance.ensemble.rows import Rows
from temperance.ensemble.rows_ensemble import RowsEnsemble
from temperance.ensemble.sigma_norm import NormFacts
from temperance.errors import InvalidInput, NotFound
from temperance.models.probe import registered, replace_module

__all__ = ["FILM_INITS", "FilmNorm", "film_ensemble"]

FILM_INITS = ("paper", "function")


class FilmNorm(nn.Module):
    """A BatchNorm for each member: ``y_m = gamma_m * norm_m(x_m) + beta_m``.

    Batch statistics and running statistics are each member's own: behind the first layer the
    members' features differ, and those of one are no measure for another. So do the authors.

    Args:
        facts: of the BatchNorm that it stands for.
        rows: the pass of the ensemble.

    Attributes:
        gamma: ``[M, C]``; beta likewise.
        running_mean: ``[M, C]``; running_var likewise.
        drop: what timm's layers do behind the norm, or None; ``act`` likewise.
    """

    running_mean: Tensor
    running_var: Tensor
    drop: nn.Module | None
    act: nn.Module | None

    def __init__(self, facts: NormFacts, rows: Rows) -> None:
        super().__init__()
        self.facts, self.rows, self.members = facts, rows, rows.members
        size = (rows.members, facts.num_features)
        self.gamma, self.beta = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))
        self.drop = self.act = None

    def forward(self, input: Tensor) -> Tensor:
        """Normalize every member's rows by its own statistics, scale and shift."""
        if self.rows.active is not None or self.members == 1:
            m = self.rows.active or 0
            y = self._normalized(input, slice(m, m + 1))
        else:
            wide = by_member(input, self.rows).movedim(2, 1)  # [B, k, M, C, ...]
            shape = wide.shape
            y = self._normalized(wide.flatten(0, 1).flatten(1, 2), slice(None))
            y = y.view(*shape[:4], *y.shape[2:]).movedim(1, 2).flatten(0, 2)
        y = y if self.drop is None else self.drop(y)
        return y if self.act is None else self.act(y)

    def extra_repr(self) -> str:
        """Say what is normalized in one line."""
        return f"{self.facts.num_features} features, members={self.members}, eps={self.facts.eps}"

    def _normalized(self, x: Tensor, part: slice) -> Tensor:
        """The native BatchNorm over the channels of the members in ``part``."""
        tensors = (self.running_mean, self.running_var, self.gamma, self.beta)
        mean, var, scale, shift = (t[part].reshape(-1) for t in tensors)
        momentum, eps = self.facts.momentum or 0.0, self.facts.eps or 0.0
        return F.batch_norm(x, mean, var, scale, shift, self.training, momentum, eps)


def film_ensemble(
    model: nn.Module,
    members: int,
    *,
    init: str = "paper",
    gain: float = 1.0,
    seed: int = 0,
) -> RowsEnsemble:
    """Make a FiLM-Ensemble out of a model with BatchNorm; the model stays as it is.

    Every BatchNorm becomes ``y_m = gamma_m * norm_m(x_m) + beta_m``. All other weights are shared,
    the output layer too. Parameters grow by ``2 C (M - 1)`` for each BatchNorm of C features.

    Train it by ``repeat``: every member sees the whole batch, the loss is the mean of the members'.

    Args:
        model: the model; norms other than BatchNorm stay shared.
        members: M, 1 or more.
        init: ``paper``: gamma and beta are drawn from U(-a, a) with ``a = gain sqrt(6 / (C + M))``
            (Xavier, around 0), for training from scratch; ``function``: this noise is added to the
            model's own scale and shift, so that with ``gain=0`` every member computes what the
            model does. No effect for one member.
        gain: rho of the paper, 0 or more: larger gives members that differ more. 1 in the authors'
            code.
        seed: of the noise; the global random state is not touched.

    Returns:
        The ensemble, with ``protocol="repeat"``; with one member the model itself.

    Raises:
        NotFound: if the model has no BatchNorm.
        InvalidInput: if an argument is out of range, see ``find_norms`` for BatchNorms that cannot
            be used; or for a BatchNorm with ``momentum=None`` or synchronized statistics.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        >>> film_ensemble(model.eval(), 4)(torch.zeros(5, 4)).shape
        torch.Size([4, 5, 3])

    Reference:
        M. O. Turkoglu et al., NeurIPS 2022, arXiv 2206.00050; start and statistics from
        prs-eth/FILM-Ensemble, ``models/CBN.py``.
    """
    members, seed = check_whole("members", members, 1), check_whole("seed", seed, 0)
    gain = check_number("gain", gain, 0)
    if init not in FILM_INITS:
        raise InvalidInput(
            "init", expected=" or ".join(FILM_INITS), found=repr(init), fix="Choose one."
        )
    backbone, rows = copied(model), Rows(members)
    generator = torch.Generator().manual_seed(seed)
    for norm in _batch_norms(model):
        new = _film_of(backbone, norm, rows)
        a = gain * math.sqrt(6 / (norm.facts.num_features + members))
        for values in (new.gamma, new.beta) if members > 1 else ():
            noise = torch.empty(values.shape).uniform_(-a, a, generator=generator).to(values)
            with torch.no_grad():
                values.copy_(noise if init == "paper" else values + noise)
    return RowsEnsemble(backbone, rows)


def _batch_norms(model: nn.Module) -> list[FoundNorm]:
    found = find_norms(model, "recognized")
    batch = [norm for norm in found if norm.facts.kind == "batch"]
    if not batch:
        kinds = sorted({norm.facts.kind for norm in found})
        raise NotFound(
            "BatchNorm layers",
            found=f"{type(model).__name__} has norms of kind {', '.join(kinds)} only",
            fix="FiLM-Ensemble is defined for BatchNorm: choose a model that has it, or another "
            "method.",
        )
    for norm in batch:
        if norm.facts.momentum is None or norm.facts.sync or not norm.name:
            raise InvalidInput(
                f"norm {norm.name!r}",
                expected="a BatchNorm inside of the model, with a momentum, not synchronized",
                found=f"momentum {norm.facts.momentum}, {type(norm.module).__name__}",
                fix="Set its momentum; use BatchNorm on one process.",
            )
    return batch


def _film_of(backbone: nn.Module, norm: FoundNorm, rows: Rows) -> FilmNorm:
    """Put the members' layer in the place of a BatchNorm, with its scale, shift and statistics."""
    old = registered(backbone, norm.name)
    assert old is not None
    new = FilmNorm(norm.facts, rows)
    new.to(next(t for t in (*old.parameters(), *old.buffers()) if t.is_floating_point()))
    with torch.no_grad():
        for ours, name in (("gamma", "weight"), ("beta", "bias")):
            value = getattr(old, name, None)
            if value is not None:
                getattr(new, ours).copy_(value.expand_as(getattr(new, ours)))
        for name in ("running_mean", "running_var"):
            getattr(new, name).copy_(getattr(old, name).expand_as(getattr(new, name)))
    for name in ("drop", "act"):
        if isinstance(getattr(old, name, None), nn.Module):
            setattr(new, name, getattr(old, name))
    replace_module(backbone, old, new.train(old.training))
    return new
