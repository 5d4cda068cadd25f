"""Attention over patches, convolutions over letters: what is written down, step by step."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from temperance.errors import InvalidInput
from temperance.head import insert, parameter_groups
from temperance.models import find_head
from temperance.training.nets import build_net
from temperance.training.nets_sequence import (
    AttentionEncoder,
    SelfAttention,
    textcnn_body,
    transformer_body,
    vit_body,
)


def built(name, shape, *, m=12, seed=0, n_classes=3):
    return build_net(name, input_shape=shape, n_classes=n_classes, seed=seed, feature_dim=m).module


def letters(n, k, length, *, seed=0):
    """One-hot rows of which the last places are empty."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, k, (n, length))
    x = (ids[:, None, :] == np.arange(k)[:, None])[:, :, None, :].astype(np.float32)
    ends = rng.integers(1, length + 1, n)
    x[
        np.broadcast_to(np.arange(length) >= ends[:, None], (n, length))[:, None, None].repeat(k, 1)
    ] = 0
    return torch.from_numpy(x), ends


# ------------------------------------------------------------------ shapes
@pytest.mark.parametrize("name", ["transformer", "textcnn"])
@pytest.mark.parametrize("shape", [(64, 1, 96), (3, 1, 5), (1, 1, 2)])
@pytest.mark.parametrize("m", [1, 33, 64])
def test_nets_of_sequences_have_the_m_that_is_asked_for(name, shape, m):
    net = built(name, shape, m=m)
    x = torch.randn(4, *shape)
    head = find_head(net, x)
    assert head.module is net.head
    assert (head.in_features, head.out_features) == (m, 3)
    assert net(x).shape == (4, 3)


@given(m=st.integers(1, 300))
@settings(max_examples=60)
def test_heads_divide_m_and_are_no_narrower_than_they_have_to(m):
    heads = SelfAttention(m).heads
    assert m % heads == 0
    assert heads <= max(1, m // 32)
    assert not any(m % more == 0 for more in range(heads + 1, m // 32 + 1))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("vit", (1, 3, 8)),
        ("vit", (64, 1, 96)),
        ("vit", (9,)),
        ("transformer", (1, 8, 8)),
        ("transformer", (9,)),
        ("textcnn", (1, 8, 8)),
        ("textcnn", (5, 1, 1)),
        ("textcnn", (9,)),
    ],
)
def test_rows_of_other_kinds_are_refused(name, shape):
    with pytest.raises(InvalidInput) as caught:
        built(name, shape)
    assert caught.value.subject == f"net {name}"
    wanted = "pictures" if name == "vit" else "sequences [K, 1, L]"
    assert caught.value.expected.startswith(wanted)


@pytest.mark.parametrize("body", [vit_body, transformer_body, textcnn_body])
def test_bodies_refuse_rows_of_numbers(body):
    with pytest.raises(InvalidInput):
        body((9,), 4)


# ------------------------------------------------------------------ what they compute
def naive_attention(layer, h):
    """softmax(Q K^T / sqrt(d)) V of each head for itself, one row after the other."""
    m = h.shape[-1]
    d, out = m // layer.heads, torch.empty_like(h)
    for row in range(len(h)):
        q, k, v = (nn.functional.linear(h[row], w, b) for w, b in parts_of(layer.inside))
        for at in range(0, m, d):
            part = slice(at, at + d)
            scores = q[:, part] @ k[:, part].T / math.sqrt(d)
            out[row, :, part] = scores.softmax(1) @ v[:, part]
    return layer.out(out)


def parts_of(linear):
    return zip(linear.weight.chunk(3), linear.bias.chunk(3), strict=True)


@pytest.mark.parametrize("m", [6, 64, 96])
def test_attention_is_the_naive_loop(m):
    torch.manual_seed(0)
    layer, h = SelfAttention(m), torch.randn(3, 5, m)
    assert_close(layer(h), naive_attention(layer, h), rtol=1e-4, atol=1e-5)


def naive_encoder(body, x, *, skip_empty):
    """One patch after the other, one row after the other."""
    (high, wide), (h, w) = body.grid, body.patch
    whole = torch.zeros(*x.shape[:2], high * h, wide * w)
    whole[:, :, : x.shape[2], : x.shape[3]] = x
    means = []
    for picture in whole:
        cuts = [
            picture[:, i * h : (i + 1) * h, j * w : (j + 1) * w].permute(1, 2, 0).flatten()
            for i in range(high)
            for j in range(wide)
        ]
        tokens = [body.embed(cut) + body.positions.bias[t] for t, cut in enumerate(cuts)]
        hidden = torch.stack(tokens).unsqueeze(0)
        for block in body.blocks:
            hidden = hidden + naive_attention(block.attention, block.norm1(hidden))
            hidden = hidden + block.mlp(block.norm2(hidden))
        hidden = body.norm(hidden)[0]
        kept = [t for t, cut in enumerate(cuts) if cut.any()] if skip_empty else []
        means.append(hidden[kept or range(len(cuts))].mean(0))
    return torch.stack(means)


@pytest.mark.parametrize(
    ("shape", "grid"), [((1, 8, 8), (4, 4)), ((3, 5, 9), (3, 3)), ((2, 27, 7), (4, 4))]
)
def test_the_vision_transformer_is_the_naive_loop(shape, grid):
    torch.manual_seed(0)
    body, x = vit_body(shape, 12), torch.randn(4, *shape)
    assert body.grid == grid
    assert_close(body(x), naive_encoder(body, x, skip_empty=False), rtol=1e-4, atol=1e-5)
    last = x.contiguous(memory_format=torch.channels_last)
    assert_close(body(last), body(x), rtol=1e-4, atol=1e-5)


def test_the_transformer_leaves_what_is_empty_out_of_the_mean():
    torch.manual_seed(0)
    x, _ = letters(6, 5, 18)
    x[0] = 0  # nothing but empty places: the plain mean
    body = transformer_body((5, 1, 18), 12)
    assert body.grid == (1, 5)
    assert_close(body(x), naive_encoder(body, x, skip_empty=True), rtol=1e-4, atol=1e-5)
    plain = naive_encoder(body, x, skip_empty=False)
    assert not torch.allclose(body(x)[1:], plain[1:], atol=1e-3)
    assert_close(body(x)[0], plain[0], rtol=1e-4, atol=1e-5)


def test_96_letters_are_24_tokens():
    assert transformer_body((64, 1, 96), 8).positions.bias.shape == (24, 8)


def test_the_net_of_letters_is_the_naive_convolution():
    torch.manual_seed(0)
    x, _ = letters(5, 4, 11)
    body = textcnn_body((4, 1, 11), 6).eval()
    embed, first, _, _, _, second, *_ = body
    h = torch.einsum("bkl,ek->bel", x[:, :, 0], embed.weight[:, :, 0, 0])
    h = over_five(h, first.weight)
    h = torch.stack([h[:, :, p : p + 2].amax(2) for p in range(0, 10, 2)], 2)  # the 11th is left
    assert_close(body(x), over_five(h, second.weight).amax(2), rtol=1e-4, atol=1e-5)


def over_five(h, weight):
    """Convolution over five places, a new BatchNorm at inference, ReLU."""
    length, h = h.shape[2], nn.functional.pad(h, (2, 2))
    places = [
        torch.einsum("bcl,ocl->bo", h[:, :, p : p + 5], weight[:, :, 0]) for p in range(length)
    ]
    return torch.stack(places, 2).div(math.sqrt(1 + 1e-5)).relu()


# ------------------------------------------------------------------ training
def test_positions_are_drawn_by_the_seed_and_not_decayed():
    one, two, other = (built("vit", (1, 8, 8), seed=s) for s in (1, 1, 2))
    bias = one.body.positions.bias.detach()
    assert torch.equal(bias, two.body.positions.bias)
    assert not torch.equal(bias, other.body.positions.bias)
    assert 0.01 < float(bias.std()) < 0.03
    insert(one, 2.0, name="head")
    decayed, free = parameter_groups(one, 0.1)
    assert any(p is one.body.positions.bias for p in free["params"])
    assert all(p.ndim == 2 for p in decayed["params"])
    assert {id(m.weight) for m in one.modules() if isinstance(m, nn.Linear)} == {
        id(p) for p in decayed["params"]
    }


@pytest.mark.parametrize("name", ["vit", "transformer", "textcnn"])
def test_they_learn(name):
    shape = (1, 8, 8) if name == "vit" else (6, 1, 20)
    net, rng = built(name, shape, m=16, n_classes=2), torch.Generator().manual_seed(0)
    y = torch.arange(64) % 2
    if name == "vit":
        x = torch.randn(64, *shape, generator=rng)
        x[y == 1, :, :4] += 2
    else:  # the letter that is there only in class 1
        ids = torch.randint(0, 5, (64, 20), generator=rng)
        ids[y == 1, 7] = 5
        x = nn.functional.one_hot(ids, 6).permute(0, 2, 1).unsqueeze(2).float()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    assert (net.eval()(x).argmax(1) == y).float().mean() > 0.95


# ------------------------------------------------------------------ exports
@pytest.mark.parametrize("name", ["vit", "transformer", "textcnn"])
def test_torch_export_is_the_live_net_at_any_batch_size(name):
    shape = (3, 9, 9) if name == "vit" else (5, 1, 18)
    net = built(name, shape, m=64).eval()
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    program = torch.export.export(net, (torch.randn(3, *shape),), dynamic_shapes=(batch,)).module()
    for n in (1, 2, 17):
        x = torch.randn(n, *shape) if name == "vit" else letters(n, 5, 18)[0]
        assert_close(program(x), net(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["vit", "transformer", "textcnn"])
def test_onnx_is_the_live_net(name, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from temperance.export import export_onnx

    shape = (3, 9, 9) if name == "vit" else (5, 1, 18)
    net = built(name, shape, m=64)
    insert(net, 3.0, norm="batch", name="head")
    net(torch.randn(8, *shape))  # statistics of the norm
    net.eval()
    report = export_onnx(net, tmp_path / "m.onnx", torch.randn(4, *shape))
    assert report.max_rel_error < 1e-4
    session = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    x = torch.randn(5, *shape) if name == "vit" else letters(5, 5, 18)[0]
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, net(x).detach(), rtol=1e-3, atol=1e-5)


def test_an_encoder_is_for_any_patch():
    assert AttentionEncoder((2, 7, 5), 8, patch=(3, 2))(torch.zeros(2, 2, 7, 5)).shape == (2, 8)
