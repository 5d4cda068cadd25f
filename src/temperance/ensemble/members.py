"""The ensemble: one backbone, M members, logits ``[members, batch, classes]``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.expansion import Site, find_site, install
from temperance.ensemble.measure import Call, member_layers, run_call
from temperance.ensemble.prefix import record_prefix
from temperance.ensemble.rows import Rows, walk
from temperance.ensemble.sigma_norm import SigmaNorm
from temperance.errors import InvalidInput
from temperance.models.outputs import (
    LABEL_KEYS,
    device_of,
    logits_of,
    split_batch,
    to_device,
)

__all__ = ["PROTOCOLS", "Ensemble", "check_protocol"]

PROTOCOLS = ("repeat", "split")


class Ensemble(nn.Module):
    """M members in one backbone, made by ``temperance.convert``.

    In training the rows reach the members by ``protocol``: ``repeat``, every member sees the whole
    batch (the paper's; about M times the work behind the first norm), or ``split``, row i is seen
    by member ``i % M`` only (the work of one model). In evaluation every member sees every row.

    Args:
        backbone: the converted model.
        rows: the pass that its layers know.
        protocol: ``repeat`` or ``split``; an attribute that may be changed at any time.

    Attributes:
        backbone: the model with its member-specific layers; names inside are those of the model.
        members: M.
        output_key: which entry of the model's output holds the logits, see ``logits_of``.
        changed: settings of torch's own layers that were changed, by module and name, see
            ``convert``.
    """

    def __init__(self, backbone: nn.Module, rows: Rows, *, protocol: str = "repeat") -> None:
        super().__init__()
        self.backbone, self.rows, self.members = backbone, rows, rows.members
        self.protocol = protocol
        self.output_key: str | int | None = None
        self.changed: dict[str, dict[str, Any]] = {}
        self.sites: dict[tuple[str, ...], Site] = {}
        self.site: Site | None = None
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
            *args: what the model takes.
            **kwargs: likewise, without labels.

        Returns:
            Logits ``[M, B, C]`` (``[M, B, ..., C]`` where the model's have more axes); under
            ``split`` in training ``[M, B / M, C]``, whose targets ``targets`` gives; inside
            ``with ensemble.member(m)`` ``[1, B, C]``.

        Raises:
            InvalidInput: for labels among the inputs; under ``split``, if the rows do not divide
                among the members; if the model gives another number of rows; or on several devices
                of DataParallel.
        """
        _refuse_replica(self)
        _refuse_labels(kwargs)
        paths, size = _look((args, kwargs))
        repeat = not self.training or self.protocol == "repeat"
        rows = self.rows
        alone = rows.active is not None or self.members == 1
        if not alone:
            if not repeat:
                self._check_split(size)
            if self.site is None or self.sites.get(paths) is not self.site:
                self._find(paths, (args, kwargs))
        rows.expanding = repeat
        rows.total = size * self.members if repeat else size
        output = run_call(self.backbone, (args, kwargs))
        logits = logits_of(output, key=self.output_key)
        if len(logits) != (size if alone else rows.total):
            raise _wrong_rows(len(logits), size if alone else rows.total)
        return (
            logits.unsqueeze(0) if alone else logits.unflatten(0, (-1, self.members)).movedim(1, 0)
        )

    def place(self, example: Any) -> Site | None:
        """Find where one copy of the rows becomes M.

        ``convert`` with an example, or else the first forward, does it, and each call with tensors
        that never came before. It is needed by hand before ``torch.compile(fullgraph=True)``, and
        where a model folds windows into the batch only at some sizes of the input.

        Args:
            example: one batch in any form that ``split_batch`` reads; one row is enough.

        Returns:
            The place; None for one member.

        Raises:
            InvalidInput: if together the members do not compute what each computes alone, wherever
                the rows are copied; see ``find_site``.
        """
        inputs = to_device(split_batch(example)[0], device_of(self.backbone))
        if self.members == 1:
            return None
        call = _as_call(inputs)
        paths, _ = _look(call)
        self.sites[paths] = find_site(self.backbone, self.rows, call, key=self.output_key)
        self._find(paths, call)
        return self.site

    @contextmanager
    def member(self, m: int) -> Iterator[Ensemble]:
        """Let one member run alone: inside, the ensemble gives ``[1, B, C]``.

        It needs the memory of one model, and updates the running statistics of that member only.
        Call ``backward`` inside, too, where parts of the model are checkpointed.

        Args:
            m: the member, from 0.

        Yields:
            The ensemble.
        """
        check_member(m, self.members)
        before, self.rows.active = self.rows.active, m
        try:
            yield self
        finally:
            self.rows.active = before

    def run_each(self, *args: Any, **kwargs: Any) -> Iterator[Tensor]:
        """Run the members one after the other on the whole batch, as ``repeat`` does all at once.

        Call ``backward`` on each member's loss before the next one runs: then only one member's
        activations are in memory, and the gradients add up. ``backward_each`` does that, and runs
        what comes before the first member-specific layer only once; this does so where gradients
        are off.

        Args:
            *args: what the model takes.
            **kwargs: likewise, without labels.

        Yields:
            Logits ``[B, C]`` of member 0, 1, ..., M - 1.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from temperance.ensemble import convert
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
            >>> ensemble = convert(model, 4)
            >>> for logits in ensemble.run_each(torch.randn(5, 4)):
            ...     (logits.square().mean() / 4).backward()
        """
        prefix = None
        if not torch.is_grad_enabled() and self.members > 1:
            with self.member(0):
                prefix = record_prefix(self, lambda: self(*args, **kwargs))
        for m in range(self.members):
            with self.member(m):
                with nullcontext() if prefix is None else prefix.serving():
                    logits = self(*args, **kwargs)[0]
                yield logits

    def targets(self, y: Tensor) -> Tensor:
        """Give the targets that belong to the logits of a forward in the present mode.

        Args:
            y: ``[B]``, or ``[B, ...]``.

        Returns:
            ``[M, B, ...]``; under ``split`` in training ``[M, B / M, ...]``, those of rows
            ``m, m + M, m + 2 M, ...``.
        """
        if self.training and self.protocol == "split" and self.rows.active is None:
            self._check_split(len(y))
            return y.unflatten(0, (-1, self.members)).movedim(1, 0)
        return y.expand(self.members if self.rows.active is None else 1, *y.shape)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load weights; another number of members raises InvalidInput and changes nothing."""
        for name, layer in member_layers(self).items():
            kind, own = ("gamma", 2) if isinstance(layer, SigmaNorm) else ("weight", 3)
            value = state_dict.get(f"{name}.{kind}")
            if not isinstance(value, Tensor):
                continue
            plain = value.dim() != own
            if not plain and len(value) == self.members:
                continue
            raise InvalidInput(
                f"state dict, {f'{name}.{kind}'!r}",
                expected=f"{self.members} members, as in this ensemble",
                found="weights of a plain model" if plain else f"{len(value)}",
                fix="Load them into the plain model, then convert it."
                if plain
                else f"Convert the model with members={len(value)}, then load.",
            )
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def extra_repr(self) -> str:
        """Show members, protocol and the place where the rows become M."""
        site = self.site
        where = "" if site is None else f", rows copied {'in' if site.inside else 'before'} "
        name = "" if site is None else repr(site.name or "the model")
        return f"members={self.members}, protocol={self.protocol}{where}{name}"

    # ---------------------------------------------------------------- helpers
    def _find(self, paths: tuple[str, ...], call: Call) -> None:
        """Find a place and use it; if there is none, the former one stays.

        Not to be compiled: with ``fullgraph=True`` a call of a new form is an error. Marked here
        and not by a decorator, which would import the compiler with the library.
        """
        if torch.compiler.is_compiling():
            torch.compiler.disable(self._look)(paths, call)
        else:
            self._look(paths, call)

    def _look(self, paths: tuple[str, ...], call: Call) -> None:
        if paths not in self.sites:
            self.sites[paths] = find_site(self.backbone, self.rows, call, key=self.output_key)
        self.site = self.sites[paths]
        install(self.backbone, self.rows, self.site)

    def _check_split(self, size: int) -> None:
        if size < self.members or size % self.members:
            raise InvalidInput(
                "batch under protocol 'split'",
                expected=f"a multiple of the {self.members} members",
                found=f"{size} rows",
                fix="Choose such a batch size and drop_last=True, or protocol='repeat'.",
            )


def check_protocol(value: Any) -> str:
    """Check the name of a protocol."""
    if value in PROTOCOLS:
        return str(value)
    raise InvalidInput(
        "protocol", expected=" or ".join(PROTOCOLS), found=repr(value), fix="Choose one of them."
    )


def check_member(value: Any, members: int) -> int:
    """Check the number of a member."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < members:
        return value
    raise InvalidInput(
        "member",
        expected=f"a whole number from 0 to {members - 1}",
        found=repr(value),
        fix="Members are counted from 0.",
    )


def _as_call(inputs: Any) -> Call:
    """Inputs of a batch as ``call_model`` passes them."""
    if isinstance(inputs, Mapping):
        return (), {str(k): v for k, v in inputs.items()}
    return (tuple(inputs), {}) if isinstance(inputs, (tuple, list)) else ((inputs,), {})


def _look(call: Call) -> tuple[tuple[str, ...], int]:
    """The tensors of a call by path, and its rows: the size of the first one."""
    seen: list[tuple[str, Tensor]] = []

    def note(path: str, x: Tensor) -> Tensor:
        seen.append((path, x))
        return x

    walk(call[0], note, "args")
    walk(call[1], note, "kwargs")
    rows = [len(x) for _, x in seen if x.dim()]
    if not rows:
        raise InvalidInput(
            "inputs of the ensemble",
            expected="a tensor with rows",
            found="none",
            fix="Pass what the model takes.",
        )
    return tuple(path for path, _ in seen), rows[0]


def _refuse_replica(ensemble: Ensemble) -> None:
    """DataParallel would join members for rows, and its threads would share ``rows``."""
    if getattr(ensemble, "_is_replica", False):
        raise InvalidInput(
            "ensemble",
            expected="one process for each device",
            found="a replica of DataParallel, which joins the first axis: here the members",
            fix="Use torch.nn.parallel.DistributedDataParallel.",
        )


def _refuse_labels(kwargs: Mapping[str, Any]) -> None:
    named = [k for k in LABEL_KEYS if kwargs.get(k) is not None]
    if named:
        raise InvalidInput(
            "inputs of the ensemble",
            expected="inputs without labels",
            found=named[0],
            fix="Take them out (temperance.models.split_batch), and give the logits [M, B, C] and "
            "ensemble.targets(labels) to the loss.",
        )


def _wrong_rows(found: int, expected: int) -> InvalidInput:
    return InvalidInput(
        "logits of the model",
        expected=f"{expected} rows",
        found=f"{found}",
        fix="The logits need one row for every row of the first input, on their first axis.",
    )
