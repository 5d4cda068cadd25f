"""Which curves are fitted or judged together."""

import pytest

from temperance.errors import InvalidInput, NotFound
from temperance.study.runs import curves_of_rows, example_rows
from temperance.study.selection import mixed_settings, select_curves, split_curves


def curves(*settings, datasets=("digits", "wine")):
    """Curves of every data set under each setting."""
    found = []
    for setting in settings or ({},):
        rows, tasks = example_rows((1.0, 2.0, 4.0), datasets=datasets)
        for row in rows:
            row["trial"] |= setting
        found += curves_of_rows(rows, tasks)
    return found


def test_by_norm_loss_and_data_set():
    found = curves({"norm": "batch"}, {"norm": "batch", "loss": "normalized"})
    assert len(select_curves(found, loss="plain")) == 2
    assert {c.dataset for c in select_curves(found, without=("wine",))} == {"digits"}
    with pytest.raises(NotFound) as caught:
        select_curves(found, without=("iris",))
    assert caught.value.candidates == ("digits", "wine")
    with pytest.raises(InvalidInput) as refused:
        select_curves(found, norm="layer")
    assert "norm batch, plain loss" in refused.value.found
    with pytest.raises(InvalidInput) as refused:
        select_curves([])
    assert refused.value.found == "none"


def test_leaving_everything_out_is_called_that():
    with pytest.raises(InvalidInput) as refused:
        split_curves(curves(), ("digits", "wine"))
    assert refused.value.found == "all of them are: digits, wine"


def test_split():
    found = curves({}, {"lr": 0.5})
    inside, outside = split_curves(found, ["WINE"])
    assert [c.dataset for c in inside] == ["digits", "digits"]
    assert [c.dataset for c in outside] == ["wine", "wine"]
    assert split_curves(found, []) == (found, [])


def test_what_trainings_differ_in():
    assert mixed_settings(curves({"features": "pca:2"}, {"features": "pca:3"})) == []
    assert mixed_settings(curves({"optimizer": "adamw"}, {"lr": 0.5})) == ["lr", "optimizer"]
