"""What one prediction of a model costs, counted: multiply-adds, on any device the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from temperance.models.outputs import call_model, device_of, split_batch, to_device
from temperance.models.probe import evaluating

__all__ = ["COUNTED", "NOT_COUNTED", "multiply_adds"]

COUNTED = "matrix products (linear layers, recurrent cells), convolutions and attention"
"""What ``multiply_adds`` counts, in words for reports."""

NOT_COUNTED = "biases, norms, gates, activations, softmax, pooling and look-ups"
"""What it leaves out, likewise."""


def multiply_adds(model: nn.Module, example: Any) -> int:
    """Count the multiply-adds of one prediction; FLOPs, as often named, are twice as many.

    The model runs twice, in evaluation mode and without gradients, and what its tensors go through
    the second time is counted: ``B * N * K`` for a matrix product ``[B, K] [K, N]``, one for every
    weight that an output number of a convolution sees, ``2 * H * S * T * d`` for attention of H
    heads of size d over T keys. Whether a kernel skips some of them (masks, zeros) does not matter.
    See ``COUNTED`` and ``NOT_COUNTED``.

    Args:
        model: any module; an ensemble counts all members. Modes, buffers and the global random
            state are as before afterwards.
        example: a batch in any form that ``split_batch`` reads, on any device: one row of it gives
            the count of one row.

    Returns:
        The count for the whole batch. Kernels that PyTorch has no formula for (quantized layers,
        Triton, ``nn.Bilinear``) are not in it.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance.models import multiply_adds
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, groups=1), nn.Flatten(), nn.LazyLinear(10))
        >>> _ = model(torch.zeros(1, 3, 6, 6))
        >>> multiply_adds(model, torch.zeros(1, 3, 6, 6))  # 4*4*8 * 3*3*3 + 128 * 10
        4736

    Reference:
        The formulas are those of ``torch.utils.flop_counter``, which counts a multiply-add as two
        operations; its table lacks PyTorch's attention for CPUs and products with a vector.
    """
    from torch.utils.flop_counter import FlopCounterMode

    inputs = to_device(split_batch(example)[0], device_of(model))
    counter = FlopCounterMode(display=False, custom_mapping=_missing())
    with torch.inference_mode(False), evaluating(model), torch.no_grad(), _in_parts():
        call_model(model, inputs)  # an ensemble looks, once, where its rows become M
        with counter:
            call_model(model, inputs)
    return int(counter.get_total_flops()) // 2


@contextmanager
def _in_parts() -> Iterator[None]:
    """Without the kernels of nn.TransformerEncoderLayer that do a whole layer at once."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _missing() -> dict[Any, Any]:
    """Formulas in FLOPs, for what the table of PyTorch lacks and this release of it has."""
    rules = {
        "_scaled_dot_product_flash_attention_for_cpu": _attention,
        "_scaled_dot_product_fused_attention_overrideable": _attention,
        "mkldnn_rnn_layer": lambda x, *weights, **_: _recurrent(x, weights[:2]),
        "_cudnn_rnn": lambda x, weights, *_, **__: _recurrent(x, weights),
        "mv": _product,
        "addmv": lambda _, a, b, *__, **___: _product(a, b),
        "dot": _product,
        "addbmm": lambda _, a, b, *__, **___: 2 * a[0] * a[1] * a[2] * b[2],
    }
    aten = torch.ops.aten
    return {getattr(aten, name): rule for name, rule in rules.items() if hasattr(aten, name)}


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """FLOPs of ``[B, H, S, d]`` over ``[B, H, T, d]``; heads that share keys count each."""
    batch, heads, rows, width = query
    return int(2 * batch * heads * rows * key[-2] * (width + value[-1]))


def _product(a: Any, _: Any, *__: Any, **___: Any) -> int:
    """FLOPs of a matrix or a vector times a vector."""
    return 2 * math.prod(a)


def _recurrent(x: Any, weights: Any) -> int:
    """FLOPs of a recurrent layer: every matrix meets every step of every row once."""
    return 2 * math.prod(x[:-1]) * sum(math.prod(w) for w in weights if len(w) == 2)
