"""Which layers are norms, and what they compute: torch's, timm's, torchvision's, transformers'."""

import copy

import pytest
import torch
from torch import nn

from temperance.ensemble import find_norms, recognize
from temperance.ensemble.rows import Rows
from temperance.ensemble.swap import plain_norm_of, sigma_norm_of
from temperance.errors import InvalidInput, NotFound

C = 6
MAP, TOKENS = (4, C, 5, 3), (4, 5, C)


def library(name, attribute):
    return getattr(pytest.importorskip(name), attribute)


def timm_layer(name, *args, **kwargs):
    pytest.importorskip("timm")
    import timm.layers

    return getattr(timm.layers, name)(*args, **kwargs)


def hf_layer(module, name, *args, **kwargs):
    pytest.importorskip("transformers")
    import importlib

    full = f"transformers.models.{module}.modeling_{module}"
    return getattr(importlib.import_module(full), name)(*args, **kwargs)


def tv_layer(name):
    pytest.importorskip("torchvision")
    from torchvision.models import convnext

    return getattr(convnext, name)(C, eps=1e-3)


# name: the layer, kind, channel axis, shape of an input
LAYERS = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(C), "batch", 1, (4, C)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(C, momentum=None), "batch", 1, MAP),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(C, affine=False), "batch", 1, (4, C, 2, 2, 2)),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(C), "batch", 1, MAP),
    "LayerNorm": (lambda: nn.LayerNorm(C), "layer", -1, TOKENS),
    "LayerNorm no bias": (lambda: nn.LayerNorm(C, bias=False), "layer", -1, TOKENS),
    "LayerNorm plain": (lambda: nn.LayerNorm(C, elementwise_affine=False), "layer", -1, TOKENS),
    "LayerNorm 3 axes": (lambda: nn.LayerNorm((C, 5, 3)), "layer", -1, MAP),
    "GroupNorm": (lambda: nn.GroupNorm(2, C), "group", 1, MAP),
    "RMSNorm": (lambda: nn.RMSNorm(C), "rms", -1, TOKENS),
    "torchvision LayerNorm2d": (lambda: tv_layer("LayerNorm2d"), "layer", 1, MAP),
    "timm LayerNorm2d": (lambda: timm_layer("LayerNorm2d", C), "layer", 1, MAP),
    "timm LayerNorm": (lambda: timm_layer("LayerNorm", C), "layer", -1, TOKENS),
    "timm LayerNormFp32": (lambda: timm_layer("LayerNormFp32", C), "layer", -1, TOKENS),
    "timm GroupNorm1": (lambda: timm_layer("GroupNorm1", C), "group", 1, MAP),
    "timm RmsNorm": (lambda: timm_layer("RmsNorm", C), "rms", -1, TOKENS),
    "timm RmsNorm2d": (lambda: timm_layer("RmsNorm2d", C), "rms", 1, MAP),
    "timm BatchNormAct2d": (lambda: timm_layer("BatchNormAct2d", C), "batch", 1, MAP),
    "timm GroupNormAct": (lambda: timm_layer("GroupNormAct", C, 3), "group", 1, MAP),
    "timm LayerNormAct": (lambda: timm_layer("LayerNormAct", C), "layer", -1, TOKENS),
    "timm LayerNormAct2d": (lambda: timm_layer("LayerNormAct2d", C), "layer", 1, MAP),
    "ConvNext first": (
        lambda: hf_layer("convnext", "ConvNextLayerNorm", C, data_format="channels_first"),
        "layer", 1, MAP,
    ),
    "ConvNext last": (lambda: hf_layer("convnext", "ConvNextLayerNorm", C), "layer", -1, TOKENS),
    "Llama": (lambda: hf_layer("llama", "LlamaRMSNorm", C), "rms", -1, TOKENS),
    "T5": (lambda: hf_layer("t5", "T5LayerNorm", C), "rms", -1, TOKENS),
    "Gemma": (lambda: hf_layer("gemma", "GemmaRMSNorm", C), "rms", -1, TOKENS),
    "SqueezeBert": (
        lambda: hf_layer("squeezebert", "SqueezeBertLayerNorm", C), "layer", 1, (4, C, 5),
    ),
}  # fmt: skip


@pytest.fixture(params=list(LAYERS))
def layer(request):
    make, *facts = LAYERS[request.param]
    layer = make()
    with torch.no_grad():
        for name, p in (*layer.named_parameters(), *layer.named_buffers()):
            if p.is_floating_point():
                p.copy_(torch.rand_like(p) + 0.5 if "var" in name else torch.randn_like(p))
    return layer.eval(), *facts


def test_recognized_and_there_and_back(layer, rng_guard):
    module, kind, axis, shape = layer
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with rng_guard():
        facts = recognize(module)
    assert (facts.kind, facts.channel_axis) == (kind, axis)
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    norm = sigma_norm_of(copy.deepcopy(module), facts, Rows(3), noise=torch.zeros(3, 1))
    x = torch.randn(shape)
    expected = module(x.clone())
    torch.testing.assert_close(
        norm(x.repeat_interleave(3, 0))[1::3], expected, atol=1e-5, rtol=1e-5
    )
    with torch.no_grad():
        norm.gamma[1] += 0.7
    back = plain_norm_of(norm, 1)
    assert type(back) is type(module)
    norm.rows.active = 1
    torch.testing.assert_close(back(x.clone()), norm(x.clone()), atol=1e-6, rtol=1e-5)
    assert {"weight", "bias"} & set(module.state_dict()) <= set(back.state_dict())


def test_a_norm_in_half_precision_rounds_to_its_own_scale():
    module = nn.LayerNorm(64).to(torch.bfloat16)
    with torch.no_grad():
        module.weight.normal_()
    norm = sigma_norm_of(module, recognize(module), Rows(2))
    assert norm.gamma.dtype == torch.float32
    back = plain_norm_of(norm, 0)
    assert back.weight.dtype == torch.bfloat16
    assert torch.equal(back.weight, module.weight)


class Custom(nn.Module):
    """Calls itself a norm and computes something else."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(C))

    def forward(self, x):
        return x / x.abs().mean(-1, keepdim=True) * self.weight


class CustomNorm(Custom):
    pass


class TrainingOnly(nn.BatchNorm1d):
    """As BatchNorm in evaluation, and something else in training."""

    def forward(self, x):
        return super().forward(x) * (2.0 if self.training else 1.0)


class EitherFormat(nn.BatchNorm1d):
    """Takes features ``[B, C]`` and tokens ``[B, n, C]``."""

    def forward(self, x):
        return super().forward(x.flatten(0, -2)).view_as(x)


def test_a_layer_that_takes_channels_last_by_the_number_of_axes_is_not_recognized():
    assert recognize(EitherFormat(C)) is None


def test_a_parametrized_layer_is_not_recognized():
    norm = nn.LayerNorm(C)
    nn.utils.parametrize.register_parametrization(norm, "weight", nn.Softplus())
    assert recognize(norm) is None


def test_other_layers_are_not_recognized():
    frozen = library("torchvision", "ops").FrozenBatchNorm2d(C)
    split = timm_layer("SplitBatchNorm2d", C)
    others = [nn.InstanceNorm2d(C), nn.LocalResponseNorm(2), CustomNorm(), TrainingOnly(C)]
    simple = timm_layer("SimpleNorm", C)
    for module in (*others, frozen, split, simple):
        assert recognize(module) is None, type(module)


def model_with(norm, **more):
    model = nn.Sequential(nn.Linear(C, C), nn.BatchNorm1d(C), norm, nn.Linear(C, 3))
    for name, module in more.items():
        model.add_module(name, module)
    return model


@pytest.mark.parametrize(
    "norm", [nn.InstanceNorm1d(C), nn.LocalResponseNorm(2), CustomNorm(), TrainingOnly(C)]
)
def test_unknown_kinds_are_named(norm):
    with pytest.raises(InvalidInput) as error:
        find_norms(model_with(norm))
    assert f"2 ({type(norm).__name__})" in error.value.found
    with pytest.raises(InvalidInput) as error:
        find_norms(model_with(norm), ["2"])
    assert type(norm).__name__ in error.value.found


def test_unknown_kinds_that_see_one_row_may_stay_shared():
    model = model_with(CustomNorm())
    assert [f.name for f in find_norms(model, "recognized")] == ["1"]
    assert [f.name for f in find_norms(model, ["*", "!2"])] == ["1"]
    assert [f.name for f in find_norms(model_with(nn.LayerNorm(C)), "*")] == ["1", "2"]
    with pytest.raises(NotFound) as error:
        find_norms(model, ["layer*"])
    assert error.value.candidates == ("1",)


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm1d(C), TrainingOnly(C), nn.InstanceNorm1d(C, track_running_stats=True)],
)
def test_what_would_mix_the_members_cannot_stay_shared(norm):
    with pytest.raises(InvalidInput) as error:
        find_norms(model_with(norm), "1" if recognize(norm) else "recognized")
    assert "2 (" in error.value.found


def hooked(register):
    norm = nn.LayerNorm(C)
    getattr(norm, register)(lambda *_: None)
    return model_with(norm)


def another_forward():
    norm = nn.LayerNorm(C)
    norm.forward = lambda x: x * 2
    return model_with(norm)


@pytest.mark.parametrize(
    "make",
    [
        lambda: hooked("register_forward_hook"),
        lambda: hooked("register_forward_pre_hook"),
        another_forward,
    ],
)
def test_what_would_be_lost_with_a_layer_is_refused(make):
    with pytest.raises(InvalidInput) as error:
        find_norms(make())
    assert error.value.subject == "norm '2'"
    assert [f.name for f in find_norms(make(), "1")] == ["1"]


@pytest.mark.parametrize("norms", [3, [None], ["1", 2]])
def test_norms_are_patterns(norms):
    with pytest.raises(InvalidInput) as error:
        find_norms(model_with(nn.LayerNorm(C)), norms)
    assert error.value.subject == "norms"


def tied_modules():
    norm = nn.LayerNorm(C)
    return nn.Sequential(nn.Linear(C, C), norm, nn.ReLU(), norm, nn.Linear(C, 3))


def tied_weights():
    model = nn.Sequential(nn.LayerNorm(C), nn.Linear(C, C), nn.LayerNorm(C), nn.Linear(C, 3))
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "error"),
    [
        (tied_modules(), InvalidInput),
        (tied_weights(), InvalidInput),
        (nn.Sequential(nn.Linear(C, C), nn.LazyBatchNorm1d(), nn.Linear(C, 3)), InvalidInput),
        (model_with(nn.BatchNorm1d(C, track_running_stats=False)), InvalidInput),
        (nn.Sequential(nn.Linear(C, C), nn.ReLU(), nn.Linear(C, 3)), NotFound),
    ],
)
def test_refused(model, error):
    with pytest.raises(error) as caught:
        find_norms(model)
    assert caught.value.fix


def test_an_alias_of_a_part_is_no_second_place():
    model = model_with(nn.LayerNorm(C))
    model.add_module("block", nn.Sequential(nn.LayerNorm(C)))
    model.add_module("alias", model.block)
    assert [f.name for f in find_norms(model)] == ["1", "2", "block.0"]


def test_names_that_only_sound_like_norms():
    pytest.importorskip("torchvision")
    from torchvision.ops import Conv2dNormActivation

    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(C, C))
    model = nn.Sequential(Conv2dNormActivation(3, C), nn.Flatten(), spectral, nn.Linear(C, 3))
    assert [f.name for f in find_norms(model)] == ["0.1"]
