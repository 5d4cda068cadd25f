"""What comes before the first member-specific layer, computed once for members that run in turn.

Members that run one after the other would each repeat the same work up to the first layer in which
they differ. Here the model runs once up to that layer; the outputs of its parts on the way are kept
and given to every member in place of their ``forward``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.measure import member_layers
from temperance.ensemble.rows import walk

__all__ = ["Prefix", "record_prefix"]

_Forward = Callable[..., Any]
_Wrap = Callable[[_Forward], _Forward]


class _Reached(BaseException):
    """The first member-specific layer is about to run; no model catches it by ``Exception``."""


@dataclass(eq=False)
class _Kept:
    """One output of a part: its value, its tensors, and the leaves that members get for them."""

    value: Any
    tensors: list[Tensor]
    versions: list[int]
    leaves: list[Tensor]


class Prefix:
    """Kept outputs of the parts that run before the first member-specific layer.

    Args:
        calls: outputs of each part, in the order of its calls; None for what cannot be kept.
    """

    def __init__(self, calls: dict[nn.Module, list[_Kept | None]]) -> None:
        self.calls = calls
        self.kept = [x for outputs in calls.values() for x in outputs if x is not None]
        # A model may change what it gets in place, which autograd forbids for leaves: the first
        # member gets copies of those, and shows whether the others need some, too.
        self.copying = True

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Inside, the parts give what was kept; for one forward pass of one member.

        What has no gradient is not copied; if the model changes it, the parts run anew afterwards.
        """
        served: list[Tensor] = []
        with _patched({part: self._serve(kept, served) for part, kept in self.calls.items()}):
            yield
        self.copying = self.copying and any(x._version > 0 for x in served)
        if not all(_intact(kept) for kept in self.kept):
            self.calls = {part: [] for part in self.calls}

    def backward(self) -> None:
        """Send the gradients that the members left back through the parts, once."""
        pairs = [
            (tensor, leaf.grad)
            for output in self.kept
            for tensor, leaf in zip(output.tensors, output.leaves, strict=True)
            if leaf is not tensor and leaf.grad is not None
        ]
        if pairs:
            tensors, gradients = zip(*pairs, strict=True)
            torch.autograd.backward(tensors, gradients)

    def _serve(self, kept: list[_Kept | None], served: list[Tensor]) -> _Wrap:
        """Stand in for the ``forward`` of a part; calls behind the prefix are its own."""
        left = iter(kept)

        def wrap(forward: _Forward) -> _Forward:
            def give(*args: Any, **kwargs: Any) -> Any:
                output = next(left, None)
                if output is None:
                    return forward(*args, **kwargs)
                leaves = iter(output.leaves)
                return walk(output.value, lambda *_: hand_out(next(leaves)), "")

            return give

        def hand_out(leaf: Tensor) -> Tensor:
            if not self.copying or not leaf.requires_grad:
                return leaf
            served.append(leaf.clone())
            return served[-1]

        return wrap


def record_prefix(model: nn.Module, run: Callable[[], Any]) -> Prefix | None:
    """Run a model up to its first member-specific layer and keep what its parts give.

    Args:
        model: the ensemble.
        run: runs it for one member; it is broken off at that layer.

    Returns:
        The outputs; None where there is nothing to share, or it cannot be shared: in compiled
        parts, or if the model changes an output in place on the way.
    """
    parts = [] if torch.is_inference_mode_enabled() else _parts(model)
    if not parts:
        return None
    calls: dict[nn.Module, list[_Kept | None]] = {}
    running: list[nn.Module] = []
    own = member_layers(model).values()
    handles = [layer.register_forward_pre_hook(_reach, prepend=True) for layer in own]
    try:
        with _patched({part: _recorder(part, calls, running) for part in parts}):
            run()
    except _Reached:
        prefix = Prefix(calls)
        return prefix if prefix.kept and all(map(_intact, prefix.kept)) else None
    finally:
        for handle in handles:
            handle.remove()
    return None


# ------------------------------------------------------------------ the pieces
def _reach(*_: Any) -> None:
    raise _Reached


def _parts(model: nn.Module) -> list[nn.Module]:
    """The largest modules that hold no member-specific layer; none if anything is compiled."""
    own = set(member_layers(model).values())
    parts: list[nn.Module] = []

    def look(module: nn.Module) -> bool:
        """Whether the module holds a member-specific layer; what does not is a part."""
        if module in own:
            return True
        children = list(module.children())
        found = [look(child) for child in children]
        if any(found):
            parts.extend(c for c, has in zip(children, found, strict=True) if not has)
        return any(found)

    compiled = (torch._dynamo.OptimizedModule, torch.jit.ScriptModule)
    for module in model.modules():
        if isinstance(module, compiled) or getattr(module, "_compiled_call_impl", None):
            return []
    look(model)
    return list(dict.fromkeys(parts))


def _recorder(
    part: nn.Module, calls: dict[nn.Module, list[_Kept | None]], running: list[nn.Module]
) -> _Wrap:
    """Keep what a part gives; not what a part inside another one does, which will not be called.

    Nor what it gives inside a checkpoint, which runs the part anew for every member's gradient and
    has to find the same operations and random numbers as in the pass before.
    """
    grad, hooks = torch.is_grad_enabled(), _saving_hooks()

    def wrap(forward: _Forward) -> _Forward:
        def keep(*args: Any, **kwargs: Any) -> Any:
            within = torch.is_grad_enabled() != grad  # a frozen part, or an older checkpoint
            before = _random_state() if within else []
            running.append(part)
            try:
                value = forward(*args, **kwargs)
            finally:
                running.pop()
            if not running:
                drawn = within and not all(map(torch.equal, before, _random_state()))
                own = drawn or _saving_hooks() != hooks
                calls.setdefault(part, []).append(None if own else _kept(value))
            return value

        return keep

    return wrap


def _saving_hooks() -> Any:
    """What autograd does with tensors that it saves; a checkpoint has hooks of its own."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


def _random_state() -> list[Tensor]:
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_gpus]


def _kept(value: Any) -> _Kept | None:
    if not _plain(value):
        return None
    tensors: list[Tensor] = []

    def note(_: str, x: Tensor) -> Tensor:
        tensors.append(x)
        return x

    walk(value, note, "")
    leaves = [x.detach().requires_grad_() if x.requires_grad else x for x in tensors]
    return _Kept(value, tensors, [-1 if x.is_inference() else x._version for x in tensors], leaves)


def _plain(value: Any) -> bool:
    """Whether ``walk`` finds every tensor in it."""
    if type(value) is dict:
        return all(map(_plain, value.values()))
    if isinstance(value, (tuple, list)):
        walked = type(value) in (tuple, list) or hasattr(value, "_fields")
        return walked and all(map(_plain, value))
    return value is None or isinstance(value, (Tensor, bool, int, float, str))


def _intact(kept: _Kept) -> bool:
    """Whether nothing was changed in place since; nobody counts for a tensor of inference mode."""
    if any(x.is_inference() for x in kept.tensors):
        return False
    return all(x._version == v for x, v in zip(kept.tensors, kept.versions, strict=True))


@contextmanager
def _patched(wraps: dict[nn.Module, _Wrap]) -> Iterator[None]:
    """Let modules run another ``forward``; hooks run as ever."""
    before = {module: module.__dict__.get("forward") for module in wraps}
    try:
        for module, wrap in wraps.items():
            module.__dict__["forward"] = wrap(module.forward)
        yield
    finally:
        for module, forward in before.items():
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward
