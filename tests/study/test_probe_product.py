"""The product of probes: right, and in float32."""

import numpy as np
import pytest
import torch

from temperance.study import probe_product


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (7, 3, 5), (160, 128, 64), (30, 257, 1)])
def test_products_agree(m, k, n):
    rng = np.random.default_rng(0)
    a = torch.tensor(rng.normal(size=(m, k)), dtype=torch.float32)
    b = torch.tensor(rng.normal(size=(k, n)), dtype=torch.float32).t()
    for product in (probe_product.choose_product(), probe_product._mm):
        torch.testing.assert_close(product(a, b), (a.double() @ b.double().t()).float())
        torch.testing.assert_close(product(a, b.contiguous()), product(a, b))


def test_a_product_that_rounds_is_not_taken(monkeypatch):
    def rounds(a, b):
        return (a.bfloat16() @ b.bfloat16().t()).float()

    monkeypatch.setattr(probe_product, "_onednn", rounds)
    assert probe_product.choose_product() is probe_product._mm


def test_settings_of_torch_that_round_are_noticed():
    if probe_product.choose_product() is probe_product._mm:
        pytest.skip("torch has no oneDNN here")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        product = probe_product.choose_product()
        exact = probe_product._is_float32(probe_product._onednn)
        assert (product is probe_product._onednn) == exact
    finally:
        torch.set_float32_matmul_precision(before)
