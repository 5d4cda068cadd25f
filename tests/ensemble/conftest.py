"""What the tests of the ensemble share: members that differ, and all of a model to compare."""

import pytest
import torch

from temperance.ensemble import MemberLinear, SigmaNorm


def differ_members(ensemble, seed=1):
    """Give each member other scales, statistics and heads, and no scale of zero."""
    generator = torch.Generator().manual_seed(seed)

    def noise(x):
        return torch.randn(x.shape, generator=generator).to(x)

    with torch.no_grad():
        for layer in ensemble.modules():
            if isinstance(layer, SigmaNorm):
                layer.gamma.add_(noise(layer.gamma))
                layer.weight[layer.weight == 0] = 0.5
                if layer.running_mean is not None:
                    layer.running_mean.add_(0.1 * layer.running_var.sqrt() * noise(layer.gamma))
                    layer.running_var.mul_(torch.exp(0.3 * noise(layer.gamma)))
            elif isinstance(layer, MemberLinear):
                layer.weight.add_(noise(layer.weight) / layer.in_features**0.5)
    return ensemble


def picture_of(model):
    """Everything of a model that must not change."""
    return (
        [(n, id(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks))
         for n, m in model.named_modules(remove_duplicate=False)],
        [(n, id(p), p.requires_grad, p.grad is None, p.dtype)
         for n, p in model.named_parameters(remove_duplicate=False)],
        {k: v.clone() for k, v in model.state_dict().items()},
    )  # fmt: skip


@pytest.fixture
def differ():
    return differ_members


@pytest.fixture
def picture():
    return picture_of


@pytest.fixture
def assert_unchanged():
    def check(model, before):
        after = picture_of(model)
        assert after[:2] == before[:2]
        assert list(after[2]) == list(before[2])
        assert all(torch.equal(after[2][k], before[2][k]) for k in after[2])

    return check
