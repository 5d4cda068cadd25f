"""Hugging Face's Trainer, as it is: a callback puts the head in before the optimizer is built.

``Trainer`` builds its optimizer when the training starts; ``on_init_end`` of its callbacks comes
long before, and the head has to be in the model by then. So give the callback to ``Trainer(...)``,
or call ``add_to_trainer(trainer)`` before ``trainer.train()``.
"""

# ruff: noqa: ARG002 - events have the arguments that Trainer calls them with

from __future__ import annotations

import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from temperance.errors import InvalidInput, MissingPackage, NotFound
from temperance.head import TemperedHead, check_optimizer, tempered_heads
from temperance.integrations.huggingface_saving import SavedModel, save_folded
from temperance.integrations.known_training import Told, trainer_training
from temperance.integrations.loaders import check_rows
from temperance.integrations.placement import (
    Placement,
    PlaceOptions,
    name_of,
    put_in,
    settle,
)
from temperance.integrations.tempered_state import heads_in
from temperance.integrations.watch import HeadWatch, progress_bar
from temperance.models import LABEL_KEYS, strip_prefixes, unwrap
from temperance.serial import from_dict, to_dict

__all__ = ["SavedModel", "TemperatureTrainerCallback", "add_to_trainer", "save_folded"]

_IGNORED = -100  # what Hugging Face's collators and losses leave out
_OTHER_LOSSES = ("regression", "multi_label_classification")
_ID_TYPES = (torch.int64, torch.int32)  # of which transformers takes the cross entropy


def _base() -> Any:
    """TrainerCallback with a state in the checkpoints; a plain class without transformers."""
    try:
        module = importlib.import_module("transformers.trainer_callback")
    except ImportError:
        return object
    return type("_Callback", (module.TrainerCallback, module.ExportableState), {})


_Callback: Any = _base()


class TemperatureTrainerCallback(_Callback):
    """Insert the head, measure, suggest T; then log T and what it does to the gradient.

    The head goes in at the end of ``Trainer(...)``, so pass the callback there. T and the
    statistics follow when the training starts, from one pass over its data in evaluation mode; the
    optimizer is refused if it does not hold the head. When the training resumes from a checkpoint,
    nothing is measured. A model that has a head already keeps it.

    The logs of the training steps, and so ``trainer.state.log_history``, get ``temperature`` and
    ``gradient_ratio`` (see ``temperance.integrations.watch``). Trainer runs reporting callbacks
    (TensorBoard and the like) before its user's: to see both there, use ``add_to_trainer``.

    Args:
        temperature: T; or the name of a rule, or of a file of ``temperance fit``; None for the
            best-informed rule: that of the budget where the Trainer says how it will train
            (optimizer, rates, steps, batches); a published one, with a TemperanceWarning that says
            why, where that cannot be known.
        options: rarely changed settings; labels of -100 are left out of the measurement, unless
            it names another one.

    Attributes:
        placement: what was put in; None before the training.

    Raises:
        MissingPackage: without transformers. In the Trainer, InvalidInput for models of several
            labels per row and of numbers (``problem_type``, or labels that are no whole numbers),
            which have no softmax; and for checkpoints that do not have this head.

    Example:
        >>> from temperance.integrations.huggingface import TemperatureTrainerCallback
        >>> callback = TemperatureTrainerCallback("sqrt-dim")
        >>> callback.temperature
        'sqrt-dim'
    """

    def __init__(
        self, temperature: float | str | None = None, *, options: PlaceOptions | None = None
    ) -> None:
        if _Callback is object:
            raise MissingPackage("transformers", "transformers")
        super().__init__()
        self.temperature = temperature
        self.options = options or PlaceOptions()
        if self.options.ignore is None:
            self.options = replace(self.options, ignore=_IGNORED)
        self.placement: Placement | None = None
        self._fresh: TemperedHead | None = None  # put in, and without its T
        self._watch: HeadWatch | None = None
        self._labels: Any = None
        self._handles: list[Any] = []

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the head in: Trainer has its model, and no optimizer yet."""
        model = kwargs["model"]
        _check_problem(model)
        if tempered_heads(model):
            return
        _refuse_optimizer(kwargs.get("optimizer"))
        _check_in_one_piece(args)
        self._fresh = _put_in(model, self.temperature, self.options)
        # Trainer loads a checkpoint without asking, and its optimizer before the training starts.
        self._handles.append(model.register_load_state_dict_pre_hook(self._check_state))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check that the optimizer holds the head; measure, unless a checkpoint was loaded."""
        model, optimizer = unwrap(kwargs["model"]), kwargs.get("optimizer")
        heads = tempered_heads(model)
        if not heads or (self._fresh is not None and self._fresh not in heads.values()):
            raise NotFound(
                "tempered head",
                found="the Trainer's model has none when the training starts",
                fix="Pass the callback in Trainer(callbacks=[...]), or use add_to_trainer; with "
                "model_init, insert the head inside model_init.",
            )
        if optimizer is not None and not _is_sharded(args):
            check_optimizer(optimizer, model)
        if state.global_step > 0:
            self._resume(state)
        elif self._fresh is not None:
            training = None
            if self.temperature is None or isinstance(self.temperature, str):
                training = trainer_training(
                    args,
                    state,
                    optimizer=optimizer,
                    scheduler=kwargs.get("lr_scheduler"),
                    loader=kwargs["train_dataloader"],
                )
            loader = kwargs["train_dataloader"]
            self._settle(model, self._fresh, args=args, loader=loader, training=training)
        self._fresh = None
        self._stop()
        if getattr(args, "torch_compile", False):
            return
        hook = model.register_forward_pre_hook(self._keep_labels, with_kwargs=True)
        self._handles.append(hook)
        if len(heads) == 1:
            self._watch = HeadWatch(next(iter(heads.values())))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look once more for a loss without a softmax, which a compiled model chose by itself."""
        if getattr(args, "torch_compile", False):
            _check_problem(unwrap(kwargs["model"]))

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add T and the gradient's ratio to the logs of training steps."""
        logs = kwargs.get("logs")
        if not isinstance(logs, dict) or "loss" not in logs:
            return
        more: dict[str, float] = {}
        heads = tempered_heads(unwrap(kwargs["model"]))
        for number, head in enumerate(heads.values()):
            more[f"temperature_{number}" if number else "temperature"] = float(head.temperature)
        ratio = self._watch.ratio(self._labels) if self._watch else None
        if ratio is not None:
            more["gradient_ratio"] = ratio
        logs.update(more)
        if state.log_history:
            state.log_history[-1].update(more)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop watching."""
        self._stop()

    def state(self) -> dict[str, Any]:
        """What ``trainer_state.json`` of a checkpoint says of the head."""
        return {"args": {}, "attributes": {"record": self.record}}

    @property
    def record(self) -> dict[str, Any] | None:
        """The placement as a plain mapping, as it is kept in checkpoints."""
        return None if self.placement is None else to_dict(self.placement)

    @record.setter
    def record(self, value: dict[str, Any] | None) -> None:
        self.placement = None if value is None else from_dict(value, Placement)

    def _resume(self, state: Any) -> None:
        """Read what the checkpoint says of its head; its weights are loaded already."""
        saved = state.stateful_callbacks.get(type(self).__name__)
        saved = saved[0] if isinstance(saved, list) and saved else saved
        if self._fresh is not None and not saved:
            raise _other_checkpoint()
        if saved:
            self.record = saved["attributes"]["record"]

    def _check_state(self, module: nn.Module, state: Any, *_: Any) -> None:
        """Refuse the weights of a plain model, or of one with another norm."""
        head = self._fresh
        if head is None or head not in tempered_heads(module).values():
            return
        name, names = name_of(module, head), strip_prefixes(state)
        if f"{name}.weight" in names:
            raise _other_checkpoint()
        found = heads_in(names).get(name, head.norm_kind)  # none in a shard of the weights
        if found != head.norm_kind:
            fix = f"Pass options=PlaceOptions(norm={found!r})."
            raise _invalid("checkpoint", f"norm {head.norm_kind!r}", f"norm {found!r}", fix)

    def _settle(
        self,
        model: nn.Module,
        head: TemperedHead,
        *,
        args: Any,
        loader: Any,
        training: Told | None = None,
    ) -> None:
        if args.world_size == 1 and head.norm_kind.startswith("batch"):
            # With more processes, Accelerate fills up the last batch.
            shape = SimpleNamespace(
                dataset=getattr(loader, "dataset", None),
                batch_size=args.train_batch_size,
                drop_last=args.dataloader_drop_last,
            )
            check_rows(shape, replicas=max(1, args.n_gpu))
        show = not args.disable_tqdm and args.local_process_index == 0
        with progress_bar("measuring the task", show=show) as told:
            self.placement = settle(
                model,
                _in_order(loader, args),
                self.temperature,
                options=self.options,
                progress=told,
                training=training,
            )

    def _keep_labels(self, module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        if module.training:
            self._labels = next((kwargs[k] for k in LABEL_KEYS if kwargs.get(k) is not None), None)
            try:
                _check_labels(module, self._labels)
            except InvalidInput:
                self._stop()
                raise

    def _stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self._watch is not None:
            self._watch.stop()
        self._watch, self._labels, self._handles = None, None, []


def add_to_trainer(
    trainer: Any,
    temperature: float | str | None = None,
    *,
    options: PlaceOptions | None = None,
) -> TemperatureTrainerCallback:
    """Put the head into a Trainer's model now, and the callback in front of all others.

    Args:
        trainer: a Trainer that has not trained yet.
        temperature: as in the callback.
        options: rarely changed settings.

    Returns:
        The callback; all that reports logs comes after it.

    Raises:
        InvalidInput: if the Trainer has an optimizer already, makes its model anew (``model_init``)
            or shards it.
    """
    if trainer.model_init is not None:
        fix = "Insert the head inside model_init."
        raise _invalid("trainer", "a Trainer with a model", "one with model_init", fix)
    callback = TemperatureTrainerCallback(temperature, options=options)
    given = {"model": trainer.model, "optimizer": trainer.optimizer}
    callback.on_init_end(trainer.args, trainer.state, trainer.control, **given)
    trainer.callback_handler.callbacks.insert(0, callback)
    return callback


# ------------------------------------------------------------------ helpers
def _check_problem(model: nn.Module) -> None:
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    if problem in _OTHER_LOSSES:
        fix = "A softmax temperature is for one label of several."
        raise _invalid("problem_type of the model", "single_label_classification", problem, fix)


def _check_labels(model: nn.Module, labels: Any) -> None:
    """Where its config does not say, transformers chooses the loss by the type of the labels."""
    unsaid = getattr(getattr(model, "config", None), "problem_type", "own loss") is None
    if not unsaid or not isinstance(labels, torch.Tensor) or labels.dtype in _ID_TYPES:
        return
    raise _invalid(
        "labels",
        "class ids as int64 or int32, one per row",
        f"{labels.dtype} of shape {list(labels.shape)}, for which transformers takes a loss of "
        "several labels or of numbers, without a softmax",
        "A softmax temperature is for one label of several: pass class ids; soft labels want a "
        "compute_loss_func of your own.",
    )


def _check_in_one_piece(args: Any) -> None:
    if _is_sharded(args):
        fix = "Call temperance.insert yourself, before the Trainer is made."
        raise _invalid("trainer", "a model in one piece", "FSDP or DeepSpeed", fix)


def _put_in(
    model: nn.Module, temperature: float | str | None, options: PlaceOptions
) -> TemperedHead:
    """There is no batch yet: what transformers declares is believed, and checked in ``settle``."""
    try:
        return put_in(model, temperature, options=options)
    except NotFound as error:
        if options.head is not None or error.subject == "rule":
            raise
        raise NotFound(
            error.subject,
            found=error.found,
            candidates=error.candidates,
            fix="Name it: options=PlaceOptions(head=...).",
        ) from error


def _is_sharded(args: Any) -> bool:
    return bool(getattr(args, "fsdp", None)) or bool(getattr(args, "deepspeed", None))


def _refuse_optimizer(optimizer: Any) -> None:
    if optimizer is not None:
        raise InvalidInput(
            "optimizer",
            expected="one that is built after the head was put in",
            found="one that the Trainer was given, of the model without the head",
            fix="Let the Trainer build it; or insert the head first (temperance.insert), then "
            "build the optimizer and the Trainer.",
        )


def _in_order(loader: Any, args: Any) -> Any:
    """The same rows on this process, unsharded and unshuffled: Trainer's own order stays its own.

    ``loader`` is what Trainer trains with: its data set is without unused columns, its collator
    pads.
    """
    data, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    if data is None or collate is None:
        return loader
    return torch.utils.data.DataLoader(
        data,
        batch_size=args.train_batch_size,
        collate_fn=collate,
        num_workers=args.dataloader_num_workers,
    )


def _other_checkpoint() -> InvalidInput:
    return _invalid(
        "checkpoint",
        "one that was written with TemperatureTrainerCallback",
        "one without, whose output layer has other names",
        "Load its weights into the model before the Trainer is made, instead of resuming from it.",
    )


def _invalid(subject: str, expected: str, found: str, fix: str) -> InvalidInput:
    return InvalidInput(subject, expected=expected, found=found, fix=fix)
