"""The diversity term: how strongly the members are made to share out the features, and how far.

Per feature, with gates ``s_m = sigmoid(gamma_m)`` in 0 to 1 and ``p = softmax(s / tau)``:
``sum_m log p_m``. The term is added to a loss that is minimized, and **lower means less shared**:
uniform sharing is its maximum, ``-M log M``; fewer owners lie below.

Reference:
    "Controllable diversity in normalization-based implicit ensembles via softmax-temperature
    modulation" (sigmaN-Ens), arXiv 2607.23860. Range, minimizer and the normalized form are our
    own.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.measure import member_layers
from temperance.ensemble.member_linear import MemberLinear
from temperance.ensemble.sigma_norm import SigmaNorm, sigma_norms
from temperance.errors import InvalidInput

__all__ = ["FORMS", "diversity_loss", "diversity_range", "require_distinct"]

FORMS = ("paper", "range")


def diversity_loss(
    model: nn.Module, tau: float, *, strength: float = 1.0, form: str = "paper"
) -> Tensor:
    """The term that is ADDED to the minimized loss, so that features get fewer owners.

    ``paper``: ``strength * sum_layers sum_features sum_m log softmax_m(sigmoid(gamma) / tau)``;
    ``range``: ``strength * mean_features (sum_m log softmax_m + M log M) / diversity_range``, which
    is 0 where everything is shared alike and ``-strength`` at the least, for any tau, M and model.

    Its sign in words: it is never positive, and the lower it is, the more features belong to few
    members. Uniform sharing is its maximum at any tau: it never rewards sharing, and only its
    weakness at large tau lets members share. For gates of 0 and 1 its minimizer has at most M / 2
    owners: one at small tau, near M / 2 at large tau. Its range shrinks as tau grows (M = 4: 24
    nats per feature at tau 0.1, 0.48 at 1, below 0.01 at 10), so that tau also rescales the
    strength in the paper's form. The ``range`` form has the same minimizers without that.

    Members of equal gates get equal gradients, and stay equal: see ``require_distinct``.

    Args:
        model: an Ensemble, or a module that holds one, of two members or more.
        tau: temperature of the softmax over the members, above 0.
        strength: lambda, 0 or more. The paper's form is a sum over all features: 1e-3 at tau 0.2
            was right for some hundreds of them (studies/sigma_ensemble); the ``range`` form is in
            nats of the loss, and the same there is 3 to 6.
        form: ``paper`` or ``range``.

    Returns:
        A scalar of 0 or less.

    Raises:
        InvalidInput: if tau or strength are out of range, or the model is no ensemble of two
            members or more.

    Example:
        >>> from torch import nn
        >>> from temperance.ensemble import convert, diversity_loss
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
        >>> shared = convert(model, 4, spread=0.0)
        >>> round(diversity_loss(shared, 0.2).item(), 3)  # 8 features: -8 * 4 * log(4)
        -44.361
        >>> abs(diversity_loss(shared, 0.2, form="range").item()) < 1e-6
        True

    Reference:
        sigmaN-Ens, arXiv 2607.23860; see the top of this module.
    """
    tau = _positive(tau)
    if not _real(strength) or not 0 <= float(strength) < math.inf:
        raise _invalid("strength", "a finite number of 0 or more", repr(strength), "Set it.")
    if form not in FORMS:
        raise _invalid("form", " or ".join(FORMS), repr(form), "Choose one of them.")
    norms = checked_norms(model)
    device = norms[0].gamma.device
    gates = torch.cat([norm.importance().to(device) for norm in norms], dim=1)  # [M, all C]
    scaled = gates.to(_wide(gates)) / tau
    if form == "paper":
        value = torch.log_softmax(scaled, dim=0).sum()
    else:
        # the same without M log M, and exact where the gates differ by far less than tau
        centred = scaled - scaled.mean(dim=0)
        value = -_log_mean_exp(centred, tau).mean() * len(gates) / diversity_range(len(gates), tau)
    return (float(strength) * value).to(torch.promote_types(gates.dtype, torch.float32))


def diversity_range(members: int, tau: float) -> float:
    """How far the term can fall below uniform sharing, per feature, in nats.

    ``max_k M log(k/M e^(1/tau) + 1 - k/M) - k/tau`` over k = 1 .. M - 1 owners. The term is concave
    in the gates, a linear function less a logsumexp, so that its least value over gates in 0 to 1
    is at a corner: k members with a gate of 1, the others with 0.

    Args:
        members: M, 2 or more.
        tau: above 0.

    Returns:
        The range; about ``(M - 1) / tau - M log M`` at small tau, near 0 at large tau.

    Raises:
        InvalidInput: if one of them is out of range.

    Example:
        >>> from temperance.ensemble import diversity_range
        >>> [round(diversity_range(4, tau), 3) for tau in (0.1, 1.0, 10.0)]
        [24.455, 0.48, 0.005]
    """
    tau = _positive(tau)
    if isinstance(members, bool) or not isinstance(members, int) or members < 2:
        raise _one_member(f"{members!r}")
    x = 1 / tau
    return max(_below_uniform(k / members, x) * members for k in range(1, members))


def require_distinct(model: nn.Module) -> None:
    """Check that no two members are equal: they would stay so, and the ensemble be smaller.

    Members of equal gates and heads that see the same rows get the same gradients, of the loss and
    of ``diversity_loss``: sharing alike is a saddle that training does not leave by itself (only
    dropout or ``split`` would part them). Call it once, before training.

    Args:
        model: an Ensemble, or a module that holds one, of two members or more.

    Raises:
        InvalidInput: if members are equal, or the model is no ensemble of two members or more.

    Example:
        >>> from torch import nn
        >>> from temperance.ensemble import convert, require_distinct
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
        >>> require_distinct(convert(model, 4))
        >>> require_distinct(convert(model, 4, spread=0.0))
        Traceback (most recent call last):
        temperance.errors.InvalidInput: members: expected ones that differ, found members 0, 1, ...
    """
    norms = checked_norms(model)
    own = [norm.gamma.detach() for norm in norms]
    for layer in member_layers(model).values():
        if isinstance(layer, MemberLinear):
            own += [t.detach() for t in (layer.weight, layer.bias) if t is not None]
    groups: list[list[int]] = []
    for m in range(norms[0].members):
        for group in groups:
            if all(torch.equal(t[m], t[group[0]]) for t in own):
                group.append(m)
                break
        else:
            groups.append([m])
    equal = [", ".join(map(str, g)) for g in groups if len(g) > 1]
    if equal:
        raise _invalid(
            "members",
            "ones that differ",
            f"members {' and '.join(equal)} that are equal",
            "They get equal gradients and never part: convert with spread above 0, or with "
            "heads='fresh'.",
        )


def checked_norms(model: Any) -> Sequence[SigmaNorm]:
    """The SigmaNorms of an ensemble of two members or more."""
    norms = list(sigma_norms(model).values()) if isinstance(model, nn.Module) else []
    if not norms:
        found = f"a {type(model).__name__} without member-specific norms"
        raise _invalid("model", "an ensemble", found, "Convert it with temperance.convert.")
    counts = sorted({norm.members for norm in norms})
    if len(counts) > 1:
        raise _invalid("model", "one ensemble", f"some of {counts} members", "Pass each alone.")
    if counts[0] < 2:
        raise _one_member("1")
    return norms


# ------------------------------------------------------------------ helpers
def _wide(gates: Tensor) -> torch.dtype:
    """At large tau the term is a small difference of large sums. Apple's GPUs have no float64."""
    return torch.float32 if gates.device.type == "mps" else torch.float64


def _log_mean_exp(centred: Tensor, tau: float) -> Tensor:
    """Over the members; what is far below 1 counts at large tau, what exp overflows at small."""
    if tau >= 1:
        return torch.log1p(torch.expm1(centred).mean(dim=0))
    return torch.logsumexp(centred, dim=0) - math.log(len(centred))


def _below_uniform(share: float, x: float) -> float:
    """``log(q e^x + 1 - q) - q x``, for a share q of owners; exact for small and large x."""
    if x > 30:  # e^x may overflow
        return (1 - share) * x + math.log(share + (1 - share) * math.exp(-x))
    return math.log1p(share * math.expm1(x)) - share * x


def _real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _positive(tau: Any) -> float:
    if not _real(tau) or not 0 < float(tau) < math.inf:
        raise _invalid("tau", "a finite number above 0", repr(tau), "0.1 to 1 is a usable range.")
    return float(tau)


def _one_member(found: str) -> InvalidInput:
    return _invalid(
        "members", "two or more", found, "One member shares with nobody: leave the term out."
    )


def _invalid(subject: str, expected: str, found: str, fix: str) -> InvalidInput:
    return InvalidInput(subject, expected=expected, found=found, fix=fix)
