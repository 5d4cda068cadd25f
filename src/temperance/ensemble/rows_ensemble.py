"""A rival whose members share one pass: every row once for each member, or dealt out to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.measure import run_call
from temperance.ensemble.members import check_member, check_protocol
from temperance.ensemble.rival_layers import read_from_outside
from temperance.ensemble.rows import Rows, walk
from temperance.errors import InvalidInput
from temperance.models.outputs import logits_of
from temperance.models.probe import evaluating

__all__ = ["RowsEnsemble"]

# Allowed difference, of the largest logit; a mixed-up row gives another order of magnitude.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2, torch.float16: 5e-2, torch.bfloat16: 0.2}
_FEW = 3  # rows


class RowsEnsemble(nn.Module):
    """M members in one backbone, whose member-specific layers read rows ``b * M + m``.

    The rows are copied at the input of the backbone (``repeat``), or row i is member ``i % M``'s
    (``split``, in training only).

    Args:
        backbone: the changed model.
        rows: the pass that its layers know.
        protocol: ``repeat`` or ``split``.

    Attributes:
        members: M.
        protocol: how rows reach the members in training; may be changed at any time.
        output_key: which entry of the model's output holds the logits, see ``logits_of``.
    """

    def __init__(self, backbone: nn.Module, rows: Rows, *, protocol: str = "repeat") -> None:
        super().__init__()
        self.backbone, self.rows, self.members = backbone, rows, rows.members
        self.protocol = protocol
        self.output_key: str | int | None = None
        self._checked = False
        self.training = backbone.training

    @property
    def protocol(self) -> str:
        """How rows reach the members in training: ``repeat`` or ``split``."""
        return self._protocol

    @protocol.setter
    def protocol(self, value: str) -> None:
        self._protocol = check_protocol(value)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Give the logits of all members.

        Args:
            *args: what the model takes; tensors whose first axis is the batch are copied.
            **kwargs: likewise, without labels.

        Returns:
            Logits ``[M, B, C]``; under ``split`` in training ``[M, B / M, C]``, whose targets
            ``targets`` gives; inside ``with ensemble.member(m)`` ``[1, B, C]``.

        Raises:
            InvalidInput: under ``split``, if the rows do not divide among the members; if the model
                gives another number of rows; or, at the first call, if together the members do not
                compute what each computes alone.
        """
        size, alone = _size((args, kwargs)), self._alone()
        if not alone and not self._checked:
            self._check(args, kwargs, size)
        repeat = not self.training or self.protocol == "repeat"
        if not alone and not repeat:
            self._check_split(size)
        if not alone and repeat:
            args, kwargs = self._copied(args, size), self._copied(kwargs, size)
        total = size * self.members if repeat and not alone else size
        self.rows.total = total
        logits = logits_of(run_call(self.backbone, (args, kwargs)), key=self.output_key)
        if len(logits) != total:
            raise InvalidInput(
                "logits of the model",
                expected=f"{total} rows",
                found=f"{len(logits)}",
                fix="The logits need one row for every row of the first input, on the first axis.",
            )
        if alone:
            return logits.unsqueeze(0)
        return logits.unflatten(0, (-1, self.members)).movedim(1, 0)

    @contextmanager
    def member(self, m: int) -> Iterator[RowsEnsemble]:
        """Let one member run alone: inside, the ensemble gives ``[1, B, C]``."""
        check_member(m, self.members)
        before, self.rows.active = self.rows.active, m
        try:
            yield self
        finally:
            self.rows.active = before

    def targets(self, y: Tensor) -> Tensor:
        """Give the targets that belong to the logits of a forward in the present mode.

        Args:
            y: ``[B]``, or ``[B, ...]``.

        Returns:
            ``[M, B, ...]``; under ``split`` in training ``[M, B / M, ...]``.
        """
        if self.training and self.protocol == "split" and not self._alone():
            self._check_split(len(y))
            return y.unflatten(0, (-1, self.members)).movedim(1, 0)
        return y.expand(self.members if self.rows.active is None else 1, *y.shape)

    def extra_repr(self) -> str:
        """Show members and protocol."""
        return f"members={self.members}, protocol={self.protocol}"

    # ---------------------------------------------------------------- helpers
    def _alone(self) -> bool:
        return self.rows.active is not None or self.members == 1

    def _check(self, args: Any, kwargs: Any, size: int) -> None:
        """Compare the members together with each alone, on a few rows; until members differ."""
        if torch.compiler.is_compiling():  # no decorator: it would import the compiler at once
            torch.compiler.disable(self._compare)(args, kwargs, size)
        else:
            self._compare(args, kwargs, size)

    def _compare(self, args: Any, kwargs: Any, size: int) -> None:

        def few(_path: str, x: Tensor) -> Tensor:
            return x.detach()[:_FEW] if x.dim() > 0 and len(x) == size else x

        args, kwargs = walk(args, few, "args"), walk(kwargs, few, "kwargs")
        self._checked = True  # so that the runs below are not checked themselves
        try:
            with evaluating(self), torch.no_grad():
                alone = [self._of(m, args, kwargs) for m in range(self.members)]
                joint = self(*args, **kwargs)
        except Exception as error:
            self._checked = False
            if isinstance(error, AttributeError):
                raise read_from_outside(error) from error
            if isinstance(error, InvalidInput) and error.subject == "rows of the ensemble":
                raise _mixed(f"{error.found}, not {error.expected}") from error
            raise
        for m, logits in enumerate(alone):
            allowed = _TOLERANCE.get(logits.dtype, 1e-2) * float(logits.abs().max())
            worst = float((joint[m] - logits).abs().max())
            if worst > allowed:
                self._checked = False
                raise _mixed(f"logits of member {m} that differ by {worst:.2g}")
        self._checked = any(not torch.equal(logits, alone[0]) for logits in alone)

    def _of(self, m: int, args: Any, kwargs: Any) -> Tensor:
        with self.member(m):
            logits: Tensor = self(*args, **kwargs)[0]
            return logits

    def _copied(self, value: Any, size: int) -> Any:
        def copies(_path: str, x: Tensor) -> Tensor:
            own = x.dim() > 0 and len(x) == size
            return x.repeat_interleave(self.members, 0) if own else x

        return walk(value, copies, "inputs")

    def _check_split(self, size: int) -> None:
        if size < self.members or size % self.members:
            raise InvalidInput(
                "batch under protocol 'split'",
                expected=f"a multiple of the {self.members} members",
                found=f"{size} rows",
                fix="Choose such a batch size and drop_last=True, or protocol='repeat'.",
            )


def _mixed(found: str) -> InvalidInput:
    return InvalidInput(
        "model",
        expected="members that give the same logits together as each alone",
        found=found,
        fix="Every row must pass through the model by itself, and be on the first axis of the "
        "layers that were changed.",
    )


def _size(call: Any) -> int:
    """Rows of the first tensor."""
    sizes: list[int] = []

    def note(_path: str, x: Tensor) -> Tensor:
        sizes.extend(x.shape[:1])
        return x

    walk(call[0], note, "args")
    walk(call[1], note, "kwargs")
    if not sizes:
        raise InvalidInput(
            "inputs of the ensemble",
            expected="a tensor with rows",
            found="none",
            fix="Pass what the model takes.",
        )
    return sizes[0]
