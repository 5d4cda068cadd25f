"""What a Lightning Trainer and its module have to be like for the callback, and how to ask them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from torch import nn
from torch.optim.swa_utils import AveragedModel

from temperance.errors import InvalidInput, NotFound
from temperance.head import TemperedHead, tempered_heads
from temperance.integrations.loaders import check_again
from temperance.integrations.placement import name_of
from temperance.integrations.tempered_state import heads_in
from temperance.models import device_of, evaluating, strip_prefixes
from temperance.models.probe import registered

__all__ = [
    "PACKAGES",
    "MovedLoader",
    "check_state",
    "classifier_of",
    "refuse_copies",
    "refuse_finders",
    "refuse_strategy",
    "training_loader",
]

PACKAGES = ("lightning", "pytorch_lightning")
_STRATEGIES = {"SingleDeviceStrategy", "DDPStrategy"}
_FINDERS = {"LearningRateFinder", "BatchSizeFinder"}


class MovedLoader:
    """A loader whose batches become what a training step gets: their type, hooks, and device.

    Args:
        loader: the training loader.
        trainer: the Trainer.
        device: where to; None, before Lightning has moved and cast the model, leaves type and
            device as they are.
    """

    def __init__(self, loader: Any, trainer: Any, device: Any = None) -> None:
        self.loader, self.trainer, self.device = loader, trainer, device

    def __iter__(self) -> Iterator[Any]:
        strategy, cast_batch = self.trainer.strategy, self.trainer.precision_plugin.convert_input
        for batch in self.loader:
            if self.device is None:
                yield strategy.batch_to_device(batch, device_of(self.trainer.lightning_module))
            else:
                yield strategy.batch_to_device(cast_batch(batch), self.device)

    def __len__(self) -> int:
        return len(self.loader)


def training_loader(trainer: Any) -> Any:
    """Give the training loader as the user made it: Trainer's own is a shard in each process."""
    with evaluating(trainer.lightning_module):  # a train_dataloader may split its data at random
        loader = trainer.fit_loop._data_source.dataloader()
    if isinstance(loader, (dict, list, tuple)) or type(loader).__name__ == "CombinedLoader":
        raise InvalidInput(
            "training loader",
            expected="one loader",
            found=f"several in a {type(loader).__name__}",
            fix="Insert the head yourself before fit (temperance.insert).",
        )
    check_again(loader)
    return loader


def classifier_of(pl_module: Any, name: str | None) -> nn.Module:
    """The module that takes the inputs of a batch and gives logits."""
    children = {n: m for n, m in pl_module.named_children() if any(True for _ in m.parameters())}
    if name is not None:
        found = registered(pl_module, name)
        if found is not None:
            return found
    elif type(pl_module).forward.__module__.split(".")[0] not in (*PACKAGES, "torch"):
        return cast(nn.Module, pl_module)
    elif len(children) == 1:
        return next(iter(children.values()))
    raise NotFound(
        "classifier",
        found=f"there is no sub-module {name!r}" if name else "the module has no forward",
        candidates=tuple(children),
        fix="Name the sub-module that turns inputs into logits with classifier=.",
    )


def check_state(
    module: nn.Module, state: Mapping[str, Any], *, head: TemperedHead, prefix: str = ""
) -> None:
    """Refuse a checkpoint without the head that was put in, or with another norm in it."""
    names = {k.removeprefix(prefix): v for k, v in strip_prefixes(state).items()}
    found, name = heads_in(names), name_of(module, head)
    if found.get(name) == head.norm_kind:
        return
    raise InvalidInput(
        "checkpoint",
        expected=f"a tempered head {name!r} with norm {head.norm_kind!r}",
        found=f"norm {found[name]!r}" if name in found else "none of that name",
        fix=f"Pass norm={found[name]!r} to the callback."
        if name in found
        else "It was written without TemperatureCallback: load its weights into the model before "
        "fit, and leave ckpt_path out.",
    )


def refuse_strategy(trainer: Any) -> None:
    """Refuse processes whose model is not the one that the user keeps, and sharded models."""
    strategy = trainer.strategy
    known = {c.__name__ for c in type(strategy).__mro__} & _STRATEGIES
    launcher = type(strategy.launcher).__name__
    if known and "MultiProcessing" not in launcher:
        return
    found = f"{type(strategy).__name__} ({launcher})" if known else type(strategy).__name__
    raise InvalidInput(
        "strategy",
        expected="one device, or DDP with processes that Lightning starts as scripts",
        found=found,
        fix="Use strategy='ddp', or insert the head yourself before fit (temperance.insert).",
    )


def refuse_finders(trainer: Any) -> None:
    """Refuse callbacks that train before the head has its T, and then load what was before."""
    for callback in trainer.callbacks:
        owner = next(c for c in type(callback).__mro__ if "on_fit_start" in vars(c))
        if owner.__name__ in _FINDERS:
            raise InvalidInput(
                f"callback {type(callback).__name__}",
                expected="a head that has its T when the finder trains",
                found="one that gets it afterwards: Lightning runs finders first",
                fix="Put the head in before fit (temperance.integrations.placement.place); "
                "TemperatureCallback then keeps it.",
            )


def refuse_copies(trainer: Any, pl_module: Any) -> None:
    """Refuse other callbacks' copies of the model from before the head was put in."""
    for callback in trainer.callbacks:
        for copy in vars(callback).values():
            same = isinstance(copy, AveragedModel) or type(copy) is type(pl_module)
            if same and not tempered_heads(copy):
                raise InvalidInput(
                    f"callback {type(callback).__name__}",
                    expected="a copy of the model with the head",
                    found="one that was made before the head was put in",
                    fix="Put TemperatureCallback first in the list of callbacks; with a setup of "
                    "its own the module cannot be averaged: make its layers in __init__, or insert "
                    "the head there.",
                )
