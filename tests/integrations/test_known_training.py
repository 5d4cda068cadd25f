"""What the callbacks tell the rules of a training, held against the training that followed."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from temperance import suggest, training_facts
from temperance.errors import InvalidInput, TemperanceWarning
from temperance.integrations.known_training import (
    lightning_training,
    skorch_training,
    told,
    trainer_training,
)
from temperance.integrations.placement import Placement, PlaceOptions, place
from temperance.rules import Budget, load_coefficients, suggestion
from temperance.serial import dumps, from_dict, loads, to_dict

GUESS = "ignore:the T of rule:temperance.errors.TemperanceWarning"
pytestmark = [
    pytest.mark.filterwarnings(GUESS),  # small trainings lie outside of the law's domain
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
]


@pytest.fixture(autouse=True)
def _law(with_law):
    """The law is the default here, whatever the packaged coefficients say."""
    with_law(default=True)


def data(n=100):
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(n, 6, generator=generator), torch.arange(n) % 3)


def net():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


class Seen:
    """The learning rates and rows of the steps that a training really did."""

    def __init__(self):
        self.rates, self.rows = [], []

    def compare(self, facts, *, full_batch):
        assert facts["steps"] == len(self.rates)
        assert facts["lr"] == pytest.approx(max(self.rates))
        mean = sum(self.rates) / len(self.rates) / max(self.rates)
        assert facts["mean_lr_ratio"] == pytest.approx(mean, rel=1e-6)
        assert facts["batch_size"] == full_batch


# ------------------------------------------------------------------ place
FACTS = {
    "optimizer": "sgd", "lr": 0.1, "steps": 500, "batch_size": 16, "n": 400, "momentum": 0.9,
    "weight_decay": 0.0, "schedule": "cosine",
}  # fmt: skip


def test_place_asks_the_law_where_it_is_told_the_training():
    placement = place(net(), DataLoader(data(), 16), training=FACTS)
    assert placement.suggestion.rule == "budget"
    assert placement.task.training == {**FACTS, "norm": "batch"}
    assert placement.training_note == ""
    assert loads(dumps(placement), Placement) == placement
    untold = place(net(), DataLoader(data(), 16))
    assert untold.suggestion.rule == "hasegawa-sakai-csg-cn"
    assert dict(untold.task.training) == {}


@pytest.mark.parametrize("norm", ["layer", "none"])
def test_the_norm_that_is_put_in_is_the_norm_of_the_value(norm, monkeypatch):
    options = PlaceOptions(norm=norm)
    law = Budget(load_coefficients())
    monkeypatch.setattr(suggestion, "RULES", {**suggestion.RULES, "budget": law})
    placement = place(net(), DataLoader(data(), 16), "budget", options=options, training=FACTS)
    assert placement.suggestion.norm == norm
    assert placement.temperature == pytest.approx(suggest(placement.task, law).temperature)
    plain = place(net(), DataLoader(data(), 16), "sqrt-dim", options=options)
    assert f"says nothing of norm {norm}" in plain.suggestion.reasons[-1]
    assert plain.temperature == 4.0


def test_a_rule_that_needs_the_training_is_refused_before_anything_is_read():
    reads = []

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 60

        def __getitem__(self, i):
            reads.append(i)
            return torch.full((6,), float(i)).sin(), i % 3

    model = net()
    with pytest.raises(InvalidInput) as error:
        place(model, DataLoader(Rows(), 16), "budget")
    assert error.value.subject == "rule budget"
    assert "optimizer" in error.value.found
    assert len(reads) <= 2 * 16  # to find the layer with
    assert isinstance(model[2], nn.Linear)


def test_a_placement_of_an_older_checkpoint_is_read():
    written = to_dict(place(net(), DataLoader(data(), 16), "sqrt-dim"))
    del written["training_note"]
    assert from_dict(written, Placement).training_note == ""


def test_a_loader_without_a_length_leaves_the_training_unknown():
    class Own:
        def __iter__(self):
            return iter([range(0, 16), range(16, 32)])

    facts = told(lambda: training_facts(optimizer_of(), DataLoader(data(), batch_sampler=Own()), 2))
    assert facts.startswith("training loader")


def optimizer_of(lr=0.1):
    return torch.optim.SGD(net().parameters(), lr=lr)


# ------------------------------------------------------------------ Hugging Face
def words(n):
    datasets = pytest.importorskip("datasets")
    ids = np.random.default_rng(0).integers(3, 40, (n, 8))
    return datasets.Dataset.from_dict(
        {"input_ids": ids.tolist(), "labels": (np.arange(n) % 3).tolist()}
    )


def train_hf(folder, temperature=None, n=52, callbacks=(), resume=None, **settings):
    """A real Trainer with the callback; gives the placement and the steps that were done."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from temperance.integrations.huggingface import TemperatureTrainerCallback

    seen = Seen()

    class Look(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            seen.rates.append(max(g["lr"] for g in kwargs["optimizer"].param_groups))

    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    given = {"per_device_train_batch_size": 8, "learning_rate": 1e-2, "save_strategy": "no"}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, disable_tqdm=True, report_to=[], **(given | settings)
    )
    callback = TemperatureTrainerCallback(temperature)
    trainer = transformers.Trainer(
        transformers.BertForSequenceClassification(config),
        arguments,
        train_dataset=words(n),
        eval_dataset=words(6),
        callbacks=[callback, Look(), *callbacks],
    )
    trainer.train(resume_from_checkpoint=resume)
    return callback.placement, seen


HF = {
    "epochs": ({"num_train_epochs": 3}, 8),
    "a part of an epoch": ({"num_train_epochs": 1.5, "lr_scheduler_type": "cosine"}, 8),
    "max_steps before epochs": ({"num_train_epochs": 3, "max_steps": 5}, 8),
    "max_steps beyond an epoch": ({"max_steps": 17, "warmup_steps": 6}, 8),
    "accumulation": ({"num_train_epochs": 3, "gradient_accumulation_steps": 3}, 24),
    "accumulation of more than an epoch": ({"max_steps": 4, "gradient_accumulation_steps": 99}, 52),
    "warm-up": ({"num_train_epochs": 3, "warmup_steps": 10, "lr_scheduler_type": "cosine"}, 8),
    "warm-up and accumulation": (
        {
            "num_train_epochs": 4, "warmup_steps": 4, "gradient_accumulation_steps": 2,
            "lr_scheduler_type": "constant_with_warmup",
        },
        16,
    ),
    "no last batch": ({"num_train_epochs": 2, "dataloader_drop_last": True}, 8),
}  # fmt: skip


@pytest.mark.parametrize("kind", HF)
def test_the_facts_of_a_trainer_are_what_it_then_does(tmp_path, kind):
    settings, full_batch = HF[kind]
    placement, seen = train_hf(tmp_path, **settings)
    facts = placement.task.training
    seen.compare(facts, full_batch=full_batch)
    assert (facts["n"], facts["optimizer"], facts["norm"]) == (52, "adamw", "batch")
    assert placement.suggestion.rule == "budget"
    assert placement.training_note == ""


def test_the_optimizer_of_a_trainer_with_its_settings(tmp_path):
    settings = {"optim": "sgd", "weight_decay": 0.01, "max_steps": 2, "optim_args": "momentum=0.5"}
    placement, _ = train_hf(tmp_path, **settings, label_smoothing_factor=0.1)
    facts = placement.task.training
    assert (facts["optimizer"], facts["weight_decay"]) == ("sgd", 0.01)
    assert facts["remarks"] == ["gradients clipped at 1", "label smoothing of 0.1"]
    adam, _ = train_hf(tmp_path, max_steps=2, adam_beta2=0.95, max_grad_norm=1.0)
    assert adam.task.training["remarks"] == ["adamw with betas (0.9, 0.95)"]
    assert any("betas" in reason for reason in adam.suggestion.reasons)


UNKNOWN_HF = {
    "optimizer": {"optim": "adafactor", "max_steps": 2},
    "scheduler of the learning rate": {
        "lr_scheduler_type": "reduce_lr_on_plateau", "max_steps": 2, "eval_strategy": "steps",
        "eval_steps": 1,
    },
    "auto_find_batch_size": {"auto_find_batch_size": True, "max_steps": 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", UNKNOWN_HF)
def test_what_a_trainer_does_not_say_is_not_guessed(tmp_path, kind):
    with pytest.warns(TemperanceWarning, match="the training is not known"):
        placement, _ = train_hf(tmp_path, **UNKNOWN_HF[kind])
    assert placement.suggestion.rule == "hasegawa-sakai-csg-cn"
    assert placement.training_note.startswith(kind)
    assert placement.training_note in str(placement)
    assert "steps" not in placement.task.training


def test_a_trainer_that_may_stop_early_has_no_known_length(tmp_path):
    transformers = pytest.importorskip("transformers")
    early = transformers.EarlyStoppingCallback()
    settings = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    settings |= {"save_strategy": "steps", "load_best_model_at_end": True}
    settings |= {"metric_for_best_model": "eval_loss"}
    with pytest.warns(TemperanceWarning, match="EarlyStoppingCallback may end"):
        train_hf(tmp_path, callbacks=[early], **settings)


def test_a_rule_of_the_training_is_refused_where_the_trainer_does_not_say_it(tmp_path):
    with pytest.raises(InvalidInput) as error:
        train_hf(tmp_path, "budget", optim="adafactor", max_steps=2)
    assert error.value.subject == "rule budget"
    assert "Adafactor" in error.value.found


def test_with_a_number_or_another_rule_nothing_is_said(tmp_path):
    placement, _ = train_hf(tmp_path, 3.0, optim="adafactor", max_steps=2)
    assert (placement.training_note, placement.task) == ("", None)
    named, _ = train_hf(tmp_path, "sqrt-dim", optim="adafactor", max_steps=2)  # no warning
    assert named.temperature == 4.0
    assert named.training_note.startswith("optimizer")


def test_a_resumed_trainer_keeps_the_temperature_of_its_whole_training(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4}
    first, _ = train_hf(tmp_path, max_steps=12, **settings)
    again, seen = train_hf(tmp_path, max_steps=40, resume=str(tmp_path / "checkpoint-4"))
    assert len(seen.rates) == 36
    assert again == first
    assert again.task.training["steps"] == 12


def stand_in(**changes):
    """What a Trainer of two processes hands to its callbacks: accelerate's loader and optimizer."""
    optimizer = torch.optim.AdamW(net().parameters(), lr=1e-3)
    args = SimpleNamespace(gradient_accumulation_steps=2, max_grad_norm=1.0)
    given = {
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 12),
        "loader": DataLoader(data(), 8),
    } | changes
    return trainer_training(args, SimpleNamespace(max_steps=12), **given)


def test_the_rows_of_a_step_are_those_of_all_processes():
    pytest.importorskip("accelerate")
    from accelerate.data_loader import BatchSamplerShard, DataLoaderShard

    batches = torch.utils.data.BatchSampler(range(100), 8, drop_last=False)
    shard = BatchSamplerShard(batches, num_processes=2, process_index=0)
    facts = stand_in(loader=DataLoaderShard(data(), batch_sampler=shard))
    assert (facts["batch_size"], facts["steps"], facts["n"]) == (8 * 2 * 2, 12, 100)
    assert stand_in()["batch_size"] == 16


def test_a_trainer_without_an_optimizer_or_with_a_stream():
    assert "no optimizer" in stand_in(optimizer=None)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(data())

    assert "a stream" in stand_in(loader=DataLoader(Stream(), 8))


# ------------------------------------------------------------------ Lightning
def lightning(**methods):
    pl = pytest.importorskip("lightning.pytorch")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.steps = net(), Seen()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def on_before_optimizer_step(self, optimizer):
            self.steps.rates.append(max(g["lr"] for g in optimizer.param_groups))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    for name, method in methods.items():
        setattr(Module, name, method)
    return Module()


def fit(model, loader=None, temperature=None, callbacks=(), **settings):
    pl = pytest.importorskip("lightning.pytorch")
    from temperance.integrations.lightning import TemperatureCallback

    callback = TemperatureCallback(temperature)
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback, *callbacks],
        **({"max_epochs": 3} | settings),
    )  # fmt: skip
    trainer.fit(model, DataLoader(data(), 16, shuffle=True) if loader is None else loader)
    return callback.placement, trainer


def scheduled(interval, make, optimizer=None):
    def configure_optimizers(self):
        built = torch.optim.SGD(self.parameters(), 0.1) if optimizer is None else optimizer(self)
        return {
            "optimizer": built,
            "lr_scheduler": {"scheduler": make(built), "interval": interval},
        }

    return configure_optimizers


def warm_up(optimizer):
    parts = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
    ]
    return torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[4])


def halves(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


LIGHTNING = {
    "epochs": ({}, {}, 16),
    "max_steps": ({}, {"max_steps": 5}, 16),
    "max_steps alone": ({}, {"max_steps": 17, "max_epochs": -1}, 16),
    "accumulation": ({}, {"accumulate_grad_batches": 3}, 48),
    "accumulation, by step": (
        {"configure_optimizers": scheduled("step", warm_up)}, {"accumulate_grad_batches": 2}, 32,
    ),
    "warm-up": ({"configure_optimizers": scheduled("step", warm_up)}, {}, 16),
    "by epoch": ({"configure_optimizers": scheduled("epoch", halves)}, {"max_steps": 18}, 16),
    "by epoch, accumulation": (
        {"configure_optimizers": scheduled("epoch", halves)}, {"accumulate_grad_batches": 4}, 64,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # SequentialLR's own
@pytest.mark.parametrize("kind", LIGHTNING)
def test_the_facts_of_lightning_are_what_it_then_does(kind):
    methods, settings, full_batch = LIGHTNING[kind]
    model = lightning(**methods)
    placement, trainer = fit(model, **settings)
    facts = placement.task.training
    model.steps.compare(facts, full_batch=full_batch)
    assert facts["steps"] == trainer.estimated_stepping_batches == trainer.global_step
    assert (facts["n"], facts["optimizer"], facts["norm"]) == (100, "sgd", "batch")
    assert placement.suggestion.rule == "budget"


def test_groups_with_rates_of_their_own_are_remarked():
    def groups(module):
        return torch.optim.SGD(
            [
                {"params": module.net[0].parameters(), "lr": 1e-3},
                {"params": module.net[2].parameters(), "lr": 1e-1},
            ],
            lr=0.1,
        )

    model = lightning(configure_optimizers=groups)
    placement, _ = fit(model, gradient_clip_val=0.5)
    assert placement.task.training["lr"] == 0.1
    assert placement.task.training["remarks"] == [
        "learning rates of 0.001 to 0.1 in different layers",
        "gradients clipped at 0.5",
    ]
    assert not placement.suggestion.in_domain


def own_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
    optimizer.step(closure=optimizer_closure)


def early():
    from lightning.pytorch.callbacks import EarlyStopping

    return [EarlyStopping("loss", strict=False, check_on_train_epoch_end=True)]


def changing():
    from lightning.pytorch.callbacks import GradientAccumulationScheduler

    return [GradientAccumulationScheduler({0: 1, 1: 2})]


def averaging():
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    return [StochasticWeightAveraging(0.01, swa_epoch_start=1)]


def plateau(self):
    optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": scheduler, "monitor": "loss", "strict": False},
    }


UNKNOWN_LIGHTNING = {
    "optimizer_step of its own": ({"optimizer_step": own_step}, {}, list),
    "manual optimization": (
        {
            "automatic_optimization": False,
            "training_step": lambda self, batch, _: None,
        }, {}, list,
    ),
    "EarlyStopping may end": ({}, {}, early),
    "Timer may end": ({}, {"max_time": {"hours": 1}}, list),
    "GradientAccumulationScheduler changes": ({}, {}, changing),
    "StochasticWeightAveraging sets": ({}, {}, averaging),
    "part of the loader": ({}, {"limit_train_batches": 2}, list),
    "a Adagrad": (
        {"configure_optimizers": lambda self: torch.optim.Adagrad(self.parameters())}, {}, list,
    ),
    "ReduceLROnPlateau": ({"configure_optimizers": plateau}, {"max_epochs": 1}, list),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*not available:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*training_step.*returned.*None")
@pytest.mark.filterwarnings("ignore:.*ReduceLROnPlateau conditioned on metric")
@pytest.mark.filterwarnings("ignore:Early stopping conditioned on metric")
@pytest.mark.parametrize("kind", UNKNOWN_LIGHTNING)
def test_what_lightning_does_not_say_is_not_guessed(kind):
    methods, settings, callbacks = UNKNOWN_LIGHTNING[kind]
    with pytest.warns(TemperanceWarning, match=kind):
        placement, _ = fit(lightning(**methods), callbacks=callbacks(), **settings)
    assert kind in placement.training_note
    assert placement.suggestion.rule == "hasegawa-sakai-csg-cn"
    assert "steps" not in placement.task.training


def test_a_resumed_fit_keeps_the_temperature_of_its_whole_training(tmp_path):
    first, trainer = fit(lightning())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    pl = pytest.importorskip("lightning.pytorch")
    from temperance.integrations.lightning import TemperatureCallback

    model, callback = lightning(), TemperatureCallback()
    settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    more = pl.Trainer(max_epochs=9, accelerator="cpu", callbacks=[callback], **settings)
    more.fit(model, DataLoader(data(), 16), ckpt_path=tmp_path / "last.ckpt")
    assert callback.placement == first
    assert float(model.net[2].temperature) == first.temperature


def test_a_trainer_that_goes_on_is_no_new_training():
    pl = pytest.importorskip("lightning.pytorch")
    trainer = SimpleNamespace(
        optimizers=[None], lr_scheduler_configs=[], global_step=7, current_epoch=1
    )
    module = lightning()
    assert isinstance(module, pl.LightningModule)
    assert "earlier fit" in lightning_training(trainer, module, DataLoader(data(), 16))


def processes(world_size, loader, share):
    """A Trainer of several processes, as far as it is looked at."""
    optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
    trainer = SimpleNamespace(
        optimizers=[optimizer], lr_scheduler_configs=[], global_step=0, current_epoch=0,
        reload_dataloaders_every_n_epochs=0, callbacks=[], limit_train_batches=1.0,
        overfit_batches=0, world_size=world_size, max_steps=-1, max_epochs=3,
        accumulate_grad_batches=2, gradient_clip_val=None, state=SimpleNamespace(stage=None),
        _data_connector=SimpleNamespace(_prepare_dataloader=lambda loader, **_: share),
    )  # fmt: skip
    return lightning_training(trainer, lightning(), loader)


def test_the_steps_of_lightning_are_those_of_a_share_of_the_rows():
    rows = data()
    whole = DataLoader(rows, 8)
    share = DataLoader(rows, 8, sampler=DistributedSampler(rows, num_replicas=4, rank=1))
    facts = processes(4, whole, share)
    assert (facts["steps"], facts["batch_size"], facts["n"]) == (3 * 2, 8 * 4 * 2, 100)
    one = processes(1, whole, share)
    assert (one["steps"], one["batch_size"]) == (3 * math.ceil(13 / 2), 16)


def test_a_stream_of_lightning_and_one_without_an_end():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(data())

    stream = DataLoader(Stream(), 8)
    assert "stream" in processes(1, stream, None)


# ------------------------------------------------------------------ skorch
def train_skorch(temperature=None, callbacks=(), **settings):
    skorch = pytest.importorskip("skorch")
    from temperance.integrations.skorch import TemperatureCallback, TemperedModule

    seen = Seen()

    class Look(skorch.callbacks.Callback):
        def on_grad_computed(self, net, named_parameters, **_):
            seen.rates.append(max(g["lr"] for g in net.optimizer_.param_groups))

    x, y = data().tensors
    found = skorch.NeuralNetClassifier(
        TemperedModule, module__module=net, module__temperature=temperature, verbose=0,
        criterion=nn.CrossEntropyLoss, callbacks=[TemperatureCallback(), Look(), *callbacks],
        **({"max_epochs": 4, "lr": 0.1, "batch_size": 16} | settings),
    )  # fmt: skip
    found.fit(x.numpy(), y.numpy())
    return dict(found.callbacks_)["TemperatureCallback"].placement_, seen, found


def rate_of(policy, **options):
    from skorch.callbacks import LRScheduler

    return [LRScheduler(policy, **options)]


SKORCH = {
    "constant": (lambda: [], 16),
    "by epoch": (lambda: rate_of("StepLR", step_size=1, gamma=0.5), 16),
    "by batch": (
        lambda: rate_of(
            torch.optim.lr_scheduler.OneCycleLR, max_lr=0.4, total_steps=20, step_every="batch"
        ),
        16,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SKORCH)
def test_the_facts_of_skorch_are_what_it_then_does(kind):
    callbacks, full_batch = SKORCH[kind]
    placement, seen, _ = train_skorch(callbacks=callbacks())
    facts = placement.task.training
    seen.compare(facts, full_batch=full_batch)
    assert (facts["n"], facts["steps"]) == (80, 4 * 5)  # a fifth of the rows is for validation
    assert placement.suggestion.rule == "budget"


def test_what_skorch_does_not_say_is_not_guessed():
    from skorch.callbacks import EarlyStopping, GradientNormClipping

    for callbacks, word in (
        ([EarlyStopping()], "EarlyStopping may end"),
        (rate_of("ReduceLROnPlateau", monitor="train_loss"), "ReduceLROnPlateau"),
    ):
        with pytest.warns(TemperanceWarning, match=word):
            placement, _, _ = train_skorch(callbacks=callbacks)
        assert placement.suggestion.rule == "hasegawa-sakai-csg-cn"
    placement, _, found = train_skorch(callbacks=[GradientNormClipping(0.5)])
    assert placement.task.training["remarks"] == ["gradients clipped at 0.5"]
    placement, _, _ = train_skorch(criterion__label_smoothing=0.1)
    assert placement.task.training["remarks"] == ["label smoothing of 0.1"]
    assert "earlier training" in skorch_training(found, data())
