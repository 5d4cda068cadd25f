"""Insert and remove: in place, exact, and all or nothing."""

import copy

import pytest
import torch
from torch import nn

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head import HeadOptions, TemperedHead, fold, insert, remove, tempered_heads
from temperance.models import find_head
from temperance.records import Suggestion

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self, classes=3, bias=True):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(8, classes, bias=bias)

    def forward(self, x):
        return self.fc(self.drop(self.body(x)))


def picture(model):
    """Everything of a model that must not change."""
    return (
        [(n, id(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks))
         for n, m in model.named_modules(remove_duplicate=False)],
        [(n, id(p), p.requires_grad, p.grad is None, p.dtype)
         for n, p in model.named_parameters(remove_duplicate=False)],
        {k: v.clone() for k, v in model.state_dict().items()},
    )  # fmt: skip


def assert_same(a, b):
    assert a[:2] == b[:2]
    assert list(a[2]) == list(b[2])
    assert all(torch.equal(a[2][k], b[2][k]) for k in a[2])


@pytest.mark.parametrize("norm", ["batch", "batch-no-affine", "layer", "none"])
@pytest.mark.parametrize("example", [None, X])
@pytest.mark.parametrize("bias", [True, False])
def test_remove_undoes_insert_bit_for_bit(norm, example, bias, rng_guard):
    model = Net(bias=bias)
    model.body.eval().requires_grad_(False)
    before = picture(model)
    with rng_guard():
        head = insert(model, 4.0, norm=norm, example=example, name="fc")
        assert model.fc is head
        assert tempered_heads(model) == {"fc": head}
        assert remove(model) is head.linear
    assert_same(picture(model), before)


def test_insert_touches_nothing_but_the_layer(rng_guard):
    model = Net()
    model.drop.eval()
    before = picture(model)
    with rng_guard():
        head = insert(model, 4.0, example=X)
    after = picture(model)
    others = [m for m in after[0] if not m[0].startswith("fc")]
    assert others == [m for m in before[0] if not m[0].startswith("fc")]
    assert head.linear.weight is dict(model.named_parameters())["fc.linear.weight"]
    assert torch.equal(head.linear.weight, before[2]["fc.weight"])
    assert [n for n, _ in model.named_children()] == ["body", "drop", "fc"]
    assert int(head.norm.num_batches_tracked) == 0  # the check did not train


def test_output_is_norm_layer_and_division():
    model = Net().eval()
    features = model.body(X)
    plain = model(X)
    insert(model, 5.0, norm="none", example=X)
    torch.testing.assert_close(model(X), plain / 5.0)
    remove(model)
    head = insert(model, 5.0, example=X)
    torch.testing.assert_close(model(X), head.linear(head.norm(features)) / 5.0)


def suggestion(**changes):
    return Suggestion(**{"temperature": 3.0, "unclipped": 3.0, "rule": "r", "norm": "layer",
                         "in_domain": True, **changes})  # fmt: skip


def test_a_suggestion_brings_temperature_and_norm():
    head = insert(Net(), suggestion(), name="fc")
    assert (float(head.temperature), head.norm_kind) == (3.0, "layer")
    assert insert(Net(), suggestion(), name="fc", norm="batch").norm_kind == "batch"
    assert insert(Net(), suggestion(norm="cosine"), name="fc").norm_kind == "cosine"
    assert insert(Net(), suggestion(norm="cosine"), name="fc", norm="none").norm_kind == "none"


class Hidden(nn.Module):
    """Uses its layer through a list that is no registered module."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.used = [self.fc]

    def forward(self, x):
        return self.used[0](x)


class HiddenWithoutGradient(Hidden):
    def forward(self, x):
        return super().forward(x).detach()


class Fussy(nn.Module):
    """Needs an attribute of its layer that only nn.Linear's own class has."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        if type(self.fc) is not nn.Linear:
            raise RuntimeError("not mine")
        return self.fc(x)


@pytest.mark.parametrize(
    ("make", "arguments", "error"),
    [
        (Net, {"temperature": 0.0}, InvalidInput),
        (Net, {"temperature": True}, InvalidInput),
        (Net, {"norm": "Cosine"}, InvalidInput),
        (Net, {"name": "nothing"}, NotFound),
        (Net, {"name": "body.0"}, NotFound),
        (Net, {"name": "drop"}, NotFound),
        (lambda: Net(classes=1), {}, InvalidInput),
        (Hidden, {}, InvalidInput),
        (HiddenWithoutGradient, {}, InvalidInput),
        (Fussy, {}, RuntimeError),
        (lambda: nn.Linear(4, 3), {}, InvalidInput),
        (lambda: torch.compile(Net()), {}, InvalidInput),
        (lambda: nn.DataParallel(Net()), {}, InvalidInput),
        (
            lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten()),
            {},
            InvalidInput,
        ),
    ],
)
def test_the_model_is_untouched_if_anything_raises(make, arguments, error, rng_guard):
    model = make()
    before = picture(model)
    call = {"temperature": 4.0, "example": X, **arguments}
    with rng_guard(), pytest.raises(error):
        insert(model, call.pop("temperature"), **call)
    assert_same(picture(model), before)


def test_twice_is_refused():
    model = Net()
    head = insert(model, 4.0, example=X)
    for arguments in ({"example": X}, {"name": "fc"}):
        with pytest.raises(InvalidInput) as error:
            insert(model, 2.0, **arguments)
        assert "remove" in error.value.fix
    assert model.fc is head
    assert float(head.temperature) == 4.0


def test_find_head_sees_the_tempered_head():
    model = Net()
    head = insert(model, 4.0, example=X)
    found = find_head(model, X)
    assert (found.name, found.kind, found.module) == ("fc", "tempered", head)
    assert (found.in_features, found.out_features, found.verified) == (8, 3, True)
    assert find_head(model, name="fc").kind == "tempered"


def test_a_layer_registered_twice_is_replaced_everywhere():
    model = Net()
    model.classifier = model.fc
    model.all = nn.ModuleDict({"fc": model.fc})
    old = model.fc
    head = insert(model, 4.0, example=X)
    assert model.fc is model.classifier is model.all["fc"] is head
    remove(model)
    assert model.fc is model.classifier is model.all["fc"] is old


def test_fresh_weights_are_seeded_and_the_old_layer_is_not_changed(rng_guard):
    def fresh(seed, dtype=torch.float32):
        torch.manual_seed(9)
        model = Net().to(dtype)
        model.fc.bias.requires_grad_(False)
        old = model.fc
        kept = copy.deepcopy(old.state_dict())
        with rng_guard():
            head = insert(model, 4.0, name="fc", options=HeadOptions(keep_weights=False, seed=seed))
        assert all(torch.equal(kept[k], v) for k, v in old.state_dict().items())
        assert head.linear is not old
        assert not head.linear.bias.requires_grad
        assert head.linear.weight.dtype == dtype
        return head.linear.weight

    first = fresh(0)
    assert torch.equal(first, fresh(0))
    assert not torch.equal(first, fresh(1))
    assert float(first.detach().abs().max()) <= 8**-0.5
    assert float(first.detach().std()) == pytest.approx((1 / (3 * 8)) ** 0.5, rel=0.35)
    fresh(0, torch.bfloat16)


def test_shared_weights_can_be_kept_but_not_redrawn():
    def tied():
        model = nn.Sequential(nn.Embedding(3, 8), nn.Linear(8, 3))
        model[1].weight = model[0].weight
        return model

    model = tied()
    insert(model, 4.0, example=torch.tensor([0, 1]))
    assert model[1].linear.weight is model[0].weight
    with pytest.raises(InvalidInput) as error:
        insert(tied(), 4.0, name="1", options=HeadOptions(keep_weights=False))
    assert "0.weight" in error.value.found


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_fresh_weights_for_a_parametrized_layer(frozen):
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    old = model[0].bias if frozen == "bias" else model[0].parametrizations.weight
    old.requires_grad_(False)
    linear = insert(model, 4.0, example=X, options=HeadOptions(keep_weights=False)).linear
    assert type(linear) is nn.Linear
    assert linear.weight.requires_grad == (frozen != "weight")
    assert linear.bias.requires_grad == (frozen != "bias")


def test_frozen_layers_stay_frozen_and_the_norm_trains():
    model = Net().requires_grad_(False)
    head = insert(model, 4.0, example=X)
    assert [n for n, p in model.named_parameters() if p.requires_grad] == [
        "fc.norm.weight",
        "fc.norm.bias",
    ]
    assert head.linear.weight.requires_grad is False


def test_dtype_device_and_mode_come_from_the_old_layer():
    model = Net().bfloat16().eval()
    head = insert(model, 4.0, example=X.bfloat16())
    assert not head.training
    assert not head.norm.training
    assert head.norm.running_mean.dtype == torch.float32
    assert model(X.bfloat16()).dtype == torch.float32
    on_meta = insert(nn.Sequential(nn.Linear(4, 3, device="meta")), 4.0)
    assert "temperature=?" in repr(on_meta)
    assert {t.device.type for t in (*on_meta.parameters(), *on_meta.buffers())} == {"meta"}


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Cast(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


def test_kinds_of_linear_layers():
    good = (
        nn.Sequential(Cast(4, 3)),
        nn.Sequential(nn.modules.linear.NonDynamicallyQuantizableLinear(4, 3)),
    )
    for model in good:
        insert(model, 4.0, example=X)
    bad = nn.Sequential(Scaled(4, 3))
    with pytest.raises(InvalidInput) as error:
        insert(bad, 4.0, example=X)
    assert "Scaled" in error.value.found
    assert type(bad[0]) is Scaled


def test_two_heads_are_changed_by_name():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.a(x), self.b(x)

    model = Two()
    for key, name in enumerate("ab"):
        insert(model, 4.0, example=X, name=name, options=HeadOptions(output_key=key))
    with pytest.raises(NotFound) as error:
        remove(model)
    assert error.value.candidates == ("a", "b")
    remove(model, name="a")
    assert isinstance(model.b, TemperedHead)
    with pytest.raises(NotFound):
        remove(model, name="a")


def test_remove_without_a_head():
    with pytest.raises(NotFound):
        remove(Net())
    with pytest.raises(InvalidInput):
        remove(TemperedHead(nn.Linear(4, 3), 2.0))


def test_options_reach_the_head():
    options = HeadOptions(gradient_compensation=True, momentum=0.01)
    head = insert(Net(), 4.0, name="fc", options=options)
    assert head.gradient_compensation
    assert head.norm.momentum == 0.01


def test_a_softmax_after_the_head_is_reported_and_the_head_installed():
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    with pytest.warns(TemperanceWarning):
        insert(model, 4.0, example=X)
    assert isinstance(model[0], TemperedHead)


def test_the_optimizer_moves_the_new_parameters():
    model = Net()
    head = insert(model, 4.0, example=X)
    before = {n: p.detach().clone() for n, p in head.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    nn.functional.cross_entropy(model(X), torch.tensor([0, 1, 2, 0, 1])).backward()
    optimizer.step()
    assert all(not torch.equal(before[n], p) for n, p in head.named_parameters())


def test_without_an_example_no_inner_layer_is_tempered():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.out = nn.Linear(4, 4), nn.Conv1d(4, 3, 1)

        def forward(self, x):
            return self.out((x * self.gate(x)).unsqueeze(-1)).squeeze(-1)

    model = Gated()
    with pytest.raises(NotFound):
        insert(model, 4.0)
    assert tempered_heads(model) == {}


@pytest.mark.parametrize("part", ["fc", "body"])
def test_compiled_parts_are_left_alone(part):
    model = Net()
    layer = model.fc
    if part == "body":
        model.body = nn.Sequential(model.body, model.fc)
        model.fc = nn.Identity()
    setattr(model, part, torch.compile(getattr(model, part), backend="eager"))
    name = next(n for n, m in model.named_modules() if m is layer)
    before = picture(model)
    for arguments in ({"name": name}, {"example": X}, {"name": name, "example": X}):
        with pytest.raises(InvalidInput) as error:
            insert(model, 4.0, **arguments)
        assert part in error.value.found
        assert_same(picture(model), before)


def test_a_layer_that_is_compiled_in_another_place():
    model = Net()
    model.fast = torch.compile(model.fc, backend="eager")
    with pytest.raises(InvalidInput) as error:
        insert(model, 4.0, name="fc")
    assert "fast" in error.value.found


def test_a_layer_inside_of_a_part_whose_gradients_are_averaged():
    part = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(part)  # without a process group
    part.module, part.forward = Net(), lambda x: part.module(x)
    model = nn.Sequential(part)
    with pytest.raises(InvalidInput) as error:
        insert(model, 4.0, name="0.module.fc")
    assert "DistributedDataParallel" in error.value.found
    assert ".module" in error.value.fix
    assert tempered_heads(model) == {}


def test_a_head_that_was_compiled_is_not_removed_behind_its_wrapper():
    model = Net()
    head = insert(model, 4.0, name="fc", norm="none")
    model.fc = torch.compile(head, backend="eager")
    for change in (remove, lambda m: fold(m.eval(), inplace=True)):
        with pytest.raises(InvalidInput) as error:
            change(model)
        assert "fc" in error.value.found
    assert model.fc._orig_mod is head


def test_insert_into_a_model_from_inference_mode():
    with torch.inference_mode():
        model, example = Net(), X.clone()
    head = insert(model, 4.0, example=example)
    assert model.fc is head
    assert head.linear.weight.is_inference()
