"""Models that people use, with random weights: find, insert, train a step, fold, remove."""

import pytest
import torch

from temperance.errors import NotFound
from temperance.head import fold, insert, insert_all, remove
from temperance.models import call_model, find_head, logits_of, split_batch

C = 5
PICTURES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TOKENS = {
    "input_ids": torch.tensor([[5, 6, 7, 8], [9, 10, 11, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
    "labels": torch.tensor([0, 4]),
}


def check(model, batch, name, feature_dim, *, train_batch=None):
    """The whole life of a head in one model."""
    before = {k: v.clone() for k, v in model.state_dict().items()}
    old = dict(model.named_modules())[name]
    head = find_head(model, batch)
    assert (head.name, head.in_features, head.out_features) == (name, feature_dim, C)
    assert head.verified
    new = insert(model, 4.0, example=batch)
    torch.nn.init.normal_(new.linear.weight, std=0.1)  # vision transformers start theirs at zero
    trainable = train_batch if train_batch is not None else batch
    model.train()
    output = call_model(model, split_batch(trainable)[0])
    logits_of(output).square().sum().backward()
    assert float(new.norm.weight.grad.abs().sum()) > 0
    with torch.no_grad():
        new.norm.running_mean.normal_()
        new.norm.running_var.uniform_(0.5, 2)
        new.norm.weight.normal_()
        new.norm.bias.normal_()
        new.linear.weight.normal_(std=0.1)
    folded = fold(model.eval(), batch)
    report = dict(folded.named_modules())[name].fold_report
    assert max(report.max_rel_error, report.example_rel_error) < 1e-5
    assert remove(model) is old
    after = model.state_dict()
    assert list(after) == list(before)
    changed = {k for k in before if not torch.equal(before[k], after[k])}
    assert f"{name}.weight" in changed  # trained above; the backbone's BatchNorms moved, too
    assert all("running" in k or "num_batches" in k for k in changed - {f"{name}.weight"})


@pytest.mark.parametrize(
    ("model", "name", "feature_dim", "settings"),
    [
        ("resnet18", "fc", 512, {}),
        ("mobilenet_v2", "classifier.1", 1280, {}),
        ("densenet121", "classifier", 1024, {}),
        ("vit_b_16", "heads.head", 768, {"image_size": 32}),
        ("googlenet", "fc", 1024, {"init_weights": False, "aux_logits": True}),
    ],
)
def test_torchvision(model, name, feature_dim, settings):
    models = pytest.importorskip("torchvision.models")
    net = models.get_model(model, num_classes=C, **settings)
    # GoogLeNet's auxiliary heads want 4 x 4 maps in training
    train = torch.randn(2, 3, 224, 224) if model == "googlenet" else None
    check(net, PICTURES, name, feature_dim, train_batch=train)


def test_torchvision_squeezenet_ends_in_a_convolution():
    models = pytest.importorskip("torchvision.models")
    net = models.squeezenet1_1(num_classes=C)
    pictures = torch.randn(2, 3, 64, 64)
    head = find_head(net, pictures)
    assert (head.name, head.kind, head.out_features) == ("classifier.1", "conv1x1", C)
    check(net, pictures, "classifier.1", 512)


@pytest.mark.parametrize(
    ("model", "name", "feature_dim", "settings"),
    [
        ("vit_tiny_patch16_224", "head", 192, {"img_size": 32}),
        ("resnet10t", "fc", 512, {}),
        ("convnext_atto", "head.fc", 320, {}),
    ],
)
def test_timm(model, name, feature_dim, settings):
    timm = pytest.importorskip("timm")
    net = timm.create_model(model, num_classes=C, **settings)
    check(net, PICTURES, name, feature_dim)
    head = insert(net, 4.0, example=PICTURES)
    assert net.get_classifier() is head
    assert net.num_classes == C
    pre_logits = net.forward_head(net.forward_features(PICTURES), pre_logits=True)
    assert pre_logits.shape == (2, feature_dim)
    net.reset_classifier(3)
    assert net.eval()(PICTURES).shape == (2, 3)


def test_timm_distilled():
    timm = pytest.importorskip("timm")
    net = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=C, img_size=32)
    with pytest.raises(NotFound) as error:
        insert(net, 2.0, example=PICTURES)
    assert error.value.candidates == ("head", "head_dist")
    plain = net.eval()(PICTURES)
    assert list(insert_all(net, 4.0, norm="none", example=PICTURES)) == ["head", "head_dist"]
    torch.testing.assert_close(net(PICTURES), plain / 4)
    torch.testing.assert_close(fold(net, PICTURES)(PICTURES), plain / 4)
    for name in ("head", "head_dist"):
        remove(net, name=name)
    assert torch.equal(net(PICTURES), plain)
    net.set_distilled_training(True)
    with pytest.raises(NotFound):
        logits_of(net.train()(PICTURES))
    assert logits_of(net(PICTURES), key=1).shape == (2, C)


TEXT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "num_labels": C,
}
DISTIL = {"vocab_size": 50, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
GPT2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2, "pad_token_id": 0}


@pytest.mark.parametrize(
    ("family", "name", "settings"),
    [
        ("Bert", "classifier", TEXT),
        ("DistilBert", "classifier", {**DISTIL, "num_labels": C}),
        ("Roberta", "classifier.out_proj", TEXT),
        (
            "GPT2",
            "score",
            {**GPT2, "bos_token_id": 0, "eos_token_id": 0, "num_labels": C},
        ),
    ],
)
def test_transformers_text(family, name, settings):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{family}Config")(**settings)
    net = getattr(transformers, f"{family}ForSequenceClassification")(config)
    check(net, TOKENS, name, 16)
    assert find_head(net).source == "declared"


def test_transformers_pictures():
    transformers = pytest.importorskip("transformers")
    small = {k: v for k, v in TEXT.items() if k not in ("vocab_size", "max_position_embeddings")}
    config = transformers.ViTConfig(image_size=32, patch_size=16, **small)
    net = transformers.ViTForImageClassification(config)
    check(net, {"pixel_values": PICTURES, "labels": torch.tensor([0, 1])}, "classifier", 16)
