"""Files give what the arrays in them give, and damaged ones are named."""

import numpy as np
import pytest

from temperance.errors import InvalidInput
from temperance.evaluation import LogitsFile, fit_temperature, fit_temperature_stream

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(2000, 10)) * 6
Y = (Z / 3 + RNG.gumbel(size=Z.shape)).argmax(axis=1)
WHOLE = fit_temperature(logits=Z, labels=Y)


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch):
    monkeypatch.setattr("temperance.evaluation.logit_files._ROWS_OF", 3000)


def check(source, whole=WHOLE):
    chunks = list(source)
    assert len(chunks) > 3
    fit = fit_temperature_stream(source)
    assert fit.temperature == pytest.approx(whole.temperature, rel=1e-9)
    assert fit.n == whole.n


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ">f8"])
def test_npy(tmp_path, dtype):
    z = Z.astype(dtype)
    np.save(tmp_path / "z.npy", z)
    np.save(tmp_path / "y.npy", Y)
    whole = fit_temperature(logits=z, labels=Y)
    check(LogitsFile(tmp_path / "z.npy", labels=tmp_path / "y.npy"), whole)
    check(LogitsFile(str(tmp_path / "z.npy"), labels=str(tmp_path / "y.npy")), whole)
    check(LogitsFile(tmp_path / "z.npy", labels=Y.tolist()), whole)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    save(tmp_path / "a.npz", logits=Z, labels=Y, more=Z)
    check(LogitsFile(tmp_path / "a.npz"))
    save(tmp_path / "b.npz", z=Z, y=Y[:, None])
    check(LogitsFile(tmp_path / "b.npz", columns="z", labels="y"))
    check(LogitsFile(tmp_path / "b.npz", columns=["z"], labels="y"))
    with pytest.raises(InvalidInput) as caught:
        fit_temperature_stream(LogitsFile(tmp_path / "b.npz"))
    assert caught.value.found == "the arrays z, y"


def test_one_number_per_row(tmp_path):
    one, y = Z[:, 0], (Y == 0).astype(int)
    np.save(tmp_path / "z.npy", one)
    whole = fit_temperature(logits=one, labels=y)
    fit = fit_temperature_stream(LogitsFile(tmp_path / "z.npy", labels=y))
    assert fit.temperature == pytest.approx(whole.temperature, rel=1e-9)


class TestParquet:
    @pytest.fixture
    def write(self, tmp_path):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

        def write(columns):
            parquet.write_table(arrow.table(columns), tmp_path / "t.parquet", row_group_size=500)
            return tmp_path / "t.parquet"

        return write

    def test_numbered_columns_in_their_order(self, write):
        order = [10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9]
        wide = np.concatenate([Z, Z[:, :1] - 40], axis=1)
        columns = {f"logit_{k}": wide[:, k] for k in order}
        whole = fit_temperature(logits=wide, labels=Y)
        check(LogitsFile(write({"id": Y * 7, **columns, "labels": Y})), whole)

    def test_named_columns(self, write):
        names = [f"class {chr(97 + k)}" for k in range(10)]
        columns = dict(zip(names, Z.astype(np.float32).T, strict=True))
        path = write({**dict(reversed(columns.items())), "y": Y})
        whole = fit_temperature(logits=Z.astype(np.float32), labels=Y)
        check(LogitsFile(path, labels="y", columns=names), whole)
        with pytest.raises(InvalidInput) as caught:
            list(LogitsFile(path, labels="y"))
        assert "numbered" in caught.value.expected
        with pytest.raises(InvalidInput) as caught:
            list(LogitsFile(path, labels="y", columns=[*names, "class z"]))
        assert "class z" in caught.value.expected

    def test_a_column_of_lists(self, write):
        path = write({"logits": list(Z), "labels": Y})
        fit = fit_temperature_stream(LogitsFile(path))
        assert fit.temperature == pytest.approx(WHOLE.temperature, rel=1e-9)

    def test_two_sets_of_numbered_columns_are_not_guessed(self, write):
        columns = {f"{kind}{k}": Z[:, k] for kind in ("z", "p") for k in range(10)}
        with pytest.raises(InvalidInput):
            list(LogitsFile(write({**columns, "labels": Y})))

    def test_missing_values(self, write):
        labels = [None if i == 7 else int(k) for i, k in enumerate(Y)]
        path = write({"z0": Z[:, 0], "z1": Z[:, 1], "labels": labels})
        with pytest.raises(InvalidInput) as caught:
            list(LogitsFile(path))
        assert "'labels'" in caught.value.found

    def test_lists_of_different_lengths(self, write):
        path = write({"logits": [[1.0, 2.0], [1.0]], "labels": [0, 1]})
        with pytest.raises(InvalidInput):
            list(LogitsFile(path))

    def test_damaged(self, tmp_path):
        pytest.importorskip("pyarrow")
        (tmp_path / "t.parquet").write_bytes(b"PAR1 not really")
        with pytest.raises(InvalidInput) as caught:
            list(LogitsFile(tmp_path / "t.parquet"))
        assert "t.parquet" in caught.value.subject


# ------------------------------------------------------------------ what is refused
def test_files_that_are_not_there_or_of_another_kind(tmp_path):
    np.save(tmp_path / "z.npy", Z)
    for source in (
        {"path": tmp_path / "none.npz"},
        {"path": tmp_path / "z.npy"},  # its labels are missing
        {"path": tmp_path / "z.npy", "labels": tmp_path / "none.npy"},
        {"path": tmp_path / "z.txt"},
    ):
        with pytest.raises(InvalidInput) as caught:
            LogitsFile(**source)
        assert caught.value.subject.startswith("file ")


def test_damaged_arrays(tmp_path):
    np.save(tmp_path / "z.npy", Z)
    whole = (tmp_path / "z.npy").read_bytes()
    for name, content in (("cut", whole[:50_000]), ("empty", b""), ("other", b"x" * 500)):
        path = tmp_path / f"{name}.npy"
        path.write_bytes(content)
        with pytest.raises(InvalidInput) as caught:
            fit_temperature_stream(LogitsFile(path, labels=Y))
        assert str(path) in caught.value.subject
    np.savez(tmp_path / "a.npz", logits=Z, labels=Y)
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "b.npz").write_bytes(content[:1000] + b"????" + content[1004:])
    with pytest.raises(InvalidInput):
        fit_temperature_stream(LogitsFile(tmp_path / "b.npz"))


@pytest.mark.parametrize(
    "array", [np.asfortranarray(Z), Z.reshape(10, 20, 100), Z[:0], Z.astype(str)]
)
def test_arrays_of_another_form(tmp_path, array):
    np.save(tmp_path / "z.npy", array)
    with pytest.raises(InvalidInput):
        fit_temperature_stream(LogitsFile(tmp_path / "z.npy", labels=Y))


def test_labels_of_another_length(tmp_path):
    np.save(tmp_path / "z.npy", Z)
    with pytest.raises(InvalidInput) as caught:
        fit_temperature_stream(LogitsFile(tmp_path / "z.npy", labels=Y[:-1]))
    assert "1999" in caught.value.found


def test_objects_are_not_unpickled(tmp_path):
    np.save(tmp_path / "z.npy", Z)
    np.save(tmp_path / "y.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidInput):
        list(LogitsFile(tmp_path / "z.npy", labels=tmp_path / "y.npy"))
