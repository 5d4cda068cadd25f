"""From a model and a loader to features, and from features to a task."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import temperance.task.features as features_module
from temperance import Features, Task, collect, insert, measure, suggest
from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.labels import ClassMap


class Net(nn.Module):
    """Dropout and BatchNorm, so that modes and buffers matter; a nested head; a dict output."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))
        self.tail = nn.ModuleDict({"out": nn.Linear(6, 3)})

    def forward(self, x):
        return {"logits": self.tail["out"](self.body(x))}


def data(n=50):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % 3


def test_features_are_the_input_of_the_head_in_eval_mode(rng_guard):
    model, (x, y) = Net(), data()
    model.body[0].eval()  # a mixed state has to come back as it was
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    seen = []
    with rng_guard():
        features = collect(model, loader, progress=lambda done, total: seen.append((done, total)))
    assert [m.training for m in model.modules()] == modes
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not any(m._forward_pre_hooks for m in model.modules())
    with torch.no_grad():
        expected = model.eval().body(x)
    torch.testing.assert_close(torch.from_numpy(features.x), expected)
    assert features.y.tolist() == y.tolist()
    assert features.source == "Net, input of tail.out"
    assert seen[-1] == (8, 8)


def test_a_tempered_head_gives_the_features_before_its_norm():
    model, (x, y) = Net(), data()
    plain = collect(model, [(x, y)])
    insert(model, 4.0, example=x)
    tempered = collect(model, [(x, y)])
    np.testing.assert_array_equal(plain.x, tempered.x)


def test_batches_of_any_form_and_names_as_labels():
    model, (x, _) = Net(), data(6)
    names = ["cat", "dog", "owl"] * 2
    features = collect(
        model, [{"x": x[:5], "labels": names[:5]}, {"x": x[5:], "labels": names[5:]}]
    )
    assert features.class_names == ("cat", "dog", "owl")
    assert features.x.shape == (6, 6)
    known = ClassMap(("owl", "dog", "cat"))
    again = collect(model, [(x, names)], class_map=known)
    assert again.y.tolist() == [2, 1, 0, 2, 1, 0]


def test_ignored_rows_are_left_out_only_when_named():
    model, (x, y) = Net(), data(6)
    y = y.clone()
    y[0] = -100
    assert len(collect(model, [(x, y)], ignore=(-100,))) == 5
    with pytest.raises(InvalidInput):
        collect(model, [(x, y)])


def test_c_is_the_number_of_outputs_whatever_the_labels_use():
    model, (x, _) = Net(), data(6)
    task = measure(collect(model, [(x, torch.tensor([0, 2] * 3))]), repeats=1)
    assert (task.n_classes, task.n_nonempty) == (3, 2)
    one_hot = torch.eye(3)[[0, 1] * 3]
    assert measure(collect(model, [(x, one_hot)]), repeats=1).n_classes == 3
    for wrong in (torch.tensor([1, 2, 3] * 2), ["a", "b", "c", "d", "a", "b"], torch.eye(6)):
        with pytest.raises(InvalidInput):
            collect(model, [(x, wrong)])
    with pytest.warns(TemperanceWarning, match="C is taken as 2"):
        collect(model, [(x, ["a", "b"] * 3)])


def test_a_head_with_one_output_has_two_classes():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
    x = torch.randn(6, 4)
    assert collect(model, [(x, torch.tensor([0.0, 1.0] * 3))]).class_names == ("0", "1")


def test_a_head_that_is_called_by_keyword():
    class Keyword(Net):
        def forward(self, x):
            return self.tail["out"](input=self.body(x))

    x, y = data(6)
    assert collect(Keyword(), [(x, y)]).x.shape == (6, 6)


def test_tokens_need_token_labels():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.head(self.body(x))

    x, y = torch.randn(2, 7, 4), torch.arange(14).reshape(2, 7) % 3
    features = collect(Tagger(), [(x, y)])
    assert features.x.shape == (14, 5)
    assert features.y.tolist() == y.reshape(-1).tolist()
    with pytest.raises(InvalidInput) as caught:
        collect(Tagger(), [(x, y[:, 0])])
    assert caught.value.found == "features of shape [2, 7, 5]"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_precisions(dtype):
    model, (x, y) = Net().to(dtype), data()
    features = collect(model, [(x.to(dtype), y)])
    assert features.x.dtype == (np.float64 if dtype == torch.float64 else np.float32)


def test_more_rows_than_memory_go_to_a_file(monkeypatch):
    model, (x, y) = Net(), data()
    expected = collect(model, [(x, y)])
    monkeypatch.setattr(features_module, "_RAM_LIMIT", 600)
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    features = collect(model, loader)
    assert isinstance(features.x.base, np.memmap)
    np.testing.assert_allclose(features.x, expected.x, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("loader", "part"),
    [
        ([], "at least one batch"),
        ([torch.randn(3, 4)], "batches with labels"),
        ([(torch.full((3, 4), torch.nan), torch.arange(3))], "finite numbers"),
    ],
)
def test_bad_loaders(loader, part):
    with pytest.raises(InvalidInput) as caught:
        collect(Net(), loader)
    assert caught.value.expected == part


def test_an_error_on_the_way_leaves_the_model_as_it_was():
    model, (x, y) = Net(), data()
    with pytest.raises(InvalidInput):
        collect(model, [(x, y), torch.zeros(1, 4)])
    assert all(m.training for m in model.modules())
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_a_convolution_of_size_1_over_one_position_is_a_linear_head():
    model = nn.Sequential(nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 3, 1), nn.Flatten())
    x = torch.randn(6, 4)
    features = collect(model, [(x, [0, 1, 2, 0, 1, 2])])
    np.testing.assert_array_equal(features.x, x.numpy())
    many = nn.Sequential(nn.Conv1d(4, 3, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    with pytest.raises(InvalidInput) as caught:  # two positions are two rows for one label
        collect(many, [(torch.randn(3, 4, 2), [0, 1, 2])])
    assert "rows" in caught.value.fix


def test_a_model_without_a_linear_head():
    batches = [(torch.randn(3, 4, 2), [0, 1, 2])]
    with pytest.raises(InvalidInput) as caught:
        collect(nn.Sequential(nn.Conv1d(4, 3, 2), nn.Flatten()), batches)
    assert "convolution" in caught.value.found
    with pytest.raises(NotFound):
        collect(nn.Flatten(), batches)


def test_measure_gives_a_task_that_suggest_takes(rng_guard):
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    features = Features.from_arrays(rng.normal(0, 1, (300, 8)) + y[:, None], y)
    with rng_guard():
        task = measure(features, n_samples=50, repeats=3, training={"optimizer": "sgd"})
    assert isinstance(task, Task)
    assert (task.feature_dim, task.n_classes, task.n_samples, task.n_nonempty) == (8, 3, 300, 3)
    assert task.training == {"optimizer": "sgd"}
    csg = task.statistics["csg"]
    assert csg.settings["n_samples"] == 50
    assert csg.settings["repeats"] == 3
    assert csg.interval[0] < csg.value < csg.interval[1]
    assert measure(features, n_samples=50, repeats=3, training={"optimizer": "sgd"}) == task
    suggestion = suggest(task)
    assert suggestion.unclipped_interval is not None
    assert suggestion.inputs["statistics"]["csg"]["settings"]["embedding"] == "arrays"


def test_a_class_without_rows_counts_for_c_but_not_as_nonempty():
    x = np.random.default_rng(0).normal(size=(20, 3))
    class_map = ClassMap(("a", "b", "c"))
    features = Features.from_arrays(x, ["a", "c"] * 10, class_map=class_map)
    task = measure(features, repeats=1)
    assert (task.n_classes, task.n_nonempty) == (3, 2)
