"""What T does to the gradient: against autograd, and seen through hooks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from temperance.errors import InvalidInput
from temperance.head import TemperedHead
from temperance.integrations.watch import HeadWatch, gradient_ratio, progress_bar


def by_autograd(z, targets, temperature):
    """Norms of the gradients at T and at 1, of the same outputs z."""
    norms = []
    for t in (temperature, 1.0):
        leaf = z.clone().requires_grad_()
        nn.functional.cross_entropy(leaf / t, targets, ignore_index=-100).backward()
        norms.append(leaf.grad.norm())
    return float(norms[0] / norms[1])


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 50), st.integers(0, 10_000), st.booleans())
def test_it_is_the_ratio_of_the_gradients(temperature, seed, soft):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (7,), generator=generator)
    targets = torch.rand(7, 4, generator=generator, dtype=torch.float64) if soft else y
    targets = targets / targets.sum(-1, keepdim=True) if soft else targets
    found = gradient_ratio(z / temperature, targets, temperature=temperature)
    assert found == pytest.approx(by_autograd(z, targets, temperature), rel=1e-9)
    compensated = gradient_ratio(
        z / temperature, targets, temperature=temperature, compensated=True
    )
    assert compensated == pytest.approx(found * temperature, rel=1e-9)


def test_ignored_rows_do_not_count():
    z, y = torch.randn(6, 3), torch.tensor([0, -100, 2, 1, -100, 0])
    assert gradient_ratio(z / 3, y, temperature=3.0) == pytest.approx(
        gradient_ratio(z[y >= 0] / 3, y[y >= 0], temperature=3.0)
    )
    tokens = gradient_ratio(z.reshape(2, 3, 3) / 3, y.reshape(2, 3), temperature=3.0)
    assert tokens == pytest.approx(by_autograd(z, y, 3.0), rel=1e-5)


def test_class_156_of_bytes_is_no_row_that_is_left_out():
    z, y = torch.randn(2, 200), torch.tensor([156, 3])
    found = gradient_ratio(z / 2, y.to(torch.uint8), temperature=2.0)
    assert found == gradient_ratio(z / 2, y, temperature=2.0)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_none(temperature):
    with pytest.raises(InvalidInput) as error:
        gradient_ratio(torch.zeros(2, 3), torch.tensor([0, 1]), temperature=temperature)
    assert error.value.subject == "temperature"


def test_without_a_gradient_there_is_no_ratio():
    sure = torch.tensor([[1e6, 0.0]])
    assert math.isnan(gradient_ratio(sure, torch.tensor([0]), temperature=2.0))
    assert math.isnan(gradient_ratio(sure, torch.tensor([-100]), temperature=2.0))


@pytest.mark.parametrize(
    "labels", [torch.tensor([0, 3]), torch.tensor([0, -1]), torch.zeros(3).long(), torch.zeros(2)]
)
def test_labels_that_do_not_fit(labels):
    with pytest.raises(InvalidInput) as error:
        gradient_ratio(torch.zeros(2, 3), labels, temperature=2.0)
    assert error.value.subject == "labels"


def test_the_watch_sees_training_batches_only_and_can_be_stopped():
    head = TemperedHead(nn.Linear(5, 3), 4.0, norm="none")
    watch = HeadWatch(head)
    y = torch.tensor([0, 1, 2])
    assert watch.ratio(y) is None
    head.eval()(torch.randn(3, 5))
    assert watch.logits is None
    z = 4 * head.train()(torch.randn(3, 5)).detach()
    assert watch.ratio(y) == pytest.approx(by_autograd(z, y, 4.0), rel=1e-5)
    assert watch.ratio(["a", "b", "c"]) is None
    assert watch.ratio(torch.tensor([0, 1])) is None
    watch.stop()
    assert not head._forward_hooks
    assert watch.ratio(y) is None


def test_the_watch_of_a_convolution():
    head = TemperedHead(nn.Conv2d(5, 3, 1), 4.0, norm="none")
    watch = HeadWatch(head)
    z = 4 * head.train()(torch.randn(2, 5, 1, 1)).detach().flatten(1)
    y = torch.tensor([0, 2])
    assert watch.ratio(y) == pytest.approx(by_autograd(z, y, 4.0), rel=1e-5)


def test_no_bar_where_there_is_no_terminal():
    for show in (False, True):
        with progress_bar("measuring", show=show) as told:
            assert told is None
