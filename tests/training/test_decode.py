import warnings

import numpy as np
import pytest
from PIL import Image

from temperance.training.decode import BadPicture, decode, quiet, read_header, resize


def ramp(width=6, height=4):
    return (np.arange(width * height, dtype=np.uint8) * 10).reshape(height, width)


def test_rgb_comes_back_as_it_is(colour, encoded):
    image = colour(1)
    result = decode(encoded(image), size=None, channels=3)
    np.testing.assert_array_equal(result.pixels, np.asarray(image))
    assert result.pixels.dtype == np.uint8
    assert result.traits == frozenset()


@pytest.mark.parametrize("mode", ["1", "L", "LA"])
def test_gray_pictures_are_gray(mode, encoded):
    data = encoded(Image.fromarray(ramp()).convert(mode))
    assert read_header(data).gray
    one, three = decode(data, size=None, channels=1), decode(data, size=None, channels=3)
    assert one.pixels.shape == (4, 6, 1)
    np.testing.assert_array_equal(three.pixels, np.repeat(one.pixels, 3, axis=2))
    assert "gray" in one.traits


def test_sixteen_bits_are_scaled_and_not_clipped(encoded):
    values = np.array([[0, 257, 1000, 30000, 65535]], dtype=np.uint16)
    result = decode(encoded(Image.fromarray(values)), size=None, channels=1)
    np.testing.assert_array_equal(result.pixels[..., 0], [[0, 1, 4, 117, 255]])
    assert {"16-bit", "gray"} <= result.traits


def test_sixteen_bit_tiff_of_the_other_byte_order_is_the_same(tmp_path):
    values = np.array([[0, 257, 30000, 65535]], dtype=">u2")
    path = tmp_path / "x.tif"
    Image.frombytes("I;16B", (4, 1), values.tobytes()).save(path)
    assert decode(path, size=None, channels=1).pixels.ravel().tolist() == [0, 1, 117, 255]


def test_floating_point_pixels_have_no_known_white(encoded):
    data = encoded(Image.fromarray(np.ones((3, 3), np.float32)), "TIFF")
    with pytest.raises(BadPicture, match="white is not known"):
        decode(data, size=None, channels=1)


def test_transparent_pixels_are_laid_over_white(encoded):
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[0, 0] = (10, 20, 30, 255)
    pixels[1, 1] = (0, 0, 0, 128)
    result = decode(encoded(Image.fromarray(pixels)), size=None, channels=3)
    assert result.pixels[0, 0].tolist() == [10, 20, 30]
    assert result.pixels[0, 1].tolist() == [255, 255, 255]
    assert abs(int(result.pixels[1, 1, 0]) - 127) <= 1
    assert "transparent" in result.traits


def test_a_palette_with_transparency(encoded):
    image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8))
    image = image.convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255] + [0] * 759)
    data = encoded(image, transparency=b"\xff\x00\xff")
    result = decode(data, size=None, channels=3)
    assert result.pixels.reshape(-1, 3).tolist() == [
        [255, 0, 0],
        [255, 255, 255],
        [0, 0, 255],
        [255, 255, 255],
    ]
    assert not read_header(data).gray


def test_opaque_alpha_is_not_called_transparent(colour, encoded):
    result = decode(encoded(colour(0).convert("RGBA")), size=None, channels=3)
    np.testing.assert_array_equal(result.pixels, np.asarray(colour(0)))
    assert "transparent" not in result.traits


def test_cmyk_becomes_rgb(encoded):
    data = encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100)
    red = decode(data, size=None, channels=3).pixels[4, 4].astype(int)
    assert red[0] > 200
    assert red[1:].max() < 60
    assert not read_header(data).gray


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
def test_exif_orientation_is_applied(orientation, form, encoded):
    # upright: bright above, left half of the lower part dark
    upright = np.zeros((16, 32), np.uint8)
    upright[:8] = 255
    upright[8:, 16:] = 128
    undo = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.T,
        6: lambda a: np.rot90(a, 1),
        7: lambda a: a[::-1, ::-1].T,
        8: lambda a: np.rot90(a, -1),
    }[orientation]
    image = Image.fromarray(np.ascontiguousarray(undo(upright)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 100} if form == "JPEG" else {}
    data = encoded(image, form, exif=exif, **options)
    result = decode(data, size=None, channels=1)
    assert read_header(data).size == (16, 32)
    np.testing.assert_allclose(result.pixels[..., 0].astype(int), upright, atol=4)


def test_damaged_exif_does_not_cost_the_picture(colour, encoded):
    data = encoded(colour(0), "JPEG", exif=b"Exif\0\0garbage that is no TIFF")
    assert decode(data, size=None, channels=3).pixels.shape == (20, 24, 3)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "GIF", "TIFF"])
def test_a_truncated_picture_is_bad(form, encoded):
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), form)
    decode(data, size=None, channels=3)
    with quiet(), pytest.raises(BadPicture):
        decode(data[:-100], size=None, channels=3)


@pytest.mark.parametrize(
    ("data", "reason"), [(b"", "empty"), (b"this is text, not a picture", "not a picture")]
)
def test_no_picture_at_all(data, reason, tmp_path):
    path = tmp_path / "x.jpg"
    path.write_bytes(data)
    for picture in (data, path):
        for function in (read_header, lambda p: decode(p, size=None, channels=3)):
            with pytest.raises(BadPicture, match=reason):
                function(picture)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(BadPicture, match="No such file"):
        read_header(tmp_path / "gone.png")


def test_a_decompression_bomb_is_refused_without_a_warning(encoded, monkeypatch):
    data = encoded(Image.new("L", (60, 60)))
    for limit in (2000, 1000):  # a warning of the decoder, an error of the decoder
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with warnings.catch_warnings(record=True) as caught, quiet():
            warnings.simplefilter("always")
            with quiet(), pytest.raises(BadPicture, match="too large"):
                read_header(data)
        assert not caught


def test_resizing_takes_the_shorter_side_and_the_centre(encoded):
    pixels = np.zeros((10, 30), np.uint8)
    pixels[:, 10:20] = 200  # the centre third
    result = decode(encoded(Image.fromarray(pixels)), size=(5, 5), channels=1)
    assert result.pixels.shape == (5, 5, 1)
    assert result.pixels[:, 1:4].min() == 200
    assert result.pixels.min() > 150  # antialiasing looks a little across the cut
    assert "resized" in result.traits


def test_resizing_antialiases(encoded):
    checks = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    result = decode(encoded(Image.fromarray(checks)), size=(8, 8), channels=1)
    assert np.abs(result.pixels.astype(int) - 127).max() < 15


def test_arrays_are_resized_as_files_are(colour, encoded):
    image = colour(3, (40, 30))
    by_file = decode(encoded(image), size=(16, 16), channels=3).pixels
    np.testing.assert_array_equal(resize(np.asarray(image), (16, 16)), by_file)
    floats = resize(np.asarray(image, dtype=np.float32) / 255, (16, 16))
    assert floats.dtype == np.float32
    np.testing.assert_allclose(floats * 255, by_file, atol=1.0)
