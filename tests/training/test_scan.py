import numpy as np
import pytest
from PIL import Image

from temperance.errors import InvalidInput
from temperance.training import scan as scan_module
from temperance.training.scan import BadPictures, resize_arrays, scan


def run(files, **options):
    names = [f"p{i}" for i in range(len(files))]
    kept = {"train": np.ones(len(files), bool)}
    return scan({"train": (files, names)}, kept, **options)


@pytest.fixture
def mixed(colour, encoded):
    """Good colour, good gray, 16-bit, palette with transparency, and three bad ones."""
    jpeg = encoded(colour(1, (40, 40)), "JPEG")
    palette = colour(2).convert("P", palette=Image.Palette.ADAPTIVE, colors=8)
    return [
        encoded(colour(0)),
        encoded(colour(0).convert("L")),
        encoded(Image.fromarray(np.full((20, 24), 25700, np.uint16))),
        encoded(palette, transparency=0),
        jpeg[:-100],
        b"",
        b"some text that was renamed .jpg",
    ]


def test_all_bad_pictures_are_listed_with_reasons(mixed):
    with pytest.raises(BadPictures) as caught:
        run(mixed)
    assert [name for name, _ in caught.value.files] == ["p4", "p5", "p6"]
    assert caught.value.total == 7
    reasons = dict(caught.value.files)
    assert "truncated" in reasons["p4"]
    assert "0 bytes" in reasons["p5"]
    assert "not a picture" in reasons["p6"]
    assert isinstance(caught.value, InvalidInput)


def test_bad_pictures_are_skipped_and_counted(mixed):
    result = run(mixed, on_bad="skip")
    assert result.good["train"].tolist() == [True] * 4 + [False] * 3
    pixels = result.pixels["train"]
    assert pixels.shape == (4, 64, 64, 3)  # sizes differ: the truncated one is 40 x 40
    assert (pixels[2] == 100).all()
    text = " | ".join(result.notices)
    for part in ("3 of 7", "p4", "2 of 4 pictures are gray", "1 of 4 pictures have 16 bits"):
        assert part in text


def test_nothing_good_is_an_error_under_any_policy():
    with pytest.raises(BadPictures) as caught:
        run([b"", b"x"], on_bad="skip")
    assert len(caught.value.files) == 2


def test_truncated_ones_only_are_an_error_too(colour, encoded):
    data = encoded(colour(0, (40, 40)), "JPEG")[:-100]
    with pytest.raises(BadPictures):
        run([data, data], on_bad="skip")


def test_at_most_twenty_are_shown_but_all_are_there():
    with pytest.raises(BadPictures) as caught:
        run([b""] * 30)
    assert len(caught.value.files) == 30
    assert "p19" in str(caught.value)
    assert "p20" not in str(caught.value)
    assert "and 10 more" in str(caught.value)


def test_gray_pictures_stay_one_channel(colour, encoded):
    files = [encoded(colour(i).convert("L")) for i in range(3)]
    result = run(files)
    assert result.pixels["train"].shape == (3, 20, 24, 1)
    assert any("one channel" in n for n in result.notices)


def test_one_colour_picture_in_any_part_makes_all_rgb(colour, encoded):
    gray, full = encoded(colour(0).convert("L")), encoded(colour(1))
    result = scan(
        {"train": ([gray, gray], ["a", "b"]), "test": ([full], ["c"])},
        {"train": np.ones(2, bool), "test": np.ones(1, bool)},
    )
    assert result.pixels["train"].shape == (2, 20, 24, 3)
    assert result.pixels["test"].shape == (1, 20, 24, 3)


@pytest.mark.parametrize(
    ("sizes", "image_size", "expected"),
    [
        ([(24, 20)] * 2, None, (20, 24)),
        ([(96, 96)] * 2, None, (96, 96)),
        ([(97, 40)] * 2, None, (64, 64)),
        ([(24, 20), (20, 24)], None, (64, 64)),
        ([(24, 20)] * 2, 16, (16, 16)),
    ],
)
def test_the_working_size(sizes, image_size, expected, colour, encoded):
    files = [encoded(colour(i, size)) for i, size in enumerate(sizes)]
    result = run(files, image_size=image_size)
    assert result.pixels["train"].shape[1:3] == expected
    resized = any("resized" in n for n in result.notices)
    assert resized == any((h, w) != expected for w, h in sizes)


def test_threads_give_the_same_pixels_in_the_same_order(colour, encoded, monkeypatch):
    files = [encoded(colour(i, (30, 30))) for i in range(40)]
    files[7] = b""
    one = run(files, on_bad="skip")
    monkeypatch.setattr(scan_module, "_THREAD_PIXELS", 0)
    monkeypatch.setattr(scan_module, "_cpus", lambda: 3)
    many = run(files, on_bad="skip")
    np.testing.assert_array_equal(one.pixels["train"], many.pixels["train"])
    np.testing.assert_array_equal(one.good["train"], many.good["train"])


def test_only_wanted_pictures_are_decoded(colour, encoded):
    files = [encoded(colour(0)), b"", encoded(colour(1))]
    result = scan({"train": (files, ["a", "b", "c"])}, {"train": np.array([True, False, True])})
    assert len(result.pixels["train"]) == 2
    np.testing.assert_array_equal(result.pixels["train"][1], np.asarray(colour(1)))


def test_progress_ends_at_the_total(colour, encoded):
    seen = []
    run([encoded(colour(0))] * 130, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(64, 130), (128, 130), (130, 130)]


def test_large_sets_lie_in_a_file_that_leaves_nothing(colour, encoded, monkeypatch, tmp_path):
    monkeypatch.setattr(scan_module, "_MEMORY_LIMIT", 100)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = [encoded(colour(i)) for i in range(5)]
    result = run(files)
    assert isinstance(result.pixels["train"], np.memmap)
    assert not list(tmp_path.iterdir())
    np.testing.assert_array_equal(result.pixels["train"][3], np.asarray(colour(3)))


def test_a_full_disk_is_said_before_the_work(colour, encoded, monkeypatch):
    monkeypatch.setattr(scan_module, "_MEMORY_LIMIT", 100)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(InvalidInput) as caught:
        run([encoded(colour(0))])
    assert "TMPDIR" in caught.value.fix


def test_arrays_are_resized_only_if_they_have_another_size():
    x = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), dtype=np.uint8)
    assert resize_arrays(x, 8) is x
    assert resize_arrays(x, 16).shape == (3, 16, 16, 1)
    assert resize_arrays(x.astype(np.float32), 4).dtype == np.float32
