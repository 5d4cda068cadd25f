"""Adapters of PEFT: the head goes in first, is saved with them, and folded when they are merged."""

import copy

import pytest
import torch

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head import (
    check_optimizer,
    fold,
    insert,
    insert_all,
    remove,
    set_norm_statistics,
    tempered_heads,
)
from temperance.models import find_head, find_heads

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
# PEFT 0.21 still asks transformers 5 for a name that the latter is about to drop.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)

BATCH = {
    "input_ids": torch.tensor([[5, 6, 7, 8], [9, 10, 11, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
}
BODY = ["query", "value"]
SAVED = "base_model.model.classifier.modules_to_save.default"


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        num_labels=5,
    )
    return transformers.BertForSequenceClassification(config)


def adapted(net, targets=BODY, **settings):
    return peft.get_peft_model(net, peft.LoraConfig(target_modules=targets, **settings))


def logits(model):
    with torch.no_grad():
        return model.eval()(**BATCH).logits


@pytest.mark.parametrize("settings", [{}, {"modules_to_save": ["classifier"]}])
def test_a_wrapped_layer_is_found_but_not_replaced(settings):
    model = adapted(bert(), **settings)
    name = SAVED if settings else "base_model.model.classifier"
    assert find_head(model, BATCH).name == name
    before = str(model)
    for put_in in (insert, insert_all):
        with pytest.raises(InvalidInput) as error:
            put_in(model, 2.0, example=BATCH)
        assert "before wrapping" in error.value.fix
        assert "modules_to_save" in error.value.fix
    assert str(model) == before


def test_lora_on_the_layer_itself():
    model = adapted(bert(), [*BODY, "classifier"])
    for find in (find_head, find_heads):
        with pytest.raises(NotFound) as error:
            find(model, BATCH)
        assert "before wrapping" in error.value.fix


def test_a_head_that_went_in_first_is_trained_saved_loaded_merged_and_folded(tmp_path):
    base = bert()
    insert(base, 3.0, example=BATCH)
    model = adapted(base, modules_to_save=["classifier"])
    assert list(tempered_heads(model)) == [SAVED]  # not the unused original
    assert find_head(model, BATCH).kind == "tempered"
    set_norm_statistics(model, [BATCH, BATCH])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    check_optimizer(optimizer, model)
    model.train()(**BATCH).logits.square().sum().backward()
    optimizer.step()
    expected = logits(model)
    model.save_pretrained(tmp_path)

    fresh = bert()
    insert(fresh, 1.0)  # the file brings its T
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path)
    assert torch.equal(logits(loaded), expected)
    with pytest.raises(InvalidInput) as error:
        fold(loaded.eval(), BATCH)
    assert "merge_and_unload" in error.value.fix
    merged = loaded.merge_and_unload()
    assert list(tempered_heads(merged)) == ["classifier"]
    folded = fold(merged, BATCH)
    assert type(folded.classifier) is torch.nn.Linear
    torch.testing.assert_close(logits(folded), expected, atol=1e-6, rtol=1e-5)


def test_a_head_that_would_be_missing_in_the_file_is_named():
    base = bert()
    insert(base, 3.0, example=BATCH)
    model = adapted(base)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with pytest.warns(TemperanceWarning, match="modules_to_save"):
        check_optimizer(optimizer, model)


def test_a_head_inside_of_adapters_is_not_removed():
    base = bert()
    insert(base, 3.0, example=BATCH)
    model = adapted(base, modules_to_save=["classifier"])
    before = str(model)
    with pytest.raises(InvalidInput) as error:
        remove(model)
    assert "merge_and_unload" in error.value.fix
    assert str(model) == before
    assert type(remove(model.merge_and_unload())) is torch.nn.Linear


def test_a_head_outside_of_adapters_is_folded_with_them_in_place():
    class Outside(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = adapted(bert().bert)
            self.fc = torch.nn.Linear(16, 5)

        def forward(self, **inputs):
            return {"logits": self.fc(self.encoder(**inputs).pooler_output)}

    model = Outside().eval()
    insert(model, 3.0, norm="none", example=BATCH)
    folded = fold(model, BATCH)
    torch.testing.assert_close(folded(**BATCH)["logits"], model(**BATCH)["logits"])


def test_lora_on_the_linear_layer_inside_of_a_head():
    base = bert()
    insert(base, 3.0, norm="none", example=BATCH)
    model = adapted(base, ["query", "classifier.linear"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    expected = logits(model)
    (head,) = tempered_heads(model).values()
    with pytest.raises(InvalidInput) as error:  # its weight alone is not what it computes
        fold(copy.deepcopy(head))
    assert "merge_and_unload" in error.value.fix
    folded = fold(model.merge_and_unload(), BATCH)
    torch.testing.assert_close(logits(folded), expected, atol=1e-6, rtol=1e-5)
