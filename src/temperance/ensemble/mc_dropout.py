"""MC dropout: one model, whose dropout stays on at prediction; each pass is a member.

Reference:
    Y. Gal, Z. Ghahramani, "Dropout as a Bayesian approximation: representing model uncertainty in
    deep learning", ICML 2016, arXiv 1506.02142.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.measure import run_call
from temperance.ensemble.members import check_member
from temperance.ensemble.rival_layers import (
    check_number,
    check_whole,
    copied,
    hidden_layers,
    read_from_outside,
)
from temperance.ensemble.rows import Rows
from temperance.errors import InvalidInput, NotFound
from temperance.models.outputs import logits_of
from temperance.models.probe import replace_module

__all__ = ["McDropout", "MemberDropout", "mc_dropout"]

_KINDS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class MemberDropout(nn.Module):
    """Dropout that in evaluation drops the features of a member: a mask fixed by the seed.

    Args:
        inner: the dropout layer, which runs in training.
        rows: the pass; ``rows.active`` is the member that runs.
        seed: of the masks.

    Attributes:
        p: share of what is dropped; what is left is divided by ``1 - p``.
    """

    def __init__(self, inner: nn.Module, rows: Rows, seed: int) -> None:
        super().__init__()
        self.inner, self.rows, self.seed, self.ran = inner, rows, seed, False
        self.training = inner.training
        self._masks: dict[int, Tensor] = {}

    @property
    def p(self) -> float:
        """Share of what is dropped."""
        return float(getattr(self.inner, "p", 0.0))

    def forward(self, input: Tensor) -> Tensor:
        """Drop at random in training; in evaluation the same for every row."""
        self.ran = True
        if self.training or self.rows.active is None:
            y: Tensor = self.inner(input)
            return y
        return input * self._mask(input, self.rows.active)

    def _mask(self, x: Tensor, member: int) -> Tensor:
        """The member's mask for one row, made again where shape, type or device changed."""
        shape = x.shape[1:]
        if not isinstance(self.inner, nn.Dropout):  # whole channels
            shape = torch.Size((x.shape[1], *(1 for _ in x.shape[2:])))
        mask = self._masks.get(member)
        if mask is None or (mask.shape, mask.dtype, mask.device) != (shape, x.dtype, x.device):
            generator = torch.Generator().manual_seed(self.seed * 100_003 + member)
            kept = torch.rand(shape, generator=generator) >= self.p
            mask = (kept / max(1 - self.p, 1e-12)).to(x)
            self._masks[member] = mask
        return mask


class McDropout(nn.Module):
    """One model with dropout; in training it is that model, in evaluation M draws of it.

    Args:
        backbone: the model with ``MemberDropout`` layers.
        rows: the pass that they know.

    Attributes:
        members: M, the passes of a prediction.
        output_key: which entry of the model's output holds the logits, see ``logits_of``.
    """

    def __init__(self, backbone: nn.Module, rows: Rows) -> None:
        super().__init__()
        self.backbone, self.rows, self.members = backbone, rows, rows.members
        self.output_key: str | int | None = None
        self.training = backbone.training

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Give logits.

        Args:
            *args: what the model takes.
            **kwargs: likewise, without labels.

        Returns:
            In training ``[1, B, C]``, with torch's own dropout; in evaluation ``[M, B, C]``, member
            m by its own masks, or ``[1, B, C]`` inside ``with ensemble.member(m)``.

        Raises:
            InvalidInput: if no dropout layer ran, or the model itself reads the weights of a layer
                with dropout in front.
        """
        alone = self.rows.active
        if self.training:
            numbers: Sequence[int | None] = (None,)
        else:
            numbers = range(self.members) if alone is None else (alone,)
        try:
            parts = []
            for number in numbers:
                self.rows.active = number
                output = run_call(self.backbone, (args, kwargs))
                parts.append(logits_of(output, key=self.output_key))
        except AttributeError as error:
            raise read_from_outside(error) from error
        finally:
            self.rows.active = alone
        if not any(layer.ran for layer in self._layers()):
            raise InvalidInput(
                "model",
                expected="dropout layers that run",
                found="none ran",
                fix="Call the layers as modules; F.dropout and fused layers are not seen.",
            )
        return torch.stack(parts)

    @contextmanager
    def member(self, m: int) -> Iterator[McDropout]:
        """Let one member run alone: inside, the ensemble gives ``[1, B, C]``."""
        check_member(m, self.members)
        before, self.rows.active = self.rows.active, m
        try:
            yield self
        finally:
            self.rows.active = before

    def targets(self, y: Tensor) -> Tensor:
        """Give the targets that belong to the logits of a forward in the present mode."""
        alone = self.training or self.rows.active is not None
        return y.expand(1 if alone else self.members, *y.shape)

    def _layers(self) -> list[MemberDropout]:
        return [m for m in self.backbone.modules() if isinstance(m, MemberDropout)]


def mc_dropout(
    model: nn.Module,
    members: int,
    *,
    p: float | None = None,
    layers: str | Sequence[str] | None = None,
    seed: int = 0,
) -> McDropout:
    """Predict with dropout on, M times; the model stays as it is, its weights are kept.

    Train it as one model: in training the forward is that of the model (torch's dropout, which
    draws from the global random state as ever), and gives ``[1, B, C]``. In evaluation member m is
    one draw of the weights, ``W_m ~ q(W)``: the same features are dropped for every row, so that
    predictions do not depend on how rows fall into batches. For each row this is the paper's
    estimate. Everything but dropout, BatchNorm too, stays in evaluation mode; F.dropout, dropout
    inside ``nn.MultiheadAttention``, AlphaDropout and stochastic depth stay off there.

    Args:
        model: a model with dropout layers; or any, with ``p``.
        members: M, the passes of a prediction, 1 or more.
        p: None to use the model's dropout layers; or a share from 0 up to 1, to put dropout in
            front of layers with weights (the paper: of every one). Layers that are there stay on.
        layers: with ``p``: patterns of names of the layers; None for all linear layers and
            convolutions but the first, whose input is the data (or an embedding: then all).
        seed: of the masks in evaluation; the global random state is not touched there.

    Returns:
        The ensemble.

    Raises:
        NotFound: if the model has no dropout layers and ``p`` is None.
        InvalidInput: if an argument is out of range.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
        >>> mc_dropout(model.eval(), 4)(torch.zeros(5, 4)).shape
        torch.Size([4, 5, 3])

    Reference:
        Y. Gal, Z. Ghahramani, ICML 2016, arXiv 1506.02142, section 3.
    """
    members, seed = check_whole("members", members, 1), check_whole("seed", seed, 0)
    backbone, rows = copied(model), Rows(members)
    if isinstance(backbone, _KINDS):
        raise InvalidInput("model", expected="a model", found="a dropout layer", fix="Wrap it.")
    if p is None and layers is not None:
        raise InvalidInput("layers", expected="p as well", found="p=None", fix="Set p.")
    if p is not None:
        _insert(backbone, check_number("p", p, 0, 1), layers)
    found = [m for m in backbone.modules() if isinstance(m, _KINDS)]
    if not found:
        raise NotFound(
            "dropout layers",
            found=f"{type(model).__name__} has none",
            fix="Pass p, the share to drop in front of layers with weights; and train with it.",
        )
    for number, layer in enumerate(found):
        replace_module(backbone, layer, MemberDropout(layer, rows, seed * len(found) + number))
    return McDropout(backbone, rows)


def _insert(backbone: nn.Module, p: float, layers: str | Sequence[str] | None) -> None:
    """Put dropout in front of layers, in place."""
    if p == 1:
        raise InvalidInput("p", expected="less than 1", found="1", fix="Choose 0.1 to 0.5.")
    for layer in hidden_layers(backbone, layers).values():
        parts: list[tuple[str, nn.Module]] = [("drop", nn.Dropout(p)), ("layer", layer)]
        new = nn.Sequential(OrderedDict(parts)).train(layer.training)
        replace_module(backbone, layer, new)
