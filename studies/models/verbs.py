"""One model through ``find_heads``, ``insert_all``, ``fold``, ``remove`` and ``convert``.

The model gets scales, shifts and running statistics that are not those of a fresh one, so that a
verb that forgot one of them would show.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from temperance.ensemble import convert
from temperance.errors import TemperanceError, TemperanceWarning
from temperance.head import TOLERANCE, TemperedHead, fold, insert_all, remove
from temperance.models import call_model, evaluating, find_heads, logits_of, split_batch
from temperance.models.declared import advertised_width
from temperance.models.outputs import map_tensors

__all__ = ["CLASSES", "CONVERT_TOLERANCE", "TEMPERATURE", "Row", "examine", "roughen", "settle"]

CLASSES = 10
TEMPERATURE = 3.7  # any but 1
MEMBERS, ROWS = 3, 2
# Of the largest logit. Deep nets with random weights make more of rounding than one layer does.
CONVERT_TOLERANCE = 1e-3


@dataclass
class Row:
    """What became of one model; the fields of a line of ``rows.jsonl``.

    Attributes:
        library: torchvision, timm or transformers.
        family: module of timm, or the kind of model.
        name: the model.
        size: how large it was built: side of the pictures, or tokens.
        head: dotted names of the output layers.
        kind: linear or conv1x1.
        in_features: M, the true one, of each head.
        advertised: what the model states (name and number), if it is another.
        declared: the names that the library declares; None where it declares none.
        find, insert, fold, remove, convert: ok, refused, failed or (after another) skipped.
        fold_error: largest difference of a logit, tempered against folded, by the largest logit.
        convert_error: the same, members of ``convert(spread=0)`` against the model.
        convert_proposed: the same after doing what a refusal of ``convert`` proposes: to insert a
            norm in front of the output layer, or to pass ``norms="recognized"``.
        outcome: passed, refused or failed.
        note: reasons, warnings and what else is good to know.
        seconds: of one core, of the whole.
        memory_gb: largest resident memory of the process.
    """

    library: str
    family: str
    name: str
    size: str = ""
    head: list[str] = field(default_factory=list)
    kind: str = ""
    in_features: list[int] = field(default_factory=list)
    advertised: str = ""
    declared: list[str] | None = None
    find: str = "skipped"
    insert: str = "skipped"
    fold: str = "skipped"
    remove: str = "skipped"
    convert: str = "skipped"
    fold_error: float | None = None
    convert_error: float | None = None
    convert_proposed: float | None = None
    outcome: str = "failed"
    note: list[str] = field(default_factory=list)
    seconds: float = 0.0
    memory_gb: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Give the row as a mapping for JSON."""
        return asdict(self)


def examine(row: Row, model: nn.Module, batch: Any, *, convertible: bool = True) -> Row:
    """Run all verbs on a model and fill in its row.

    Args:
        row: with library, family and name.
        model: the classifier; it is changed.
        batch: eight rows or so, on which BatchNorm gets its statistics; the verbs run on two.
        convertible: whether to try ``convert``.

    Returns:
        The same row.
    """
    model.eval()
    roughen(model)
    settle(model, batch)
    batch = map_tensors(split_batch(batch)[0], lambda x: x[:ROWS])
    row.declared = _declared(model)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        plain = _logits(model, batch)
        _note_probe(row, plain)
        if _step(row, "find", lambda: _find(row, model, batch)):
            heads: dict[str, TemperedHead] = {}
            if _step(row, "insert", lambda: _insert(model, batch, heads)):
                _step(row, "fold", lambda: _fold(row, model, batch))
                _step(row, "remove", lambda: _remove(model, batch, heads, plain))
        if convertible:
            _step(row, "convert", lambda: _convert(row, model, batch, plain))
            if row.convert == "refused":
                _convert_as_proposed(row, model, batch, plain)
    texts = {str(w.message) for w in caught if isinstance(w.message, TemperanceWarning)}
    row.note += sorted(f"warning: {text}" for text in texts)
    verbs = [row.find, row.insert, row.fold, row.remove, *([row.convert] if convertible else [])]
    row.outcome = next((o for o in ("failed", "refused") if o in verbs), "passed")
    return row


@torch.no_grad()
def roughen(model: nn.Module, seed: int = 0) -> None:
    """Move scales, shifts and weights away from where they start, in place."""
    draw = torch.Generator().manual_seed(seed)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=draw, dtype=torch.float32).to(like)

    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        idle = float(parameter.abs().max()) < 1e-3  # branches and heads that start switched off
        if parameter.ndim >= 2 and parameter.numel() > 1 and (idle or float(parameter.std()) > 0):
            wanted, found = parameter[0].numel() ** -0.5, float(parameter.std())
            if idle:
                parameter.add_(wanted * noise(parameter))
            elif found < 0.5 * wanted:  # a signal that dies on its way would show nothing
                parameter.mul_(wanted / found)
        else:
            parameter.add_((0.3 if idle else 0.0) + 0.1 * noise(parameter))


@torch.no_grad()
def settle(model: nn.Module, batch: Any, seed: int = 1) -> None:
    """Give every BatchNorm statistics near those of the batch, in place.

    Else the signal of a deep net with random weights dies, and all rows get the same logits.
    """
    norms = [m for m in model.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    before = [(m.momentum, m.running_mean, m.running_var) for m in norms]
    state = {k: v.clone() for k, v in model.state_dict().items()} if norms else {}
    draw = torch.Generator().manual_seed(seed)
    try:
        for norm in norms:
            norm.momentum, norm.training = 1.0, True
        if norms:
            call_model(model, split_batch(batch)[0])
    except ValueError:  # one position of one row: torch wants more than that in training
        model.load_state_dict(state)
    finally:
        for norm, (momentum, mean, var) in zip(norms, before, strict=True):
            norm.momentum, norm.training = momentum, False
            if mean is not None and var is not None:
                var.add_(0.1 * var.mean() + 1e-5)
                mean.add_(0.1 * var.sqrt() * torch.randn(mean.shape, generator=draw))
                var.mul_((0.2 * torch.randn(var.shape, generator=draw)).exp())


# ------------------------------------------------------------------ the verbs
def _step(row: Row, verb: str, run: Callable[[], None]) -> bool:
    """Run one verb; a refusal is an error of the library that says what to do."""
    try:
        run()
    except TemperanceError as error:
        setattr(row, verb, "refused")
        row.note.append(f"{verb} refused: {error}")
    except Exception as error:  # whatever it is, it belongs into the table
        setattr(row, verb, "failed")
        text = str(error).strip().splitlines()[0] if str(error).strip() else ""
        row.note.append(f"{verb} failed: {type(error).__name__}: {text}")
    else:
        setattr(row, verb, "ok")
    return bool(getattr(row, verb) == "ok")


def _find(row: Row, model: nn.Module, batch: Any) -> None:
    heads = find_heads(model, batch)
    row.head = [h.name for h in heads]
    row.kind = " ".join(sorted({h.kind for h in heads}))
    row.in_features = [h.in_features for h in heads]
    name, width = advertised_width(model)
    others = [h for h in heads if width not in (None, h.in_features)]
    if others:
        row.advertised = f"{name} {width}"
        told = all(any(str(width) in n for n in h.notes) for h in others)
        _expect(told, "the difference was not told")
    _expect(all(h.verified for h in heads), "the head was not verified")
    if row.declared is not None and row.declared != row.head:
        row.note.append(f"the library declares {', '.join(row.declared)}")


def _insert(model: nn.Module, batch: Any, heads: dict[str, TemperedHead]) -> None:
    heads.update(insert_all(model, TEMPERATURE, example=batch))
    inputs: dict[str, Tensor] = {}
    handles = [
        head.register_forward_pre_hook(
            lambda _m, args, name=name: inputs.__setitem__(name, args[0].detach())
        )
        for name, head in heads.items()
    ]
    before = _logits(model, batch)
    for handle in handles:
        handle.remove()
    draw = torch.Generator().manual_seed(1)
    for name, head in heads.items():
        x = inputs[name].movedim(head.feature_axis, -1).flatten(0, -2).double()
        spread = x.std(0) + 0.1 * x.std() + 1e-6
        norm: Any = head.norm
        norm.running_mean.copy_(x.mean(0) + 0.3 * spread * torch.randn(len(spread), generator=draw))
        norm.running_var.copy_((spread * (0.5 + torch.rand(len(spread), generator=draw))) ** 2)
        norm.num_batches_tracked.fill_(1)
        norm.weight.copy_(torch.randn(len(spread), generator=draw))
        norm.bias.copy_(torch.randn(len(spread), generator=draw))
    _expect(not torch.equal(before, _logits(model, batch)), "the new head does not act")


def _fold(row: Row, model: nn.Module, batch: Any) -> None:
    tempered = _logits(model, batch)
    folded = fold(model, batch)
    _expect(not any(isinstance(m, TemperedHead) for m in folded.modules()), "a head is left")
    row.fold_error = _relative(_logits(folded, batch), tempered)
    _expect(row.fold_error <= TOLERANCE[torch.float32], "the folded model gives other logits")


def _remove(model: nn.Module, batch: Any, heads: dict[str, TemperedHead], plain: Tensor) -> None:
    for name in heads:
        remove(model, name=name)
    _expect(torch.equal(_logits(model, batch), plain), "the logits differ from those before")


def _convert(row: Row, model: nn.Module, batch: Any, plain: Tensor) -> None:
    row.convert_error = _members_error(model, batch, plain)
    _expect(row.convert_error <= CONVERT_TOLERANCE, "the members give other logits")


def _convert_as_proposed(row: Row, model: nn.Module, batch: Any, plain: Tensor) -> None:
    """Do what the refusal says, and see whether it helps."""
    refusal, done = row.note[-1], ""
    try:
        norms = "recognized" if "norms='recognized'" in refusal else None
        inserts = "temperance.insert(" in refusal
        if not (norms or inserts):
            return
        done = ("insert, then " if inserts else "") + "convert"
        done += f" with norms={norms!r}" if norms else ""
        if inserts:
            _insert(model, batch, {})
            plain = _logits(model, batch)
        error = _members_error(model, batch, plain, norms=norms)
        _expect(error <= CONVERT_TOLERANCE, "the members give other logits")
    except TemperanceError as refused:
        row.note.append(f"{done}: refused again: {refused}")
    except Exception as failed:
        row.convert = "failed"
        row.note.append(f"{done}: {type(failed).__name__}: {failed}")
    else:
        row.convert_proposed = error
        row.note.append(f"{done}: error {error:.1e}")


def _members_error(
    model: nn.Module, batch: Any, plain: Tensor, *, norms: str | None = None
) -> float:
    ensemble = convert(model, MEMBERS, spread=0.0, heads="copy", example=batch, norms=norms)
    together = _logits(ensemble, batch)
    _expect(together.shape == (MEMBERS, *plain.shape), f"a shape of {list(together.shape)}")
    return _relative(together, plain.expand_as(together))


# ------------------------------------------------------------------ helpers
def _logits(model: nn.Module, batch: Any) -> Tensor:
    with evaluating(model):
        return logits_of(call_model(model, split_batch(batch)[0])).detach().clone()


def _relative(found: Tensor, expected: Tensor) -> float:
    largest = float(expected.abs().max())
    return float((found.double() - expected.double()).abs().max()) / max(largest, 1e-30)


def _note_probe(row: Row, plain: Tensor) -> None:
    """Rows that give the same logits would hide a mixture of rows."""
    _expect(plain.ndim == 2 and plain.shape[1] == CLASSES, f"logits of shape {list(plain.shape)}")
    _expect(bool(torch.isfinite(plain).all()), "logits that are not finite")
    apart = float((plain[0] - plain[1]).abs().max()) / float(plain.abs().max())
    if apart < 1e-4:
        row.note.append(f"the rows of the probe differ by {apart:.0e} only")


def _declared(model: nn.Module) -> list[str] | None:
    """What timm says; the other libraries have no such field."""
    config = getattr(model, "default_cfg", None)
    names = config.get("classifier") if isinstance(config, dict) else None
    return None if not names else [names] if isinstance(names, str) else list(names)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
