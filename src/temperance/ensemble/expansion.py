"""Where one copy of the rows becomes M: as late as it can be, found by trying.

What comes before the first member-specific layer is the same for all members and is computed once.
Where exactly the rows are to be copied depends on the model: in a ResNet inside the first norm; in
a vision transformer at the input of the first block, since the way around the norm needs M copies,
too. So the places are tried from the innermost outwards, with members that differ in everything
they can differ in, and the first is taken where all members together compute what each of them
computes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.measure import (
    LARGE,
    SMALL,
    Call,
    Run,
    layouts_of,
    member_layers,
    member_layouts,
    record,
    refuse_functional,
    run_call,
)
from temperance.ensemble.rows import Expansion, Layout, Rows
from temperance.ensemble.sigma_norm import SigmaNorm
from temperance.ensemble.swap import stand_in
from temperance.errors import InvalidInput
from temperance.models.outputs import logits_of, map_tensors
from temperance.models.probe import evaluating, registered

__all__ = ["Site", "clear", "find_site", "install"]

# Allowed difference, relative to the largest logit. A wrong place gives another shape, or logits of
# other members; rounding is far below. Convolutions on GPUs round to TensorFloat-32 by default.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2, torch.float16: 5e-2, torch.bfloat16: 0.2}
_HIDDEN = 1e-3  # layer scales start at 1e-6 to 1e-4


@dataclass(frozen=True)
class Site:
    """Where one copy of the rows becomes M, and where the rows are in the members' layers.

    Attributes:
        name: dotted name of a module of the backbone; ``""`` for the backbone.
        inside: whether it is inside that module, a SigmaNorm, or at its input.
        inputs: for the latter, where the rows are in each tensor that goes in.
        layouts: where they are in the input of each member-specific layer.
    """

    name: str
    inside: bool
    inputs: Mapping[str, Layout | None]
    layouts: Mapping[str, Layout]


def find_site(backbone: nn.Module, rows: Rows, call: Call, *, key: str | int | None) -> Site:
    """Find where the rows are to be copied, by running two or three rows of an example.

    A stand-in runs in evaluation mode, with members made different; the model itself, its buffers
    and the random state stay as they are.

    Args:
        backbone: the converted model, without a site.
        rows: its pass.
        call: arguments of the model by position and by name, on its device.
        key: which entry of the output holds the logits.

    Returns:
        The innermost place that is right.

    Raises:
        InvalidInput: if no place is right; if a BatchNorm runs more than once in a pass or the
            model calls ``F.batch_norm`` itself; or if logits of the example are not finite.
    """
    backbone, rows = stand_in((backbone, rows), backbone)
    batches = [_take(call, n) for n in (SMALL, LARGE)]
    device = next((p.device.type for p in backbone.parameters()), "cpu")
    with _trying(backbone, device):
        rows.active = 0
        small, large = (record(backbone, b) for b in batches)
        refuse_functional(small, large)
        layouts = member_layouts(backbone, small, large)
        expected = _alone(backbone, rows, batches[1], key)
        failed = "no member-specific layer ran"
        for site in _sites(small, large, layouts):
            failed = _fault(backbone, rows, site, batches[1], expected, key)
            if not failed:
                return site
    raise InvalidInput(
        "model",
        expected="members that give the same logits together as each alone",
        found=f"others wherever the rows are copied (at the model's input: {failed})",
        fix="Every row must pass through the model by itself, and the logits need the rows on "
        "their first axis. ensemble.run_each still runs the members one by one.",
    )


def install(backbone: nn.Module, rows: Rows, site: Site) -> None:
    """Let the rows be copied at a site, in place; replaces any other."""
    clear(backbone)
    for name, layer in member_layers(backbone).items():
        layer.layout = site.layouts.get(name, Layout())
    module = registered(backbone, site.name)
    assert module is not None
    if isinstance(module, SigmaNorm) and site.inside:
        module.expands = True
    else:
        module.register_forward_pre_hook(Expansion(rows, site.inputs), with_kwargs=True)


def clear(backbone: nn.Module) -> None:
    """Take the site away, in place."""
    for module in backbone.modules():
        if isinstance(module, SigmaNorm):
            module.expands = False
        hooks = module._forward_pre_hooks
        for number in [k for k, hook in hooks.items() if isinstance(hook, Expansion)]:
            del hooks[number]
            module._forward_pre_hooks_with_kwargs.pop(number, None)


# ------------------------------------------------------------------ trying
def _alone(backbone: nn.Module, rows: Rows, call: Call, key: str | int | None) -> dict[int, Tensor]:
    """Logits of the first two members and the last one, each by itself."""
    logits = {}
    for m in sorted({0, 1, rows.members - 1}):
        rows.active = m
        logits[m] = logits_of(run_call(backbone, call), key=key)
    rows.active = None
    bad = [m for m, z in logits.items() if not bool(torch.isfinite(z).all())]
    if bad:
        raise InvalidInput(
            "example",
            expected="one with finite logits",
            found=f"NaN or infinity in those of member {bad[0]}",
            fix="Look at the example and at the weights of the model.",
        )
    return logits


def _fault(
    backbone: nn.Module,
    rows: Rows,
    site: Site,
    call: Call,
    expected: dict[int, Tensor],
    key: str | int | None,
) -> str:
    """What is wrong with a site; empty if nothing is."""
    rows.expanding, rows.total = True, LARGE * rows.members
    install(backbone, rows, site)
    try:
        logits = logits_of(run_call(backbone, call), key=key)
    except Exception as error:  # a wrong place shows itself by any error
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    finally:
        clear(backbone)
    if len(logits) != rows.total:
        return f"{len(logits)} rows of logits for {LARGE} rows and {rows.members} members"
    by_member = logits.unflatten(0, (LARGE, rows.members))
    for m, alone in expected.items():
        allowed = _TOLERANCE.get(alone.dtype, 1e-2) * float(alone.abs().max())
        worst = float((by_member[:, m] - alone).abs().max())
        if not worst <= allowed:
            return f"the logits of member {m} differ by {worst:.2g}"
    return ""


def _sites(small: Run, large: Run, layouts: Mapping[str, Layout]) -> Iterator[Site]:
    """The first member-specific layer, the input of what holds it, of what holds that, ..."""
    if not small.members:
        return
    name = small.members[0]
    top = layouts_of(small.shapes[""][0], large.shapes[""][0]) or {}
    wanted = sum(layout is not None for layout in top.values())
    if wanted == 1:
        yield Site(name, True, {}, layouts)
    while name:
        name = name.rpartition(".")[0]
        calls = small.shapes.get(name, []), large.shapes.get(name, [])
        if [len(c) for c in calls] == [1, 1]:
            inputs = layouts_of(calls[0][0], calls[1][0]) or {}
            # A mask that goes another way would not be copied; and it may only come later.
            if sum(layout is not None for layout in inputs.values()) >= wanted:
                yield Site(name, False, inputs, layouts)


# ------------------------------------------------------------------ the state of the runs
def _take(call: Call, n: int) -> Call:
    """``n`` rows of a batch; its rows again where it has fewer."""
    sizes: list[int] = []

    def note(x: Tensor) -> Tensor:
        sizes.extend(x.shape[:1])
        return x

    map_tensors(call, note)
    if not sizes or not sizes[0]:
        raise InvalidInput(
            "example",
            expected="a batch with a row or more",
            found="no tensor with rows",
            fix="Pass one batch as the loader yields it.",
        )
    index = torch.arange(n) % sizes[0]
    taken: Call = map_tensors(
        call,
        lambda x: x.detach()[index.to(x.device)] if x.dim() and len(x) == sizes[0] else x,
    )
    return taken


@contextmanager
def _trying(backbone: nn.Module, device: str) -> Iterator[None]:
    """Evaluation mode without gradients or autocast, with members that differ."""
    autocast = torch.autocast(device, enabled=False)
    with evaluating(backbone), torch.no_grad(), autocast, _distinct(backbone):
        yield


@contextmanager
def _distinct(backbone: nn.Module) -> Iterator[None]:
    """Members that differ in scales, statistics and heads; gently, so that all stays finite.

    And no branch that starts near zero (layer scales, zero weights), which hides what is in it.
    """
    generator = torch.Generator().manual_seed(0)
    own = member_layers(backbone).values()
    places: list[tuple[Any, str, Tensor]] = [
        (table, name, tensor)
        for layer in own
        for table in (layer._parameters, layer._buffers)
        for name, tensor in table.items()
        if tensor is not None and tensor.is_floating_point()
    ]
    hidden: list[tuple[Any, str, Tensor]] = [
        (module._parameters, name, tensor)
        for module in backbone.modules()
        if module not in own
        for name, tensor in module._parameters.items()
        if tensor is not None and tensor.is_floating_point() and _near_zero(tensor)
    ]
    values = []
    for table, name, tensor in places:
        noise = torch.randn(tensor.shape, generator=generator).to(tensor)
        values.append(_varied(table, name, tensor.detach(), noise))
    for _, _, tensor in hidden:
        noise = torch.randn(tensor.shape, generator=generator).to(tensor)
        values.append(noise / max(tensor[:1].numel(), 1) ** 0.5)
    places += hidden
    try:
        for (table, name, _), value in zip(places, values, strict=True):
            table[name] = value
        yield
    finally:
        for table, name, tensor in places:
            table[name] = tensor


def _near_zero(tensor: Tensor) -> bool:
    return bool(tensor.numel()) and float(tensor.detach().abs().max()) < _HIDDEN


def _varied(table: Any, name: str, tensor: Tensor, noise: Tensor) -> Tensor:
    if name == "running_mean":
        return tensor + 0.1 * table["running_var"].sqrt() * noise
    if name == "running_var":
        return tensor * torch.exp(0.3 * noise)
    if name == "weight" and tensor.dim() == 1:
        return torch.where(tensor.abs() < _HIDDEN, 0.5, tensor)
    if name == "weight":
        return tensor + noise / tensor.shape[-1] ** 0.5
    return tensor + noise if name == "gamma" else tensor
