"""How nets are trained on a batch: many as one program, or one of them in the ordinary way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from temperance.head import parameter_groups
from temperance.models import logits_of
from temperance.study.batches import learning_rate
from temperance.study.networks_net import Prototype
from temperance.study.networks_paths import Paths, hyper_slope, learned_slope, moved_slope
from temperance.study.networks_updates import NetUpdates, new_optimizer
from temperance.study.probe_slopes import losses_of, slope_and_nll
from temperance.study.stacked import stack_net
from temperance.study.trial import Trial
from temperance.training.loop import mixed_seed

__all__ = ["Alone", "Rows", "Stack", "Trainer"]

Rows = Callable[[int], tuple[Tensor, Tensor]]
"""Gives the input and the class ids of a step."""


class Trainer(Protocol):
    """R nets in training."""

    def step(self, x: Tensor, y: Tensor, step: int) -> Tensor:
        """Take a step; gives the plain cross entropy of every net before it, ``[R]``."""

    @property
    def temperature(self) -> Tensor:
        """T now, ``[R, 1, 1]``."""

    def logits(self, x: Tensor) -> Tensor:
        """Logits divided by T in eval mode, ``[R, C, B]``."""

    def tensors(self, index: int) -> Mapping[str, Tensor]:
        """Weights and statistics of one net, by name."""

    def stop(self, index: int) -> None:
        """Leave a net out from here on."""


# ------------------------------------------------------------------ side by side
class Stack:
    """Nets that start alike and are trained as one program.

    Args:
        prototype: the net that they start from, with a program.
        trials: their trials, those of one pace next to each other.
        rows: rows of a batch.
        judges: validation rows of a step, for hypergradients.
    """

    def __init__(
        self, prototype: Prototype, trials: Sequence[Trial], rows: int, *, judges: Rows
    ) -> None:
        self.stack = stack_net(prototype.net, len(trials), steps=prototype.program)
        self.parameters = list(self.stack.parameters.values())
        last = self.stack.steps[-1].name
        self.outer = [
            place
            for place, name in enumerate(self.stack.parameters)
            if name.rpartition(".")[0] == last
        ]
        self.losses = losses_of(trials, batch_size=rows)
        self.updates = NetUpdates(self.stack, prototype.net, trials)
        self.paths, self.judges = Paths(trials), judges
        self._factor = self.losses.scale * self.paths.value  # that of a plain loss, without 1 / T

    @property
    def temperature(self) -> Tensor:
        """See ``Trainer``."""
        return self.paths.value

    def step(self, x: Tensor, y: Tensor, step: int) -> Tensor:
        """See ``Trainer``."""
        self._set_temperature(step)
        z = self.stack(x, training=True)
        scores = z.detach().permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
        kept = scores.clone() if self.paths.free else scores
        g, nll = slope_and_nll(scores, y, temperature=self.temperature, losses=self.losses)
        by_row = g.permute(2, 0, 1).contiguous()
        hyper = bool(self.paths.hyper.any())
        moved = self._outer_slopes(z, moved_slope(kept, g, paths=self.paths)) if hyper else ()
        gradients = torch.autograd.grad(z, self.parameters, by_row)
        self.updates.apply(gradients, step)
        if self.paths.free:
            slope = learned_slope(kept, g, paths=self.paths)
            if hyper:
                trained = [gradients[place] for place in self.outer]
                judged = self._judged_slopes(step)
                own = hyper_slope(moved, trained, judged, paths=self.paths)
                slope = torch.where(self.paths.hyper, own, slope)
            self.paths.learn(slope, step)
        return nll.mean(dim=1)

    def _set_temperature(self, step: int) -> None:
        """Set T, and the factor 1 / T in the slope of a plain loss."""
        if self.paths.moves:
            now = self._factor / self.paths.begin(step)
            plain = self.paths.plain.view(-1, 1, 1)
            self.losses.scale.copy_(torch.where(plain, now, self.losses.scale))

    def _outer_slopes(self, z: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
        """Give the slopes in the output layers that one in the logits makes; keeps the graph."""
        outer = [self.parameters[place] for place in self.outer]
        by_row = slope.permute(2, 0, 1).contiguous()
        return torch.autograd.grad(z, outer, by_row, retain_graph=True)

    def _judged_slopes(self, step: int) -> tuple[Tensor, ...]:
        """Give the slopes of the validation loss in the output layers, on the rows of a step."""
        x, y = self.judges(step)
        z = self.stack(x, training=False)
        slope = _judged_slope(z.detach().permute(1, 2, 0), y, temperature=self.temperature)
        return self._outer_slopes(z, slope)

    def logits(self, x: Tensor) -> Tensor:
        """See ``Trainer``."""
        return self.stack(x, training=False).permute(1, 2, 0) / self.temperature

    def tensors(self, index: int) -> Mapping[str, Tensor]:
        """See ``Trainer``."""
        return self.stack.member(index)

    @torch.no_grad()
    def stop(self, index: int) -> None:
        """Set the net to 0, where it stays: numbers that are none would cost time and trust."""
        for tensor in self.stack.member(index).values():
            tensor.zero_()
        self.losses.scale[index] = self._factor[index] = 0.0
        self.paths.stop(index)
        self.updates.stop(index)


def _judged_slope(z: Tensor, y: Tensor, *, temperature: Tensor) -> Tensor:
    """Slope of the mean NLL in logits times T, ``[R, C, B]``."""
    p = torch.softmax(z / temperature, dim=1)
    place = y.expand(len(z), 1, -1)
    p.scatter_add_(1, place, torch.full_like(p[:, :1], -1.0))
    return p / (temperature * len(y))


# ------------------------------------------------------------------ in the ordinary way
class Alone:
    """A net that is trained by itself, whatever its layers are.

    Args:
        prototype: the net, changed in place.
        trial: its trial.
        judges: validation rows of a step, for hypergradients.
    """

    def __init__(self, prototype: Prototype, trial: Trial, *, judges: Rows) -> None:
        self.net, self.trial, self.head = prototype.net, trial, prototype.head
        groups = parameter_groups(self.net, trial.weight_decay)
        self.optimizer = new_optimizer(groups, trial)
        self.paths, self.judges = Paths([trial]), judges
        self.outer = [p for p in self.head.linear.parameters() if p.requires_grad]
        self._z: list[Tensor] = []  # logits times T of the last forward pass
        if self.paths.free:
            self.head.linear.register_forward_hook(lambda *call: self._keep(call[2]))

    @property
    def temperature(self) -> Tensor:
        """See ``Trainer``."""
        return self.paths.value

    def step(self, x: Tensor, y: Tensor, step: int) -> Tensor:
        """See ``Trainer``."""
        trial = self.trial
        if self.paths.moves:
            self._set_temperature(step)
        with torch.random.fork_rng(devices=[]):  # dropout draws from torch's global state
            torch.default_generator.manual_seed(mixed_seed("dropout", trial.seed, step))
            z = logits_of(self.net(x))
        loss = nn.functional.cross_entropy(z, y, label_smoothing=trial.smoothing)
        slope, moved = self._slopes(y) if self.paths.free else (torch.zeros(1), ())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        trained = [p.grad.clone() for p in self.outer if p.grad is not None] if moved else []
        rate = learning_rate(step, trial.steps, peak=trial.lr, schedule=trial.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if moved:
            slope = hyper_slope(moved, trained, self._judged_slopes(step), paths=self.paths)
        if self.paths.free:
            self.paths.learn(slope, step)
            self._set_temperature(step)
        plain = loss if trial.smoothing == 0 else nn.functional.cross_entropy(z, y)
        return plain.detach().view(1)

    def _keep(self, z: Tensor) -> None:
        self._z[:] = [z]

    def _set_temperature(self, step: int) -> None:
        self.head.temperature.copy_(self.paths.begin(step).flatten()[0])

    def _slopes(self, y: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Give the slope of the loss in log T, and for a hypergradient how G changes with it."""
        z = self._z.pop()
        rows = z.detach().flatten(1).t().unsqueeze(0)
        losses = losses_of(
            [replace(self.trial, temperature=float(self.temperature))], batch_size=len(y)
        )
        g, _ = slope_and_nll(rows.clone(), y, temperature=self.temperature, losses=losses)
        slope = learned_slope(rows, g, paths=self.paths)
        if not self.paths.hyper.any():
            return slope, ()
        back = moved_slope(rows, g, paths=self.paths)[0].t().reshape(z.shape)
        return slope, torch.autograd.grad(z, self.outer, back, retain_graph=True)

    def _judged_slopes(self, step: int) -> tuple[Tensor, ...]:
        x, y = self.judges(step)
        self.net.eval()
        self.net(x)
        self.net.train()
        z = self._z.pop()
        rows = z.detach().flatten(1).t().unsqueeze(0)
        slope = _judged_slope(rows, y, temperature=self.temperature)[0].t().reshape(z.shape)
        return torch.autograd.grad(z, self.outer, slope)

    def logits(self, x: Tensor) -> Tensor:
        """See ``Trainer``."""
        self.net.eval()
        z = logits_of(self.net(x)).t().unsqueeze(0)
        self.net.train()
        return z

    def tensors(self, index: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """See ``Trainer``."""
        return self.net.state_dict()

    def stop(self, index: int) -> None:
        """See ``Trainer``; the only net has ended, so that nothing goes on."""
