"""Small pictures and folders of them, made on the fly."""

import io

import numpy as np
import pytest
from PIL import Image


def encode(image, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def rgb(seed=0, size=(24, 20)):
    """A smooth colour picture of ``size`` (width, height)."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BILINEAR)


@pytest.fixture
def tree(tmp_path):
    """``tree({"a/0.png": bytes, ...})`` writes files and gives the folder; None makes a folder."""

    def write(files, root=tmp_path / "tree"):
        root.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = root / name
            (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
            if content is not None:
                path.write_bytes(content)
        return root

    return write


@pytest.fixture
def pictures():
    """``pictures("a", 3)`` gives three colour pictures in folder a, as ``{name: bytes}``."""

    def make(folder, count, *, start=0, size=(24, 20)):
        return {
            f"{folder}/{i}.png": encode(rgb(hash_of(folder) + start + i, size))
            for i in range(count)
        }

    return make


def hash_of(text):
    return sum(map(ord, text)) * 1000


@pytest.fixture
def encoded():
    """The encoder, as ``encoded(image, "JPEG")``."""
    return encode


@pytest.fixture
def colour():
    """The maker of colour pictures, as ``colour(seed, (width, height))``."""
    return rgb
