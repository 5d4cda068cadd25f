"""Cosine heads: features and weights of length 1, so that ``logits = cos / T``, T = 1 / s."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput

__all__ = ["CLIP_TEMPERATURE", "CosineLinear", "UnitLength", "cosine_layer", "plain_layer"]

CLIP_TEMPERATURE = 0.07
"""Where CLIP's learned T starts (scale 1 / 0.07 = 14.3), arXiv 2103.00020, section 2.5."""

_EPS = 1e-6  # shortest length that is divided by: a row of zeros gives logits of 0, not NaN


class UnitLength(nn.Module):
    """Rows of length 1: ``x / max(|x|, eps)`` over the last axis, computed in float32 or wider.

    Args:
        eps: the shortest length that is divided by.

    Example:
        >>> import torch
        >>> UnitLength()(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """

    eps: Tensor

    def __init__(self, eps: float = _EPS) -> None:
        super().__init__()
        self.register_buffer("eps", torch.tensor(float(eps)))

    def forward(self, input: Tensor) -> Tensor:
        """Give the rows at length 1, in the type that they came in."""
        return _unit(input, self.eps).to(input.dtype)


class CosineLinear(nn.Linear):
    """The cosine of the angle between features and each class's weights; no bias.

    ``z_j = (x / |x|) . (w_j / |w_j|)``, between -1 and 1, computed in float32 or wider, also under
    autocast: bfloat16 would leave an error of 0.004, which a scale of 30 makes 0.1 in the logits.

    Args:
        in_features: M.
        out_features: C.
        eps: shortest length that is divided by; a buffer, so that the names of a checkpoint show
            that its head is a cosine head.
        device: where the weights are made.

    Example:
        >>> import torch
        >>> from temperance.head import CosineLinear, TemperedHead
        >>> head = TemperedHead(CosineLinear(8, 3), 0.1, norm="cosine").eval()
        >>> x = torch.randn(5, 8)
        >>> torch.testing.assert_close(head(x), head(100 * x))

    Reference:
        F. Wang et al., "NormFace: L2 hypersphere embedding for face verification", ACM MM 2017,
        arXiv 1704.06369.
    """

    eps: Tensor

    def __init__(
        self, in_features: int, out_features: int, *, eps: float = _EPS, device: Any = None
    ) -> None:
        super().__init__(in_features, out_features, bias=False, device=device)
        self._start(eps, None)

    def _start(self, eps: float, replaced: nn.Linear | None) -> None:
        device = self.weight.device
        self.register_buffer("eps", torch.tensor(float(eps), device=device))
        # In a tuple, so that its bias is no parameter of the model.
        self.replaced: tuple[nn.Linear, ...] = () if replaced is None else (replaced,)

    def forward(self, input: Tensor) -> Tensor:
        """Give the cosines, ``[..., C]``, float32 or wider."""
        with nullcontext() if input.is_meta else torch.autocast(input.device.type, enabled=False):
            weight = self.unit_weight()
            x = _unit(input, self.eps)
            dtype = torch.promote_types(x.dtype, weight.dtype)
            return nn.functional.linear(x.to(dtype), weight.to(dtype))

    def unit_weight(self) -> Tensor:
        """Give each class's weights at length 1, ``[C, M]``, float32 or wider."""
        return _unit(self.weight, self.eps)


def _unit(x: Tensor, eps: Tensor) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    return wide / torch.maximum(wide.norm(dim=-1, keepdim=True), eps.to(wide.dtype))


def cosine_layer(linear: Any) -> CosineLinear:
    """Give the cosine layer that uses the weights of a linear layer (the same parameter).

    Args:
        linear: an ``nn.Linear``; its bias has no part in a cosine and stands by until
            ``plain_layer``. A CosineLinear is given back as it is.

    Returns:
        The cosine layer.

    Raises:
        InvalidInput: for any other kind of layer.
    """
    if isinstance(linear, CosineLinear):
        return linear
    if type(linear) is not nn.Linear:
        raise InvalidInput(
            "output layer",
            expected="a plain nn.Linear for norm='cosine'",
            found=f"a {type(linear).__name__}",
            fix="End the model in pooling and an nn.Linear without parametrizations.",
        )
    new = CosineLinear(linear.in_features, linear.out_features, device="meta")  # draws nothing
    new.weight = linear.weight
    new._start(_EPS, linear)
    return new.train(linear.training)


def plain_layer(layer: nn.Module) -> nn.Module:
    """Give the linear layer that a cosine layer was made of, with the weights of now.

    Args:
        layer: the layer of a tempered head; one that is no cosine layer is given back as it is.

    Returns:
        The old layer, with its old bias; for a CosineLinear that replaced none, itself.
    """
    if not isinstance(layer, CosineLinear) or not layer.replaced:
        return layer
    (old,) = layer.replaced
    old.weight = layer.weight
    return old.to(layer.weight.device, layer.weight.dtype).train(layer.training)
