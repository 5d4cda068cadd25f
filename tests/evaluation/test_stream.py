"""Chunks give what the whole gives: from lists, loaders, generators, models and functions."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from temperance.errors import InvalidInput, NotFound
from temperance.evaluation import collect_logits, fit_temperature, fit_temperature_stream
from temperance.evaluation.posthoc import BOUNDS


def sample(n=3000, c=10, *, seed=0, true=5.0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c)) * 2
    return z * true, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


Z, Y = sample()


def cut(*arrays, size=700):
    return [tuple(a[i : i + size] for a in arrays) for i in range(0, len(arrays[0]), size)]


def assert_same(stream, whole):
    """The same fit; sums over other blocks differ by rounding."""
    assert stream.temperature == pytest.approx(whole.temperature, rel=1e-9)
    assert (stream.status, stream.n, stream.notes, stream.bounds) == (
        whole.status,
        whole.n,
        whole.notes,
        whole.bounds,
    )
    for a, b in ((stream.nll_before, whole.nll_before), (stream.nll_after, whole.nll_after)):
        assert a == pytest.approx(b, rel=1e-9)
    if whole.interval is None:
        assert stream.interval is None
    else:
        assert stream.interval == pytest.approx(whole.interval, rel=1e-8)


@pytest.fixture(params=["plain", "small blocks"])
def _sizes(request, monkeypatch):
    """Once as it is, once with blocks, pieces and kept rows so small that every branch is taken."""
    if request.param == "small blocks":
        monkeypatch.setattr("temperance.evaluation.nll_curve._BLOCK", 128)
        monkeypatch.setattr("temperance.evaluation.nll_curve._SAMPLE", 2000)
        monkeypatch.setattr("temperance.evaluation.nll_curve._LEAST", 300)
        monkeypatch.setattr("temperance.evaluation.logit_rows._PIECE", 333)
        monkeypatch.setattr("temperance.evaluation.stream._IN_MEMORY", 100)


FORMS = {
    "list": lambda chunks: chunks,
    "generator": iter,
    "function": lambda chunks: lambda: iter(chunks),
    "tensors": lambda chunks: [tuple(map(torch.as_tensor, c)) for c in chunks],
}


@pytest.mark.usefixtures("_sizes")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 64, 700, 5000])
def test_chunks_give_what_the_whole_gives(form, size):
    z, y = (Z, Y) if size > 1 else (Z[:150], Y[:150])
    assert_same(
        fit_temperature_stream(FORMS[form](cut(z, y, size=size))),
        fit_temperature(logits=z, labels=y),
    )


SETS = {
    "right": (Z, Z.argmax(axis=1)),
    "wrong": (Z, Z.argmin(axis=1)),
    "constant": (np.full((500, 3), 7.0), np.arange(500) % 3),
    "random": (Z, np.random.default_rng(5).integers(0, 10, len(Y))),
    "few": (Z[:20], Y[:20]),
    "one column": (Z[:, :1], (Y > 4).astype(int)),
    "in [0, 1]": (np.linspace(0, 1, 300), np.arange(300) % 2),
    "half": (torch.as_tensor(Z).half(), Y),
    "masked": (np.where(np.arange(10) == 3, -np.inf, Z), np.where(Y == 3, 4, Y)),
    "integers": (Z.round().astype(np.int32), Y),
}


@pytest.mark.usefixtures("_sizes")
@pytest.mark.parametrize("form", ["list", "generator"])
@pytest.mark.parametrize("name", SETS)
def test_every_status_and_note_is_the_same(name, form):
    z, y = SETS[name]
    assert_same(
        fit_temperature_stream(FORMS[form](cut(z, y, size=170))),
        fit_temperature(logits=z, labels=y),
    )


@pytest.mark.usefixtures("_sizes")
@pytest.mark.parametrize("form", ["list", "generator"])
def test_ignored_rows_weights_and_bounds(form):
    y = np.where(np.arange(len(Y)) < 1500, -100, Y)  # the first chunks hold nothing
    w = np.random.default_rng(0).uniform(size=len(Y)) * 1e-180
    whole = fit_temperature(logits=Z, labels=y, ignore=(-100,), weights=w, bounds=(0.5, 20))
    chunks = FORMS[form](cut(Z, y, w))
    assert_same(fit_temperature_stream(chunks, ignore=-100, bounds=(0.5, 20)), whole)
    narrow = fit_temperature_stream(cut(Z, Y), bounds=(0.5, 2.0))
    assert_same(narrow, fit_temperature(logits=Z, labels=Y, bounds=(0.5, 2.0)))
    assert narrow.status == "at upper bound"


@pytest.mark.usefixtures("_sizes")
def test_dense_chunks():
    z, y = Z.reshape(30, 10, 10, 10).transpose(0, 3, 1, 2), Y.reshape(30, 10, 10)
    whole = fit_temperature(logits=Z, labels=Y)
    assert_same(fit_temperature_stream(cut(z, y, size=4), axis=1), whole)
    assert_same(fit_temperature_stream(iter(cut(z, y, size=4)), axis=1), whole)


def test_progress_and_the_number_of_passes(monkeypatch):
    monkeypatch.setattr("temperance.evaluation.nll_curve._SAMPLE", 8000)
    monkeypatch.setattr("temperance.evaluation.stream._EVERY", 5000)
    calls = []
    fit_temperature_stream(cut(Z, Y), progress=lambda p, n: calls.append((p, n)))
    passes = {p for p, _ in calls}
    assert passes == set(range(1, max(passes) + 1))
    assert 3 <= len(passes) <= 5
    for p in passes:
        rows = [n for q, n in calls if q == p]
        assert rows == sorted(set(rows))
        assert rows[-1] == len(Y)
        assert len(rows) > 1
    calls.clear()
    fit_temperature_stream(iter(cut(Z, Y)), progress=lambda p, n: calls.append((p, n)))
    assert max(p for p, _ in calls) == len(passes) + 1  # and one to write it down


def test_a_loader_in_any_order():
    data = TensorDataset(torch.as_tensor(Z), torch.as_tensor(Y))
    loader = DataLoader(data, batch_size=100, shuffle=True, generator=torch.Generator())
    assert_same(fit_temperature_stream(loader), fit_temperature(logits=Z, labels=Y))


def test_memory_is_that_of_a_chunk():
    import tracemalloc

    def chunks():
        rng = np.random.default_rng(0)
        for _ in range(60):
            z = rng.normal(size=(500, 100)).astype(np.float32)
            yield z, (z + rng.gumbel(size=z.shape)).argmax(1)

    tracemalloc.start()
    fit = fit_temperature_stream(chunks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert fit.n == 30_000
    assert peak < 30_000 * 100 * 4  # the float32 logits together


# ------------------------------------------------------------------ the model form
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(10, 10), nn.Dropout(0.5)
        nn.init.eye_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return self.linear(self.drop(x))


def test_model_and_loader(rng_guard):
    model = Net()
    loader = [(torch.as_tensor(z).float(), torch.as_tensor(y)) for z, y in cut(Z, Y)]
    with rng_guard():
        fit = fit_temperature(model, loader)
    assert model.training
    assert torch.is_grad_enabled()
    logits, labels = collect_logits(model, loader)
    assert_same(fit, fit_temperature(logits=logits, labels=labels))
    assert fit.temperature == pytest.approx(5, rel=0.1)


class TwoHeads(Net):
    def forward(self, x):
        return {"main": super().forward(x), "second": 3 * super().forward(x)}


def test_the_head_is_named():
    loader = [(torch.as_tensor(z).float(), torch.as_tensor(y)) for z, y in cut(Z, Y)]
    fits = {key: fit_temperature(TwoHeads(), loader, key=key) for key in ("main", "second")}
    ratio = fits["second"].temperature / fits["main"].temperature
    assert ratio == pytest.approx(3, rel=1e-6)
    with pytest.raises(NotFound):
        fit_temperature(TwoHeads(), loader)


def test_dense_model():
    model = nn.Conv2d(10, 10, 1).double()
    x = torch.as_tensor(Z).reshape(30, 10, 10, 10)
    y = torch.randint(0, 10, (30, 10, 10), generator=torch.Generator().manual_seed(0))
    y[0] = 255
    fit = fit_temperature(model, [(x[:20], y[:20]), (x[20:], y[20:])], axis=1, ignore=(255,))
    with torch.no_grad():
        whole = fit_temperature(logits=model(x), labels=y, axis=1, ignore=(255,))
    assert fit.n == 2900
    assert_same(fit, whole)


def test_the_model_is_left_as_it_was_when_the_fit_fails():
    model = Net()
    loader = [(torch.full((4, 10), math.nan), torch.zeros(4, dtype=torch.long))]
    with pytest.raises(InvalidInput) as caught:
        fit_temperature(model, loader)
    assert "row 0 of chunk 0" in caught.value.found
    assert model.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"logits": Z},
        {"labels": Y},
        {"model": Net()},
        {"loader": []},
        {"model": Net(), "loader": [], "labels": Y},
        {"model": Net(), "loader": [], "weights": Y},
        {"logits": Z, "labels": Y, "key": "logits"},
    ],
)
def test_one_form_or_the_other(arguments):
    with pytest.raises(InvalidInput) as caught:
        fit_temperature(**arguments)
    assert caught.value.subject == "fit_temperature"


# ------------------------------------------------------------------ what is refused
def test_errors_name_the_chunk_and_the_row():
    bad = Z.copy()
    bad[1403, 2] = np.nan
    y = Y.copy()
    y[1405] = 10
    for form in (FORMS["list"], FORMS["generator"]):
        with pytest.raises(InvalidInput) as caught:
            fit_temperature_stream(form(cut(bad, Y)))
        assert "NaN in row 3 of chunk 2, column 2" in caught.value.found
        with pytest.raises(InvalidInput) as caught:
            fit_temperature_stream(form(cut(Z, y)))
        assert caught.value.subject == "labels of chunk 2"
        assert "10 in row 5 of chunk 2" in caught.value.found
        with pytest.raises(InvalidInput) as caught:
            fit_temperature_stream(form([*cut(Z, Y), (Z[:2, :4], Y[:2] % 4)]))
        assert caught.value.subject == "chunk 5"


@pytest.mark.parametrize("chunks", [3, None, "ab", [Z], [(Z,)], [(Z, Y, Y, Y)], [{"logits": Z}]])
def test_what_are_no_chunks(chunks):
    with pytest.raises(InvalidInput) as caught:
        fit_temperature_stream(chunks)
    assert caught.value.subject == "chunks"


@pytest.mark.parametrize("chunks", [[], iter([]), [(Z[:0], Y[:0])], [(Z, np.full(len(Y), -1))]])
def test_no_rows(chunks):
    with pytest.raises(InvalidInput) as caught:
        fit_temperature_stream(chunks, ignore=(-1,))
    assert caught.value.subject == "labels"


def test_probabilities_are_refused_as_a_whole_and_not_by_the_chunk():
    p = np.exp(Z - Z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    with pytest.raises(InvalidInput) as caught:
        fit_temperature_stream(cut(p, Y))
    assert f"all {len(Y)} rows" in caught.value.found
    mixed = np.concatenate([p[:700], Z[700:]])
    assert_same(fit_temperature_stream(cut(mixed, Y)), fit_temperature(logits=mixed, labels=Y))


def test_a_source_that_changes_is_noticed(monkeypatch):
    monkeypatch.setattr("temperance.evaluation.nll_curve._SAMPLE", 2000)
    chunks, left = cut(Z, Y), []

    def fewer():
        left.append(1)
        return iter(chunks[: 5 - len(left)])

    with pytest.raises(InvalidInput) as caught:
        fit_temperature_stream(fewer)
    assert caught.value.subject == "chunks"
    assert "2100 on pass 2" in caught.value.found


def test_all_weights_zero():
    with pytest.raises(InvalidInput) as caught:
        fit_temperature_stream([(Z, Y, np.zeros(len(Y)))])
    assert caught.value.subject == "weights"


def test_some_chunks_with_weight_zero_only():
    w = np.where(np.arange(len(Y)) < 1000, 0.0, 2.0)
    part = fit_temperature(logits=Z[1000:], labels=Y[1000:])
    fit = fit_temperature_stream(cut(Z, Y, w))
    assert fit.temperature == pytest.approx(part.temperature, rel=1e-9)
    assert fit.interval == pytest.approx(part.interval, rel=1e-8)
    assert BOUNDS[0] < fit.temperature < BOUNDS[1]
