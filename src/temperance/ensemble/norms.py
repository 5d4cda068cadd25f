"""Which modules of a model are to be members' own: all norms, or those that are named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm as InstanceNorm
from torch.nn.parameter import is_lazy

from temperance.ensemble.recognize import is_norm_like, recognize
from temperance.ensemble.sigma_norm import NormFacts
from temperance.errors import InvalidInput, NotFound

__all__ = ["FoundNorm", "find_norms"]

_SHOWN = 6


@dataclass(frozen=True, eq=False)
class FoundNorm:
    """A normalization layer that can be a member's own.

    Attributes:
        name: dotted name.
        module: the layer.
        facts: what it computes.
    """

    name: str
    module: nn.Module
    facts: NormFacts


def find_norms(model: nn.Module, norms: str | Sequence[str] | None = None) -> tuple[FoundNorm, ...]:
    """Find the normalization layers that are to be members' own.

    Args:
        model: the model; unchanged.
        norms: None for all, and a kind that is not known is an error; ``"recognized"`` for all that
            are known, while the others stay shared; or patterns of dotted names, such as
            ``"blocks.*.norm1"``, or ``["*", "!head.*"]`` for all but some.

    Returns:
        The layers, in the order of registration.

    Raises:
        NotFound: if there is none, or a pattern fits none.
        InvalidInput: for layers of unknown kinds (with their names), one layer under two names,
            weights that two layers share, hooks on a layer, a BatchNorm without running statistics
            or left out, or if ``norms`` is none of these.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        >>> [(norm.name, norm.facts.kind) for norm in find_norms(model)]
        [('1', 'batch')]
    """
    modules = _norm_like(model)
    known: dict[str, FoundNorm] = {}
    unknown: dict[str, nn.Module] = {}
    for name, module in modules.items():
        _refuse_lazy(name, module)
        facts = recognize(module)
        if facts is None:
            unknown[name] = module
        else:
            known[name] = FoundNorm(name, module, facts)
    chosen = _chosen(known, unknown, norms)
    if not chosen:
        raise _no_norms(model)
    _refuse_left_out({n: m for n, m in modules.items() if n not in chosen})
    _refuse_tied(model, chosen)
    for found in chosen.values():
        _refuse_without_statistics(found)
        _refuse_changed(found)
    return tuple(chosen.values())


# ------------------------------------------------------------------ which modules are norms
def _norm_like(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that are norms, or call themselves so; not what is inside them; each once."""
    found: dict[str, nn.Module] = {}
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module not in inside and is_norm_like(module):
            found[name] = module
            inside.update(module.modules())
    return found


def _chosen(
    known: dict[str, FoundNorm], unknown: dict[str, nn.Module], norms: str | Sequence[str] | None
) -> dict[str, FoundNorm]:
    if norms == "recognized":
        return known
    if norms is None:
        if unknown and not known:
            raise _unknown(unknown, "Put a known one in front of the output layer "
                           "(temperance.insert(model, T, norm='batch')), and pass "
                           "norms='recognized' to leave these shared by all members.")  # fmt: skip
        if unknown:
            raise _unknown(unknown, "Pass norms='recognized' to leave them shared by all members, "
                           "or put known ones in their place.")  # fmt: skip
        return known
    patterns = _patterns(norms)
    for pattern in patterns:
        if not any(fnmatchcase(n, pattern.removeprefix("!")) for n in (*known, *unknown)):
            raise NotFound(
                f"norms {pattern!r}",
                found="no normalization layer has such a name",
                candidates=tuple(known)[:_SHOWN],
                fix="Take names from model.named_modules(); * stands for anything.",
            )
    named = {n: m for n, m in unknown.items() if _fits(n, patterns)}
    if named:
        raise _unknown(named, "Leave them out of norms.")
    return {n: f for n, f in known.items() if _fits(n, patterns)}


def _patterns(norms: Any) -> list[str]:
    patterns = [norms] if isinstance(norms, str) else norms
    if not isinstance(patterns, Sequence) or not all(isinstance(p, str) for p in patterns):
        raise InvalidInput(
            "norms",
            expected="None, 'recognized', or patterns of names",
            found=repr(norms),
            fix="Give a string or a list of strings.",
        )
    return list(patterns)


def _fits(name: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern takes a name, and none that starts with ``!`` takes it out."""
    out = [p[1:] for p in patterns if p.startswith("!")]
    return any(fnmatchcase(name, p) for p in patterns if not p.startswith("!")) and not any(
        fnmatchcase(name, p) for p in out
    )


# ------------------------------------------------------------------ refusals
def _unknown(modules: dict[str, nn.Module], fix: str) -> InvalidInput:
    return InvalidInput(
        "normalization layers",
        expected="BatchNorm, LayerNorm, GroupNorm or RMSNorm",
        found=_named(modules.items()),
        fix=fix,
    )


def _no_norms(model: nn.Module) -> NotFound:
    return NotFound(
        "normalization layers",
        found=f"{type(model).__name__} has none that can be a member's own",
        fix="The members differ in their norms only: choose a model that has some, put one in "
        "front of the output layer (temperance.insert(model, T, norm='batch')), or train several "
        "models.",
    )


def _refuse_left_out(modules: dict[str, nn.Module]) -> None:
    bad = {
        n: m
        for n, m in modules.items()
        if isinstance(m, BatchNorm) or (isinstance(m, InstanceNorm) and m.track_running_stats)
    }
    if bad:
        raise InvalidInput(
            "norms that all members share",
            expected="layers that see one row at a time",
            found=f"{_named(bad.items())}, whose statistics would mix the members",
            fix="Let norms cover every BatchNorm, and have no InstanceNorm with running "
            "statistics.",
        )


def _refuse_tied(model: nn.Module, chosen: dict[str, FoundNorm]) -> None:
    """An alias of a whole part is fine: the norm inside still has one place."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for table in (module._modules, module._parameters):
            for key, value in table.items():
                if value is not None:
                    owners.setdefault(id(value), []).append(f"{name}.{key}".lstrip("."))
    for found in chosen.values():
        for value in (found.module, *found.module.parameters(recurse=False)):
            if len(owners.get(id(value), ())) > 1:
                raise InvalidInput(
                    f"norm {found.name!r}",
                    expected="a layer with one place and weights of its own",
                    found=f"one under the names {', '.join(owners[id(value)])}",
                    fix="Untie them: put a copy.deepcopy of the layer in the second place.",
                )


def _refuse_without_statistics(found: FoundNorm) -> None:
    if found.facts.kind == "batch" and getattr(found.module, "running_mean", None) is None:
        raise InvalidInput(
            f"norm {found.name!r}",
            expected="running statistics",
            found="a BatchNorm without them, whose predictions depend on the batch",
            fix="Build the model with track_running_stats=True.",
        )


def _refuse_changed(found: FoundNorm) -> None:
    """What is around a layer's own forward would be lost with it, and what it computes, too."""
    module = found.module
    hooks = len(module._forward_hooks) + len(module._forward_pre_hooks)
    if hooks or "forward" in vars(module):
        raise InvalidInput(
            f"norm {found.name!r}",
            expected="a layer as its class defines it",
            found=f"one with {hooks} forward hooks" if hooks else "one with another forward",
            fix="Remove them before converting; register hooks on the ensemble's layers.",
        )


def _refuse_lazy(name: str, module: nn.Module) -> None:
    if any(is_lazy(t) for t in (*module.parameters(), *module.buffers())):
        raise InvalidInput(
            f"norm {name!r}",
            expected="a layer with a shape",
            found="a lazy layer",
            fix="Run one batch through the model first.",
        )


def _named(modules: Iterable[tuple[str, nn.Module]]) -> str:
    items = [f"{name} ({type(module).__name__})" for name, module in modules]
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more
