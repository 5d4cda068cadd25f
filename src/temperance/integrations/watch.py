"""What a temperature does to the gradient, seen while a trainer trains."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput
from temperance.head.tempered import TemperedHead

__all__ = ["HeadWatch", "gradient_ratio", "progress_bar"]

_IGNORED = -100  # the default of torch.nn.functional.cross_entropy


def gradient_ratio(
    logits: Tensor, labels: Tensor, *, temperature: float, compensated: bool = False
) -> float:
    """Give the size of the gradient at T, relative to that of the same weights at T = 1.

    ``|softmax(z / T) - q| / T / |softmax(z) - q|``: the norms of the gradients of the cross entropy
    with respect to the output z of the linear layer, over all rows; q are the targets. Everything
    below the layer gets its gradient from there. At the start it is about 1 / T, which plain SGD
    feels as a smaller learning rate; large T that "does not learn" shows here.

    Args:
        logits: what the head gives, ``z / T``, shape ``[..., C]``.
        labels: class ids ``[...]`` (-100: left out) or probabilities ``[..., C]``.
        temperature: T, above 0.
        compensated: whether the head multiplies the gradient by T.

    Returns:
        The ratio, above 0; NaN where there is no gradient at T = 1, or no row.

    Raises:
        InvalidInput: if the labels do not fit the logits, or T is not above 0.

    Example:
        >>> import torch
        >>> from temperance.integrations.watch import gradient_ratio
        >>> round(gradient_ratio(torch.zeros(2, 3), torch.tensor([0, 2]), temperature=4.0), 4)
        0.25
    """
    if not temperature > 0:
        fix = "Pass T as in softmax(z / T)."
        raise InvalidInput("temperature", expected="above 0", found=f"{temperature}", fix=fix)
    # On the CPU, since not all devices know float64.
    s = logits.detach().cpu().double().reshape(-1, logits.shape[-1])
    targets, rows = _targets(labels.detach().cpu(), logits.shape)
    s, q = s[rows], targets[rows]
    at_t = float((s.softmax(-1) - q).norm())
    at_one = float(((s * temperature).softmax(-1) - q).norm())
    if not at_one > 0:
        return math.nan
    return at_t / at_one * (1.0 if compensated else 1.0 / temperature)


class HeadWatch:
    """Keep the logits of a head's last training batch, until ``stop``.

    Args:
        head: the tempered head.
    """

    def __init__(self, head: TemperedHead) -> None:
        self.head = head
        self.logits: Tensor | None = None
        self._handle = head.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, _args: Any, output: Tensor) -> None:
        if module.training:
            self.logits = output.detach()

    def ratio(self, labels: Any) -> float | None:
        """Give ``gradient_ratio`` of the last batch; None where it or its labels are not known."""
        if self.logits is None or not isinstance(labels, Tensor):
            return None
        axis, n = self.head.feature_axis, self.head.out_features
        logits = self.logits if axis == -1 else self.logits.movedim(axis, -1).reshape(-1, n)
        compensated = self.head.gradient_compensation
        t = float(self.head.temperature)
        try:
            found = gradient_ratio(logits, labels, temperature=t, compensated=compensated)
        except InvalidInput:  # mixed labels, token shifts: a trainer's own business
            return None
        return found if math.isfinite(found) else None

    def stop(self) -> None:
        """Take the hook off the head."""
        self._handle.remove()
        self.logits = None


def _targets(labels: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Probabilities ``[rows, C]`` and which rows count."""
    n_classes, real = shape[-1], labels.is_floating_point()
    if labels.shape == shape and real:
        q = labels.reshape(-1, n_classes).double()
        return q, torch.ones(len(q), dtype=torch.bool)
    ids = labels.reshape(-1).long()  # unsigned ones have no -100
    whole = not real and ids.numel() == math.prod(shape[:-1])
    rows = ids != _IGNORED
    if not whole or bool(((ids < 0) | (ids >= n_classes))[rows].any()):
        raise InvalidInput(
            "labels",
            expected=f"class ids of 0 to {n_classes - 1}, or probabilities, for {list(shape)}",
            found=f"shape {list(labels.shape)}, {labels.dtype}",
            fix="Pass the targets of these logits.",
        )
    safe = torch.where(rows, ids, 0)
    return nn.functional.one_hot(safe, n_classes).double(), rows


@contextlib.contextmanager
def progress_bar(text: str, *, show: bool) -> Iterator[Any]:
    """A bar on the error stream, gone when it is done; gives the ``progress`` of ``collect``.

    Args:
        text: what is being done.
        show: whether to show it; on no terminal nothing is shown.

    Yields:
        A function of batches done and their number, or None.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not show or not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
