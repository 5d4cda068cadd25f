import json
import warnings

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from temperance.errors import InvalidInput
from temperance.training import preprocess as module
from temperance.training.preprocess import Preprocess, augment, decode_image, make_preprocess
from temperance.training.sources import open_data
from temperance.training.splits import Rows, make_splits

RNG = np.random.default_rng(0)


def npz(tmp_path, x, y=None):
    path = tmp_path / "x.npz"
    np.savez(path, x=x, y=np.arange(len(x)) % 2 if y is None else y)
    return open_data(path)


def all_rows(data):
    return Rows("train", np.arange(len(data.parts["train"])))


# ------------------------------------------------------------------ mean and spread
@pytest.mark.parametrize("chunk", [1, 1 << 22])
def test_pictures_get_mean_0_and_spread_1_per_channel(tmp_path, chunk, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    x = RNG.integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)
    x[..., 1] //= 3
    data = npz(tmp_path, x)
    p = make_preprocess(data, all_rows(data))
    out = p.apply(data.parts["train"].x)
    assert out.shape == (20, 3, 6, 5)
    assert out.dtype == torch.float32
    assert_close(out.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    assert_close(out.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    np.testing.assert_allclose(p.mean, x.reshape(-1, 3).mean(0) / 255, rtol=1e-12)
    np.testing.assert_allclose(p.std, x.reshape(-1, 3).std(0) / 255, rtol=1e-12)


def test_only_training_rows_are_measured():
    data = open_data("digits")
    splits = make_splits(data, seed=0)
    p = make_preprocess(data, splits.train)
    x = data.parts["train"].x[splits.train.index] / 16
    np.testing.assert_allclose([p.mean[0], p.std[0]], [x.mean(), x.std()], rtol=1e-12)
    other = make_preprocess(data, splits.test)
    assert other.mean != p.mean


def test_features_far_from_zero_are_measured_exactly(tmp_path):
    x = RNG.normal(size=(500, 2)) * [1.0, 1e-3] + [1e4, 5.0]
    data = npz(tmp_path, x)
    p = make_preprocess(data, all_rows(data))
    stored = data.parts["train"].x.astype(np.float64)
    np.testing.assert_allclose(p.mean, stored.mean(0), rtol=1e-12)
    np.testing.assert_allclose(p.std, stored.std(0), rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, 3.0, 1e6 / 3])
def test_what_does_not_vary_is_left_alone(tmp_path, value):
    x = RNG.normal(size=(50, 2))
    x[:, 1] = value
    data = npz(tmp_path, x)
    p = make_preprocess(data, all_rows(data))
    assert p.std[1] == 1.0
    out = p.apply(data.parts["train"].x)
    assert torch.isfinite(out).all()
    assert out[:, 1].abs().max() < 0.1


# ------------------------------------------------------------------ apply
def test_arrays_tensors_views_and_read_only_rows_are_alike():
    data = open_data("digits")
    x = data.parts["train"].x
    p = make_preprocess(data, all_rows(data))
    expected = p.apply(x[:6])
    frozen = x[:6].copy()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(p.apply(frozen), expected)
        assert_close(p.apply(x[5::-1]), expected.flip(0))
        assert_close(p.apply(x[:6:2]), expected[::2])
        assert_close(p.apply(torch.from_numpy(x[:6].copy())), expected)
    assert_close(p.apply(x[:6].astype(">f4")), expected)
    assert_close(p.apply(x[:6].astype(np.uint16)), expected)


def test_the_result_does_not_depend_on_the_batch():
    data = open_data("digits")
    p = make_preprocess(data, all_rows(data))
    x = data.parts["train"].x[:50]
    assert torch.equal(p.apply(x), torch.cat([p.apply(x[i : i + 7]) for i in range(0, 50, 7)]))


def test_the_default_type_of_torch_does_not_matter():
    p = Preprocess("features", (1,), mean=(0.0,), std=(2.0,))
    torch.set_default_dtype(torch.float64)
    try:
        assert p.apply(np.ones((1, 1))).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 8, 9, 1), (2, 1, 8, 8), (2, 64)])
def test_rows_of_another_shape_are_refused(shape):
    p = Preprocess("images", (1, 8, 8), (0.5,), (0.2,), white=255, stored_channels=1, dtype="uint8")
    with pytest.raises(InvalidInput) as caught:
        p.apply(np.zeros(shape, np.uint8))
    assert "8, 8, 1" in caught.value.expected


def test_gray_is_replicated_for_nets_that_take_colour():
    data = open_data("digits")
    p = make_preprocess(data, all_rows(data), channels=3)
    gray = make_preprocess(data, all_rows(data))
    x = data.parts["train"].x[:4]
    assert p.shape == (3, 8, 8)
    assert_close(p.apply(x), gray.apply(x).repeat(1, 3, 1, 1))
    pre = make_preprocess(
        data, all_rows(data), channels=3, mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3)
    )
    value = float(x[0, 2, 3, 0]) / 16
    expected = (value - torch.tensor([0.4, 0.5, 0.6])) / torch.tensor([0.1, 0.2, 0.3])
    assert_close(pre.apply(x)[0, :, 2, 3], expected)


def test_colour_is_not_made_gray(tmp_path):
    data = npz(tmp_path, RNG.integers(0, 256, (4, 6, 6, 3), dtype=np.uint8))
    with pytest.raises(InvalidInput):
        make_preprocess(data, all_rows(data), channels=1)


def test_a_pretrained_mean_needs_a_known_white(tmp_path):
    data = npz(tmp_path, RNG.normal(size=(4, 6, 6)))
    assert make_preprocess(data, all_rows(data)).white is None
    with pytest.raises(InvalidInput) as caught:
        make_preprocess(data, all_rows(data), mean=(0.5,), std=(0.5,))
    assert "scale" in caught.value.expected


# ------------------------------------------------------------------ round trip
@pytest.mark.parametrize("source", ["digits", "features"])
def test_the_round_trip_through_json_changes_nothing(source, tmp_path):
    data = open_data("digits") if source == "digits" else npz(tmp_path, RNG.normal(size=(9, 4)))
    p = make_preprocess(data, all_rows(data))
    again = Preprocess.from_dict(json.loads(json.dumps(p.to_dict(), allow_nan=False)))
    assert again == p
    x = data.parts["train"].x[:3]
    assert torch.equal(again.apply(x), p.apply(x))


@pytest.mark.parametrize(
    "change",
    [{"std": [0.0]}, {"mean": [float("nan")]}, {"mean": [1.0, 2.0]}, {"shape": [8]}, {"kind": "x"}],
)
def test_damaged_records_are_refused(change):
    data = open_data("digits")
    good = make_preprocess(data, all_rows(data)).to_dict()
    with pytest.raises(InvalidInput):
        Preprocess.from_dict({**good, **change})
    del good["std"]
    with pytest.raises(InvalidInput):
        Preprocess.from_dict(good)


# ------------------------------------------------------------------ one picture
@pytest.mark.parametrize("size", [None, 16])
def test_prediction_decodes_as_training_did(tree, pictures, size):
    root = tree({**pictures("a", 3), **pictures("b", 3)})
    data = open_data(root, image_size=size)
    p = make_preprocess(data, all_rows(data))
    part = data.parts["train"]
    for row, name in zip(part.x, part.ids, strict=True):
        np.testing.assert_array_equal(decode_image(root / name, p), row)
        np.testing.assert_array_equal(decode_image((root / name).read_bytes(), p), row)


def test_a_picture_is_brought_to_channels_and_scale_of_the_training(colour, encoded):
    data = open_data("digits")
    p = make_preprocess(data, all_rows(data))
    pixels = decode_image(encoded(colour(0)), p)
    assert pixels.shape == (8, 8, 1)
    assert pixels.dtype == np.uint8
    assert pixels.max() <= 16
    full = Preprocess("images", (1, 8, 8), (0.5,), (0.2,), 255.0, 1, "uint8")
    expected = np.rint(decode_image(encoded(colour(0)), full) * (16 / 255))
    np.testing.assert_array_equal(pixels, expected.astype(np.uint8))


def test_fractions_stay_fractions(tmp_path, colour, encoded):
    data = npz(tmp_path, RNG.random((4, 20, 24, 3)))
    p = make_preprocess(data, all_rows(data))
    pixels = decode_image(encoded(colour(0)), p)
    assert pixels.dtype == np.float32
    np.testing.assert_allclose(pixels, np.asarray(colour(0)) / 255, rtol=1e-6)


@pytest.mark.parametrize("data", [b"", b"text"])
def test_a_bad_picture_is_named(tmp_path, data):
    p = Preprocess("images", (1, 8, 8), (0.5,), (0.2,), 255.0, 1, "uint8")
    path = tmp_path / "bad.png"
    path.write_bytes(data)
    with pytest.raises(InvalidInput) as caught:
        decode_image(path, p)
    assert "bad.png" in caught.value.subject
    with pytest.raises(InvalidInput):
        decode_image(data, p)


def test_no_file_has_the_scale_of_features_or_standardized_arrays(tmp_path, colour, encoded):
    for x in (RNG.normal(size=(4, 6, 6)), RNG.normal(size=(4, 6))):
        data = npz(tmp_path, x)
        with pytest.raises(InvalidInput):
            decode_image(encoded(colour(0)), make_preprocess(data, all_rows(data)))


# ------------------------------------------------------------------ augmentation
def naive_augment(batch, generator, flip, pad):
    n, channels, height, width = batch.shape
    down = torch.randint(0, 2 * pad + 1, (n, 1), generator=generator)
    right = torch.randint(0, 2 * pad + 1, (n, 1), generator=generator)
    mirrored = torch.rand(n, 1, generator=generator) < 0.5 if flip else torch.zeros(n, 1)
    out = torch.zeros_like(batch)
    for i in range(n):
        padded = torch.zeros(channels, height + 2 * pad, width + 2 * pad)
        padded[:, pad : pad + height, pad : pad + width] = batch[i]
        top, left = int(down[i]), int(right[i])
        cut = padded[:, top : top + height, left : left + width]
        out[i] = cut.flip(2) if mirrored[i] else cut
    return out


@pytest.mark.parametrize(("flip", "pad"), [(True, 4), (False, 4), (True, 0), (True, 1)])
def test_augmentation_does_what_a_loop_does(flip, pad):
    batch = torch.rand(16, 3, 12, 10)
    fast = augment(batch, torch.Generator().manual_seed(3), flip=flip, pad=pad)
    slow = naive_augment(batch, torch.Generator().manual_seed(3), flip, pad)
    assert torch.equal(fast, slow)


def test_augmentation_is_seeded_and_touches_no_global_state(rng_guard):
    batch = torch.rand(32, 1, 32, 32)
    with rng_guard():
        one, two, other = (augment(batch, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert one.shape == batch.shape


def test_the_default_shift_grows_with_the_picture():
    ones = torch.ones(400, 1, 8, 8)
    lost = (augment(ones, torch.Generator().manual_seed(0)) == 0).sum((1, 2, 3))
    assert lost.max() == 15  # one row and one column
    assert lost.min() == 0
