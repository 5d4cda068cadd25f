import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

from temperance.errors import InvalidInput, MissingPackage, NotFound
from temperance.models import find_head
from temperance.training.nets import NETS, build_net

SEQUENCES = ("transformer", "textcnn")
PICTURES = [n for n in NETS if n not in ("probe", *SEQUENCES)]


def parameters(net):
    return sum(p.numel() for p in net.module.parameters())


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 5, 9), (13, 16, 16)])
@pytest.mark.parametrize("m", [32, 130])
def test_our_nets_have_the_m_that_is_asked_for(name, shape, m):
    net = build_net(name, input_shape=shape, n_classes=7, seed=0, feature_dim=m)
    x = torch.randn(2, *shape)
    head = find_head(net.module, x)
    assert head.module is net.module.head
    assert (head.in_features, head.out_features) == (m, 7)
    assert head.verified
    assert net.in_channels == shape[0]
    assert net.module.training
    assert net.module(x).shape == (2, 7)


@pytest.mark.parametrize("name", ["mlp", "probe"])
def test_nets_for_features(name):
    net = build_net(name, input_shape=(20,), n_classes=3, seed=0)
    assert net.in_channels is None
    assert net.module.head.in_features == (20 if name == "probe" else 128)
    assert net.module(torch.randn(4, 20)).shape == (4, 3)


def test_a_probe_is_linear_and_its_m_is_the_input():
    net = build_net("probe", input_shape=(1, 4, 4), n_classes=3, seed=0, feature_dim=16)
    x = torch.randn(5, 1, 4, 4)
    assert_close(net.module(x), nn.functional.linear(x.flatten(1), *net.module.head.parameters()))
    assert parameters(net) == 16 * 3 + 3
    with pytest.raises(InvalidInput) as caught:
        build_net("probe", input_shape=(20,), n_classes=3, seed=0, feature_dim=64)
    assert "20" in caught.value.expected


def test_deeper_is_deeper():
    options = {"input_shape": (3, 32, 32), "n_classes": 10, "seed": 0}
    convolutions = [
        sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in net.module.modules())
        for net in (build_net(n, **options) for n in ("convnet", "resnet", "resnet14"))
    ]
    assert convolutions == [3, 7, 13]


@pytest.mark.parametrize("name", NETS)
def test_the_seed_decides_and_no_global_state_is_touched(name, rng_guard):
    shape = (5, 1, 9) if name in SEQUENCES else (1, 8, 8)
    with rng_guard():
        one, two, other = (
            build_net(name, input_shape=shape, n_classes=4, seed=s).module.state_dict()
            for s in (1, 1, 2)
        )
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])
    drawn = [k for k in one if "norm" not in k and one[k].unique().numel() > 2]
    assert not any(torch.equal(one[k], other[k]) for k in drawn)


def test_it_learns():
    net = build_net("convnet", input_shape=(1, 8, 8), n_classes=2, seed=0, feature_dim=16).module
    x = torch.randn(64, 1, 8, 8)
    y = (torch.arange(64) % 2).long()
    x[y == 1, :, :4] += 2
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    assert (net.eval()(x).argmax(1) == y).float().mean() > 0.95


@pytest.mark.parametrize(
    "options",
    [
        {"n_classes": 1},
        {"feature_dim": 0},
        {"input_shape": ()},
        {"input_shape": (1, 0, 8)},
        {"input_shape": (20,)},
    ],
)
def test_what_cannot_be_built_is_refused(options):
    good = {"input_shape": (1, 8, 8), "n_classes": 3, "seed": 0}
    with pytest.raises(InvalidInput):
        build_net("convnet", **{**good, **options})


# ------------------------------------------------------------------ weights
def saved(module, path, change=None):
    state = {k: v.clone() for k, v in module.state_dict().items()}
    save_file(change(state) if change else state, path)
    return path


def test_weights_come_back(tmp_path):
    options = {"input_shape": (1, 8, 8), "n_classes": 4}
    source = build_net("resnet", **options, seed=1)
    path = saved(source.module, tmp_path / "w.safetensors")
    net = build_net("resnet", **options, seed=2, weights=path)
    for k, v in source.module.state_dict().items():
        assert torch.equal(v, net.module.state_dict()[k])
    assert "0 new" in net.notices[0]


def test_an_output_layer_for_other_classes_is_left_new_and_told(tmp_path):
    source = build_net("convnet", input_shape=(1, 8, 8), n_classes=9, seed=1)
    path = saved(source.module, tmp_path / "w.safetensors")
    options = {"input_shape": (1, 8, 8), "n_classes": 4, "seed": 2}
    net = build_net("convnet", **options, weights=path)
    fresh = build_net("convnet", **options).module.state_dict()
    for k, v in net.module.state_dict().items():
        source_value = source.module.state_dict()[k]
        assert torch.equal(v, fresh[k] if k.startswith("head.") else source_value)
    assert "9 outputs" in net.notices[-1]
    assert "4 classes" in net.notices[-1]


def test_half_an_output_layer_is_not_loaded(tmp_path):
    options = {"input_shape": (1, 8, 8), "n_classes": 4}
    source = build_net("convnet", **options, seed=1)
    path = tmp_path / "w.safetensors"
    saved(source.module, path, lambda s: {k: v for k, v in s.items() if k != "head.bias"})
    head = build_net("convnet", **options, seed=2, weights=path).module.head
    fresh = build_net("convnet", **options, seed=2).module.head
    assert torch.equal(head.weight, fresh.weight)
    assert torch.equal(head.bias, fresh.bias)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: {k: v for k, v in s.items() if k != "body.0.weight"},
        lambda s: {**s, "body.0.weight": s["body.0.weight"][:3].clone()},
        lambda s: {f"other.{k}": v for k, v in s.items()},
        lambda s: {"head.weight": s["head.weight"], "head.bias": s["head.bias"]},
    ],
)
def test_a_body_that_does_not_match_is_refused(tmp_path, change):
    options = {"input_shape": (1, 8, 8), "n_classes": 4, "seed": 2}
    path = saved(build_net("convnet", **options).module, tmp_path / "w.safetensors", change)
    with pytest.raises(InvalidInput):
        build_net("convnet", **options, weights=path)


def test_the_same_net_by_other_hands_is_told_how_to_come_in(tmp_path):
    options = {"input_shape": (1, 8, 8), "n_classes": 4, "seed": 2}
    module = build_net("convnet", **options).module
    torch.save(module.state_dict(), tmp_path / "w.pth")
    with pytest.raises(InvalidInput) as error:
        build_net("convnet", **options, weights=tmp_path / "w.pth")
    assert "write_safetensors('weights.safetensors', torch.load(path" in error.value.fix
    path = saved(module, tmp_path / "w.safetensors", lambda s: {f"_{k}": v for k, v in s.items()})
    with pytest.raises(InvalidInput) as error:
        build_net("convnet", **options, weights=path)
    assert "keeps no order" in error.value.fix
    net = build_net("resnet", input_shape=(1, 8, 8), n_classes=4, seed=1).module
    with pytest.raises(InvalidInput) as error:
        build_net("convnet", **options, weights=saved(net, tmp_path / "r.safetensors"))
    assert error.value.fix == "Check that the file belongs to this net."


def test_weights_that_are_not_there(tmp_path):
    with pytest.raises(NotFound):
        build_net(
            "mlp", input_shape=(3,), n_classes=2, seed=0, weights=tmp_path / "gone.safetensors"
        )


# ------------------------------------------------------------------ libraries
@pytest.fixture(scope="module")
def timm():
    return pytest.importorskip("timm")


@pytest.fixture(scope="module")
def torchvision():
    return pytest.importorskip("torchvision")


@pytest.mark.parametrize("name", ["timm:test_resnet", "timm:test_vit", "timm:test_convnext"])
@pytest.mark.parametrize("channels", [1, 3])
def test_models_of_timm(timm, name, channels, rng_guard):
    options = {"input_shape": (channels, 64, 64), "n_classes": 5}
    with rng_guard():
        one, two, other = (build_net(name, **options, seed=s) for s in (1, 1, 2))
    assert one.in_channels == channels
    assert one.mean is None
    assert one.name == name
    head = find_head(one.module, torch.randn(2, channels, 64, 64))
    assert head.out_features == 5
    a, b, c = (n.module.state_dict() for n in (one, two, other))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a[f"{head.name}.weight"], c[f"{head.name}.weight"])


def test_weights_of_timm_bring_their_normalization_and_want_colour(timm, tmp_path):
    options = {"input_shape": (1, 64, 64), "seed": 0}
    path = tmp_path / "w.safetensors"
    saved(timm.create_model("test_resnet", num_classes=7), path)
    net = build_net("timm:test_resnet", **options, n_classes=5, weights=path)
    assert net.in_channels == 3
    assert net.mean == tuple(net.module.pretrained_cfg["mean"])
    assert net.std == tuple(net.module.pretrained_cfg["std"])
    assert any("gray" in n for n in net.notices)
    assert "7 outputs" in net.notices[-1]


def test_models_of_torchvision_take_gray_replicated(torchvision, rng_guard):
    with rng_guard():
        net = build_net("torchvision:squeezenet1_1", input_shape=(1, 64, 64), n_classes=5, seed=0)
    assert net.in_channels == 3
    assert net.notices
    assert net.module(torch.randn(2, 3, 64, 64)).shape == (2, 5)


def test_a_plain_name_works_where_one_library_has_it(timm, torchvision):
    net = build_net("test_resnet", input_shape=(3, 32, 32), n_classes=5, seed=0)
    assert net.name == "timm:test_resnet"


def test_a_name_that_both_have_is_ambiguous(timm, torchvision):
    with pytest.raises(NotFound) as caught:
        build_net("resnet18", input_shape=(3, 32, 32), n_classes=5, seed=0)
    assert caught.value.candidates == ("timm:resnet18", "torchvision:resnet18")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("convnt", "convnet"),
        ("timm:test_resnt", "timm:test_resnet"),
        ("hf-hub:timm/test_resnet", "timm:test_resnet"),
        ("timm:hf-hub:any/thing", None),
        ("torchvision:fasterrcnn_resnet50_fpn", None),
    ],
)
def test_unknown_names_get_near_ones_and_nothing_is_fetched(timm, torchvision, name, near):
    with pytest.raises(NotFound) as caught:
        build_net(name, input_shape=(3, 32, 32), n_classes=5, seed=0)
    assert caught.value.candidates
    assert near is None or near in caught.value.candidates


def test_a_size_that_does_not_fit_is_found_before_training(torchvision):
    with pytest.raises(InvalidInput) as caught:
        build_net("torchvision:alexnet", input_shape=(3, 32, 32), n_classes=5, seed=0)
    assert "image_size" in caught.value.fix


@pytest.mark.parametrize(
    "options",
    [{"feature_dim": 64}, {"input_shape": (20,)}, {"input_shape": (5, 64, 64)}],
)
def test_what_a_library_model_cannot_do(torchvision, options):
    good = {"input_shape": (3, 64, 64), "n_classes": 3, "seed": 0}
    with pytest.raises(InvalidInput):
        build_net("torchvision:squeezenet1_1", **{**good, **options})


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_library_is_named(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingPackage) as caught:
        build_net(f"{library}:resnet18", input_shape=(3, 32, 32), n_classes=5, seed=0)
    assert caught.value.extra == library
