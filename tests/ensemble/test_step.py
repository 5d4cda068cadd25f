"""The step of members in turn, and what it shares: held against the joint step."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from temperance.ensemble import convert, member_loss, predict_members
from temperance.ensemble.prefix import record_prefix
from temperance.ensemble.step import backward_each
from temperance.errors import InvalidInput

ROWS = 6


class Convs(nn.Module):
    """A stem of two parts, with one of them used again later, and a branch around the norm."""

    def __init__(self, *, inplace=False, late=False):
        super().__init__()
        self.stem, self.mix = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.act = nn.Sigmoid()
        self.bn1, self.bn2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)
        self.inplace, self.late = inplace, late

    def forward(self, x):
        x = self.stem(x)
        if self.inplace:
            x.mul_(1.5)
        stem = x
        x = self.mix(self.act(x) * 2 + x)
        y = self.bn1(x)
        if self.late:
            stem += y
            y = stem.clone()
        y = F.relu(y, inplace=True)
        y = self.act(self.bn2(self.mix(y))) + x
        return self.head(y.mean(dim=(2, 3)))


def convs(**how):
    torch.manual_seed(0)
    return Convs(**how)


def tokens():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.body, self.head = nn.Embedding(20, 8), layer, nn.Linear(8, 5)

        def forward(self, x):
            return self.head(self.body(self.embed(x)).mean(1))

    return Tokens()


def wide():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(7, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(8), nn.ReLU(inplace=True),
        nn.Linear(8, 5),
    )  # fmt: skip


def first():
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 5))


PICTURE = torch.randn(ROWS, 3, 5, 5, generator=torch.Generator().manual_seed(1))
FLAT = torch.randn(ROWS, 7, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(0, 20, (ROWS, 4), generator=torch.Generator().manual_seed(1))
CASES = {
    "convs": (convs, PICTURE),
    "changed in place": (lambda: convs(inplace=True), PICTURE),
    "changed in place later": (lambda: convs(late=True), PICTURE),
    "tokens": (tokens, IDS),
    "ReLU in place": (wide, FLAT),
    "norm first": (first, FLAT),
}
Y = torch.tensor([0, 1, 2, 3, 4, 0])


def gradients(model):
    return {n: p.grad for n, p in model.named_parameters()}


def ensemble_of(name, differ):
    build, x = CASES[name]
    return differ(convert(build(), 3, example=x[:2]).train()), x


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("frozen", [False, True])
def test_equals_the_joint_step(name, frozen, differ, rng_guard):
    ensemble, x = ensemble_of(name, differ)
    if frozen:
        plain = (nn.Conv2d, nn.Embedding, nn.Linear)
        for part in [m for m in ensemble.modules() if isinstance(m, plain)][:1]:
            part.requires_grad_(False)
    joint = copy.deepcopy(ensemble)
    expected = member_loss(joint(x), Y)
    expected.backward()
    found = backward_each(ensemble, x, targets=Y)
    torch.testing.assert_close(found, expected.detach())
    assert not found.requires_grad
    torch.testing.assert_close(gradients(ensemble), gradients(joint), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ensemble.state_dict(), joint.state_dict())
    assert not any("forward" in m.__dict__ for m in ensemble.modules())
    assert [len(m._forward_pre_hooks) for m in ensemble.modules()] == [
        len(m._forward_pre_hooks) for m in joint.modules()
    ]


@pytest.mark.parametrize("name", CASES)
def test_members_in_turn_share_and_stay_the_same_without_gradients(name, differ):
    ensemble, x = ensemble_of(name, differ)
    ensemble.eval()
    expected = []
    for m in range(3):
        with ensemble.member(m):
            expected.append(ensemble(x)[0].detach())
    with torch.no_grad():
        torch.testing.assert_close(list(ensemble.run_each(x)), expected)
    with torch.inference_mode():
        torch.testing.assert_close(list(ensemble.run_each(x)), expected)
    torch.testing.assert_close(predict_members(ensemble, x), torch.stack(expected))


def test_what_comes_first_runs_once(differ):
    ensemble, x = ensemble_of("convs", differ)
    runs = []
    original = ensemble.backbone.stem._conv_forward
    ensemble.backbone.stem._conv_forward = lambda *a: (runs.append(1), original(*a))[1]
    backward_each(ensemble, x, targets=Y)
    assert len(runs) == 1
    ensemble.eval()
    predict_members(ensemble, x)
    assert len(runs) == 2


def test_gradients_add_up_and_a_loss_of_ones_own(differ):
    ensemble, x = ensemble_of("convs", differ)
    joint = copy.deepcopy(ensemble)
    for _ in range(2):
        (member_loss(joint(x), Y, label_smoothing=0.1) * 8).backward()
        backward_each(
            ensemble,
            (x,),
            targets=Y,
            loss=lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1) * 8,
        )
    torch.testing.assert_close(gradients(ensemble), gradients(joint), rtol=1e-4, atol=1e-5)


class Checkpointed(nn.Module):
    """A checkpoint in which the members part, with a part in front of that."""

    def __init__(self, reentrant, drop):
        super().__init__()
        self.reentrant = reentrant
        self.stem, self.head = nn.Linear(7, 8), nn.Linear(8, 5)
        self.body = nn.Sequential(
            nn.Linear(8, 8), nn.Dropout(drop), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8),
            nn.Dropout(drop), nn.LayerNorm(8),
        )  # fmt: skip
        self.on = True

    def forward(self, x):
        x = self.stem(x)
        if self.on and torch.is_grad_enabled():
            return self.head(checkpoint(self.body, x, use_reentrant=self.reentrant))
        return self.head(self.body(x))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_computes_anew_for_the_same_member(reentrant, differ):
    ensemble = differ(convert(Checkpointed(reentrant, 0.0), 3, example=FLAT[:2]).train())
    joint = copy.deepcopy(ensemble)
    joint.backbone.on = False
    member_loss(joint(FLAT), Y).backward()
    backward_each(ensemble, FLAT, targets=Y)
    torch.testing.assert_close(gradients(ensemble), gradients(joint), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_draws_the_same_random_numbers_again(reentrant, differ):
    """Held against the members one by one, with the numbers that each drew."""
    ensemble = differ(convert(Checkpointed(reentrant, 0.5), 3, example=FLAT[:2]).train())
    ensemble.backbone.body[2].eval()
    plain = copy.deepcopy(ensemble)
    plain.backbone.on = False
    states = []

    def loss(logits, y):
        return F.cross_entropy(logits, y)

    handle = ensemble.backbone.body.register_forward_pre_hook(
        lambda *_: states.append(torch.get_rng_state())
    )
    torch.manual_seed(0)
    backward_each(ensemble, FLAT, targets=Y, loss=loss)
    handle.remove()
    drawn = list(dict.fromkeys(bytes(s.tolist()) for s in states))[-3:]
    for m, state in enumerate(drawn):
        torch.set_rng_state(torch.tensor(list(state), dtype=torch.uint8))
        with plain.member(m):
            (loss(plain(FLAT)[0], Y) / 3).backward()
    torch.testing.assert_close(gradients(ensemble), gradients(plain), rtol=1e-4, atol=1e-6)


def test_a_frozen_part_without_gradients_still_runs_once():
    class Frozen(Convs):
        def forward(self, x):
            with torch.no_grad():
                x = self.stem(x)
            return self.head(F.relu(self.bn1(self.mix(x))).mean(dim=(2, 3)))

    ensemble = convert(Frozen().train(), 3, example=PICTURE[:2])
    runs = []
    ensemble.backbone.stem.register_forward_hook(lambda _, __, y: runs.append(y))
    inner = ensemble.backbone.stem._conv_forward
    calls = []
    ensemble.backbone.stem._conv_forward = lambda *a: calls.append(1) or inner(*a)
    backward_each(ensemble, PICTURE, targets=Y)
    assert len(calls) == 1
    assert len(runs) == 4


def test_a_part_inside_a_part_is_not_mixed_up(differ):
    torch.manual_seed(0)
    act = nn.Tanh()
    model = nn.Sequential(nn.Sequential(nn.Linear(7, 8), act), act, nn.BatchNorm1d(8),
                          nn.Linear(8, 5))  # fmt: skip
    ensemble = differ(convert(model, 3, example=FLAT))
    joint = copy.deepcopy(ensemble)
    member_loss(joint(FLAT), Y).backward()
    backward_each(ensemble, FLAT, targets=Y)
    torch.testing.assert_close(gradients(ensemble), gradients(joint), rtol=1e-4, atol=1e-6)


def test_one_member_is_an_ordinary_step():
    ensemble = convert(wide(), 1)
    joint = copy.deepcopy(ensemble)
    member_loss(joint(FLAT), Y).backward()
    backward_each(ensemble, FLAT, targets=Y)
    torch.testing.assert_close(gradients(ensemble), gradients(joint))


def test_an_error_in_the_model_leaves_it_as_it_was(differ):
    ensemble, _ = ensemble_of("convs", differ)
    with pytest.raises(RuntimeError):
        backward_each(ensemble, PICTURE[:, :2], targets=Y)
    assert not any("forward" in m.__dict__ for m in ensemble.modules())
    assert ensemble.rows.active is None


def test_compiled_parts_are_not_shared(differ):
    ensemble, x = ensemble_of("convs", differ)
    ensemble.backbone.stem.compile(backend="eager")
    assert record_prefix(ensemble, lambda: ensemble(x)) is None


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"protocol": "split"}, "protocol in backward_each"),
        ({"loss": lambda z, _: z.sum(1)}, "loss of a member"),
        ({"loss": lambda z, _: z.detach().sum()}, "loss of a member"),
        ({"targets": Y[:3]}, "targets"),
        ({"model": wide()}, "ensemble"),
    ],
)
def test_bad_input_is_named(change, subject, differ):
    ensemble, x = ensemble_of("ReLU in place", differ)
    ensemble.protocol = change.get("protocol", "repeat")
    with pytest.raises(InvalidInput) as caught:
        backward_each(
            change.get("model", ensemble),
            x,
            targets=change.get("targets", Y),
            loss=change.get("loss"),
        )
    assert caught.value.subject == subject
    assert all(p.grad is None for p in ensemble.parameters())
