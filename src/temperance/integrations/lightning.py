"""Lightning: a callback that puts the head in before the optimizers are built.

``Trainer.fit`` calls the callbacks' ``setup``, then the module's ``setup`` and ``configure_model``,
loads a checkpoint to resume from, moves the model, calls ``configure_optimizers``, and only then
``on_fit_start``. The head goes in at ``setup`` (where the module has a ``setup`` of its own,
directly after that one, since it may make the layers or the data there); T and the statistics,
which are buffers, follow at ``on_fit_start``, unless they came from a checkpoint. Works with
``lightning`` and with ``pytorch_lightning``.
"""

# ruff: noqa: ARG002 - hooks have the arguments that Lightning calls them with

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from torch import Tensor, nn

from temperance.ensemble import diversity_loss, require_distinct
from temperance.errors import InvalidInput, MissingPackage, NotFound
from temperance.head import TemperedHead, check_optimizer, remove, tempered_heads
from temperance.integrations.known_training import lightning_training
from temperance.integrations.lightning_checks import (
    PACKAGES,
    MovedLoader,
    check_state,
    classifier_of,
    refuse_copies,
    refuse_finders,
    refuse_strategy,
    training_loader,
)
from temperance.integrations.loaders import check_rows, first_batch
from temperance.integrations.placement import (
    Placement,
    PlaceOptions,
    name_of,
    put_in,
    settle,
)
from temperance.integrations.tempered_state import heads_of_state
from temperance.integrations.watch import HeadWatch, progress_bar
from temperance.models import split_batch
from temperance.serial import from_dict, to_dict

__all__ = ["DiversityCallback", "TemperatureCallback"]


def _base() -> Any:
    """The Callback classes of both packages, which are two; ``object`` without either."""
    found = []
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            found.append(importlib.import_module(package).Callback)
        except ImportError:
            continue
    return type("_Callback", tuple(found), {}) if found else object


_Callback: Any = _base()


class TemperatureCallback(_Callback):
    """Measure, suggest T, insert the head; then log T and what it does to the gradient.

    Put it first in the list of callbacks: others may copy the model in their ``setup``. The
    training loader is read once more before the first step, unsharded, on the training device, in
    evaluation mode; that gives the task, so the T, and the statistics of the BatchNorm.

    When the training resumes from a checkpoint, or a checkpoint is tested, nothing is measured: T
    and statistics are those of the checkpoint. A model that has a head already keeps it. Optimizers
    that do not hold the head are refused. Logged every ``log_every_n_steps`` of the Trainer:
    ``temperature`` and ``gradient_ratio`` (see ``temperance.integrations.watch``; for batches that
    ``split_batch`` reads).

    For one device and for DDP (a process per device, not spawned or forked).

    Args:
        temperature: T; or the name of a rule, or of a file of ``temperance fit``; None for the
            best-informed rule: that of the budget where the Trainer says how it will train
            (optimizer, rates, steps, batches); a published one, with a TemperanceWarning that says
            why, where that cannot be known.
        norm: in front of the output layer, as in ``temperance.insert``; None for the rule's.
        classifier: dotted name of the sub-module that turns the inputs of a batch into logits; None
            for the LightningModule itself or, without a ``forward``, its only child.
        head: dotted name of the output layer in it, where it cannot be found by itself.
        keep_function: start where the pretrained head was.
        max_batches: measure on no more than this many batches.

    Attributes:
        placement: what was put in; None before.

    Raises:
        MissingPackage: without Lightning.

    Example:
        >>> from temperance.integrations.lightning import TemperatureCallback
        >>> callback = TemperatureCallback("sqrt-dim", max_batches=100)
        >>> callback.temperature
        'sqrt-dim'
    """

    def __init__(
        self,
        temperature: float | str | None = None,
        norm: str | None = None,
        *,
        classifier: str | None = None,
        head: str | None = None,
        keep_function: bool = False,
        max_batches: int | None = None,
    ) -> None:
        _need_lightning()
        super().__init__()
        self.temperature, self.classifier = temperature, classifier
        self.options = PlaceOptions(norm, head, keep_function, max_batches)
        self.placement: Placement | None = None
        self._fresh: TemperedHead | None = None  # put in, and without its T
        self._watch: HeadWatch | None = None
        self._loading: Any = None
        self._take_back: Callable[[], None] = _nothing  # the change of the module's setup

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Put the head in, now or directly after the module's own ``setup``."""
        work = partial(self._prepare, trainer, pl_module, str(getattr(stage, "value", stage)))
        if _is_own(pl_module.setup):
            self._take_back = _run_after_setup(pl_module, work)
        else:
            work()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Check that the optimizers hold the head; measure, unless a checkpoint was loaded."""
        self._stop_loading()
        heads = tempered_heads(pl_module)
        if not heads:
            raise NotFound(
                "tempered head",
                found="the model has none when the training starts",
                fix="A configure_model that is called twice must not make the layers anew.",
            )
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        check_optimizer(cast(Any, SimpleNamespace(param_groups=groups)), pl_module)
        refuse_copies(trainer, pl_module)
        if self._fresh is not None and not trainer.ckpt_path:
            self._settle(trainer, pl_module)
        self._fresh = None
        self._stop_watching()
        if len(heads) == 1:
            self._watch = HeadWatch(next(iter(heads.values())))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log T and the gradient's ratio."""
        due = trainer._logger_connector.should_update_logs  # as Lightning's own callbacks ask
        if not trainer.log_every_n_steps or (batch_idx and not due):
            return
        for number, head in enumerate(tempered_heads(pl_module).values()):
            name = f"temperature_{number}" if number else "temperature"
            pl_module.log(name, float(head.temperature))
        ratio = self._watch.ratio(_labels_of(batch)) if self._watch else None
        if ratio is not None:
            pl_module.log("gradient_ratio", ratio)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Take all hooks away."""
        self._stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Take all hooks away, and a head that never got its T."""
        self._stop()
        if self._fresh is not None and self._fresh in tempered_heads(pl_module).values():
            remove(pl_module, name=name_of(pl_module, self._fresh))
        self._fresh = None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint says of the head."""
        return {} if self.placement is None else {"placement": to_dict(self.placement)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Read it back; the head itself comes with the weights."""
        if "placement" in state_dict:
            self.placement = from_dict(state_dict["placement"], Placement)

    # -------------------------------------------------------------- helpers
    def _prepare(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if _is_own(pl_module.configure_model):
            pl_module.configure_model()  # documented to do nothing when called again
        if tempered_heads(pl_module):
            return
        if stage != "fit":
            self._expect(pl_module, heads_of_state)
            return
        refuse_strategy(trainer)
        refuse_finders(trainer)
        loader = training_loader(trainer)
        classifier = classifier_of(pl_module, self.classifier)
        example = first_batch(pl_module, MovedLoader(loader, trainer))
        head = put_in(classifier, self.temperature, options=self.options, example=example)
        self._fresh = head
        limit = trainer.limit_train_batches  # a whole number may leave out the last, smaller batch
        if head.norm_kind.startswith("batch") and not isinstance(limit, int):
            check_rows(loader, processes=trainer.world_size)
        self._expect(pl_module, partial(check_state, head=head))

    def _expect(self, pl_module: nn.Module, work: Callable[..., object]) -> None:
        """Do something with the weights of a checkpoint before they are loaded, if any are."""

        def hook(module: nn.Module, state: Any, prefix: str, *_: Any) -> None:
            work(module, state, prefix=prefix)

        self._stop_loading()
        self._loading = pl_module.register_load_state_dict_pre_hook(hook)

    def _settle(self, trainer: Any, pl_module: Any) -> None:
        own = training_loader(trainer)
        loader = MovedLoader(own, trainer, trainer.strategy.root_device)
        show = trainer.progress_bar_callback is not None and trainer.is_global_zero
        asked = self.temperature is None or isinstance(self.temperature, str)
        with progress_bar("measuring the task", show=show) as told:
            self.placement = settle(
                classifier_of(pl_module, self.classifier),
                loader,
                self.temperature,
                options=self.options,
                progress=told,
                training=lightning_training(trainer, pl_module, own) if asked else None,
            )

    def _stop(self) -> None:
        self._take_back()
        self._stop_loading()
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        self._watch = None

    def _stop_loading(self) -> None:
        if self._loading is not None:
            self._loading.remove()
        self._loading = None


class DiversityCallback(_Callback):
    """Add the diversity term of an ensemble to the loss of every training step, and log it.

    The term is never positive and lowers the loss; the lower it is, the more features belong to
    few members: see ``temperance.diversity_loss``. Works with gradient accumulation, a GradScaler
    and manual optimization (there it changes the loss that is passed to ``manual_backward``, in
    place). Logged as ``diversity_loss`` with every step.

    Args:
        strength: lambda, 0 or more; 0 only logs the term of strength 1.
        tau: temperature of the softmax over the members.
        form: ``range`` (in nats of the loss) or ``paper``.

    Raises:
        MissingPackage: without Lightning. When the training starts, InvalidInput if the model holds
            no ensemble, or one with equal members, which would stay equal.

    Example:
        >>> from temperance.integrations.lightning import DiversityCallback
        >>> DiversityCallback(0.1, 0.2).form
        'range'
    """

    def __init__(self, strength: float, tau: float = 0.2, *, form: str = "range") -> None:
        _need_lightning()
        super().__init__()
        self.strength, self.tau, self.form = strength, tau, form

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Check the ensemble and the settings before the first step."""
        require_distinct(pl_module)
        self._term(pl_module)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Add the term to the loss that is about to be differentiated."""
        term = self._term(pl_module)
        if self.strength:
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            scale = 1.0 if scaler is None else float(scaler.get_scale())
            if pl_module.automatic_optimization:  # the loss was divided by this
                scale /= trainer.accumulate_grad_batches
            loss.add_((term * scale).to(loss))
        pl_module.log("diversity_loss", term.detach())

    def _term(self, pl_module: Any) -> Tensor:
        strength = self.strength if self.strength else 1.0
        return diversity_loss(pl_module, self.tau, strength=strength, form=self.form)


# ------------------------------------------------------------------ helpers
def _need_lightning() -> None:
    if _Callback is object:
        raise MissingPackage("lightning", "lightning")


def _is_own(method: Any) -> bool:
    """Whether a hook is the user's, and not Lightning's empty one."""
    return method.__module__.split(".")[0] not in PACKAGES


def _nothing() -> None:
    """What there is to take back before anything was done."""


def _run_after_setup(pl_module: Any, work: Callable[[], None]) -> Callable[[], None]:
    """Let the module's own ``setup`` do some work at its end, this time; gives what undoes it."""
    own, original = vars(pl_module).get("setup"), pl_module.setup

    def setup(stage: str) -> None:
        take_back()
        original(stage=stage)
        work()

    def take_back() -> None:
        if vars(pl_module).get("setup") is not setup:
            return
        del pl_module.setup  # the one of the instance: this function
        if own is not None:
            pl_module.setup = own

    pl_module.setup = setup
    return take_back


def _labels_of(batch: Any) -> Any:
    try:
        return split_batch(batch)[1]
    except InvalidInput:
        return None
