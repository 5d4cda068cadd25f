"""The rivals on the forms of nets that people train: each works, or says why it does not."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from temperance.ensemble.baselines import BASELINES
from temperance.ensemble.masksembles import MemberMask, masksembles
from temperance.ensemble.mc_dropout import MemberDropout, mc_dropout
from temperance.ensemble.mimo import mimo
from temperance.ensemble.packed import packed
from temperance.ensemble.packed_layers import GroupedLinear
from temperance.errors import InvalidInput, NotFound

M, B, C, W = 3, 6, 4, 12
WORDS = 20


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.around = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x):
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inner + self.around(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(W), nn.LayerNorm(W)
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.mlp = nn.Sequential(nn.Linear(W, 2 * W), nn.GELU(), nn.Linear(2 * W, W))

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, 2, w // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w)
        x = x + self.out(mixed)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """For pictures; for token ids ``[B, L]`` with ``words``: 0 fills up and is left out."""

    def __init__(self, words=0, *, count=4, places=True):
        super().__init__()
        self.tokens = nn.Embedding(words, W) if words else nn.Conv2d(3, W, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(count, W)) if places else None
        self.layers = nn.Sequential(Layer(), Layer())
        self.norm, self.head = nn.LayerNorm(W), nn.Linear(W, C)

    def forward(self, x):
        y = self.tokens(x)
        y = y if x.dim() == 2 else y.flatten(2).transpose(1, 2)
        y = y if self.places is None else y + self.places[: y.shape[1]]
        y = self.norm(self.layers(y))
        if x.dim() == 2:
            real = (x > 0).unsqueeze(-1)
            return self.head((y * real).sum(1) / real.sum(1).clamp(min=1))
        return self.head(y.mean(1))


def resnet():
    return nn.Sequential(
        nn.Conv2d(3, W, 3, 2, 1, bias=False), nn.BatchNorm2d(W), nn.ReLU(),
        Residual(W, W, 1), Residual(W, 2 * W, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * W, C),
    )  # fmt: skip


NETS = {"resnet": resnet, "vit": Transformer, "text": lambda: Transformer(WORDS, count=8)}
REFUSED = {
    ("deep_ensemble", "vit"): "places",  # a function from a seed to a new model works
    ("deep_ensemble", "text"): "places",
    ("film_ensemble", "vit"): "BatchNorm",
    ("film_ensemble", "text"): "BatchNorm",
    ("packed", "vit"): "places",
    ("packed", "text"): "Embedding",
    ("mimo", "text"): "torch.int64",
}


def net(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return NETS[name]()


def rows_of(name):
    generator = torch.Generator().manual_seed(7)
    if name == "text":
        ids = torch.randint(1, WORDS, (B, 8), generator=generator)
        ids[::2, 5:] = 0
        return ids
    return torch.randn(B, 3, 8, 8, generator=generator)


def build(name, model, x):
    options = {"p": 0.2} if name == "mc_dropout" else {}
    if BASELINES[name].takes_example:
        options["example"] = x[:2]
    return BASELINES[name].build(model, M, seed=1, **options)


def check_works(ensemble, x):
    y = torch.arange(B) % C
    logits, targets = ensemble(x), ensemble.targets(y)
    assert logits.shape[:2] == targets.shape
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    assert all(p.grad is not None and p.grad.any() for p in ensemble.parameters())
    with torch.no_grad():
        logits = ensemble.eval()(x)
        parts = torch.cat([ensemble(x[:1]), ensemble(x[1:])], dim=1)
    assert logits.shape == (M, B, C)
    torch.testing.assert_close(parts, logits, rtol=1e-4, atol=1e-5)
    assert all((logits[a] - logits[b]).abs().max() > 1e-4 for a, b in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("form", NETS)
@pytest.mark.parametrize("name", BASELINES)
def test_works_or_says_why_not(name, form):
    model, x = net(form), rows_of(form)
    reason = REFUSED.get((name, form))
    if reason is None:
        check_works(build(name, model, x), x)
        return
    with pytest.raises((InvalidInput, NotFound)) as error:
        build(name, model, x)
    assert reason in str(error.value)


def test_deep_ensemble_of_a_function():
    for form in ("vit", "text"):
        check_works(
            BASELINES["deep_ensemble"].build(lambda _seed, f=form: NETS[f](), M), rows_of(form)
        )


# ------------------------------------------------------------------ token ids
@pytest.mark.parametrize("form", ["vit", "text"])
def test_first_layer_behind_an_embedding_is_a_hidden_layer(form):
    model, x = net(form).eval(), rows_of(form)
    count = sum(isinstance(m, (nn.Linear, nn.Conv2d)) for m in model.modules())
    expected = count if form == "text" else count - 1  # patches are read from the picture
    for ensemble, kind in (
        (masksembles(model, M), MemberMask),
        (mc_dropout(model, M, p=0.2), MemberDropout),
    ):
        assert sum(isinstance(m, kind) for m in ensemble.modules()) == expected
        ensemble(x)
    only = masksembles(model, M, layers="layers.1.*")
    assert sum(isinstance(m, MemberMask) for m in only.modules()) == 4


def test_mc_dropout_does_not_depend_on_what_fills_up():
    """The mask of a token is the same in a batch with more of them: here without attention."""
    model = nn.Sequential(nn.Embedding(WORDS, W), nn.Linear(W, W)).eval()
    ensemble = mc_dropout(model, M, p=0.4)
    ids = rows_of("text")
    torch.testing.assert_close(ensemble(ids[:, :5]), ensemble(ids)[:, :, :5])


def test_mimo_takes_no_ids_without_example():
    model = nn.Sequential(
        nn.Embedding(WORDS, 4), nn.Flatten(), nn.Linear(32, 8), nn.Linear(8, C)
    ).eval()
    ensemble = mimo(model, M)
    for mode in (True, False):
        with pytest.raises(InvalidInput) as error:
            ensemble.train(mode)(rows_of("text"))
        assert error.value.subject == "inputs of MIMO"
        assert "torch.int64" in error.value.found


# ------------------------------------------------------------------ packed nets share nothing
class Side(nn.Module):
    """Puts features side by side."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, W, 1), nn.Conv2d(W, W, 1)
        self.three, self.head = nn.Conv2d(2 * W, W, 1), nn.Linear(W, C)

    def forward(self, x):
        x = F.relu(self.one(x))
        return self.head(F.relu(self.three(torch.cat([x, self.two(x)], 1))).mean((2, 3)))


class Filled(Side):
    """The way around fills up with zeros on both sides, as in the ResNets for CIFAR."""

    def forward(self, x):
        x = F.relu(self.one(x))
        x = F.pad(x, (0, 0, 0, 0, x.shape[1] // 2, x.shape[1] // 2))
        return self.head(F.relu(self.three(x)).mean((2, 3)))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, 2 * W, 1), nn.Conv2d(W, W, 1), nn.Linear(W, C)

    def forward(self, x):
        return self.head(F.relu(self.two(F.glu(self.one(x), 1))).mean((2, 3)))


class Squeezed(nn.Module):
    """Squeeze and excitation: features of a member weigh those of the same member."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, W, 1), nn.Conv2d(W, W, 1), nn.Linear(W, C)

    def forward(self, x):
        x = F.relu(self.one(x))
        return self.head((x * torch.sigmoid(self.two(x.mean((2, 3), keepdim=True)))).mean((2, 3)))


def softmax():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, W), nn.Softmax(1), nn.Linear(W, W), nn.Linear(W, C)
    )


@pytest.mark.parametrize("form", [Side, Filled, Gated, softmax, lambda: Transformer(places=False)])
def test_packed_refuses_what_mixes_the_members(form, assert_unchanged, picture):
    model, x = form(), rows_of("vit")
    before = picture(model)
    with pytest.raises(InvalidInput) as error:
        packed(model, M, example=x)
    assert error.value.subject == "model"
    assert "weights of the others" in error.value.found
    assert_unchanged(model, before)


def test_packed_looks_at_the_first_batch():
    """Without an example, and where the example is of zeros and shows nothing."""
    silent = nn.Sequential(
        nn.Flatten(), nn.Linear(192, W, bias=False), nn.GLU(), nn.Linear(W // 2, W), nn.ReLU(),
        nn.Linear(W, C),
    )  # fmt: skip
    for example in (None, torch.zeros(2, 3, 8, 8)):
        ensemble = packed(silent, M, example=example)
        for _ in range(2):
            with pytest.raises(InvalidInput) as error:
                ensemble(rows_of("vit"))
            assert "weights of the others" in error.value.found


@pytest.mark.parametrize("gamma", [1, 2])
@pytest.mark.parametrize("form", [resnet, Squeezed])
def test_packed_takes_what_keeps_them_apart(form, gamma, rng_guard):
    x = rows_of("vit")
    ensemble = packed(form().train(), M, gamma=gamma, example=x[:2])
    state, again = copy.deepcopy(ensemble.state_dict()), copy.deepcopy(ensemble)
    with rng_guard():
        ensemble.eval()(x)  # the first call tries other weights
    for key, value in ensemble.state_dict().items():
        assert torch.equal(value, state[key])
    logits = ensemble.train()(x)
    assert torch.equal(logits, again(x))
    logits[1].sum().backward()
    for parameter in ensemble.parameters():
        parts = parameter.grad.unflatten(0, (M, -1)).flatten(1).abs().sum(1)
        assert [bool(part) for part in parts] == [False, True, False]


def test_packed_linear_layers_stay_narrow_under_autocast():
    x = torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert GroupedLinear(8, 4, groups=2)(x).dtype == nn.Linear(8, 4)(x).dtype == torch.bfloat16
