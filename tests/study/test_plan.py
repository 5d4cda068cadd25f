"""The plan: a small TOML file, all its trials, and a sentence for everything wrong in it."""

import itertools
import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput, NotFound
from temperance.study import plan as plan_module
from temperance.study.plan import Resources, parse_plan, read_plan
from temperance.study.trial import Trial

WHOLE = """
name = "temperature-and-dimension"
[fixed]
model = "cnn"
steps = 1000
[grid]
dataset = ["digits", "fashion-mnist"]
feature_dim = [16, 64, 256]
norm = ["none", "layer", "batch"]
temperature = {from = 0.25, to = 64, points = 9}
seed = {count = 3}
[resources]
cpus = 2
gpus = 0.5
retries = 1
"""


def trials(text):
    return parse_plan(text).trials


def values(text, name):
    return [getattr(t, name) for t in trials(text)]


# ------------------------------------------------------------------ what it stands for
def test_a_grid_is_the_full_product(tmp_path):
    (tmp_path / "plan.toml").write_text(WHOLE)
    plan = read_plan(tmp_path / "plan.toml")
    temperatures = [0.25 * 2**i for i in range(9)]
    expected = {
        Trial(d, model="cnn", feature_dim=m, norm=n, temperature=t, steps=1000, seed=s)
        for d in ("digits", "fashion-mnist")
        for m in (16, 64, 256)
        for n in ("none", "layer", "batch")
        for t in temperatures
        for s in range(3)
    }
    assert plan.name == "temperature-and-dimension"
    assert len(plan.trials) == len(expected) == 2 * 3 * 3 * 9 * 3
    assert set(plan.trials) == expected
    assert plan.resources == Resources(cpus=2.0, gpus=0.5, retries=1)
    assert plan.source == str(tmp_path / "plan.toml")
    assert plan.digest == parse_plan(WHOLE).digest != parse_plan(WHOLE + "\n").digest


def test_names_and_resources_have_defaults(tmp_path):
    path = tmp_path / "small.toml"
    path.write_bytes('\ufeff[fixed]\r\ndataset = "ä/b"\r\n'.encode())  # as some editors save it
    plan = read_plan(path)
    assert plan.name == "small"
    assert plan.trials == (Trial("ä/b"),)
    assert plan.resources == Resources(cpus=1.0, gpus=0.0, retries=2)


def test_the_order_does_not_depend_on_the_order_of_keys():
    one = trials('[grid]\nseed=[1,0]\ndataset=["b","a"]\nlr=[0.1,0.2]')
    two = trials('[grid]\nlr=[0.1,0.2]\ndataset=["b","a"]\nseed=[1,0]')
    assert one == two
    assert [(t.dataset, t.lr, t.seed) for t in one[:3]] == [
        ("b", 0.1, 1),
        ("b", 0.1, 0),
        ("b", 0.2, 1),
    ]


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from([1, 1.0, 2, 4.0]), min_size=1, max_size=5),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.lists(st.sampled_from(["none", "batch"]), min_size=1, max_size=3),
)
def test_a_product_holds_every_combination_once(temperatures, seeds, norms):
    text = f'[fixed]\ndataset="d"\n[grid]\ntemperature={temperatures}\nseed={seeds}\nnorm={norms}'
    found = trials(text)
    wanted = {
        Trial("d", temperature=t, seed=s, norm=n)
        for t in temperatures
        for s in seeds
        for n in norms
    }
    assert set(found) == wanted
    assert len(found) == len(wanted)


@pytest.mark.parametrize(
    ("form", "name", "expected"),
    [
        ("{from = 0.25, to = 64, points = 9}", "temperature", [0.25 * 2**i for i in range(9)]),
        ("{from = 1, to = 2, points = 3}", "temperature", [1.0, 1.41421, 2.0]),
        ("{from = 0.001, to = 1, points = 4}", "lr", [0.001, 0.01, 0.1, 1.0]),
        ("{from = 16, to = 2048, points = 8}", "feature_dim", [2**i for i in range(4, 12)]),
        ("{from = 1, to = 3, points = 5}", "steps", [1, 2, 3]),
        ("{count = 2}", "seed", [0, 1]),
        ("{count = 2, first = 10}", "seed", [10, 11]),
        ("[1, 1.0, 2]", "temperature", [1.0, 2.0]),
    ],
)
def test_short_forms_of_lists(form, name, expected):
    assert values(f'[fixed]\ndataset="d"\n[grid]\n{name} = {form}', name) == expected


def test_a_range_is_even_in_its_logarithm():
    found = values('[grid]\ndataset=["d"]\ntemperature={from=0.3,to=47.1,points=13}', "temperature")
    assert found[0] == 0.3
    assert found[-1] == 47.1
    np.testing.assert_allclose(np.diff(np.log(found)), math.log(47.1 / 0.3) / 12, rtol=2e-5)
    assert all(float(f"{t:.6g}") == t for t in found)  # the same key on every machine


def test_temperatures_in_multiples_of_the_root_of_the_dimension():
    text = '[fixed]\ndataset="d"\n[grid]\nfeature_dim=[16,50]\ntemperature={sqrt_M=[0.5,1,2]}'
    found = [(t.feature_dim, t.temperature) for t in trials(text)]
    assert found == [(16, 2.0), (16, 4.0), (16, 8.0), (50, 3.53553), (50, 7.07107), (50, 14.1421)]


# ------------------------------------------------------------------ several grids
def test_each_of_several_grids_is_a_product_over_what_is_shared():
    plan = parse_plan("""
    [fixed]
    steps = 50
    [grid]
    dataset = ["a", "b"]
    temperature = [1, 2]
    [[grids]]
    features = "pca:16"
    [[grids]]
    model = "cnn"
    feature_dim = [8, 16]
    temperature = [4]
    steps = 10
    """)
    probes = [Trial(d, "pca:16", temperature=t, steps=50) for d in "ab" for t in (1, 2)]
    nets = [
        Trial(d, model="cnn", feature_dim=m, temperature=4, steps=10) for d in "ab" for m in (8, 16)
    ]
    assert list(plan.trials) == probes + nets


def test_blanks_between_the_steps_of_a_representation_make_no_other_trial():
    text = '[fixed]\ndataset="d"\n[grid]\nfeatures=["standardized|pca:2", " standardized | pca:2"]'
    assert values(text, "features") == ["standardized|pca:2"]


def test_trials_of_two_grids_count_once():
    text = '[fixed]\ndataset="d"\n[[grids]]\ntemperature=[1,2]\n[[grids]]\ntemperature=[2,4]'
    assert values(text, "temperature") == [1.0, 2.0, 4.0]


def test_multiples_of_the_root_may_be_shared_or_replaced():
    shared = '[grid]\ndataset=["d"]\ntemperature={sqrt_M=[1]}\n'
    text = shared + "[[grids]]\nfeature_dim=[16]\n[[grids]]\ntemperature=2"
    assert values(text, "temperature") == [4.0, 2.0]
    with pytest.raises(InvalidInput) as error:
        trials(shared + "[[grids]]\nfeature_dim=16\n[[grids]]\nlr=[0.1]")
    assert error.value.subject == "plan plan.toml [[grids]] number 2"
    assert "feature_dim" in error.value.expected


def test_every_field_of_a_trial_can_be_planned():
    written = {
        f.name: "true" if isinstance(f.default, bool) else repr(f.default).replace("'", '"')
        for f in fields(Trial)
        if f.name not in ("dataset", "feature_dim", "train_rows")
    }
    lines = [f"{name} = [{value}]" for name, value in written.items()]
    text = '[fixed]\ndataset="d"\nfeature_dim=8\ntrain_rows=100\n[grid]\n' + "\n".join(lines)
    assert trials(text) == (Trial("d", feature_dim=8, train_rows=100),)


# ------------------------------------------------------------------ bad input
D = 'dataset = ["d"]\n'
BAD = [
    # text, part of the subject, part of what was found
    ("", "[grid]", "none"),
    ("[grid]\n", "[grid]", "none"),
    ("[grid]\nlr = [0.1]", "[grid]", "none"),
    ('[fixed]\ndataset="d"\n[[grids]]\n[[grids]]\nlr=[]', "[[grids]] number 2: lr", "empty list"),
    (f"[grid]\n{D}lr = []", "[grid] lr", "empty list"),
    (f"[grid]\n{D}temprature = [1]", "[grid]", "'temprature'"),
    (f"[grid]\n{D}[recources]\ncpus = 1", "plan.toml", "'recources'"),
    (f"[grid]\n{D}[resources]\ncpu = 1", "[resources]", "'cpu'"),
    (f"[grid]\n{D}[resources]\ncpus = 0", "[resources]: cpus", "0"),
    (f"[grid]\n{D}[resources]\ngpus = -1", "[resources]: gpus", "-1"),
    (f"[grid]\n{D}[resources]\ngpus = nan", "[resources]: gpus", "nan"),
    (f"[grid]\n{D}[resources]\ncpus = true", "[resources]: cpus", "True"),
    (f"[grid]\n{D}[resources]\nretries = 1.5", "[resources]: retries", "1.5"),
    (f'[grid]\n{D}[resources]\nretries = "2"', "[resources]: retries", "'2'"),
    (f"resources = 3\n[grid]\n{D}", "[resources]", "3"),
    (f"name = 3\n[grid]\n{D}", "name", "3"),
    (f'name = " "\n[grid]\n{D}', "name", "' '"),
    ("fixed = 3", "[fixed]", "3"),
    ("grid = [1]", "[grid]", "[1]"),
    ("grids = 3", "grids", "3"),
    ("grids = []", "grids", "[]"),
    ("grids = [1]", "grids", "[1]"),
    ("[grids]\nlr = [1]", "grids", "lr"),
    (f"[grid]\n{D}[[grids]]\nwidth = [1]", "[[grids]] number 1", "'width'"),
    ("[fixed]\ndataset = ['a', 'b']", "[fixed] dataset", "['a', 'b']"),
    ("[fixed]\nseed = {count = 3}", "[fixed] seed", "count"),
    ("[grid]\ndataset = 'a'", "[grid] dataset", "'a'"),
    (f"[grid]\n{D}seed = 3", "[grid] seed", "3"),
    (f'[fixed]\ndataset = "e"\n[grid]\n{D}', "[fixed] and [grid] dataset", "both"),
    (f'[grid]\n{D}feature_dim = [16, "x"]', "[grid] feature_dim[1]", "'x'"),
    (f"[grid]\n{D}feature_dim = [0]", "[grid] feature_dim[0]", "0"),
    (f"[grid]\n{D}temperature = [1, 0]", "[grid] temperature[1]", "0"),
    (f"[grid]\n{D}temperature = [-2]", "[grid] temperature[0]", "-2"),
    (f"[grid]\n{D}temperature = [nan]", "[grid] temperature[0]", "nan"),
    (f"[grid]\n{D}temperature = [inf]", "[grid] temperature[0]", "inf"),
    (f"[grid]\n{D}temperature = [true]", "[grid] temperature[0]", "True"),
    (f"[grid]\n{D}temperature = [[1]]", "[grid] temperature[0]", "[1]"),
    (f"[grid]\n{D}temperature = [2026-01-01]", "[grid] temperature[0]", "2026"),
    (f"[grid]\n{D}temperature = {{from=0, to=1, points=3}}", "temperature.from", "0"),
    (f"[grid]\n{D}temperature = {{from=-1, to=1, points=3}}", "temperature.from", "-1"),
    (f"[grid]\n{D}temperature = {{from=1, to=inf, points=3}}", "temperature.to", "inf"),
    (f"[grid]\n{D}temperature = {{from=2, to=1, points=3}}", "temperature", "2 and 1"),
    (f"[grid]\n{D}temperature = {{from=1, to=2, points=1}}", "temperature.points", "1"),
    (f"[grid]\n{D}temperature = {{from=1, to=2, points=2.5}}", "temperature.points", "2.5"),
    (f"[grid]\n{D}temperature = {{from=1, to=2, points=200000}}", "temperature", "200,000"),
    (f"[grid]\n{D}temperature = {{from=1, to=2}}", "[grid] temperature", "from"),
    (f"[grid]\n{D}temperature = {{from=1, to=2, points=3, log=true}}", "temperature", "log"),
    (f"[grid]\n{D}temperature = {{sqrt_M = [1]}}", "[grid]", "none"),
    (f"[grid]\n{D}feature_dim=[4]\ntemperature = {{sqrt_M = []}}", "temperature.sqrt_M", "empty"),
    (f"[grid]\n{D}feature_dim=[4]\ntemperature = {{sqrt_M = 1}}", "temperature.sqrt_M", "1"),
    (f"[grid]\n{D}feature_dim=[4]\ntemperature={{sqrt_M=[-1]}}", "temperature.sqrt_M[0]", "-1"),
    (f"[grid]\n{D}lr = {{sqrt_M = [1]}}", "[grid] lr", "sqrt_M"),
    (f"[grid]\n{D}norm = {{count = 2}}", "[grid] norm", "count"),
    (f"[grid]\n{D}norm = ['group']", "[grid] norm[0]", "'group'"),
    (f"[grid]\n{D}seed = {{count = 0}}", "seed.count", "0"),
    (f"[grid]\n{D}seed = {{count = 2, first = -1}}", "seed.first", "-1"),
    (f"[grid]\n{D}seed = {{count = 2, last = 3}}", "[grid] seed", "last"),
    (f"[grid]\n{D}seed = {{count = 1000000000}}", "[grid] seed", "1,000,000,000"),
    (f"[grid]\n{D}steps = {{from=1.5, to=8, points=2}}", "[grid] steps[0]", "1.5"),
]


@pytest.mark.parametrize(("text", "subject", "found"), BAD)
def test_what_is_wrong_is_named_with_its_place(text, subject, found):
    with pytest.raises(InvalidInput) as error:
        parse_plan(text)
    assert error.value.subject.startswith("plan plan.toml")
    assert subject in error.value.subject
    assert found in error.value.found
    assert error.value.fix.endswith((".", "?"))


def test_a_near_name_is_suggested():
    with pytest.raises(InvalidInput) as error:
        parse_plan(f"[grid]\n{D}temprature = [1]")
    assert error.value.fix == "Did you mean temperature?"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[grid]\ndataset = ["d"\nlr = [1]\n', "line 3"),
        ("[grid]\nlr = 0.1.2", "line 2"),
        ('[fixed]\nlr = 1\nlr = 2\ndataset="d"', "line 3"),
        ("\x00", "line 1"),
        ("a = " + "[" * 3000, ""),
    ],
)
def test_a_slip_of_the_pen_is_named_with_its_line(text, place):
    with pytest.raises(InvalidInput) as error:
        parse_plan(text)
    assert error.value.expected == "TOML"
    assert place in error.value.found


def test_a_grid_that_explodes_is_stopped_before_it_does(monkeypatch):
    big = f"[grid]\n{D}" + "".join(
        f"{name} = {{from=1, to=100000, points=10000}}\n" for name in ("temperature", "lr", "steps")
    )
    with pytest.raises(InvalidInput) as error:
        parse_plan(big)
    assert error.value.subject == "plan plan.toml [grid]"
    assert error.value.expected == "at most 1,000,000 trials"
    monkeypatch.setattr(plan_module, "MAX_TRIALS", 5)
    grids = "".join(f"[[grids]]\ntemperature = [{i}, {i + 1}, {i + 2}]\n" for i in (1, 4))
    with pytest.raises(InvalidInput) as error:  # each is small enough, both are not
        parse_plan('[fixed]\ndataset = "d"\n' + grids)
    assert (error.value.subject, error.value.found) == ("plan plan.toml", "6")


def test_files_that_are_no_plan_are_refused(tmp_path):
    with pytest.raises(NotFound):
        read_plan(tmp_path / "none.toml")
    with pytest.raises(InvalidInput, match="no file"):
        read_plan(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="UTF-8"):
        read_plan(binary)
    binary.write_bytes(bytes(2_000_000))
    with pytest.raises(InvalidInput, match="2,000,000 bytes"):
        read_plan(binary)
    binary.write_text("[grid]\nlr = [1]")
    with pytest.raises(InvalidInput) as error:
        read_plan(binary)
    assert error.value.subject == f"plan {binary} [grid]"


def test_all_pairs_of_the_issue_are_one_product():
    """The example of the docs: lists of every kind at once."""
    found = trials(WHOLE)
    pairs = itertools.product(("digits", "fashion-mnist"), (16, 64, 256))
    assert list(dict.fromkeys((t.dataset, t.feature_dim) for t in found)) == list(pairs)
