"""Whether two names mean one data set: ``digits``, ``Digits`` and ``data/digits.npz`` do."""

from __future__ import annotations

import re

__all__ = ["plain_name", "same_data_set"]

_ENDINGS = re.compile(r"\.(npz|csv|parquet|jsonl?|zip)$")


def plain_name(name: str) -> str:
    """Give the name without its place on disk, its ending, and how it is spelled.

    Args:
        name: of a data set, or a path.

    Returns:
        Lower-case letters and digits; the name as it is where none would be left.

    Example:
        >>> from temperance.study.data_set_names import plain_name
        >>> plain_name("data/CIFAR-10.npz")
        'cifar10'
    """
    last = name.replace("\\", "/").rstrip("/").split("/")[-1].lower()
    return re.sub(r"[\W_]", "", _ENDINGS.sub("", last)) or name


def same_data_set(name: str, other: str) -> bool:
    """Whether two names mean one data set: spelling and place on disk do not count.

    Example:
        >>> from temperance.study.data_set_names import same_data_set
        >>> same_data_set("CIFAR-10", "data/cifar10.npz"), same_data_set("cifar10", "cifar100")
        (True, False)
    """
    return plain_name(name) == plain_name(other)
