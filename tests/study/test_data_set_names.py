"""Which names mean one data set."""

import pytest

from temperance.study.data_set_names import plain_name, same_data_set


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Tiny ImageNet", "tiny-imagenet", True),
        ("data/CIFAR-10.npz", "cifar10", True),
        ("runs\\digits.csv", "digits", True),
        ("cifar10", "cifar100", False),
        ("stl10", "stl-10-small", False),
        ("ñandú", "nandu", False),
        ("文字", "言語", False),
    ],
)
def test_names_of_data_sets(one, other, same):
    assert same_data_set(one, other) is same


def test_a_name_without_letters_stays():
    assert plain_name("--") == "--"
