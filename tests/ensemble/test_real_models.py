"""Models that people use, small and with random weights: all members together are each alone."""

import copy
import functools

import pytest
import torch
from torch import nn

from temperance.ensemble import convert, predict_members, revert, sigma_norms
from temperance.head import insert
from temperance.models import call_model, logits_of, split_batch
from temperance.training.nets import build_net

C, M = 5, 3
PICTURES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TOKENS = {
    "input_ids": torch.tensor([[5, 6, 7, 8], [9, 10, 11, 0], [3, 4, 0, 0], [1, 2, 3, 4]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]),
    "labels": torch.tensor([0, 4, 1, 2]),
}
TEXT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "num_labels": C,
}
_WORDS = ("vocab_size", "max_position_embeddings", "num_labels")
SEEING = {k: v for k, v in TEXT.items() if k not in _WORDS}


def own(name):
    net = build_net(name, input_shape=(3, 32, 32), n_classes=C, seed=0, feature_dim=16)
    return net.module, PICTURES


def torchvision(name, **settings):
    models = pytest.importorskip("torchvision.models")
    return models.get_model(name, num_classes=C, **settings), PICTURES


def tv_convnext():
    convnext = pytest.importorskip("torchvision.models.convnext")
    setting = [convnext.CNBlockConfig(8, 16, 1), convnext.CNBlockConfig(16, None, 1)]
    return convnext.ConvNeXt(setting, num_classes=C, layer_scale=0.5), PICTURES


def tv_vit():
    vit = pytest.importorskip("torchvision.models").VisionTransformer
    return vit(32, 16, 2, 2, 16, 32, num_classes=C), PICTURES


def tv_swin():
    swin = pytest.importorskip("torchvision.models").SwinTransformer
    return swin([4, 4], 8, [2, 2], [2, 2], [4, 4], num_classes=C), PICTURES


def timm(name, **settings):
    return pytest.importorskip("timm").create_model(name, num_classes=C, **settings), PICTURES


def resnetv2_bit():
    """GroupNorm with an activation, and weights that F.batch_norm standardizes."""
    layers = pytest.importorskip("timm.layers")
    from timm.models.resnetv2 import ResNetV2

    norm = functools.partial(layers.GroupNormAct, num_groups=2)
    return ResNetV2(**TINY, norm_layer=norm, num_classes=C, stem_type="fixed"), PICTURES


def hf(family, task, batch, **settings):
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, f"{family}For{task}"):
        pytest.skip(f"this transformers has no {family}")
    config = getattr(transformers, f"{family}Config")(**settings)
    return getattr(transformers, f"{family}For{task}")(config), batch


def text(family, **settings):
    return hf(family, "SequenceClassification", TOKENS, **{**TEXT, **settings})


def seeing(family, **settings):
    return hf(family, "ImageClassification", {"pixel_values": PICTURES}, num_labels=C, **settings)


TINY = {"layers": (1, 1, 1, 1), "channels": (16, 16, 32, 32), "stem_chs": 8}
DECODER = {"pad_token_id": 0, "num_key_value_heads": 1, "head_dim": 8}

# name: how to build it, where the rows are copied, norms
MODELS = {
    "own resnet": (lambda: own("resnet"), "body.1", 9),
    "own convnet": (lambda: own("convnet"), "body.1", 3),
    "torchvision resnet18": (lambda: torchvision("resnet18"), "bn1", 20),
    "torchvision convnext": (tv_convnext, "features.0.1", 5),
    "torchvision vit": (tv_vit, "encoder.layers.encoder_layer_0", 5),
    "torchvision swin": (tv_swin, "features.0.2", 11),
    "torchvision mobilenet_v3": (lambda: torchvision("mobilenet_v3_small"), "features.0.1", 34),
    "timm resnetv2": (lambda: timm("resnetv2_50", **TINY), "stages.0.blocks.0.norm1", 13),
    "timm resnetv2 bit": (resnetv2_bit, "stages.0.blocks.0.norm1", 13),
    "timm vit": (
        lambda: timm("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=48), "blocks.0", 5,
    ),
    "timm convnext": (lambda: timm("convnext_atto", depths=(1, 1, 1, 1)), "stem.1", 9),
    "timm efficientnet": (lambda: timm("efficientnet_lite0"), "bn1", 49),
    "timm regnet": (lambda: timm("regnety_002"), "stem.bn", 44),
    "timm swin": (
        lambda: timm(
            "swin_tiny_patch4_window7_224", img_size=32, embed_dim=12, depths=(2, 2),
            num_heads=(2, 2), window_size=4,
        ),
        "patch_embed.norm", 11,
    ),
    "timm mobilenetv3": (lambda: timm("mobilenetv3_small_050"), "bn1", 34),
    "timm levit, two heads": (lambda: timm("levit_128s", img_size=32), "stem.conv1.bn", 52),
    "bert": (lambda: text("Bert"), "bert", 5),
    "albert, one layer many times": (lambda: text("Albert", embedding_size=8), "albert", 3),
    "roberta": (lambda: text("Roberta"), "roberta", 5),
    "llama": (lambda: text("Llama", **DECODER), "", 5),
    "gemma": (lambda: text("Gemma", **DECODER), "", 5),
    "qwen3, norms of queries": (lambda: text("Qwen3", **DECODER), "", 9),
    "hf vit": (lambda: seeing("ViT", image_size=32, patch_size=16, **SEEING), None, 5),
    "hf convnext": (
        lambda: seeing("ConvNext", depths=[1, 1], hidden_sizes=[8, 16], num_stages=2),
        "convnext.embeddings.layernorm", 5,
    ),
    "hf resnet": (
        lambda: seeing("ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
        "resnet.embedder.embedder.normalization", 8,
    ),
}  # fmt: skip


def build(name):
    model, batch = MODELS[name][0]()
    with torch.no_grad():  # heads and last scales that start at zero would hide everything
        for parameter in model.parameters():
            if not bool(parameter.any()):
                parameter.uniform_(-0.1, 0.1)
    return model.eval(), batch


@pytest.mark.parametrize("name", list(MODELS))
def test_members_of_real_models(name, differ, rng_guard):
    _, place, count = MODELS[name]
    model, batch = build(name)
    inputs = split_batch(batch)[0]
    with torch.no_grad(), rng_guard():
        ensemble = convert(model, M, spread=0.0, example=batch)
        expected = logits_of(call_model(model, inputs))
        largest = float(expected.abs().max())
        for z in call_model(ensemble, inputs):
            torch.testing.assert_close(z, expected, atol=1e-5 * largest, rtol=1e-5)
        assert place is None or ensemble.site.name == place
        assert len(sigma_norms(ensemble)) == count
        differ(ensemble)
        joint = call_model(ensemble, inputs)
        assert joint.shape == (M, 4, C)
        scale = float(joint.abs().max())
        for m in range(M):
            plain = revert(ensemble, m)
            with ensemble.member(m):
                alone = call_model(ensemble, inputs)[0]
            torch.testing.assert_close(joint[m], alone, atol=1e-5 * scale, rtol=1e-5)
            z = logits_of(call_model(plain, inputs))
            torch.testing.assert_close(z, alone, atol=1e-5 * scale, rtol=1e-5)
            assert list(plain.state_dict()) == list(model.state_dict())
            assert m == 0 or float((alone - joint[0]).abs().max()) > 1e-3 * scale


TRAINED = ["torchvision convnext", "timm resnetv2", "timm swin", "timm regnet", "hf vit", "llama"]


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_step_is_that_of_each_alone(name, differ):
    model, batch = build(name)
    inputs, _ = split_batch(batch)
    ensemble = differ(convert(model, M, example=batch)).double()
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()} if (
        isinstance(inputs, dict)
    ) else inputs.double()  # fmt: skip
    for module in ensemble.modules():  # but no dropout, whose masks differ
        module.training = not isinstance(module, nn.Dropout) and "Drop" not in type(module).__name__
    serial = copy.deepcopy(ensemble)
    logits = call_model(ensemble, inputs)
    logits.square().sum().backward()
    for m in range(M):
        with serial.member(m):
            z = call_model(serial, inputs)
        torch.testing.assert_close(z[0], logits[m], atol=1e-8, rtol=1e-6)
        z.square().sum().backward()
    for (key, p), q in zip(ensemble.named_parameters(), serial.parameters(), strict=True):
        if p.grad is not None:
            size = float(q.grad.abs().max())
            allowed = 1e-6 * size + 1e-10  # some gradients are zero but for rounding
            torch.testing.assert_close(p.grad, q.grad, atol=allowed, rtol=1e-5, msg=key)
    for (key, p), q in zip(ensemble.named_buffers(), serial.buffers(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-8, rtol=1e-6, msg=key)


@pytest.mark.parametrize("name", ["timm vit", "bert"])
def test_checkpointing_of_the_libraries(name, differ):
    model, batch = build(name)
    inputs, _ = split_batch(batch)
    ensemble = differ(convert(model, M, example=batch)).train()
    for module in ensemble.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    plain = copy.deepcopy(ensemble)
    if name == "bert":
        old = "gradient_checkpointing_enable"
        enable = getattr(ensemble.backbone, "activation_checkpointing_enable", None)
        (enable or getattr(ensemble.backbone, old))({"use_reentrant": False})
    else:
        ensemble.backbone.set_grad_checkpointing(True)
    for e in (ensemble, plain):
        call_model(e, inputs).square().sum().backward()
    for (key, p), q in zip(ensemble.named_parameters(), plain.parameters(), strict=True):
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-4, msg=key)


@pytest.mark.parametrize("name", ["llama", "timm vit", "torchvision resnet18"])
def test_with_a_tempered_head(name, differ):
    """In a decoder the head sees every token, so that its BatchNorm has tokens in its rows."""
    model, batch = build(name)
    inputs = split_batch(batch)[0]
    insert(model, 4.0, example=batch)
    ensemble = differ(convert(model, M, spread=0.0, example=batch))
    joint = predict_members(ensemble, inputs)
    for m in range(M):
        with torch.no_grad():
            z = logits_of(call_model(revert(ensemble, m).eval(), inputs))
        torch.testing.assert_close(joint[m], z, atol=1e-5, rtol=1e-5)
    serial = copy.deepcopy(ensemble.train())
    call_model(ensemble, inputs)
    for m in range(M):
        with serial.member(m):
            call_model(serial, inputs)
    for (key, p), q in zip(ensemble.named_buffers(), serial.buffers(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=1e-4, msg=key)


def test_a_model_with_other_norms_as_well():
    """ConvNeXt V2 has a response norm of each row, which may stay shared, when one says so."""
    from temperance.errors import InvalidInput

    model, batch = timm("convnextv2_atto", depths=(1, 1, 1, 1))
    with pytest.raises(InvalidInput) as error:
        convert(model, M, example=batch)
    assert "stages.0.blocks.0.mlp.grn (GlobalResponseNorm)" in error.value.found
    assert "recognized" in error.value.fix
    ensemble = convert(model.eval(), M, spread=0.0, example=batch, norms="recognized")
    torch.testing.assert_close(ensemble(batch)[1], model(batch))
