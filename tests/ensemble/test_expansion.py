"""Where one copy of the rows becomes M: found by trying, measured, and safe to be wrong about."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from temperance.ensemble import convert, revert
from temperance.ensemble.rows import Expansion, Layout, Rows, unfold, walk
from temperance.errors import InvalidInput

X = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(1))  # rows, tokens, features
C = 4


class Body(nn.Module):
    """A stem, blocks, a head; blocks are called with whatever ``blocks`` are given."""

    def __init__(self, block, blocks=2):
        super().__init__()
        self.stem = nn.Linear(8, 6)
        self.blocks = nn.ModuleList(block() for _ in range(blocks))
        self.head = nn.Linear(6, C)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class After(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x):
        return self.norm(x).relu()


class Around(After):
    def forward(self, x):
        return x + self.mix(self.norm(x))


class Table(After):
    """Beside the rows it takes a table that has none."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(1, 3, 6))
        self.inner = Tabled()

    def forward(self, x):
        return self.inner(x, table=self.table)


class Tabled(After):
    def forward(self, x, *, table):
        return x + self.norm(x + table)


class Windows(After):
    """Folds tokens into the rows around its norm."""

    def forward(self, x):
        return x + self.mix(self.norm(x.flatten(0, 1))).unflatten(0, x.shape[:2])


class WindowsInBatchNorm(Windows):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)


class SequenceFirst(After):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0)  # batch_first=False

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).transpose(0, 1) + self.norm(x)


class Twice(After):
    def forward(self, x):
        return self.norm(self.mix(self.norm(x)))


@pytest.mark.parametrize(
    ("block", "inside", "name"),
    [
        (After, True, "blocks.0.norm"),
        (Around, False, "blocks.0"),
        (Table, False, "blocks.0.inner"),
        (Windows, False, "blocks.0"),
        (WindowsInBatchNorm, False, "blocks.0"),
        (SequenceFirst, False, "blocks.0"),
        (Twice, False, "blocks.0"),
    ],
)
def test_the_innermost_place_that_is_right(block, inside, name, differ, rng_guard, picture):
    model = Body(block).eval()
    with rng_guard():
        ensemble = convert(model, 3, example=X)
        assert (ensemble.site.inside, ensemble.site.name) == (inside, name)
        differ(ensemble)
        before = picture(ensemble)[2]
        for rows in (X, X[:1], X[:, :2]) if block is not Table else (X, X[:1]):
            joint = ensemble(rows)
            for m in range(3):
                torch.testing.assert_close(joint[m], revert(ensemble, m)(rows))
        assert all(torch.equal(before[k], v) for k, v in ensemble.state_dict().items())


@pytest.mark.parametrize("block", [Windows, WindowsInBatchNorm, SequenceFirst, Twice])
@pytest.mark.parametrize("protocol", ["repeat", "split"])
def test_gradients_and_statistics_there(block, protocol, differ):
    ensemble = differ(convert(Body(block), 3, example=X, protocol=protocol)).train()
    alone = differ(convert(Body(block), 3, example=X)).train()
    alone.load_state_dict(ensemble.state_dict())
    x = torch.randn(6, 3, 8)
    logits = ensemble(x)
    logits.square().sum().backward()
    for m in range(3):
        mine = x if protocol == "repeat" else x[m::3]
        with alone.member(m):
            z = alone(mine)
        torch.testing.assert_close(z[0], logits[m], atol=1e-5, rtol=1e-5)
        z.square().sum().backward()
    for p, q in zip(ensemble.parameters(), alone.parameters(), strict=True):
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-4)
    for p, q in zip(ensemble.buffers(), alone.buffers(), strict=True):
        torch.testing.assert_close(p, q)


# ------------------------------------------------------------------ several inputs
class Masked(nn.Module):
    """A mask that goes around the part with the first norm, and only if it masks anything."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6))
        self.part, self.head = nn.Linear(6, 6), nn.Linear(6, C)

    def forward(self, x, mask=None):
        x = self.part(self.embed(x))
        if mask is not None and not bool(mask.all()):
            x = x * mask.unsqueeze(-1)
        return self.head(x.mean(1))


def test_a_mask_goes_along_even_if_the_example_masks_nothing(differ):
    full, mask = torch.ones(5, 3), torch.tensor([[1.0, 1, 0]] * 5)
    ensemble = differ(convert(Masked().eval(), 3, example={"x": X, "mask": full}))
    assert ensemble.site.name == ""
    torch.testing.assert_close(ensemble(x=X, mask=mask)[2], revert(ensemble, 2)(X, mask))


def test_a_call_of_another_form_gets_its_own_place(differ):
    ensemble = differ(convert(Masked().eval(), 3, example=X))
    mask = torch.tensor([[1.0, 1, 0]] * 5)
    assert ensemble.site.inside
    for _ in range(2):
        torch.testing.assert_close(ensemble(X, mask)[2], revert(ensemble, 2)(X, mask))
        assert ensemble.site.name == ""
        torch.testing.assert_close(ensemble(X)[2], revert(ensemble, 2)(X))
        assert ensemble.site.inside
    assert len(ensemble.sites) == 2


class Sometimes(nn.Module):
    """Hands its inner part a second tensor only for long inputs."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = Inner(), nn.Linear(8, C)

    def forward(self, x):
        return self.head(self.inner(x, x.sum(-1) if x.shape[1] > 3 else None).mean(1))


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x, weight):
        x = x + self.norm(x)
        return x if weight is None else x * weight.unsqueeze(-1)


def test_arguments_by_position_and_by_name(differ):
    ensemble = differ(convert(Masked().eval(), 3, example=X))
    mask = torch.tensor([[1.0, 1, 0]] * 5)
    joint = ensemble(X, mask=mask)
    assert ensemble.site.name == ""
    torch.testing.assert_close(joint[2], revert(ensemble, 2)(X, mask))


def test_a_tensor_that_was_not_in_the_example_is_refused_and_told_what_to_do():
    ensemble = convert(Sometimes(), 3, example=X)
    long = torch.randn(5, 4, 8)
    with pytest.raises(InvalidInput) as error:
        ensemble(long)
    assert "place" in error.value.fix
    ensemble.place(long)
    assert ensemble(long).shape == (3, 5, C)


class GrowingWindows(Windows):
    """One window for short inputs: then nothing shows that windows lie in the rows."""

    def forward(self, x):
        k = 2 if x.shape[1] == 4 else 1
        windows = x.unflatten(1, (k, -1)).flatten(0, 1)
        return x + self.norm(windows).unflatten(0, (len(x), k)).flatten(1, 2)


def test_windows_that_come_later_are_never_mixed_up(differ):
    ensemble = differ(convert(Body(GrowingWindows).eval(), 2, example=X))
    long = torch.randn(4, 4, 8)
    with pytest.raises(InvalidInput) as error:
        ensemble(long)
    assert "place" in error.value.fix
    ensemble.place(long)
    torch.testing.assert_close(ensemble(long)[1], revert(ensemble, 1)(long))
    torch.testing.assert_close(ensemble(X)[1], revert(ensemble, 1)(X))


# ------------------------------------------------------------------ refused
class HiddenBranch(After):
    """Folds tokens into the rows token by token, in a branch that starts near zero."""

    def __init__(self, start=1e-6):
        super().__init__()
        self.inner = nn.LayerNorm(6)
        self.layer_scale = nn.Parameter(torch.full((6,), start))

    def forward(self, x):
        x = self.norm(x)
        tokens = self.inner(x.transpose(0, 1).flatten(0, 1))
        tokens = self.mix(tokens).unflatten(0, (x.shape[1], -1)).transpose(0, 1)
        return x + self.layer_scale * tokens


@pytest.mark.parametrize("start", [0.0, 1e-6, 1.0])
def test_a_branch_that_starts_near_zero_hides_nothing(start):
    with pytest.raises(InvalidInput) as error:
        convert(Body(lambda: HiddenBranch(start), 1), 3, example=X)
    assert error.value.subject == "model"


class Functional(After):
    def forward(self, x):
        rows = self.norm(x).flatten(0, 1)
        return F.batch_norm(rows, None, None, training=True).unflatten(0, x.shape[:2])


class Standardized(After):
    """batch_norm of a weight, as weight standardization does it, is no norm of rows."""

    def forward(self, x):
        w = F.batch_norm(self.mix.weight[None], None, None, training=True)[0]
        return F.linear(self.norm(x), w)


class TwiceBatchNorm(After):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.mix(self.norm(x)))


class OfTheTable(After):
    """A norm of something that has no rows."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 6))
        self.other = nn.LayerNorm(6)

    def forward(self, x):
        return self.other(x) + self.norm(self.table)


class AcrossRows(After):
    def forward(self, x):
        return self.norm(x) - x.mean(0, keepdim=True) * torch.arange(len(x))[:, None, None]


class Broken(After):
    def forward(self, x):
        return self.norm(x) * float("nan")


@pytest.mark.parametrize(
    ("block", "subject"),
    [
        (Functional, "forward of blocks.0"),
        (TwiceBatchNorm, "layer 'blocks.0.norm'"),
        (OfTheTable, "layer 'blocks.0.norm'"),
        (AcrossRows, "model"),
        (Broken, "example"),
    ],
)
def test_refused(block, subject, picture, assert_unchanged):
    model = Body(block)
    before = picture(model)
    with pytest.raises(InvalidInput) as error:
        convert(model, 3, example=X)
    assert error.value.subject.startswith(subject)
    assert error.value.fix
    assert_unchanged(model, before)


def test_refused_at_the_first_forward_the_ensemble_is_unchanged(picture, assert_unchanged):
    ensemble = convert(nn.Sequential(AcrossRows(), nn.Flatten(), nn.Linear(18, C)), 3)
    state = picture(ensemble)
    with pytest.raises(InvalidInput):
        ensemble(torch.randn(5, 3, 6))
    assert_unchanged(ensemble, state)
    assert ensemble.site is None
    assert len(list(ensemble.run_each(torch.randn(5, 3, 6)))) == 3  # what the error offers


def test_what_has_no_rows_may_stay_shared(differ):
    ensemble = differ(convert(Body(OfTheTable).eval(), 3, example=X, norms=["*", "!blocks.?.norm"]))
    torch.testing.assert_close(ensemble(X)[1], revert(ensemble, 1)(X))


def test_weight_standardization_is_no_norm(differ):
    ensemble = differ(convert(Body(Standardized).eval(), 3, example=X))
    torch.testing.assert_close(ensemble(X)[1], revert(ensemble, 1)(X))


def test_a_failed_search_leaves_the_former_place():
    ensemble = convert(Body(Around), 3, example=X)
    site, expected = ensemble.site, ensemble(X)
    with pytest.raises(InvalidInput):
        ensemble.place(X * float("nan"))
    assert ensemble.site is site
    torch.testing.assert_close(ensemble(X), expected)
    for bad in (X[:0], 3):
        with pytest.raises(InvalidInput):
            ensemble.place(bad)


class Caching(After):
    """Keeps in evaluation what it computed, as LevIT does with its attention biases."""

    def __init__(self):
        super().__init__()
        self.cache = {}

    def forward(self, x):
        if not self.training and not self.cache:
            self.cache["bias"] = self.mix.bias * 2
        return self.norm(x) + (self.mix.bias * 2 if self.training else self.cache["bias"])


def test_nothing_that_a_model_keeps_of_a_run_comes_from_the_search():
    model = Body(Caching)
    ensemble = convert(model, 3, example=X)
    for m in (model, ensemble, ensemble.backbone):
        assert not any(b.cache for b in m.modules() if isinstance(b, Caching))


class Fused(nn.Module):
    """torch's encoder has a fused path that reads the weights of its norms."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, C)

    def forward(self, x):
        return self.head(self.encoder(x, src_key_padding_mask=x[..., 0] > 9).mean(1))


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype")
def test_the_fused_path_of_torch_is_not_taken(differ):
    model = Fused().eval()
    ensemble = differ(convert(model, 3, example=X))
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            joint = ensemble(X)
            plain = revert(ensemble, 1)
            torch.testing.assert_close(joint[1], plain(X), atol=1e-5, rtol=1e-5)
    assert plain.encoder.use_nested_tensor
    assert plain.encoder.layers[0].activation_relu_or_gelu == 1
    assert model.encoder.layers[0].activation_relu_or_gelu == 1


# ------------------------------------------------------------------ the parts
def test_expansion_copies_rows_and_leaves_tables():
    rows = Rows(3, total=6)
    layouts = {"args.0": Layout(0), "kwargs.b.0": Layout(1), "kwargs.b.1": None}
    hook = Expansion(rows, layouts | {"kwargs.c": Layout(0, grouped=True)})
    a, b, table, c = torch.arange(2), torch.arange(6).view(3, 2), torch.ones(2), torch.arange(4)
    args, kwargs = hook(None, (a, "text"), {"b": [b, table], "c": c})
    assert args[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert args[1] == "text"
    assert kwargs["b"][0][0].tolist() == [0, 0, 0, 1, 1, 1]
    assert kwargs["b"][1] is table
    assert kwargs["c"].tolist() == [0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3]
    rows.expanding = False
    assert hook(None, (a,), {}) is None
    rows.expanding, rows.active = True, 1
    assert hook(None, (a,), {}) is None


def test_unfold_shows_members_and_walk_knows_paths():
    x = torch.arange(12)
    assert unfold(x, Rows(3), Layout())[1, 2].tolist() == [5]
    grouped = unfold(x, Rows(3, total=6), Layout(grouped=True))
    assert grouped.shape == (2, 3, 2)
    assert grouped[1, 0].tolist() == [6, 7]
    for rows, layout in (
        (Rows(5), Layout()),
        (Rows(3, total=6), Layout()),
        (Rows(3, total=15), Layout(grouped=True)),
    ):
        with pytest.raises(InvalidInput):
            unfold(x, rows, layout)
    seen = []
    walk(({"a": [x, 1]}, x), lambda path, t: seen.append(path), "args")
    assert seen == ["args.0.a.0", "args.1"]
