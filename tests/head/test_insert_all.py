"""Several output layers at once: all or nothing, and only where T in all is T on the logits."""

import pytest
import torch
from torch import nn

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head import HeadOptions, fold, insert, insert_all, remove, tempered_heads
from temperance.models import find_heads

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


class Two(nn.Module):
    """Two heads on two views of the input, as in distilled models."""

    def __init__(self, join=lambda a, b: (a + b) / 2, classes=(3, 3)):
        super().__init__()
        self.head, self.head_dist = nn.Linear(4, classes[0]), nn.Linear(4, classes[1])
        self.join = join
        self.default_cfg = {"classifier": ("head", "head_dist")}

    def forward(self, x):
        return self.join(self.head(x), self.head_dist(x.flip(-1)))


def names(model):
    return [n for n, m in model.named_modules() if n and "." not in n and type(m) is nn.Linear]


def test_all_heads_are_found_with_and_without_a_batch():
    for example, verified in ((X, True), (None, False)):
        heads = find_heads(Two(), example)
        assert [h.name for h in heads] == ["head", "head_dist"]
        assert {h.verified for h in heads} == {verified}
        assert {h.source for h in heads} == {"declared"}


@pytest.mark.parametrize("example", [X, None])
def test_t_in_all_is_t_on_the_logits_and_folds_and_is_removed(example):
    model = Two().eval()
    plain, olds = model(X), (model.head, model.head_dist)
    heads = insert_all(model, 4.0, norm="none", example=example)
    assert heads == tempered_heads(model)
    torch.testing.assert_close(model(X), plain / 4)
    torch.testing.assert_close(fold(model, X)(X), plain / 4)
    assert [remove(model, name=name) for name in heads] == list(olds)
    assert torch.equal(model(X), plain)


def test_one_head_is_what_insert_does():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    assert list(insert_all(model, 2.0, example=X)) == ["2"]


def test_one_of_several_can_be_named_with_a_warning():
    model = Two()
    with pytest.raises(NotFound) as error:
        insert(model, 4.0, example=X)
    assert error.value.candidates == ("head", "head_dist")
    assert "insert_all" in error.value.fix
    with pytest.warns(TemperanceWarning, match="scale"):
        insert(model, 4.0, example=X, name="head")
    assert names(model) == ["head_dist"]


@pytest.mark.parametrize("join", [torch.mul, lambda a, b: a.softmax(-1) + b.softmax(-1)])
def test_heads_that_are_not_summed_are_refused(join):
    model = Two(join)
    with pytest.raises(NotFound) as error:
        insert_all(model, 4.0, example=X)
    assert error.value.candidates == ("head", "head_dist")
    assert names(model) == ["head", "head_dist"]


@pytest.mark.parametrize("std", [0.0, 1e-3])
@pytest.mark.parametrize("together", [True, False])
def test_heads_that_start_near_zero_are_judged_as_well(std, together):
    model = Two() if together else Two(torch.mul)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std)
    if together:
        assert list(insert_all(model, 4.0, example=X)) == ["head", "head_dist"]
        return
    with pytest.raises(NotFound):
        insert_all(model, 4.0, example=X)


def test_one_layer_of_two_declared_names_gets_one_head():
    model = Two()
    model.head_dist = model.head
    assert list(insert_all(model, 4.0)) == ["head"]
    assert model.head is model.head_dist
    assert type(model.head.linear) is nn.Linear


def test_a_name_that_contains_that_of_an_adapter():
    model = nn.Module()
    model.flora_head, model.fauna_head = nn.Linear(4, 3), nn.Linear(4, 3)
    model.forward = lambda x: model.flora_head(x) + model.fauna_head(x)
    assert list(insert_all(model, 4.0, example=X)) == ["flora_head", "fauna_head"]


def test_nothing_is_changed_if_one_of_them_cannot_be():
    model = Two(lambda a, b: a + b, classes=(3, 1))  # one output, which broadcasts
    with pytest.raises((InvalidInput, NotFound)):
        insert_all(model, 4.0, example=X)
    with pytest.raises(InvalidInput):
        insert_all(model, 4.0)
    assert names(model) == ["head", "head_dist"]


def test_heads_drawn_anew_differ():
    options = HeadOptions(keep_weights=False, seed=1)
    a, b = insert_all(Two(), 4.0, example=X, options=options).values()
    assert not torch.equal(a.weight, b.weight)


def test_an_advertised_number_of_features_is_a_note(recwarn):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    model.num_features = 4
    head = insert(model, 2.0, example=X)
    assert head.in_features == 6
    assert len(head.notes) == 1
    assert "num_features = 4" in head.notes[0]
    assert "M = 6" in head.notes[0]
    assert not recwarn
