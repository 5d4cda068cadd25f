"""Hand-written slopes are those of autograd in float64."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from temperance.study.probe_head import new_heads, normalized, scores
from temperance.study.probe_product import choose_product
from temperance.study.probe_slopes import losses_of, nll_and_hits, slope_and_nll, slopes
from temperance.study.trial import NORMS, Trial

TRIALS = [
    Trial("a", temperature=0.5),
    Trial("a", temperature=4.0, loss="normalized", smoothing=0.2),
    Trial("a", temperature=30.0, smoothing=0.1),
]


def some_heads(norm):
    heads = new_heads([t.temperature for t in TRIALS], norm=norm, shape=(5, 6), seed=0)
    for tensor in heads.parameters:
        tensor += torch.randn(tensor.shape)
    return heads


@pytest.mark.parametrize("norm", NORMS)
def test_slopes_are_those_of_autograd(norm):
    heads, x, y = some_heads(norm), torch.randn(12, 6) * 2, torch.arange(12) % 5
    x = normalized(heads, x, training=True)
    multiply, losses = choose_product(), losses_of(TRIALS, batch_size=12)
    z = scores(heads, x, multiply=multiply)
    g, nll = slope_and_nll(z, y, temperature=heads.temperature, losses=losses)
    ours = slopes(heads, x, g, multiply=multiply)
    for index, trial in enumerate(TRIALS):
        own = [p[index].double().requires_grad_() for p in heads.parameters]
        rows = x.double() if norm == "none" else x.double() * own[2] + own[3]
        wide = (rows @ own[0].t() + own[1].t()) / trial.temperature
        loss = cross_entropy(wide, y, label_smoothing=trial.smoothing)
        (loss * trial.temperature if trial.loss == "normalized" else loss).backward()
        for slope, parameter in zip(ours, own, strict=True):
            torch.testing.assert_close(slope[index].double(), parameter.grad, rtol=1e-4, atol=1e-5)
        expected = cross_entropy(wide.detach(), y, reduction="none").float()
        torch.testing.assert_close(nll[index], expected, rtol=1e-5, atol=1e-5)


def test_a_slope_keeps_its_digits_where_the_model_is_sure():
    z = torch.tensor([[[20.0], [1.0], [-3.0]]])
    y, trial = torch.tensor([0]), Trial("a")
    p = torch.softmax(z.double(), dim=1)
    expected = torch.cat([-p[:, 1:].sum(dim=1, keepdim=True), p[:, 1:]], dim=1)
    losses = losses_of([trial], batch_size=1)
    g, _ = slope_and_nll(z.clone(), y, temperature=torch.ones(1, 1, 1), losses=losses)
    torch.testing.assert_close(g.double(), expected, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("temperature", [1e-3, 1.0, 1e4])
def test_nll_and_hits_at_any_temperature(temperature):
    z, y = torch.randn(2, 7, 40) * 5, torch.arange(40) % 7
    t = torch.full((2, 1, 1), temperature)
    nll, hits = nll_and_hits(z.clone(), y, temperature=t)
    for index in range(2):
        rows = z[index].t().double() / temperature
        expected = cross_entropy(rows, y, reduction="none")
        torch.testing.assert_close(nll[index].double(), expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(hits[index], rows.argmax(dim=1) == y)


def test_logits_that_overflow_give_a_loss_that_is_no_number():
    z = torch.tensor([[[torch.inf], [1.0]], [[2.0], [1.0]]])
    y = torch.tensor([1])
    nll, _ = nll_and_hits(z, y, temperature=torch.ones(2, 1, 1))
    assert not nll[0].isfinite().any()
    assert nll[1].isfinite().all()
