"""What a trainer knows of its training when the head gets its T: facts, or why there are none.

Each of these functions is called before the first step, when the optimizer and its scheduler are
there, and looks at them as they are (``temperance.training_facts``): of what a framework declares,
only the length of the training and how batches make up a step is read. Where the length or the
learning rate cannot be known (early stopping, a step of the module's own, ...) the answer is a text
that says why, and no rule is given a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from temperance.errors import InvalidInput, NotFound
from temperance.rules import training_facts
from temperance.rules.training import FAMILIES

__all__ = ["Told", "lightning_training", "skorch_training", "told", "trainer_training"]

Told = Mapping[str, Any] | str
"""Facts of a training as ``training_facts`` gives them; or why they are not known, in words."""

_LIGHTNING = ("lightning", "pytorch_lightning")
_STOPPING = "may end the training at any step"
_MOVING = "changes what is trained, and how, while it is trained"
_LIGHTNING_CALLBACKS = {
    "EarlyStopping": _STOPPING,
    "Timer": _STOPPING,
    "StochasticWeightAveraging": "sets the learning rate on its way",
    "GradientAccumulationScheduler": "changes the batches of a step on its way",
    "BaseFinetuning": _MOVING,
}


class _Unknown(Exception):
    """A training whose facts cannot be known; the message says why."""


def told(ask: Callable[[], Mapping[str, Any]]) -> Told:
    """Give the facts of a training, or say why they are not known.

    Args:
        ask: gives the facts; what it refuses (InvalidInput, NotFound) becomes the text.

    Returns:
        The facts, or the text.

    Example:
        >>> import torch
        >>> from temperance import training_facts
        >>> from temperance.integrations.known_training import told
        >>> optimizer = torch.optim.Adagrad([torch.zeros(2)])
        >>> told(lambda: training_facts(optimizer, (640, 64), 10))
        'optimizer: a Adagrad is none that is known'
    """
    try:
        return ask()
    except (InvalidInput, NotFound) as error:
        return f"{error.subject}: {error.found}"
    except _Unknown as why:
        return str(why)


# ------------------------------------------------------------------ Hugging Face
def trainer_training(args: Any, state: Any, *, optimizer: Any, scheduler: Any, loader: Any) -> Told:
    """Read the facts in ``on_train_begin`` of a Hugging Face Trainer.

    Trainer steps its scheduler once for each optimizer step, whatever the number of processes;
    ``state.max_steps`` are the steps that it will do, also where epochs were asked for.

    Args:
        args: the TrainingArguments.
        state: the TrainerState, of a training that does not resume.
        optimizer: as Trainer made and wrapped it.
        scheduler: of the learning rate.
        loader: what Trainer trains with, prepared for all processes.

    Returns:
        The facts, or why there are none.
    """

    def ask() -> Mapping[str, Any]:
        _refuse_trainer(args, state, optimizer)
        facts = training_facts(
            optimizer,
            loader,
            steps=state.max_steps,
            scheduler={"scheduler": scheduler, "interval": "step"},
            accumulation=args.gradient_accumulation_steps,
        )
        smoothing = getattr(args, "label_smoothing_factor", 0.0)
        return _remarked(facts, clip=getattr(args, "max_grad_norm", None), smoothing=smoothing)

    return told(ask)


def _refuse_trainer(args: Any, state: Any, optimizer: Any) -> None:
    if optimizer is None:
        raise _Unknown("the Trainer has no optimizer when the training starts")
    if "EarlyStoppingCallback" in (getattr(state, "stateful_callbacks", None) or {}):
        raise _Unknown(f"EarlyStoppingCallback {_STOPPING}")
    if getattr(args, "auto_find_batch_size", False):
        raise _Unknown("auto_find_batch_size may change the batches")
    if getattr(args, "parallelism_config", None) is not None:
        raise _Unknown("a parallelism_config, with which the rows of a step are not known")
    if state.max_steps <= 0:
        raise _Unknown("the number of steps is not known")


# ------------------------------------------------------------------ Lightning
def lightning_training(trainer: Any, pl_module: Any, loader: Any) -> Told:
    """Read the facts in ``on_fit_start`` of a Lightning Trainer.

    The steps are those of ``trainer.estimated_stepping_batches``, counted here: that one starts to
    read the loader, and random states would move.

    Args:
        trainer: the Trainer, with its optimizers.
        pl_module: the LightningModule.
        loader: the training loader as the user made it, of all processes.

    Returns:
        The facts, or why there are none.
    """

    def ask() -> Mapping[str, Any]:
        _refuse_lightning(trainer, pl_module)
        share = _share_of(trainer, loader)
        facts = training_facts(
            trainer.optimizers[0],
            share,
            steps=_lightning_steps(trainer, share),
            scheduler=_lightning_schedule(trainer),
            accumulation=trainer.accumulate_grad_batches,
        )
        return _remarked(facts, clip=trainer.gradient_clip_val)

    return told(ask)


def _refuse_lightning(trainer: Any, pl_module: Any) -> None:
    if not pl_module.automatic_optimization:
        raise _Unknown("manual optimization, whose steps are the module's own")
    for name in ("optimizer_step", "lr_scheduler_step"):
        if getattr(pl_module, name).__module__.split(".")[0] not in _LIGHTNING:
            raise _Unknown(f"the module has a {name} of its own")
    if len(trainer.optimizers) != 1:
        raise _Unknown(f"{len(trainer.optimizers)} optimizers")
    if len(trainer.lr_scheduler_configs) > 1:
        raise _Unknown(f"{len(trainer.lr_scheduler_configs)} schedulers of one optimizer")
    if trainer.global_step or trainer.current_epoch:
        raise _Unknown("the Trainer goes on from an earlier fit")
    if trainer.reload_dataloaders_every_n_epochs:
        raise _Unknown("reload_dataloaders_every_n_epochs may change the data")
    _refuse_callbacks(trainer.callbacks, _LIGHTNING_CALLBACKS)


def _share_of(trainer: Any, loader: Any) -> Any:
    """The loader of this process, as Lightning will make it: with a DistributedSampler."""
    limit = trainer.limit_train_batches  # a whole number is one of batches, 1.0 is all of them
    if isinstance(limit, int) or limit != 1.0 or trainer.overfit_batches:
        raise _Unknown("an epoch is a part of the loader only")
    if trainer.world_size == 1:
        return loader
    make = trainer._data_connector._prepare_dataloader
    return make(loader, shuffle=True, mode=trainer.state.stage)


def _lightning_steps(trainer: Any, loader: Any) -> int:
    """Optimizer steps, by epochs and ``max_steps``: whichever ends first."""
    ends = [] if trainer.max_steps == -1 else [trainer.max_steps]
    if trainer.max_epochs not in (None, -1):
        try:
            batches = len(loader)
        except TypeError:
            raise _Unknown("a stream, whose epochs have no known length") from None
        ends.append(math.ceil(batches / trainer.accumulate_grad_batches) * trainer.max_epochs)
    if not ends:
        raise _Unknown("a training without an end")
    return int(min(ends))


def _lightning_schedule(trainer: Any) -> Any:
    """None, or the scheduler with its interval and frequency."""
    for config in trainer.lr_scheduler_configs:
        names = ("scheduler", "interval", "frequency")
        return {name: getattr(config, name) for name in names}
    return None


# ------------------------------------------------------------------ skorch
def skorch_training(net: Any, dataset_train: Any) -> Told:
    """Read the facts in the first ``on_epoch_begin`` of a skorch net.

    Its length is ``max_epochs``, as the net declares it: a net that is trained by ``partial_fit``
    again and again, or with ``fit(..., epochs=...)``, does not say how long.

    Args:
        net: the net, with its optimizer and the schedulers of its callbacks.
        dataset_train: the rows that train.

    Returns:
        The facts, or why there are none.
    """

    def ask() -> Mapping[str, Any]:
        callbacks = [callback for _, callback in net.callbacks_]
        _refuse_callbacks(callbacks, {"EarlyStopping": _STOPPING})
        if len(net.history) > 1:
            raise _Unknown("the net goes on from an earlier training")
        facts = training_facts(
            net.optimizer_,
            net.get_iterator(dataset_train, training=True),
            net.max_epochs,
            scheduler=_skorch_schedule(callbacks),
        )
        clips = [c.gradient_clip_value for c in callbacks if _is(c, "GradientNormClipping")]
        smoothing = getattr(net.criterion_, "label_smoothing", 0.0)
        return _remarked(facts, clip=next((c for c in clips if c), None), smoothing=smoothing)

    return told(ask)


def _skorch_schedule(callbacks: Iterable[Any]) -> Any:
    found = [callback for callback in callbacks if _is(callback, "LRScheduler")]
    if len(found) > 1:
        raise _Unknown(f"{len(found)} schedulers of one optimizer")
    for callback in found:
        interval = "step" if callback.step_every == "batch" else "epoch"
        return {"scheduler": callback.lr_scheduler_, "interval": interval}
    return None


# ------------------------------------------------------------------ helpers
def _is(thing: Any, name: str) -> bool:
    """Whether a thing is of a class of that name: frameworks need not be installed."""
    return any(cls.__name__ == name for cls in type(thing).__mro__)


def _refuse_callbacks(callbacks: Iterable[Any], reasons: Mapping[str, str]) -> None:
    for callback in callbacks:
        for name, reason in reasons.items():
            if _is(callback, name):
                raise _Unknown(f"{type(callback).__name__} {reason}")


def _remarked(
    facts: Mapping[str, Any], *, clip: float | None = None, smoothing: float = 0.0
) -> Mapping[str, Any]:
    """The facts, with what else the framework does to the training and no law was fitted on."""
    remarks = list(facts.get("remarks", ()))
    if clip and facts["optimizer"] in FAMILIES["sgd"]:  # others divide by the gradient's size
        remarks.append(f"gradients clipped at {clip:g}")
    if smoothing:
        remarks.append(f"label smoothing of {smoothing:g}")
    return {**facts, "remarks": remarks} if remarks else facts
