"""skorch: a module that brings its tempered head with it, and a callback that measures T.

skorch builds module and optimizer itself, so the head has to be in the module when it is built::

    net = NeuralNetClassifier(
        TemperedModule,
        module__module=MyNet,               # gives logits
        module__temperature="sqrt-dim",     # or a number, also in a grid search
        criterion=torch.nn.CrossEntropyLoss,
        callbacks=[TemperatureCallback()],
    )
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, MissingPackage
from temperance.head import TemperedHead, check_optimizer
from temperance.head.surgery import tempered_heads
from temperance.integrations.known_training import skorch_training
from temperance.integrations.placement import Placement, PlaceOptions, put_in, settle
from temperance.models import unwrap

__all__ = ["TemperatureCallback", "TemperedModule"]


def _base() -> Any:
    """The Callback of skorch, where it is installed: the module can be imported without it."""
    try:
        return importlib.import_module("skorch.callbacks").Callback
    except ModuleNotFoundError:
        return object


_Callback: Any = _base()


class TemperedModule(nn.Module):
    """A module whose output layer is tempered from the start, for the ``module`` of skorch.

    With a number for T nothing else is needed; ``TemperatureCallback`` then gives the norm the
    statistics of the data. With the name of a rule the callback must be there: without it the
    first training step is refused.

    Args:
        module: what builds the network: its class, or a function without arguments (bind those
            with ``functools.partial``); or a network, which is copied.
        temperature: T; or the name of a rule, or of a file of ``temperance fit``; None for the
            best-informed rule: that of the budget where the net says how it will train, for
            ``max_epochs``; a published one, with a TemperanceWarning, where it cannot be known.
        norm: in front of the output layer, as in ``temperance.insert``; None for the rule's.
        head: dotted name of the output layer, where it cannot be found by itself.
        example: a batch to find the layer with; recommended for networks of your own.

    Attributes:
        module: the network.
        temperature: as given.
        fresh: whether the callback has still to measure; a buffer, so that ``load_params`` brings
            it along with the T and the statistics that it speaks of.

    Raises:
        InvalidInput, NotFound: as ``temperance.insert``.

    Example:
        >>> import torch
        >>> from functools import partial
        >>> from torch import nn
        >>> from temperance.integrations.skorch import TemperedModule
        >>> build = partial(nn.Sequential, nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> TemperedModule(build, 4.0).head.in_features
        8
    """

    def __init__(
        self,
        module: Callable[[], nn.Module] | nn.Module,
        temperature: float | str | None = None,
        norm: str | None = None,
        *,
        head: str | None = None,
        example: Any = None,
    ) -> None:
        super().__init__()
        self.module = copy.deepcopy(module) if isinstance(module, nn.Module) else module()
        self.temperature, self.options = temperature, PlaceOptions(norm, head)
        self.fresh: Tensor
        self.register_buffer("fresh", torch.tensor(True))
        put_in(self.module, temperature, options=self.options, example=example)

    @property
    def head(self) -> TemperedHead:
        """The tempered head."""
        (head,) = tempered_heads(self.module).values()
        return head

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Give what the network gives.

        Raises:
            InvalidInput: in training, if T was to be measured and was not.
        """
        measured = self.temperature is None or isinstance(self.temperature, str)
        if self.training and measured and bool(self.fresh):
            raise InvalidInput(
                "temperature",
                expected="a T that was measured before the first step",
                found=f"{self.temperature!r}, and no measurement",
                fix="Add TemperatureCallback() to the callbacks of the net, or pass a number.",
            )
        output: Tensor = self.module(*inputs, **named)
        return output


class TemperatureCallback(_Callback):
    """Measure T and the statistics of the norm before the first step; record T every epoch.

    The training rows (those that ``train_split`` leaves for training) are read once more, in
    evaluation mode, whenever skorch has built the module anew; a warm start, or one from
    ``load_params``, measures nothing.
    ``temperature`` is in the history of the net.

    A rule may ask how long the training is: that is ``max_epochs`` of the net. For one that trains
    by ``partial_fit`` again and again, or by ``fit(..., epochs=...)``, set ``max_epochs`` to all
    epochs that it will have, or name a T.

    Args:
        keep_function: start where a pretrained head was, see ``set_norm_statistics``.
        max_batches: measure on no more than this many batches.

    Attributes:
        placement_: what was found; None before.

    Raises:
        MissingPackage: without skorch.
        InvalidInput: when training begins, if the module is no ``TemperedModule``, or the criterion
            wants probabilities (``NLLLoss``, the default of skorch) where the module gives logits.
    """

    def __init__(self, *, keep_function: bool = False, max_batches: int | None = None) -> None:
        if _Callback is object:
            raise MissingPackage("skorch", "skorch")
        self.keep_function = keep_function
        self.max_batches = max_batches
        self.placement_: Placement | None = None

    def on_train_begin(self, net: Any, **_: Any) -> None:
        """Check the net."""
        _refuse_nll(net.criterion_)
        check_optimizer(net.optimizer_, _module_of(net))

    def on_epoch_begin(self, net: Any, dataset_train: Any = None, **_: Any) -> None:
        """Measure where the module is new, on the very rows that train."""
        module = _module_of(net)
        if not bool(module.fresh):
            return
        options = PlaceOptions(
            norm=module.options.norm,
            head=None if module.options.head is None else f"module.{module.options.head}",
            keep_function=self.keep_function,
            max_batches=self.max_batches,
        )
        loader = net.get_iterator(dataset_train, training=False)
        asked = module.temperature is None or isinstance(module.temperature, str)
        training = skorch_training(net, dataset_train) if asked else None
        self.placement_ = settle(
            module, loader, module.temperature, options=options, training=training
        )
        module.fresh.fill_(False)

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        """Record T in the history."""
        net.history.record("temperature", float(_module_of(net).head.temperature))


def _module_of(net: Any) -> TemperedModule:
    module = unwrap(net.module_)
    if not isinstance(module, TemperedModule):
        raise InvalidInput(
            "module of the net",
            expected="a TemperedModule",
            found=f"a {type(module).__name__}",
            fix="Pass TemperedModule as module, and yours as module__module.",
        )
    return module


def _refuse_nll(criterion: Any) -> None:
    """NLLLoss makes skorch take the logarithm of the outputs, which are logits here."""
    if isinstance(criterion, nn.NLLLoss):
        raise InvalidInput(
            "criterion",
            expected="one for logits",
            found="NLLLoss, with which skorch takes the outputs for probabilities",
            fix="Pass criterion=torch.nn.CrossEntropyLoss.",
        )
