"""Deep ensemble: the same net several times, from other initial weights.

Reference:
    B. Lakshminarayanan, A. Pritzel, C. Blundell, "Simple and scalable predictive uncertainty
    estimation using deep ensembles", NeurIPS 2017, arXiv 1612.01474, algorithm 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.measure import run_call
from temperance.ensemble.members import check_member
from temperance.ensemble.rival_layers import check_whole, seeded
from temperance.errors import InvalidInput
from temperance.models.outputs import device_of, logits_of
from temperance.models.probe import unwrap

__all__ = ["DeepEnsemble", "deep_ensemble"]


class DeepEnsemble(nn.Module):
    """Separate models that all see the whole batch.

    Args:
        models: one for each member.

    Attributes:
        models: these; each can be trained by itself.
        members: M.
        output_key: which entry of a model's output holds the logits, see ``logits_of``.
    """

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models, self.members = nn.ModuleList(models), len(models)
        self.active: int | None = None
        self.output_key: str | int | None = None
        self.training = models[0].training

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Give logits ``[M, B, C]``; inside ``with ensemble.member(m)`` ``[1, B, C]``."""
        numbers = range(self.members) if self.active is None else (self.active,)
        outputs = (run_call(self.models[m], (args, kwargs)) for m in numbers)
        return torch.stack([logits_of(output, key=self.output_key) for output in outputs])

    @contextmanager
    def member(self, m: int) -> Iterator[DeepEnsemble]:
        """Let one member run alone: inside, the ensemble gives ``[1, B, C]``."""
        check_member(m, self.members)
        before, self.active = self.active, m
        try:
            yield self
        finally:
            self.active = before

    def targets(self, y: Tensor) -> Tensor:
        """Give the targets ``[M, B, ...]`` that belong to the logits of a forward."""
        return y.expand(self.members if self.active is None else 1, *y.shape)


def deep_ensemble(
    model: nn.Module | Callable[[int], nn.Module], members: int, *, seed: int = 0
) -> DeepEnsemble:
    """Make a deep ensemble: M models of one form, each with initial weights of its own.

    Member m is built from the seed ``seed * M + m``, so that ensembles with other seeds share no
    member. Parameters and work are M times those of one model.

    Train the members together on the same batches, or each alone (``ensemble.models[m]``) on its
    own order of them, as in the paper. Together, the loss is the SUM of the members' mean losses:
    then every member learns as it does alone (a mean divides the learning rate of SGD by M).

    Args:
        model: a function from a seed to a new model, which must not touch the global random state
            to be reproducible (``lambda s: build_net(..., seed=s).module``); or a model, of which
            every layer is drawn anew by its ``reset_parameters``. What the constructor of the model
            draws in another way is lost then: a function is exact.
        members: M, 1 or more.
        seed: of the initial weights; the global random state is not touched.

    Returns:
        The ensemble. A model that was given stays as it is, and none of its weights are kept.

    Raises:
        InvalidInput: if an argument is out of range, the function gives no module, or parameters of
            the model belong to a module without ``reset_parameters`` (named).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> deep_ensemble(model, 4)(torch.zeros(5, 4)).shape
        torch.Size([4, 5, 3])

    Reference:
        B. Lakshminarayanan et al., NeurIPS 2017, arXiv 1612.01474. Its adversarial training, which
        is an option there, is left out, as usual.
    """
    members, seed = check_whole("members", members, 1), check_whole("seed", seed, 0)
    build = _again(model) if isinstance(model, nn.Module) else model
    models = []
    for m in range(members):
        with seeded(seed * members + m):
            models.append(build(seed * members + m))
        if not isinstance(models[-1], nn.Module):
            raise InvalidInput(
                "model",
                expected="a module, or a function from a seed to one",
                found=f"a function that gives a {type(models[-1]).__name__}",
                fix="Return the module (build_net(...).module).",
            )
    if len({id(p) for one in models for p in one.parameters()}) != sum(
        len(list(one.parameters())) for one in models
    ):
        raise InvalidInput(
            "model",
            expected="a function that builds a new model each time",
            found="members that share parameters",
            fix="Build the model inside of the function.",
        )
    return DeepEnsemble(models)


def _again(model: nn.Module) -> Callable[[int], nn.Module]:
    """Copies of a model with all weights drawn anew, from torch's generator."""
    if unwrap(model) is not model:
        found = f"a {type(model).__name__} around it"
        raise InvalidInput("model", expected="the plain model", found=found, fix="Unwrap it.")
    fixed = [
        f"{name}.{key}".lstrip(".")
        for name, module in model.named_modules()
        for key, value in module._parameters.items()
        if value is not None and not callable(getattr(module, "reset_parameters", None))
        if not isinstance(module, nn.MultiheadAttention)
    ]
    if fixed:
        raise InvalidInput(
            "model",
            expected="layers that reset_parameters draws anew",
            found=f"parameters of others: {', '.join(fixed[:4])}",
            fix="Pass a function from a seed to a new model.",
        )

    def build(_seed: int) -> nn.Module:
        new = copy.deepcopy(model).cpu()  # a device would draw from its own generator
        for module in new.modules():
            reset: Any = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        for module in new.modules():  # after its layers, as in its constructor
            if isinstance(module, nn.MultiheadAttention):
                module._reset_parameters()
        return new.to(device_of(model))

    return build
