"""Two gloo processes: unequal batches, statistics made equal, one rank alone, wrong arguments."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from temperance.errors import InvalidInput, NotFound
from temperance.head import equalize_statistics

CASES = Path(__file__).with_name("distributed_cases.py")
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs torch.distributed with gloo",
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of the two processes saw; they run all cases once, and are stopped if they hang."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(CASES), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def both(ranks, case, key):
    return [np.array(rank[case][key]) for rank in ranks]


def pooled(ranks, case, *, weights=(0.5, 0.5), layer="1"):
    """The formula, by a loop over ranks and features."""
    before = [rank[case]["before"] for rank in ranks]
    means = [np.array(b[f"{layer}.running_mean"]) for b in before]
    variances = [np.array(b[f"{layer}.running_var"]) for b in before]
    mean = np.zeros_like(means[0])
    variance = np.zeros_like(mean)
    for j in range(len(mean)):
        mean[j] = sum(w * m[j] for w, m in zip(weights, means, strict=True))
        variance[j] = sum(
            w * (v[j] + (m[j] - mean[j]) ** 2)
            for w, m, v in zip(weights, means, variances, strict=True)
        )
    return mean, variance


@pytest.mark.parametrize(
    ("case", "layer", "weights"),
    [
        ("pool", "1", (0.5, 0.5)),
        ("pool", "3.norm", (0.5, 0.5)),
        ("ensemble", "backbone.1", (0.5, 0.5)),
        ("ensemble", "backbone.3.norm", (0.5, 0.5)),
        ("uneven", "3.norm", (48 / 77, 29 / 77)),
    ],
)
def test_pooled_statistics_are_those_of_the_mixture(ranks, case, layer, weights):
    mean, variance = pooled(ranks, case, weights=weights, layer=layer)
    for rank in ranks:
        after = rank[case]["after"]
        np.testing.assert_allclose(after[f"{layer}.running_mean"], mean, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(after[f"{layer}.running_var"], variance, rtol=1e-6)


@pytest.mark.parametrize("case", ["pool", "ensemble"])
def test_ranks_differ_before_and_are_bit_equal_after(ranks, case):
    for weights, statistics in both(ranks, case, "spread_before"):
        assert weights == 0
        assert statistics > 0.3
    assert all((s == 0).all() for s in both(ranks, case, "spread_after"))


def test_what_is_reported_and_a_second_call(ranks):
    for rank in ranks:
        world, spread, ratio, norms = rank["pool"]["record"]
        assert (world, norms, rank["pool"]["counter"]) == (2, ["1", "3.norm"], 12)
        assert 0.3 < spread < 1
        assert ratio > 1
        for name, again in rank["pool"]["again"].items():
            np.testing.assert_allclose(again, rank["pool"]["after"][name], rtol=1e-6, atol=1e-7)


def test_against_one_process_with_the_joined_batch(ranks):
    """Of the first norm, whose input is the data's; weights differ, as batches are normalized."""
    after, alone = ranks[0]["pool"]["after"], ranks[0]["pool"]["alone"][1]
    one_rank = ranks[0]["pool"]["before"]

    def gap(found):
        name = "1.running_mean"
        return np.abs(np.array(found[name]) - np.array(alone[name])).max()

    assert gap(after) < 0.5 * gap(one_rank)


def test_broadcast_takes_the_statistics_of_one_rank(ranks):
    for rank in ranks:
        assert rank["broadcast"]["after"] == ranks[1]["broadcast"]["before"]
        assert rank["broadcast"]["spread"] == [0.0, 0.0]
        assert rank["broadcast"]["t"] == 3.0


def test_pooling_what_the_wrapper_has_overwritten_warns(ranks):
    for rank in ranks:
        (message,) = rank["default_buffers"]["warnings"]
        assert "rank 0's rows alone" in message


def test_unequal_numbers_of_batches_end(ranks):
    for rank in ranks:
        assert rank["uneven"]["finite"]
        assert rank["uneven"]["spread"] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("case", "subject", "found"),
    [
        ("rows", "rows on rank 1", "-1"),
        ("no rows", "rows", "0 on all"),
        ("some rows", "model on rank 1", "others"),
        ("how", "how on rank 0", "'mean'"),
        ("a how that cannot be sent", "how on rank 1", "unsendable"),
        ("source", "source on rank 0", "2"),
        ("layers", "model on rank 1", "others"),
        ("no norms", "model on rank 1", "others"),
        ("heads", "model on rank 1", "others"),
        ("rows as an array", "rows on rank 1", "array([1, 2])"),
        ("nan", "statistics of '1' on rank 1", "NaN or infinity"),
        ("temperature", "model on rank 1", "{'3': 5.0} for {'3': 4.0}"),
    ],
)
def test_what_is_wrong_on_one_rank_raises_on_all_and_changes_nothing(ranks, case, subject, found):
    assert [rank["errors"][case] for rank in ranks] == [[subject, found, True]] * 2


def test_a_rank_without_rows_has_no_weight(ranks):
    assert [rank["errors"]["one rank without rows"] for rank in ranks] == ["no error"] * 2


def test_one_rank_may_evaluate_and_measure_alone(ranks):
    assert ranks[0]["one_rank_alone"]["done"] == [24, [2, 8, 5], [8, 5]]
    assert ranks[1]["one_rank_alone"] == {"done": [], "spread": [0.0, 0.0]}


def test_synchronized_norms(ranks):
    for rank in ranks:
        assert rank["synchronized"]["kind"] == "SyncBatchNorm"
        assert "GPU" in rank["synchronized"]["cpu"]  # torch's own, on every rank: nobody waits
        assert rank["synchronized"]["members on the CPU"]
    assert ranks[0]["synchronized"]["eval"] == [1, 5]
    assert ranks[0]["synchronized"]["members"] == [2, 1, 5]


def test_a_frozen_backbone_under_ddp(ranks):
    for rank in ranks:
        assert rank["frozen"]["moved"]
        assert rank["frozen"]["refused"] == ["model to freeze"] * 2 + ["model to unfreeze"]
        assert rank["frozen"]["spread"][0] == 0


def test_checkpointing_and_accumulation_under_ddp(ranks):
    for rank in ranks:
        assert rank["checkpointing"] == {"counter": 3, "gap": 0.0}
        assert rank["accumulation"] == {"spread": [0.0, 0.0], "counter": 12}


def test_checkpoints_of_every_nesting(ranks):
    for rank in ranks:
        loaded = ["15 loaded, 0 new, 0 ignored", True]
        assert rank["checkpoints"]["found"] == [loaded, ["back", True]] * 3


# ------------------------------------------------------------------ one process
def test_one_process_changes_nothing():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    model(torch.randn(8, 4))
    before = model[0].running_mean.clone()
    record = equalize_statistics(model)
    assert (record.world_size, record.norms) == (1, ("0",))
    assert torch.equal(model[0].running_mean, before)


def test_nothing_to_equalize():
    with pytest.raises(NotFound):
        equalize_statistics(nn.Linear(4, 3))
    with pytest.raises(InvalidInput):
        equalize_statistics(3)
    with pytest.raises(InvalidInput) as error:  # before the job goes to the cluster
        equalize_statistics(nn.BatchNorm1d(4), how="mean")
    assert error.value.subject == "how"
    with pytest.raises(InvalidInput):
        equalize_statistics(nn.BatchNorm1d(4), rows=-1)


def test_the_example_of_the_docs(tmp_path):
    example = CASES.parents[2] / "docs" / "examples" / "ddp.py"
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", str(example), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "accuracy" in done.stdout
    assert (tmp_path / "model.safetensors").exists()
