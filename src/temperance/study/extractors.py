"""Frozen extractors: how the rows of a data set are represented before anything is trained on them.

An extractor is fitted on training rows only, sees no label, and gives the same features for the
same rows everywhere: what is random in it is seeded by its own name and the shape of its input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput

__all__ = ["EXTRACTORS", "Extractor", "Step", "extract", "parse_features"]

Matrix = NDArray[Any]
Transform = Callable[[Matrix], Matrix]

_CHUNK = 512  # pictures that go through the random net together
_CONSTANT = 1e-7  # spread below this share of the mean is rounding of float32, not information
_RANK = 1e-10  # eigenvalues below this share of the largest are rounding
_MEDIAN_ROWS = 1000  # rows whose distances give the bandwidth of random Fourier features
_SEPARATOR = "|"


@dataclass(frozen=True)
class Step:
    """One step of a representation, such as ``pca:64``.

    Attributes:
        name: of the extractor, or of a file of features.
        size: what follows the colon; None where there is none.
    """

    name: str
    size: str | None = None

    @property
    def text(self) -> str:
        """The step as it is written."""
        return self.name if self.size is None else f"{self.name}:{self.size}"


@dataclass(frozen=True)
class Extractor:
    """A row of the table of extractors.

    Attributes:
        fit: gives the transform, from training rows (float32 ``[n, d]``, or ``[n, c, h, w]`` where
            ``pictures``) and the size M.
        sized: whether a size follows the name.
        pictures: whether it sees pictures, and not rows of numbers.
        last: whether it gives something else than rows of numbers, so that no step can follow.
        says: what it does, in words.
    """

    fit: Callable[[Matrix, int], Transform]
    sized: bool
    says: str
    pictures: bool = False
    last: bool = False


def parse_features(features: str) -> tuple[Step, ...]:
    """Read the name of a representation: steps joined by ``|``, each ``NAME`` or ``NAME:SIZE``.

    Only the first may be a file of ready features, ``pixels`` or an extractor of pictures; only the
    last may be ``one-hot``.

    Args:
        features: for instance ``input``, ``pca:64`` or ``standardized|rff:128``.

    Returns:
        The steps, first to last.

    Raises:
        InvalidInput: for an empty step, a step that cannot come after another, and for a size where
            the extractor has none, a missing one, or one that is not a whole number above 0.

    Example:
        >>> [s.text for s in parse_features("standardized|rff:128")]
        ['standardized', 'rff:128']
    """
    if not isinstance(features, str):
        raise _bad(repr(features), "a name such as input or pca:64", type(features).__name__)
    steps: list[Step] = []
    for text in features.split(_SEPARATOR):
        name, colon, size = text.strip().partition(":")
        if not name or (colon and not size):
            raise _bad(features, "steps such as input or pca:64, joined by |", repr(text))
        step = Step(name, size if colon else None)
        if name in EXTRACTORS:
            _size_of(step)
        if name == "input" and _SEPARATOR in features:
            raise _bad(features, "input alone", repr(features))
        if steps and (name not in EXTRACTORS or name == "pixels" or EXTRACTORS[name].pictures):
            raise _bad(features, "an extractor of numbers after the first step", repr(text))
        if steps and steps[-1].name in EXTRACTORS and EXTRACTORS[steps[-1].name].last:
            raise _bad(features, f"{steps[-1].name} as the last step", repr(text))
        steps.append(step)
    return tuple(steps)


def extract(step: Step, rows: Mapping[str, Matrix]) -> dict[str, Matrix]:
    """Fit an extractor on ``rows["train"]`` and apply it to every split.

    Args:
        step: the extractor and its size M.
        rows: float32 by split, ``[n, d]``, or ``[n, c, h, w]`` for extractors of pictures.

    Returns:
        Float32 features by split, ``[n, M]``; sequences ``[n, M, 1, L]`` of ``one-hot``.

    Raises:
        InvalidInput: if M is larger than the rows allow, the rows have the wrong shape, or are not
            the whole numbers that ``one-hot`` takes.

    Example:
        >>> import numpy as np
        >>> x = np.array([[0, 1], [2, 1], [4, 7]], dtype=np.float32)
        >>> extract(Step("pca", "1"), {"train": x})["train"].shape
        (3, 1)
    """
    extractor, size = EXTRACTORS[step.name], _size_of(step)
    train = rows["train"]
    if (train.ndim == 4) != extractor.pictures:
        wanted = "pictures" if extractor.pictures else "rows of numbers [n, d]"
        raise _bad(step.text, wanted, f"shape {list(train.shape)}")
    try:
        transform = extractor.fit(train, size)
        return {
            split: np.ascontiguousarray(transform(x), dtype=np.float32) for split, x in rows.items()
        }
    except MemoryError as error:
        raise _bad(step.text, "a size that fits into memory", f"{error}") from error


def _size_of(step: Step) -> int:
    if not EXTRACTORS[step.name].sized:
        if step.size is not None:
            raise _bad(step.text, f"{step.name} without a size", step.text)
        return 0
    if step.size is None or not step.size.isdecimal() or int(step.size) < 1:
        raise _bad(step.text, f"{step.name}:M with M of 1 or more", step.text)
    return int(step.size)


# ------------------------------------------------------------------ the extractors
def _fit_identity(train: Matrix, size: int) -> Transform:  # noqa: ARG001
    return lambda x: x


def _fit_standardized(train: Matrix, size: int) -> Transform:  # noqa: ARG001
    mean, std = train.mean(axis=0, dtype=np.float64), train.std(axis=0, dtype=np.float64)
    std = np.where(std > _CONSTANT * np.abs(mean), std, 1.0)
    return lambda x: (x - mean) / std


def _fit_pca(train: Matrix, size: int) -> Transform:
    mean, components, _ = _principal(train, size, f"pca:{size}")
    return lambda x: (x - mean) @ components


def _fit_pca_white(train: Matrix, size: int) -> Transform:
    mean, components, variance = _principal(train, size, f"pca-white:{size}")
    components = components / np.sqrt(variance)
    return lambda x: (x - mean) @ components


def _principal(train: Matrix, size: int, subject: str) -> tuple[Matrix, Matrix, Matrix]:
    """Mean ``[d]``, directions ``[d, M]`` and variances ``[M]`` of the M widest components."""
    from scipy.linalg import eigh

    n, d = train.shape
    if size > min(n - 1, d):
        raise _bad(subject, f"M of at most {min(n - 1, d)} (d = {d}, {n} training rows)", str(size))
    mean = train.mean(axis=0, dtype=np.float64)
    centred = train - mean
    narrow = d <= n
    products = centred.T @ centred if narrow else centred @ centred.T  # the same spectrum
    side = len(products)
    values, vectors = eigh(products, subset_by_index=(side - size, side - 1))
    values, vectors = values[::-1], vectors[:, ::-1]
    if not values[0] > 0 or values[-1] <= _RANK * values[0]:
        rank = int((values > _RANK * max(values[0], 0.0)).sum())
        raise _bad(subject, f"M of at most {rank}, the rank of the rows", str(size))
    if not narrow:
        vectors = centred.T @ vectors / np.sqrt(values)
    widest = np.abs(vectors).argmax(axis=0)  # an eigenvector has no sign of its own
    signs = np.sign(vectors[widest, np.arange(size)])
    return mean, vectors * signs, values / (n - 1)


def _fit_random_relu(train: Matrix, size: int) -> Transform:
    mean, scale = _centre(train, f"random-relu:{size}")
    d = train.shape[1]
    rng = _rng(f"random-relu:{size}:{d}")
    weight = (rng.standard_normal((d, size)) * np.sqrt(2 / d)).astype(np.float32)
    bias = rng.standard_normal(size).astype(np.float32)
    return lambda x: np.maximum(((x - mean) / scale).astype(np.float32) @ weight + bias, 0)


def _fit_rff(train: Matrix, size: int) -> Transform:
    from scipy.spatial.distance import pdist

    mean, scale = _centre(train, f"rff:{size}")
    n, d = train.shape
    rng = _rng(f"rff:{size}:{d}")
    few = train[rng.permutation(n)[:_MEDIAN_ROWS]].astype(np.float64)
    distances = pdist((few - mean) / scale)
    width = np.median(distances) or distances.mean()
    if not width > 0:
        raise _bad(f"rff:{size}", "rows that differ", "only copies of one row")
    weight = (rng.standard_normal((d, size)) / width).astype(np.float32)
    phase = rng.uniform(0, 2 * np.pi, size).astype(np.float32)
    factor = np.float32(np.sqrt(2 / size))
    return lambda x: factor * np.cos(((x - mean) / scale).astype(np.float32) @ weight + phase)


def _centre(train: Matrix, subject: str) -> tuple[Matrix, float]:
    """Mean of every column, and one scale for all: the root mean square about it."""
    mean = train.mean(axis=0, dtype=np.float64)
    scale = float(np.sqrt(np.square(train - mean).mean()))
    if not scale > 0:
        raise _bad(subject, "rows that differ", "only copies of one row")
    return mean, scale


def _fit_random_conv(train: Matrix, size: int) -> Transform:
    """Two random 3x3 convolutions with ReLU, then the mean of each quarter of the picture."""
    import torch
    from torch.nn import functional

    channels, height, width = train.shape[1:]
    if size % 4 or min(height, width) < 4:
        found = f"{size}" if size % 4 else f"pictures of {width}x{height}"
        raise _bad(f"random-conv:{size}", "M in fours, pictures of 4x4 or more", found)
    rng = _rng(f"random-conv:{size}:{channels}x{height}x{width}")
    weights = [
        torch.from_numpy(
            (rng.standard_normal((c_out, c_in, 3, 3)) * np.sqrt(2 / (9 * c_in))).astype(np.float32)
        )
        for c_in, c_out in ((channels, 32), (32, size // 4))
    ]

    def forward(x: Matrix) -> Matrix:
        with torch.inference_mode():
            hidden = functional.relu(functional.conv2d(torch.tensor(x), weights[0], padding=1))
            hidden = functional.avg_pool2d(hidden, 2)
            hidden = functional.relu(functional.conv2d(hidden, weights[1], padding=1))
            return functional.adaptive_avg_pool2d(hidden, 2).flatten(1).numpy()

    return lambda x: np.concatenate([forward(x[i : i + _CHUNK]) for i in range(0, len(x), _CHUNK)])


def _fit_one_hot(train: Matrix, size: int) -> Transform:  # noqa: ARG001
    """Id k of 1 to K becomes a one in channel k - 1; no other id has a channel."""
    own = np.arange(1, size + 1, dtype=np.float32)[:, None]

    def transform(x: Matrix) -> Matrix:
        if (bad := np.argwhere(x != np.rint(x))).size:
            row, column = bad[0]
            found = f"{x[row, column]:g} in row {row}, column {column}"
            raise _bad(f"one-hot:{size}", "ids that are whole numbers", found)
        out = np.empty((len(x), size, 1, x.shape[1]), dtype=np.float32)
        for start in range(0, len(x), _CHUNK):
            rows = x[start : start + _CHUNK, None, :]
            np.equal(rows, own, out=out[start : start + _CHUNK, :, 0], casting="unsafe")
        return out

    return transform


EXTRACTORS: Mapping[str, Extractor] = {
    "input": Extractor(_fit_identity, False, "as it is: the input of a net, or given features"),
    "pixels": Extractor(_fit_identity, False, "pixels of a picture as shares of white"),
    "standardized": Extractor(_fit_standardized, False, "every column with mean 0 and spread 1"),
    "pca": Extractor(_fit_pca, True, "the M widest principal components (centred, not scaled)"),
    "pca-white": Extractor(_fit_pca_white, True, "the same, each with variance 1"),
    "random-relu": Extractor(
        _fit_random_relu, True, "ReLU of M random directions with random bias"
    ),
    "rff": Extractor(_fit_rff, True, "M random Fourier features of a Gaussian kernel"),
    "random-conv": Extractor(
        _fit_random_conv, True, "a random net of two convolutions", pictures=True
    ),
    "one-hot": Extractor(_fit_one_hot, True, "ids 1 to M as channels, for nets", last=True),
}
"""Extractors that are computed when they are asked for; all others are read from files.

``pixels`` and whatever sees rows of numbers flatten pictures first. ``pca``, ``random-relu`` and
``rff`` keep the proportions of the columns: where these have units of their own, as in tables,
write ``standardized|pca:8``. ``letters:96|one-hot:64`` makes sequences ``[64, 1, 96]`` of the ids
in a file: a one in the channel of each id from 1 to 64, and nothing for 0, which fills up.

Reference:
    ``rff``: A. Rahimi, B. Recht: Random Features for Large-Scale Kernel Machines, NIPS 2007; the
    bandwidth is the median distance of training rows. ``random-relu``, ``random-conv``: weights
    N(0, 2 / fan_in), K. He et al.: Delving Deep into Rectifiers, ICCV 2015, arXiv 1502.01852; means
    over quarters: A. Coates, A. Ng, H. Lee: An Analysis of Single-Layer Networks in Unsupervised
    Feature Learning, AISTATS 2011.
"""


def _rng(text: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


def _bad(subject: str, expected: str, found: str) -> InvalidInput:
    return InvalidInput(
        f"features {subject}",
        expected=expected,
        found=found,
        fix="The extractors are in temperance.study.extractors.EXTRACTORS.",
    )
