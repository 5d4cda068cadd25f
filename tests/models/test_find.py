"""Finding the output layer: toys for every way in which a name can mislead."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.models import find_head

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A body, and a forward that is given as a function of (self, features)."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.body = nn.Linear(6, 8)
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.run = forward

    def forward(self, x):
        return self.run(self, torch.relu(self.body(x)))


def linear():
    return nn.Linear(8, 3)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.fc = nn.LayerNorm(8), nn.Dropout(0.5), linear()

    def forward(self, x, pre_logits=False):
        x = self.drop(self.norm(x))
        return x if pre_logits else self.fc(x)


class Shadowed(nn.Module):
    """What `fc` gives is not what `fc` registers."""

    def __init__(self):
        super().__init__()
        self.body, self.real = nn.Linear(6, 8), linear()
        self._modules["fc"] = linear()

    def __getattribute__(self, name):
        if name == "fc":
            return super().__getattribute__("_modules")["real"]
        return super().__getattribute__(name)

    def forward(self, x):
        return self.fc(self.body(x))


class Distance(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        return -torch.cdist(x, self.weight)


def sequence(heads):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), heads)


FOUND = {
    "fc": (lambda: Net(lambda s, x: s.fc(x), fc=linear()), "fc"),
    "classifier in a Sequential": (
        lambda: Net(lambda s, x: s.classifier(x), classifier=nn.Sequential(nn.Dropout(), linear())),
        "classifier.1",
    ),
    "nested, with a call signature of its own": (
        lambda: Net(lambda s, x: s.head(x, pre_logits=False), head=Nested()),
        "head.fc",
    ),
    "two equal layers, one used": (
        lambda: Net(lambda s, x: s.second(x), first=linear(), second=linear(), third=linear()),
        "second",
    ),
    "auxiliary head runs last": (
        lambda: Net(
            lambda s, x: {"logits": s.main(x), "aux": s.aux(x)}, main=linear(), aux=linear()
        ),
        "main",
    ),
    "auxiliary head is called last and thrown away": (
        lambda: Net(lambda s, x: (s.main(x), s.aux(x))[0], main=linear(), aux=linear()),
        "main",
    ),
    "named tuple of one": (lambda: Net(lambda s, x: (s.fc(x), None), fc=linear()), "fc"),
    "log-softmax after": (lambda: Net(lambda s, x: s.fc(x).log_softmax(-1), fc=linear()), "fc"),
    "in-place relu after": (lambda: Net(lambda s, x: F.relu_(s.fc(x)), fc=linear()), "fc"),
    "tokens pooled after": (
        lambda: Net(lambda s, x: s.fc(x.unsqueeze(1).repeat(1, 4, 1)).mean(1), fc=linear()),
        "fc",
    ),
    "last token taken after": (
        lambda: Net(lambda s, x: s.fc(torch.stack([x, 2 * x], 1))[:, -1], fc=linear()),
        "fc",
    ),
    "reshaped after": (
        lambda: Net(lambda s, x: s.fc(x).reshape(3, 1, 3).squeeze(1), fc=linear()),
        "fc",
    ),
    "same layer called twice": (
        lambda: Net(lambda s, x: (s.fc(x) + s.fc(-x)) / 2, fc=linear()),
        "fc",
    ),
    "logits without a gradient": (lambda: Net(lambda s, x: s.fc(x).detach(), fc=linear()), "fc"),
    "a body that is frozen": (
        lambda: Net(lambda s, x: s.fc(x), fc=linear()).requires_grad_(False),
        "fc",
    ),
    "an attribute that is shadowed": (Shadowed, "real"),
    "a plain Sequential": (lambda: sequence(linear()), "3"),
    "a weight-normed layer": (
        lambda: sequence(nn.utils.parametrizations.weight_norm(linear())),
        "3",
    ),
    "the model is the layer": (lambda: nn.Linear(6, 3), ""),
}


@pytest.mark.parametrize("case", FOUND, ids=list(FOUND))
def test_the_probe_finds_what_makes_the_logits(case):
    make, name = FOUND[case]
    model = make()
    head = find_head(model, X)
    assert (head.name, head.kind, head.verified) == (name, "linear", True)
    assert head.module is dict(model.named_modules())[name]
    assert (head.in_features, head.out_features) == (6 if name == "" else 8, 3)
    assert find_head(model, X, name=name).source == "user"
    assert find_head(nn.DataParallel(torch.compile(model)), X).name == name


def snapshot(model):
    state = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    grads = [(p.requires_grad, p.grad) for p in model.parameters()]
    return state, modes, hooks, grads


class Restless(nn.Module):
    """Draws random numbers and changes its buffers even in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), linear()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        self.last = torch.randn(1)
        return self.fc(self.body(x) + torch.randn(()))


@pytest.mark.parametrize("make", [Restless, FOUND["fc"][0]])
def test_the_model_is_left_as_it_was(make, rng_guard):
    model = make()
    model.body.eval().requires_grad_(False)
    before = snapshot(model)
    with rng_guard():
        find_head(model, X)
    for part, former in zip(snapshot(model), before, strict=True):
        if isinstance(part, dict):
            assert all(torch.equal(part[k], former[k]) for k in former)
        else:
            assert part == former


def test_the_model_is_left_as_it_was_when_its_forward_fails():
    model = Net(lambda s, x: s.missing(x), fc=linear())
    model.body.eval()
    before = snapshot(model)
    with pytest.raises(AttributeError):
        find_head(model, X)
    assert snapshot(model)[1:] == before[1:]


@pytest.mark.parametrize(
    ("forward", "candidates"),
    [
        (lambda s, x: (s.a(x) + s.b(x)) / 2, ("a", "b")),
        (lambda s, x: torch.where(x[:, :1] > 0, s.a(x), s.b(x)), ("a", "b")),
    ],
)
def test_two_layers_that_feed_the_logits(forward, candidates):
    model = Net(forward, a=linear(), b=linear())
    with pytest.raises(NotFound) as error:
        find_head(model, X)
    assert error.value.candidates == candidates


def test_one_of_two_can_be_named_but_is_not_verified():
    model = Net(lambda s, x: s.a(x) + s.b(x), a=linear(), b=linear())
    with pytest.warns(TemperanceWarning):  # T in one of two summands is no T on the sum
        assert not find_head(model, X, name="a").verified


def test_two_outputs_need_a_key():
    model = Net(lambda s, x: (s.a(x), s.b(x)), a=linear(), b=linear())
    with pytest.raises(NotFound) as error:
        find_head(model, X)
    assert error.value.candidates == ("0", "1")
    assert find_head(model, X, output_key=1).name == "b"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net(lambda s, x: s.distance(x), distance=Distance()),
        lambda: Net(lambda s, x: x @ s.table, table=nn.Parameter(torch.randn(8, 3))),
        lambda: Net(
            lambda s, x: s.fc(x) @ s.table, fc=nn.Linear(8, 3), table=nn.Parameter(torch.eye(3))
        ),
        lambda: Net(lambda s, x: s.fc(x).reshape(3, 3, 4).amax(-1), fc=nn.Linear(8, 12)),
        lambda: Net(lambda s, x: s.bilinear(x, x), bilinear=nn.Bilinear(8, 8, 3)),
        lambda: nn.Sequential(nn.Flatten(), nn.ReLU()),
    ],
    ids=["own module", "bare parameter", "parameter after", "maxout", "bilinear", "no layer"],
)
def test_no_linear_output_layer(make):
    with pytest.raises(NotFound):
        find_head(make(), X)


def test_a_name_that_is_wrong():
    model = Net(lambda s, x: s.used(x), used=linear(), idle=linear())
    for name, candidates in (("idle", ("used",)), ("body", ("used",))):
        with pytest.raises(NotFound) as error:
            find_head(model, X, name=name)
        assert error.value.candidates == candidates
    with pytest.raises(NotFound) as error:
        find_head(model, name="fc")
    assert error.value.candidates == ("body", "used", "idle")
    for bad in ("0", 3, "1.weight"):
        with pytest.raises(NotFound):
            find_head(nn.Sequential(nn.ReLU(), linear()), name=bad)


def test_a_declaration_is_checked():
    model = Net(lambda s, x: s.fc(x), fc=linear(), head=linear())
    model.pretrained_cfg = {"classifier": "fc"}
    assert (find_head(model, X).source, find_head(model).source) == ("declared", "declared")
    assert (find_head(model, X).verified, find_head(model).verified) == (True, False)
    model.pretrained_cfg = {"classifier": "head"}
    with pytest.warns(TemperanceWarning, match="head"):
        head = find_head(model, X)
    assert (head.name, head.source) == ("fc", "observed")
    model.pretrained_cfg = {"classifier": ("fc", "head")}
    with pytest.raises(NotFound) as error:
        find_head(model)
    assert error.value.candidates == ("fc", "head")


def test_without_an_example():
    head = find_head(sequence(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(linear()))))
    assert (head.name, head.source, head.verified) == ("3.2.0", "structure", False)
    assert find_head(linear()).source == "structure"  # the model is the layer
    with pytest.raises(NotFound) as error:
        find_head(Net(lambda s, x: s.fc(x), fc=linear()))
    assert error.value.candidates == ("body", "fc")
    with pytest.raises(NotFound):
        find_head(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten()))
    with pytest.raises(NotFound):  # the last layer with weights is no linear one
        find_head(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Conv1d(4, 5, 1)))


class Gated(nn.Module):
    """Its one linear layer is a gate inside; the logits come from a convolution."""

    def __init__(self):
        super().__init__()
        self.body, self.gate = nn.Conv1d(6, 8, 1), nn.Linear(8, 8)
        self.out = nn.Conv1d(8, 3, 1)

    def forward(self, x):
        x = self.body(x.unsqueeze(-1))
        return self.out(x * self.gate(x.mean(-1)).sigmoid().unsqueeze(-1)).mean(-1)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.w = nn.Linear(6, 8), nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        return F.linear(self.body(x), self.w)


class Backwards(nn.Sequential):
    """A Sequential in name only: it runs its children from the last to the first."""

    def forward(self, x):
        for module in reversed(self):
            x = module(x)
        return x


def twice(layer):
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    "make",
    [
        Gated,
        Functional,
        lambda: Backwards(nn.Linear(8, 3), nn.Linear(6, 8)),
        lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, affine=False)),
        lambda: twice(nn.Linear(6, 6)),
    ],
    ids=["gate", "functional", "own forward", "buffers after", "hidden, too"],
)
def test_without_an_example_nothing_is_guessed(make):
    with pytest.raises(NotFound) as error:
        find_head(make())
    assert "example=" in error.value.fix


def made_in_inference_mode():
    with torch.inference_mode():
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), linear()), X.clone()


def test_models_and_examples_from_inference_mode():
    inferred, example = made_in_inference_mode()
    tensors = [*inferred.parameters(), *inferred.buffers()]
    before = [t.clone() for t in tensors]
    for model in (inferred, nn.Sequential(nn.Linear(6, 8), nn.ReLU(), linear())):
        for batch in (example, X):
            head = find_head(model, batch)
            assert (head.name, head.verified) == ("2", True)
    with torch.inference_mode():
        assert find_head(inferred, example).verified
    after = [*inferred.parameters(), *inferred.buffers()]
    assert all(a is t for a, t in zip(after, tensors, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_the_example_is_left_as_it_was():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3))
    example = X.clone()
    find_head(model, example)
    assert torch.equal(example, X)


@pytest.mark.parametrize(("size", "kind"), [(1, "conv1x1"), (3, "conv")])
def test_convolutional_heads_are_recognized(size, kind):
    conv = nn.Conv2d(4, 5, size, padding="same")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), conv, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    head = find_head(model, torch.randn(2, 3, 8, 8))
    assert (head.name, head.kind, head.in_features, head.out_features) == ("1", kind, 4, 5)


def test_what_follows_the_layer_is_judged():
    probs = Net(lambda s, x: s.fc(x).softmax(-1), fc=linear())
    with pytest.warns(TemperanceWarning, match="probabilities"):
        assert find_head(probs, X).name == "fc"
    for std in (1.0, 1e-3, 0.0):  # many heads start at zero, which hides what follows
        squashed = Net(lambda s, x: 30 * torch.tanh(s.fc(x) / 30), fc=linear())
        nn.init.normal_(squashed.fc.weight, std=std)
        nn.init.zeros_(squashed.fc.bias)
        with pytest.warns(TemperanceWarning, match="scale"):
            assert find_head(squashed, X).name == "fc"


def test_an_example_without_rows():
    with pytest.raises(InvalidInput) as error:
        find_head(FOUND["fc"][0](), X[:0])
    assert error.value.subject == "example"


def test_a_model_without_values():
    model = FOUND["fc"][0]().to("meta")
    assert find_head(model, X).verified


def test_batches_of_any_form():
    model = FOUND["fc"][0]()
    labels = torch.tensor([0, 1, 2])
    for batch in ((X, labels), {"x": X, "labels": labels}, {"image": X}, [X], X[:1]):
        assert find_head(model, batch).name == "fc"


def test_lazy_layers_are_refused_before_they_are_shaped():
    model = nn.Sequential(nn.Linear(6, 8), nn.LazyLinear(3))
    with pytest.raises(InvalidInput):
        find_head(model, X)
    with pytest.raises(InvalidInput):
        find_head(model)
    assert model[1].has_uninitialized_params()


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning"
)
def test_scripted_models_are_refused_without_a_trace_of_hooks():
    body = nn.Linear(6, 8)
    model = nn.Sequential(body, torch.jit.script(nn.Linear(8, 3)))
    with pytest.raises(InvalidInput):
        find_head(model, X)
    assert not body._forward_hooks


@pytest.mark.parametrize("model", [None, "resnet18", torch.zeros(2)])
def test_what_is_no_module(model):
    with pytest.raises(InvalidInput):
        find_head(model, X)


def test_models_of_scikit_learn_and_skorch_are_refused_kindly():
    network = pytest.importorskip("sklearn.neural_network")
    with pytest.raises(InvalidInput) as error:
        find_head(network.MLPClassifier(), X)
    assert "CalibratedModel" in error.value.fix
    assert error.value.found == "a MLPClassifier"

    class Net:
        module_ = nn.Linear(6, 3)

        def predict_proba(self, x): ...

    with pytest.raises(InvalidInput) as error:
        find_head(Net(), X)
    assert ".module_" in error.value.fix


def test_an_example_that_does_not_fit_says_where_it_failed():
    with pytest.raises(RuntimeError) as error:
        find_head(FOUND["fc"][0](), torch.zeros(2, 5))
    assert "example" in error.value.__notes__[0]


def test_advertised_sizes_do_not_count():
    model = FOUND["fc"][0]()
    model.num_features = 512
    assert find_head(model, X).in_features == 8


def test_adapters_around_the_layer():
    class Lora(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base_layer = base
            self.lora_a, self.lora_b = nn.Linear(8, 2, bias=False), nn.Linear(2, 3, bias=False)

        def forward(self, x):
            return self.base_layer(x) + self.lora_b(self.lora_a(x))

    with pytest.raises(NotFound) as error:
        find_head(Net(lambda s, x: s.fc(x), fc=Lora(linear())), X)
    assert "adapters" in error.value.fix
    assert error.value.candidates == ("fc.base_layer", "fc.lora_b")


def test_compiled_in_place():
    model = FOUND["fc"][0]()
    model.compile(backend="eager")
    model(X)
    assert find_head(model, X).name == "fc"


def test_half_precision():
    model = copy.deepcopy(FOUND["fc"][0]()).bfloat16()
    assert find_head(model, X.bfloat16()).verified
