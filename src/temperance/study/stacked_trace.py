"""Reading from the layers of a net how many of it are run as one program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from temperance.errors import InvalidInput
from temperance.head import TemperedHead
from temperance.study.stacked import Step
from temperance.study.stacked_layers import ALIKE, FUNCTIONS, LAYERS
from temperance.training.nets_sequence import AttentionEncoder

__all__ = ["trace_steps"]


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        whole = isinstance(m, TemperedHead | AttentionEncoder)
        return whole or super().is_leaf_module(m, module_qualified_name)


def trace_steps(net: nn.Module) -> tuple[Step, ...]:
    """Read the program of a net from its layers.

    Args:
        net: the net, with a ``TemperedHead``.

    Returns:
        Its steps.

    Raises:
        InvalidInput: if it has a part that is not known here, naming it.
    """
    try:
        graph = _Tracer().trace(net)
    except Exception as error:
        raise _unknown(f"{type(net).__name__}, which cannot be traced ({error})") from error
    if len(list(net.parameters())) < len(list(net.named_parameters(remove_duplicate=False))):
        raise _unknown("weights that two layers share")
    layers = dict(net.named_modules())
    steps: list[Step] = []
    place: dict[fx.Node, int] = {}
    shared = {0}
    for node in graph.nodes:
        if node.op == "placeholder" and not place:
            place[node] = 0
            continue
        if node.op == "output":
            break
        for step in _read(node, tuple(place[n] for n in node.all_input_nodes), layers):
            own = step.inputs if step.inputs[0] >= 0 else (len(steps), *step.inputs[1:])
            first = own[0] in shared
            if step.run in ALIKE and set(own) <= shared:
                shared.add(len(steps) + 1)
            steps.append(Step(step.run, own, step.name, step.layer, first))
        place[node] = len(steps)
    return _pool_first(steps)


def _read(node: fx.Node, inputs: tuple[int, ...], layers: Mapping[str, nn.Module]) -> list[Step]:
    """Give the steps of one node; -1 as first input stands for the step before."""
    plain = not node.kwargs and len(node.args) == len(inputs)  # no numbers, nothing twice
    if plain and node.op == "call_function" and node.target in FUNCTIONS:
        return [Step(FUNCTIONS[node.target], inputs)]
    if not plain or node.op != "call_module" or len(inputs) != 1:
        raise _unknown(f"{node.format_node()}")
    name = str(node.target)
    layer = layers[name]
    if isinstance(layer, TemperedHead):
        steps = [_layer(inputs, f"{name}.norm", layer.norm)]
        return [*steps, _layer((-1,), f"{name}.linear", layer.linear)]
    return [_layer(inputs, name, layer)]


def _layer(inputs: tuple[int, ...], name: str, layer: nn.Module) -> Step:
    run = LAYERS.get(type(layer))
    if run is None or not _is_plain(layer):
        shown = type(layer).__name__ if any(layer.children()) else layer
        raise _unknown(f"the layer {name}, {shown}")
    return Step(run, inputs, name, layer)


def _is_plain(layer: Any) -> bool:
    """Whether a layer has none of the settings that are not known here."""
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros"
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        return layer.track_running_stats and layer.momentum is not None
    if isinstance(layer, nn.LayerNorm):
        return len(layer.normalized_shape) == 1
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    if isinstance(layer, nn.AdaptiveAvgPool2d | nn.AdaptiveMaxPool2d):
        return layer.output_size in (1, (1, 1))
    return True


def _pool_first(steps: list[Step]) -> tuple[Step, ...]:
    """Swap a ReLU and the max pooling behind it: the same values, and less of the ReLU."""
    uses = [place for step in steps for place in step.inputs]
    for k in range(len(steps) - 1):
        relu, pool = steps[k], steps[k + 1]
        alone = pool.inputs == (k + 1,) and uses.count(k + 1) == 1
        by_maximum = isinstance(pool.layer, nn.MaxPool2d | nn.AdaptiveMaxPool2d)
        if alone and relu.run is LAYERS[nn.ReLU] and by_maximum:
            steps[k] = Step(pool.run, relu.inputs, pool.name, pool.layer, relu.shared)
            steps[k + 1] = Step(relu.run, pool.inputs, relu.name, relu.layer, pool.shared)
    return tuple(steps)


def _unknown(found: str) -> InvalidInput:
    return InvalidInput(
        "net",
        expected="layers that can be stacked",
        found=found,
        fix="Train its trials one by one.",
    )
