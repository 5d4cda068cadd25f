"""Corruptions grow with their severity, come from the seed alone, and take any size."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.datasets import load_digits

from temperance.errors import InvalidInput, NotFound
from temperance.evaluation import CORRUPTIONS, corrupt

every = pytest.mark.parametrize("name", CORRUPTIONS)


def scenes(n, height, width, channels, seed=0):
    """Pictures with large shapes, edges and some grain."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    out = []
    for _ in range(n):
        layers = []
        for _ in range(channels):
            a, b, c = rng.uniform(1, 4, 3)
            shade = np.sin(a * x + b * y + c) + ((x - 0.5) ** 2 + (y - 0.4) ** 2 < c / 40)
            layers.append(shade + 0.1 * rng.normal(size=x.shape))
        out.append(np.stack(layers, axis=2))
    z = np.stack(out)
    return (20 + 200 * (z - z.min()) / np.ptp(z)).astype(np.uint8)


SETS = {
    "digits 8x8": (load_digits().images[:40] * 255 / 16).astype(np.uint8),
    "gray 28x28": scenes(10, 28, 28, 1),
    "colour 32x32": scenes(10, 32, 32, 3),
    "colour 33x50": scenes(5, 33, 50, 3),
    "colour 96x64": scenes(3, 96, 64, 3),
}


@every
@pytest.mark.parametrize("images", SETS.values(), ids=list(SETS))
def test_change_grows_with_severity(name, images):
    change = []
    for severity in range(6):
        out = corrupt(images, name, severity=severity)
        assert out.shape == images.shape
        assert out.dtype == np.uint8
        change.append(np.mean((out.astype(float) - images) ** 2))
    assert change[0] == 0
    assert (np.diff(change) > 0).all(), change
    assert change[5] > 3 * change[1]


@every
def test_pictures_are_left_as_they_were(name, rng_guard):
    images = SETS["colour 32x32"].copy()
    with rng_guard():
        same = corrupt(images, name, severity=0)
        corrupt(images, name, severity=3)
    np.testing.assert_array_equal(images, SETS["colour 32x32"])
    same[:] = 0
    assert images.any()


@every
def test_a_part_of_a_set_is_corrupted_like_the_whole(name):
    images = SETS["colour 32x32"]
    whole = corrupt(images, name, severity=4, seed=7)
    np.testing.assert_array_equal(corrupt(images, name, severity=4, seed=7), whole)
    part = corrupt(images[4:], name, severity=4, seed=7, start=4)
    np.testing.assert_array_equal(part, whole[4:])


@pytest.mark.parametrize("name", ["noise", "rotation", "occlusion"])
def test_the_seed_and_the_place_of_a_picture_count(name):
    images = np.repeat(SETS["colour 32x32"][:1], 8, axis=0)
    found = corrupt(images, name, severity=3)
    assert not (found == found[0]).all()
    assert (corrupt(images, name, severity=3, seed=1) != found).any()


@every
def test_gray_is_one_channel(name):
    gray = SETS["gray 28x28"]
    with_axis = corrupt(gray, name, severity=3)
    np.testing.assert_array_equal(corrupt(gray[..., 0], name, severity=3), with_axis[..., 0])


@every
def test_read_only_and_odd_sizes(name):
    for shape in ((1, 8, 8), (2, 8, 31, 3), (1, 9, 120, 1), (1, 257, 8, 3)):
        images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        images.flags.writeable = False
        assert corrupt(images[:, ::-1], name, severity=5).shape == shape


def test_known_values():
    flat = np.full((1, 16, 16, 3), 100, dtype=np.uint8)
    for name in ("blur", "contrast", "pixelate", "rotation"):
        np.testing.assert_array_equal(corrupt(flat, name, severity=5), flat)
    assert (corrupt(flat, "brightness", severity=2) == 141).all()  # 100 + 0.16 * 255
    bright = corrupt(np.full((1, 16, 16), 250, np.uint8), "brightness", severity=5)
    assert (bright == 255).all()  # no number runs over
    gray = corrupt(flat, "occlusion", severity=4)
    assert (gray == 128).all(axis=3).sum() == 64  # a square of half the side
    noise = corrupt(np.full((1, 200, 200), 128, np.uint8), "noise", severity=1).astype(float)
    assert noise.std() == pytest.approx(0.04 * 255, rel=0.05)
    assert noise.mean() == pytest.approx(128, abs=0.3)
    halves = np.zeros((1, 8, 8), np.uint8)
    halves[:, ::2] = 200
    np.testing.assert_array_equal(corrupt(halves, "pixelate", severity=2), np.full((1, 8, 8), 100))


def test_blur_keeps_the_mean_and_occlusions_are_nested():
    images = SETS["colour 96x64"]
    blurred = corrupt(images, "blur", severity=5).astype(float)
    np.testing.assert_allclose(blurred.mean(axis=(1, 2)), images.mean(axis=(1, 2)), atol=1.0)
    white = np.full((50, 32, 32), 255, np.uint8)
    covered = [corrupt(white, "occlusion", severity=s) == 128 for s in range(1, 6)]
    for smaller, larger in pairwise(covered):
        assert (larger | ~smaller).all()


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 16, 16, 3)),
        np.zeros((2, 16, 16, 3), np.int64),
        np.zeros((16, 16), np.uint8),
        np.zeros((2, 3, 16, 16), np.uint8),
        np.zeros((2, 16, 16, 4), np.uint8),
        np.zeros((2, 7, 16), np.uint8),
        np.zeros((0, 16, 16), np.uint8),
    ],
)
def test_other_pictures_are_refused(images):
    with pytest.raises(InvalidInput) as caught:
        corrupt(images, "noise", severity=1)
    assert caught.value.subject == "images"


@pytest.mark.parametrize(
    ("wrong", "subject"),
    [
        ({"severity": 6}, "severity"),
        ({"severity": -1}, "severity"),
        ({"severity": 1.0}, "severity"),
        ({"severity": True}, "severity"),
        ({"severity": 1, "seed": -1}, "seed"),
        ({"severity": 1, "start": -1}, "start"),
    ],
)
def test_numbers_are_checked(wrong, subject):
    with pytest.raises(InvalidInput) as caught:
        corrupt(np.zeros((1, 8, 8), np.uint8), "noise", **wrong)
    assert caught.value.subject == subject


def test_unknown_names_are_refused():
    with pytest.raises(NotFound) as caught:
        corrupt(np.zeros((1, 8, 8), np.uint8), "fog", severity=1)
    assert caught.value.candidates == tuple(CORRUPTIONS)
