"""A frozen backbone that stays frozen, through train(), copies, wrappers, optimizers."""

import copy
import io
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from temperance import insert, parameter_groups
from temperance.errors import InvalidInput, NotFound
from temperance.head import Frozen, check_frozen, freeze, unfreeze
from temperance.head.freezing import is_frozen


class Net(nn.Module):
    """A backbone with BatchNorm, dropout, a parameter of its own, and a head."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(4))
        self.body = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8)
        )
        self.last = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU())
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.last(self.body(x + self.token)))


def tempered():
    model = Net()
    insert(model, 4.0, name="fc")
    return model


def epoch(model, *, steps=4, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(parameter_groups(model, 0.1), lr=0.1, momentum=0.9)
    model.train()
    for _ in range(steps):
        x, y = torch.randn(16, 4) * 3 + 5, torch.arange(16) % 3
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def state(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def moved(model, before):
    return {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}


def test_the_smallest_input_of_the_trap():
    """BN(8), its parameters frozen, data of mean 5; eval() on it, then train() on the parent."""
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3))
    model[0].requires_grad_(False).eval()
    model.train()
    model(torch.randn(16, 8) + 5)
    assert float(model[0].running_mean.mean()) > 0.4  # so the trap is there

    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3))
    freeze(model, trained="1")
    model.train()
    model(torch.randn(16, 8) + 5)
    assert float(model[0].running_mean.abs().max()) == 0.0


def test_nothing_of_the_backbone_moves_and_all_of_the_head_does():
    model = tempered()
    frozen, before = freeze(model), state(model)
    epoch(model)
    check_frozen(model, frozen)
    head = {k for k in before if k.startswith("fc.")} - {"fc.temperature"}
    assert moved(model, before) == head
    assert frozen.modules == ("body", "last")
    assert frozen.trained == ("fc",)
    assert set(frozen.digests) == set(before) - head - {"fc.temperature"}
    assert frozen.n_parameters == sum(
        p.numel() for n, p in model.named_parameters() if not n.startswith("fc.")
    )


def test_modes_after_train_and_eval():
    model = tempered()
    freeze(model)
    for _ in range(2):
        assert model.train().training
        assert model.fc.norm.training
        assert not any(m.training for part in (model.body, model.last) for m in part.modules())
        model.body.train()
        model.body[2].train(True)
        assert not model.body[2].training
        model.eval()
        assert not any(m.training for m in model.modules())


def test_dropout_of_the_backbone_is_off_so_that_features_can_be_kept():
    model = tempered()
    freeze(model)
    model.train()
    x = torch.randn(5, 4)
    torch.testing.assert_close(model.body(x), model.body(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        ("last.*", ("last.0.",)),
        ("last", ("last.0.",)),
        (["body.3", "fc"], ("body.3.", "fc.")),
    ],
)
def test_named_parts_go_on(trained, expected):
    model = tempered()
    frozen, before = freeze(model, trained=trained), state(model)
    epoch(model)
    check_frozen(model, frozen)
    goes_on = {k for k in before if k.startswith(expected)} - {"fc.temperature"}
    assert moved(model, before) == goes_on


def test_containers_of_both_kinds_follow_train():
    model = tempered()
    freeze(model, trained=["body.3", "fc"])
    model.train()
    assert model.training
    assert model.body.training
    assert not model.body[1].training
    assert not model.token.requires_grad


@pytest.mark.parametrize(
    "wrap",
    [
        copy.deepcopy,
        lambda m: torch.compile(m, backend="eager"),
        nn.DataParallel,
        AveragedModel,
        lambda m: torch.load(saved(m), weights_only=False),
    ],
    ids=["deepcopy", "compile", "DataParallel", "AveragedModel", "pickle"],
)
def test_copies_and_wrappers_keep_it(wrap):
    torch._dynamo.reset()
    model = tempered()
    frozen = freeze(model)
    wrapped = wrap(model)
    epoch(wrapped)
    inner = getattr(wrapped, "module", getattr(wrapped, "_orig_mod", wrapped))
    assert not any(m.training for m in inner.body.modules())
    check_frozen(inner, frozen)
    check_frozen(model, frozen)


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


def test_a_copy_has_a_mark_of_its_own():
    model = tempered()
    freeze(model)
    copied = copy.deepcopy(model)
    assert copied.body.__dict__["train"].args == (copied.body,)
    unfreeze(model)
    assert is_frozen(copied.body)
    assert not is_frozen(model.body)


def test_a_part_compiled_since_is_found_by_its_plain_name():
    torch._dynamo.reset()
    model = tempered()
    frozen = freeze(model)
    model.body = torch.compile(model.body, backend="eager")
    epoch(model)
    check_frozen(model, frozen)
    model.body._orig_mod[1].running_mean += 1
    with pytest.raises(InvalidInput) as error:
        check_frozen(model, frozen)
    assert "body.1.running_mean" in error.value.found


def test_unfreeze_takes_everything_back():
    model = tempered()
    model.body[0].bias.requires_grad_(False)  # frozen by the user before
    before = {n: p.requires_grad for n, p in model.named_parameters()}
    attributes = {n: set(m.__dict__) for n, m in model.named_modules()}
    freeze(model)
    assert not model.token.requires_grad
    unfreeze(model)
    assert {n: p.requires_grad for n, p in model.named_parameters()} == before
    assert {n: set(m.__dict__) for n, m in model.named_modules()} == attributes
    assert all(m.training for m in model.modules())
    unfreeze(model.eval())
    assert not any(m.training for m in model.modules())


def test_a_second_call_starts_afresh():
    model = tempered()
    freeze(model)
    freeze(model, trained=["last", "fc"])
    assert model.last[0].weight.requires_grad
    assert model.train().last[0].training
    freeze(model)
    unfreeze(model)
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda m: m.body[1].running_var.mul_(1 + 1e-7), "body.1.running_var"),
        (lambda m: m.body[1].num_batches_tracked.add_(1), "body.1.num_batches_tracked"),
        (lambda m: m.body[0].weight.data.add_(1e-3), "body.0.weight"),
        (lambda m: m.token.data.add_(1e-30), "token"),
        (lambda m: setattr(m.body[1], "training", True), "body.1"),
        (lambda m: setattr(m, "last", nn.Identity()), "last.0.weight"),
    ],
)
def test_whatever_moves_is_named(harm, named):
    model = tempered()
    frozen = freeze(model)
    check_frozen(model, frozen)
    harm(model)
    with pytest.raises(InvalidInput) as error:
        check_frozen(model, frozen)
    assert error.value.subject == "frozen parts"
    assert named in error.value.found


def test_an_optimizer_with_decay_that_holds_them_does_not_move_them():
    model = tempered()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    epoch(model, optimizer=optimizer)  # state and gradients from before
    frozen = freeze(model)
    epoch(model, optimizer=optimizer)
    check_frozen(model, frozen)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_digests_of_other_types(dtype):
    model = tempered().to(dtype)
    frozen = freeze(model)
    check_frozen(model, frozen)
    with torch.no_grad():
        model.body[0].weight[0, 0] += 1
    with pytest.raises(InvalidInput):
        check_frozen(model, frozen)


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "trained", "error"),
    [
        (Net, None, NotFound),
        (tempered, "head", NotFound),
        (tempered, ["fc", "nothing.*"], NotFound),
        (tied, "1", InvalidInput),
        (lambda: nn.Sequential(nn.Linear(2, 2)), "*", InvalidInput),
        (lambda: 3, None, InvalidInput),
        (lambda: tempered().fc, None, InvalidInput),
        (tempered, 3, InvalidInput),
        (tempered, ["fc", 3], InvalidInput),
        (tempered, nn.Sequential(nn.Linear(2, 2)), InvalidInput),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4), nn.Linear(4, 3)),
            "2",
            InvalidInput,
        ),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).to("meta"), "1", InvalidInput),
    ],
)
def test_what_cannot_be_frozen_is_left_as_it_is(model, trained, error):
    model = model()
    before = [p.requires_grad for p in model.parameters()] if model != 3 else []
    with pytest.raises(error):
        freeze(model, trained=trained)
    if model != 3:
        assert [p.requires_grad for p in model.parameters()] == before
        assert not any(isinstance(m.__dict__.get("train"), partial) for m in model.modules())


def test_what_is_put_into_a_frozen_part_later_follows_the_mode():
    model = tempered()
    freeze(model)
    model.body[2] = nn.Dropout(0.1)
    model.train()
    assert model.body[2].training
    assert not model.body.training


def test_the_record_is_plain_data():
    record = freeze(tempered())
    assert isinstance(record, Frozen)
    assert all(len(d) == 64 for d in record.digests.values())
