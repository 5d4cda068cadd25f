"""The Trainer callback on real Trainers, and folded models in plain transformers."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from temperance import insert
from temperance.errors import InvalidInput, MissingPackage, NotFound, TemperanceWarning
from temperance.head import TemperedHead, tempered_heads
from temperance.integrations import huggingface as integration
from temperance.integrations.huggingface import (
    TemperatureTrainerCallback,
    add_to_trainer,
    save_folded,
)
from temperance.integrations.placement import PlaceOptions
from temperance.integrations.tempered_state import load_tempered
from temperance.models import read_safetensors

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
pytest.importorskip("accelerate")
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "huggingface_example.py"


def model_of(kind="BertForSequenceClassification", **settings):
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        **{"num_labels": 3, **settings},
    )
    return getattr(transformers, kind)(config)


def rows(n=64, tokens=False):
    """Sentences of one length, whose first word tells the class; a column that no model takes."""
    ids = np.random.default_rng(0).integers(3, 40, (n, 8))
    labels = np.arange(n) % 3
    ids[:, 1] = labels
    y = np.where(ids > 30, -100, ids % 3).tolist() if tokens else labels.tolist()
    return datasets.Dataset.from_dict(
        {"input_ids": ids.tolist(), "labels": y, "text": ["words"] * n}
    )


def trainer_of(folder, model=None, callbacks=(), data=None, **settings):
    optimizers, model_init = settings.pop("optimizers", (None, None)), None
    eval_dataset = settings.pop("eval_dataset", None)
    if callable(model) and not isinstance(model, nn.Module):
        model, model_init = None, model
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        **{
            "per_device_train_batch_size": 16,
            "num_train_epochs": 1,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "learning_rate": 1e-2,
            **settings,
        },
    )
    return transformers.Trainer(
        model if model is not None or model_init else model_of(),
        arguments,
        train_dataset=rows() if data is None else data,
        eval_dataset=eval_dataset,
        callbacks=list(callbacks),
        optimizers=optimizers,
        model_init=model_init,
    )


def features_of(model, data):
    with torch.no_grad():
        inputs = torch.tensor(data["input_ids"][:])
        return model.eval().bert(input_ids=inputs).pooler_output


def test_the_head_is_in_at_once_and_t_when_the_training_starts(tmp_path):
    model, data = model_of(), rows()
    features = features_of(model, data)
    model.train()
    callback = TemperatureTrainerCallback("sqrt-dim")
    seen = []

    class Look(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            seen.append(kwargs["model"].classifier.norm.running_mean.clone())

    trainer = trainer_of(tmp_path, model, [callback, Look()], data)
    assert isinstance(model.classifier, TemperedHead)
    assert float(model.classifier.temperature) == 1.0
    trainer.train()
    torch.testing.assert_close(seen[0], features.mean(0), rtol=1e-4, atol=1e-5)
    assert callback.placement.temperature == float(model.classifier.temperature) == 4.0
    assert callback.placement.task.n_samples == 64
    held = {p for group in trainer.optimizer.param_groups for p in group["params"]}
    assert set(model.classifier.parameters()) <= held
    assert not model._forward_pre_hooks
    assert not model.classifier._forward_hooks


def test_weight_decay_stays_off_the_norm(tmp_path):
    trainer = trainer_of(tmp_path, callbacks=[TemperatureTrainerCallback(4.0)], weight_decay=0.1)
    trainer.train()
    decay = {p for g in trainer.optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    head = trainer.model.classifier
    assert head.linear.weight in decay
    assert head.norm.weight not in decay


def test_t_and_the_ratio_of_the_gradients_are_logged(tmp_path):
    trainer = trainer_of(tmp_path, callbacks=[TemperatureTrainerCallback(8.0)])
    trainer.train()
    logs = [row for row in trainer.state.log_history if "loss" in row]
    assert [row["temperature"] for row in logs] == [8.0] * 4
    assert logs[0]["gradient_ratio"] == pytest.approx(1 / 8, rel=0.3)


def test_the_order_of_the_rows_is_that_of_a_trainer_without_the_callback(tmp_path):
    losses = []
    for callbacks in ([], [TemperatureTrainerCallback(1.0, options=PlaceOptions(norm="none"))]):
        torch.manual_seed(0)
        model = model_of(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        trainer = trainer_of(tmp_path, model, callbacks)
        trainer.train()
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
    assert losses[0] == losses[1]


def test_measuring_moves_no_random_state(tmp_path, rng_guard):
    callback = TemperatureTrainerCallback("sqrt-dim")
    trainer = trainer_of(tmp_path, callbacks=[callback])
    with rng_guard():
        callback._settle(
            trainer.model,
            trainer.model.classifier,
            args=trainer.args,
            loader=trainer.get_train_dataloader(),
        )


def test_reporting_callbacks_see_t_with_add_to_trainer(tmp_path):
    seen = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append("temperature" in logs)

    trainer = trainer_of(tmp_path, callbacks=[Reporter()])
    callback = add_to_trainer(trainer, 4.0)
    trainer.train()
    assert seen[:4] == [True] * 4
    assert callback.placement.norm == "batch"


# ------------------------------------------------------------------ what is refused
def test_an_optimizer_of_the_model_without_the_head_is_refused(tmp_path):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidInput) as error:
        trainer_of(tmp_path, model, [TemperatureTrainerCallback()], optimizers=(optimizer, None))
    assert error.value.subject == "optimizer"
    assert isinstance(model.classifier, nn.Linear)


def test_a_head_of_ones_own_with_its_optimizer_is_kept(tmp_path):
    model = model_of()
    insert(model, 5.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback = TemperatureTrainerCallback()
    trainer = trainer_of(tmp_path, model, [callback], optimizers=(optimizer, None))
    trainer.train()
    assert callback.placement is None
    assert trainer.state.log_history[0]["temperature"] == 5.0


def test_an_optimizer_that_was_made_before_the_head_is_refused_when_the_training_starts(tmp_path):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    insert(model, 5.0)
    trainer = trainer_of(
        tmp_path, model, [TemperatureTrainerCallback()], optimizers=(optimizer, None)
    )
    with pytest.raises(InvalidInput) as error:
        trainer.train()
    assert "classifier.norm.weight" in error.value.found


def test_a_callback_that_comes_late_and_a_model_that_is_made_anew_are_told(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.add_callback(TemperatureTrainerCallback(4.0))
    with pytest.raises(NotFound) as error:
        trainer.train()
    assert "callbacks=" in error.value.fix
    trainer = trainer_of(tmp_path, lambda: model_of(), [TemperatureTrainerCallback(4.0)])
    with pytest.raises(NotFound) as error:
        trainer.train()
    assert "model_init" in error.value.fix
    with pytest.raises(InvalidInput) as error:
        add_to_trainer(trainer_of(tmp_path, lambda: model_of()))
    assert "model_init" in error.value.found


def test_other_losses_are_refused(tmp_path):
    model = model_of(problem_type="multi_label_classification")
    with pytest.raises(InvalidInput) as error:
        trainer_of(tmp_path, model, [TemperatureTrainerCallback(4.0)])
    assert error.value.found == "multi_label_classification"


@pytest.mark.parametrize(
    ("kind", "compiled"),
    [("several labels", False), ("one-hot", False), ("numbers", False), ("one-hot", True)],
)
def test_labels_that_make_transformers_take_another_loss_are_refused(tmp_path, kind, compiled):
    data = rows()
    ids = np.array(data["labels"])
    labels = {
        "several labels": np.eye(3)[ids] + np.eye(3)[(ids + 1) % 3],
        "one-hot": np.eye(3)[ids],
        "numbers": ids + 0.5,
    }[kind]
    data = data.remove_columns("labels").add_column("labels", labels.tolist())
    settings = {"torch_compile": True, "torch_compile_backend": "eager"} if compiled else {}
    trainer = trainer_of(
        tmp_path, callbacks=[TemperatureTrainerCallback(4.0)], data=data, **settings
    )
    with pytest.raises(InvalidInput) as error:
        trainer.train()
    assert error.value.subject == ("problem_type of the model" if compiled else "labels")
    assert trainer.state.global_step <= 1
    assert not trainer.model._forward_pre_hooks
    assert not trainer.model.classifier._forward_hooks


def test_one_output_has_no_softmax(tmp_path):
    with pytest.raises(InvalidInput) as error:
        trainer_of(tmp_path, model_of(num_labels=1), [TemperatureTrainerCallback(4.0)])
    assert error.value.expected == "two outputs or more"


def test_a_head_of_ones_own_does_not_make_another_loss_right(tmp_path):
    model = model_of(problem_type="multi_label_classification")
    insert(model, 4.0)
    with pytest.raises(InvalidInput):
        trainer_of(tmp_path, model, [TemperatureTrainerCallback(4.0)])


def test_a_last_batch_of_one_row_is_told_before_the_first_step(tmp_path):
    trainer = trainer_of(tmp_path, callbacks=[TemperatureTrainerCallback(4.0)], data=rows(65))
    with pytest.raises(InvalidInput) as error:
        trainer.train()
    assert error.value.subject == "batches for BatchNorm"
    trainer = trainer_of(tmp_path, callbacks=[TemperatureTrainerCallback(4.0)], data=rows(66))
    with pytest.warns(TemperanceWarning, match="2 rows"):
        trainer.train()


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(integration, "_Callback", object)
    with pytest.raises(MissingPackage) as error:
        TemperatureTrainerCallback()
    assert error.value.extra == "transformers"


# ------------------------------------------------------------------ other models and data
@pytest.mark.filterwarnings("ignore:the T of rule:temperance.errors.TemperanceWarning")
def test_token_labels_of_minus_100_are_left_out(tmp_path):
    model = model_of("BertForTokenClassification")
    callback = TemperatureTrainerCallback("sqrt-dim", options=PlaceOptions(norm="layer"))
    data = rows(tokens=True)
    trainer_of(tmp_path, model, [callback], data).train()
    assert callback.placement.task.n_samples == int((np.array(data["labels"]) >= 0).sum())


def test_a_data_set_of_dicts_without_the_datasets_package(tmp_path):
    data = rows()
    plain = [{"input_ids": torch.tensor(r["input_ids"]), "label": r["labels"]} for r in data]
    callback = TemperatureTrainerCallback("sqrt-dim")
    trainer_of(tmp_path, callbacks=[callback], data=plain).train()
    assert callback.placement.task.n_samples == 64


class OwnNet(nn.Module):
    """A model that is not of transformers, with a dict as its output."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(40, 16), nn.Linear(16, 3)

    def forward(self, input_ids, labels=None):
        logits = self.fc(self.embed(input_ids).mean(1))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_a_model_of_ones_own_with_a_dict_as_output(tmp_path):
    with pytest.raises(NotFound) as error:
        trainer_of(tmp_path, OwnNet(), [TemperatureTrainerCallback("sqrt-dim")])
    assert "PlaceOptions(head=" in error.value.fix
    model = OwnNet()
    callback = TemperatureTrainerCallback("sqrt-dim", options=PlaceOptions(head="fc"))
    trainer_of(tmp_path, model, [callback]).train()
    assert isinstance(model.fc, TemperedHead)
    assert callback.placement.temperature == 4.0


def test_a_stream_is_measured_on_a_number_of_batches(tmp_path):
    stream = rows().to_iterable_dataset()
    trainer = trainer_of(
        tmp_path, callbacks=[TemperatureTrainerCallback("sqrt-dim")], data=stream, max_steps=2
    )
    with pytest.raises(InvalidInput) as error:
        trainer.train()
    assert "max_batches" in error.value.fix
    callback = TemperatureTrainerCallback("sqrt-dim", options=PlaceOptions(max_batches=2))
    trainer_of(tmp_path, callbacks=[callback], data=stream, max_steps=2).train()
    assert callback.placement.task.n_samples == 32


# ------------------------------------------------------------------ checkpoints
def test_a_training_resumes_with_the_t_of_its_checkpoint(tmp_path):
    callback = TemperatureTrainerCallback("sqrt-dim")
    settings = {"save_strategy": "steps", "save_steps": 4}
    trainer_of(tmp_path, callbacks=[callback], **settings).train()
    folder = tmp_path / "out" / "checkpoint-4"
    again = TemperatureTrainerCallback("hasegawa-sakai")  # would give another T
    trainer = trainer_of(tmp_path, callbacks=[again], num_train_epochs=2, **settings)
    before = trainer.model.classifier.temperature.clone()
    trainer.train(resume_from_checkpoint=str(folder))
    assert float(before) == 1.0
    assert float(trainer.model.classifier.temperature) == 4.0
    assert again.placement == callback.placement
    assert int(trainer.model.classifier.norm.num_batches_tracked) == 1 + 8

    plain = model_of()
    report = load_tempered(plain, read_safetensors(folder / "model.safetensors"))
    assert not report.new
    assert not report.ignored
    assert float(plain.classifier.temperature) == 4.0


def test_callbacks_that_trainer_makes_anew_go_on(tmp_path):
    settings = {
        "save_strategy": "steps",
        "save_steps": 4,
        "restore_callback_states_from_checkpoint": True,
    }
    trainer_of(tmp_path, callbacks=[TemperatureTrainerCallback("sqrt-dim")], **settings).train()
    trainer = trainer_of(
        tmp_path, callbacks=[TemperatureTrainerCallback("sqrt-dim")], num_train_epochs=2, **settings
    )
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    logs = [row for row in trainer.state.log_history if "loss" in row]
    assert [row["temperature"] for row in logs] == [4.0] * 8


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_with_another_norm_is_not_resumed(tmp_path, whole):
    options = PlaceOptions(norm="none")
    settings = {"save_strategy": "steps", "save_steps": 4, "save_only_model": not whole}
    trainer_of(
        tmp_path, callbacks=[TemperatureTrainerCallback(4.0, options=options)], **settings
    ).train()
    trainer = trainer_of(
        tmp_path, callbacks=[TemperatureTrainerCallback(4.0)], num_train_epochs=2, **settings
    )
    with pytest.raises(InvalidInput) as error:
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert "norm='none'" in error.value.fix


def test_no_hook_waits_for_a_checkpoint_after_the_training(tmp_path):
    trainer = trainer_of(tmp_path, callbacks=[TemperatureTrainerCallback(4.0)])
    trainer.train()
    assert not trainer.model._load_state_dict_pre_hooks


def test_the_best_model_at_the_end_has_its_own_statistics(tmp_path):
    data = rows()
    arguments = {
        "num_train_epochs": 3,
        "save_strategy": "epoch",
        "eval_strategy": "epoch",
        "load_best_model_at_end": True,
        "gradient_accumulation_steps": 2,
        "metric_for_best_model": "loss",
        "greater_is_better": True,  # so that it is the first epoch, not the last
    }
    trainer = trainer_of(tmp_path, callbacks=[], data=data, eval_dataset=data, **arguments)
    add_to_trainer(trainer, "sqrt-dim")
    trainer.train()
    best = Path(trainer.state.best_model_checkpoint)
    last = tmp_path / "out" / f"checkpoint-{trainer.state.global_step}"
    state, live = read_safetensors(best / "model.safetensors"), trainer.model.state_dict()
    assert best != last
    assert state.keys() == live.keys()
    assert all(torch.equal(state[k], live[k]) for k in live)


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_of_a_plain_run_is_not_resumed(tmp_path, whole):
    settings = {"save_strategy": "steps", "save_steps": 4, "save_only_model": not whole}
    trainer_of(tmp_path, **settings).train()
    trainer = trainer_of(
        tmp_path, callbacks=[TemperatureTrainerCallback(4.0)], num_train_epochs=2, **settings
    )
    with pytest.raises(InvalidInput) as error:
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert error.value.subject == "checkpoint"


# ------------------------------------------------------------------ folding and saving
@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp("run")
        trainer = trainer_of(folder, callbacks=[TemperatureTrainerCallback("sqrt-dim")])
        trainer.train()
    return trainer.model.train()


def example():
    return {"input_ids": torch.tensor(rows()["input_ids"][:])}


def test_a_process_without_temperance_loads_the_saved_model(trained, tmp_path):
    saved = save_folded(trained, tmp_path / "model", example=example())
    assert trained.training  # as it was
    assert list(tempered_heads(trained)) == ["classifier"]
    assert saved.max_difference < 1e-5 * saved.max_logit
    torch.save(example()["input_ids"], tmp_path / "x.pt")
    code = (
        "import sys, torch\n"
        "from transformers import AutoModelForSequenceClassification as Auto\n"
        f"model, names = Auto.from_pretrained({str(saved.folder)!r}, output_loading_info=True)\n"
        "assert not any(names.values()), names\n"
        f"x = torch.load({str(tmp_path / 'x.pt')!r})\n"
        f"torch.save(model.eval()(x).logits.detach(), {str(tmp_path / 'z.pt')!r})\n"
        "assert 'temperance' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=900)
    with torch.no_grad():
        live = trained.eval()(**example()).logits
    trained.train()
    torch.testing.assert_close(torch.load(tmp_path / "z.pt"), live, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("times", [1, 2])
def test_a_model_that_was_trained_in_mixed_precision_is_saved_without_it(tmp_path, times):
    trainer = trainer_of(tmp_path, callbacks=[TemperatureTrainerCallback("sqrt-dim")], bf16=True)
    for _ in range(times):
        trainer.train()
    around = vars(trainer.model)["forward"]
    saved = save_folded(trainer.model, tmp_path / "model", example=example())
    assert vars(trainer.model)["forward"] is around  # as Accelerate left it
    assert saved.max_difference < 1e-5 * saved.max_logit
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(saved.folder)
    with torch.no_grad():
        plain, live = (m.eval()(**example()).logits for m in (loaded, trainer.model))
    torch.testing.assert_close(plain, live, rtol=0.05, atol=0.01)  # bfloat16


def test_a_model_in_half_precision_is_saved_in_it(tmp_path):
    model = model_of().to(torch.bfloat16)
    callback = TemperatureTrainerCallback("sqrt-dim")
    trainer_of(tmp_path, model, [callback]).train()
    assert model.classifier.norm.running_mean.dtype == torch.float32
    saved = save_folded(model, tmp_path / "model", example=example())
    assert saved.max_difference < 0.02 * saved.max_logit


def test_nothing_half_written_and_nothing_overwritten(trained, tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(InvalidInput) as error:
        save_folded(trained, tmp_path / "used")
    assert "files in it" in error.value.found

    class Broken:
        def save_pretrained(self, folder):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_folded(trained, tmp_path / "new", processing_class=Broken())
    assert [p.name for p in tmp_path.iterdir()] == ["used"]
    (tmp_path / "empty").mkdir()
    assert save_folded(trained, tmp_path / "empty").max_difference is None
    assert json.loads((tmp_path / "empty" / "config.json").read_text())["architectures"]


def test_what_cannot_be_saved_for_plain_transformers(tmp_path):
    with pytest.raises(InvalidInput) as error:
        save_folded(nn.Sequential(nn.Linear(2, 2)), tmp_path / "model")
    assert error.value.expected == "a transformers model"
    with pytest.raises(InvalidInput) as error:
        save_folded(model_of(), tmp_path / "model")
    assert error.value.expected == "a tempered head"
    layer = model_of()
    insert(layer, 4.0, norm="layer")
    with pytest.raises(InvalidInput):
        save_folded(layer, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of PEFT's
def test_adapters_are_merged_first(tmp_path):
    peft = pytest.importorskip("peft")
    model = model_of()
    insert(model, 4.0, norm="none")
    config = peft.LoraConfig(target_modules=["query"], modules_to_save=["classifier"])
    adapted = peft.get_peft_model(model, config)
    with pytest.raises(InvalidInput) as error:
        save_folded(adapted, tmp_path / "model")
    assert "merge_and_unload" in error.value.fix
    merged = adapted.merge_and_unload().eval()
    saved = save_folded(merged, tmp_path / "model", example=example())
    assert saved.max_difference < 1e-5


def test_the_example_runs():
    found = runpy.run_path(str(EXAMPLE))["main"]()
    assert found["accuracy"] > 0.9
    assert found["accuracy when loaded"] == pytest.approx(found["accuracy"], abs=1e-6)
    assert found["largest difference of a logit"] < 1e-5
