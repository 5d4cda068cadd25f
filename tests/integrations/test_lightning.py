"""The Lightning callback on real Trainers of both packages."""

import csv
import importlib
import random
import re
import runpy
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from temperance import fold
from temperance.ensemble import convert, diversity_loss, member_loss
from temperance.errors import InvalidInput, MissingPackage, NotFound, TemperanceWarning
from temperance.head import TemperedHead, tempered_heads
from temperance.integrations import lightning as integration
from temperance.integrations.lightning import DiversityCallback, TemperatureCallback
from temperance.integrations.lightning_checks import refuse_strategy
from temperance.integrations.tempered_state import load_tempered

pl = pytest.importorskip("lightning.pytorch")
PACKAGES = ["lightning.pytorch", "pytorch_lightning"]
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "lightning_example.py"
# What Lightning says of small data and few workers is true here, and no matter; the FutureWarning
# is of how it uses torch's pytrees.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*ModelCheckpoint.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*checkpoint directory.*exists"),
    pytest.mark.filterwarnings("ignore:.*doesn't exist in the checkpoint"),
]


class Rows(Dataset):
    """Data that counts how often it was read."""

    def __init__(self, n=64):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(n, 6, generator=generator) + 1
        self.y = torch.arange(n) % 3
        self.reads = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.reads += 1
        return self.x[i], self.y[i]


def net():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def module(package="lightning.pytorch", **methods):
    """A LightningModule of a package, with some methods of its own."""
    base = importlib.import_module(package).LightningModule

    class Module(base):
        def __init__(self):
            super().__init__()
            self.net = net()
            self.seen = []

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def test_step(self, batch, batch_idx):
            self.log("test_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            self.seen.append(dict(tempered_heads(self)))
            return torch.optim.SGD(self.parameters(), lr=0.1)

    for name, method in methods.items():
        setattr(Module, name, method)
    return Module()


def trainer_of(*callbacks, package="lightning.pytorch", **settings):
    settings = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
        **settings,
    }
    return importlib.import_module(package).Trainer(callbacks=list(callbacks), **settings)


def loader(data=None, batch_size=16, **settings):
    return DataLoader(Rows() if data is None else data, batch_size, **settings)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_head_is_in_before_the_optimizer_and_its_statistics_are_those_of_the_data(package):
    pytest.importorskip(package)
    model, callback = module(package), TemperatureCallback("sqrt-dim")
    data = Rows()
    features = model.net[:2](data.x).detach()
    trainer = trainer_of(callback, package=package)
    started = []

    class Look(importlib.import_module(package).Callback):
        def on_fit_start(self, trainer, pl_module):
            started.append(pl_module.net[2].norm.running_mean.clone())

    trainer.callbacks.append(Look())
    trainer.fit(model, loader(data))
    assert [list(h) for h in model.seen] == [["net.2"]]
    torch.testing.assert_close(started[0], features.mean(0))
    assert callback.placement.temperature == 4.0
    assert callback.placement.task.n_samples == 64
    assert float(trainer.callback_metrics["temperature"]) == 4.0
    assert 0 < float(trainer.callback_metrics["gradient_ratio"]) < 1
    assert not model.net[2]._forward_hooks  # gone after the fit
    assert fold(model.eval(), data.x[:4]).net[2].fold_report.max_rel_error < 1e-5


def test_the_first_gradient_is_smaller_by_about_the_temperature():
    trainer = trainer_of(TemperatureCallback(8.0), max_steps=1)
    trainer.fit(module(), loader())
    assert float(trainer.callback_metrics["gradient_ratio"]) == pytest.approx(1 / 8, rel=0.3)


def test_with_a_number_for_t_nothing_is_measured():
    callback = TemperatureCallback(3.0, "none")
    data = Rows()
    trainer_of(callback, limit_train_batches=1).fit(module(), loader(data))
    assert callback.placement.suggestion is None
    assert callback.placement.norm == "none"
    assert data.reads <= 3 * 16  # one batch to find the layer with, and those of the training


def test_a_module_that_makes_its_layers_and_data_in_setup():
    def setup(self, stage):
        self.net = net()
        self.data = Rows()

    model = module(setup=setup, train_dataloader=lambda self: loader(self.data))
    del model.net
    callback = TemperatureCallback("sqrt-dim")
    trainer_of(callback).fit(model)
    assert callback.placement.head == "net.2"
    assert list(model.seen[0]) == ["net.2"]
    assert "setup" not in vars(model)


def test_a_module_that_makes_its_layers_in_configure_model():
    def configure_model(self):
        if not hasattr(self, "net"):
            self.net = net()

    model = module(configure_model=configure_model)
    del model.net
    trainer_of(TemperatureCallback(4.0)).fit(model, loader())
    assert list(model.seen[0]) == ["net.2"]


def test_layers_that_are_made_anew_are_told():
    model = module(configure_model=lambda self: setattr(self, "net", net()))
    with pytest.raises(NotFound) as error:
        trainer_of(TemperatureCallback(4.0)).fit(model, loader())
    assert error.value.subject == "tempered head"


def plain_step(self, batch, _):
    return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


def test_without_a_forward_the_only_child_is_the_classifier():
    model = module(forward=pl.LightningModule.forward, training_step=plain_step)
    callback = TemperatureCallback(4.0)
    trainer_of(callback).fit(model, loader())
    assert callback.placement.head == "2"
    assert isinstance(model.net[2], TemperedHead)


def test_without_a_forward_one_of_several_children_has_to_be_named():
    model = module(forward=pl.LightningModule.forward, training_step=plain_step)
    model.other = nn.Linear(2, 2)
    with pytest.raises(NotFound) as error:
        trainer_of(TemperatureCallback(4.0)).fit(model, loader())
    assert error.value.candidates == ("net", "other")
    trainer_of(TemperatureCallback(4.0, classifier="net")).fit(model, loader())
    assert isinstance(model.net[2], TemperedHead)
    with pytest.raises(NotFound) as error:
        trainer_of(TemperatureCallback(4.0, classifier="nothing")).fit(module(), loader())
    assert error.value.candidates == ("net",)


def test_an_optimizer_of_the_old_head_is_refused():
    model = module(configure_optimizers=lambda self: self.own)
    model.own = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidInput) as error:
        trainer_of(TemperatureCallback(4.0)).fit(model, loader())
    assert error.value.subject == "optimizer"
    assert "net.2.norm.weight" in error.value.found


def test_two_optimizers_hold_it_together():
    def configure_optimizers(self):
        head = list(self.net[2].parameters())
        rest = list(self.net[0].parameters())
        return torch.optim.SGD(rest, lr=0.1), torch.optim.SGD(head, lr=0.1)

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.manual_backward(loss)
        [optimizer.step() for optimizer in self.optimizers()]

    model = module(configure_optimizers=configure_optimizers, training_step=training_step)
    model.automatic_optimization = False
    trainer_of(TemperatureCallback(4.0)).fit(model, loader())
    assert isinstance(model.net[2], TemperedHead)


def test_what_fails_in_between_leaves_the_modules_setup_as_it_was():
    class Broken(pl.Callback):
        def setup(self, trainer, pl_module, stage):
            raise RuntimeError("another callback")

    model, callback = module(setup=lambda self, stage: None), TemperatureCallback(4.0)
    with pytest.raises(RuntimeError, match="another callback"):
        trainer_of(callback, Broken()).fit(model, loader())
    assert "setup" not in vars(model)
    trainer_of(callback).fit(model, loader())
    assert isinstance(model.net[2], TemperedHead)


# ------------------------------------------------------------------ checkpoints
@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint of one epoch, with its callback and module."""
    folder = tmp_path_factory.mktemp("run")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, callback = module(), TemperatureCallback("sqrt-dim")
        trainer = trainer_of(callback)
        trainer.fit(model, loader())
        model.net[2].set_temperature(5.0)  # as a schedule would
        trainer.save_checkpoint(folder / "last.ckpt")
    return folder / "last.ckpt", model, callback


def test_a_fit_resumes_with_the_head_of_the_checkpoint(checkpoint):
    path, _, callback = checkpoint
    again, data = TemperatureCallback("sqrt-dim"), Rows()
    model = module()
    trainer_of(again, max_epochs=2).fit(model, loader(data), ckpt_path=path)
    assert data.reads == 16 + 64  # one batch for its shape, the second epoch; no measurement
    assert list(model.seen[0]) == ["net.2"]
    assert float(model.net[2].temperature) == 5.0
    assert again.placement == callback.placement
    assert int(model.net[2].norm.num_batches_tracked) == 1 + 4 + 4  # statistics, two epochs
    assert not model._load_state_dict_pre_hooks


def test_resuming_twice_in_one_process_keeps_the_head(checkpoint):
    path, *_ = checkpoint
    model = module()
    trainer_of(TemperatureCallback("sqrt-dim")).fit(model, loader())
    trainer_of(TemperatureCallback(9.0), max_epochs=2).fit(model, loader(), ckpt_path=path)
    assert float(model.net[2].temperature) == 5.0


def test_a_checkpoint_is_tested_in_a_new_process(checkpoint):
    path, before, _ = checkpoint
    model = module()
    trainer_of(TemperatureCallback()).test(model, loader(), ckpt_path=path, verbose=False)
    x = Rows().x
    torch.testing.assert_close(model.eval()(x), before.eval()(x))


def test_a_checkpoint_is_loaded_without_a_trainer(checkpoint):
    path, before, _ = checkpoint
    model = module()
    state = torch.load(path, weights_only=True)["state_dict"]
    report = load_tempered(model, state)
    assert not report.new
    assert not report.ignored
    torch.testing.assert_close(model.eval()(Rows().x), before.eval()(Rows().x))


def test_a_checkpoint_of_a_plain_run_is_not_resumed(tmp_path):
    trainer = trainer_of()
    trainer.fit(module(), loader())
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    model = module()
    with pytest.raises(InvalidInput) as error:
        trainer_of(TemperatureCallback(4.0), max_epochs=2).fit(
            model, loader(), ckpt_path=tmp_path / "plain.ckpt"
        )
    assert error.value.subject == "checkpoint"
    assert isinstance(model.net[2], nn.Linear)  # as it was
    assert not model._load_state_dict_pre_hooks


def test_a_checkpoint_with_another_norm_is_not_resumed(checkpoint):
    path, *_ = checkpoint
    with pytest.raises(InvalidInput) as error:
        trainer_of(TemperatureCallback(4.0, "layer"), max_epochs=2).fit(
            module(), loader(), ckpt_path=path
        )
    assert "norm='batch'" in error.value.fix


# ------------------------------------------------------------------ beside other callbacks
def test_a_checkpoint_of_a_cosine_head_is_tested_as_one(tmp_path):
    model = module()
    trainer = trainer_of(TemperatureCallback(0.1, "cosine"))
    trainer.fit(model, loader())
    trainer.save_checkpoint(tmp_path / "cosine.ckpt")
    fresh = module()
    settings = {"ckpt_path": tmp_path / "cosine.ckpt", "verbose": False}
    trainer_of(TemperatureCallback()).test(fresh, loader(), **settings)
    torch.testing.assert_close(fresh.eval()(Rows().x), model.eval()(Rows().x))


def test_averaged_weights_come_after_the_head_or_are_refused():
    from lightning.pytorch.callbacks import WeightAveraging

    model, averaging = module(), WeightAveraging()
    trainer_of(TemperatureCallback(4.0), averaging).fit(model, loader())
    assert isinstance(model.net[2], TemperedHead)
    with pytest.raises(InvalidInput) as error:
        trainer_of(WeightAveraging(), TemperatureCallback(4.0)).fit(module(), loader())
    assert error.value.subject == "callback WeightAveraging"


def test_stochastic_weight_averaging():
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    model = module()
    swa = StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)
    trainer_of(TemperatureCallback(4.0), swa, max_epochs=3).fit(model, loader())
    assert isinstance(model.net[2], TemperedHead)
    with pytest.raises(InvalidInput) as error:
        trainer_of(StochasticWeightAveraging(0.01), TemperatureCallback(4.0)).fit(
            module(), loader()
        )
    assert error.value.subject == "callback StochasticWeightAveraging"


@pytest.mark.filterwarnings("ignore:.*weights_only")
def test_finders_that_would_train_before_t_is_set_are_refused(tmp_path):
    from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
    from lightning.pytorch.tuner import Tuner

    class Later(LearningRateFinder):  # as Lightning's own pages have it
        def on_fit_start(self, *args, **kwargs):
            return

    settings = {"default_root_dir": tmp_path}
    for finder in (LearningRateFinder(), BatchSizeFinder()):
        model = module(train_dataloader=lambda self: loader(), batch_size=16)
        with pytest.raises(InvalidInput) as error:
            trainer_of(TemperatureCallback("sqrt-dim"), finder, **settings).fit(model)
        assert error.value.subject == f"callback {type(finder).__name__}"
        assert isinstance(model.net[2], nn.Linear)
    with pytest.raises(InvalidInput):
        Tuner(trainer_of(TemperatureCallback(4.0), **settings)).lr_find(module(), loader())
    callback = TemperatureCallback("sqrt-dim")
    trainer_of(callback, Later(), **settings).fit(module(), loader())
    assert callback.placement.temperature == 4.0


# ------------------------------------------------------------------ the data
def test_a_last_batch_of_one_row_is_told_before_the_first_step():
    data = Rows(65)
    model = module(training_step=lambda self, batch, _: pytest.fail("a step was made"))
    with pytest.raises(InvalidInput) as error:
        trainer_of(TemperatureCallback(4.0)).fit(model, loader(data))
    assert error.value.subject == "batches for BatchNorm"
    trainer_of(TemperatureCallback(4.0, "layer")).fit(module(), loader(data))
    trainer_of(TemperatureCallback(4.0)).fit(module(), loader(data, drop_last=True))


def test_a_last_batch_of_three_rows_is_a_warning():
    with pytest.warns(TemperanceWarning, match="3 rows"):
        trainer_of(TemperatureCallback(4.0)).fit(module(), loader(Rows(67)))


def test_several_loaders_and_endless_ones_are_refused():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            rows = Rows()
            return iter([rows[i] for i in range(64)])

    with pytest.raises(InvalidInput) as error:
        trainer_of(TemperatureCallback(4.0)).fit(module(), {"a": loader(), "b": loader()})
    assert error.value.subject == "training loader"
    with pytest.raises(InvalidInput) as error:
        trainer_of(TemperatureCallback("sqrt-dim")).fit(module(), DataLoader(Endless(), 16))
    assert "max_batches" in error.value.fix
    callback = TemperatureCallback("sqrt-dim", max_batches=2)
    trainer_of(callback).fit(module(), DataLoader(Endless(), 16))
    assert callback.placement.task.n_samples == 32


def test_an_iterator_is_refused_since_the_training_would_miss_what_was_measured():
    with pytest.raises(InvalidInput) as error:
        trainer_of(TemperatureCallback(4.0), max_steps=1).fit(module(), iter(list(loader())))
    assert error.value.subject == "training loader"
    with pytest.raises(InvalidInput) as error:
        trainer_of(TemperatureCallback(4.0)).fit(module(), loader(Rows(3), drop_last=True))
    assert error.value.expected == "at least one batch"


@pytest.mark.parametrize("rows", [0, -1, 1.5, "2", True])
def test_a_number_of_batches_that_is_none(rows):
    with pytest.raises(InvalidInput) as error:
        TemperatureCallback(4.0, max_batches=rows)
    assert error.value.subject == "max_batches"


def test_batches_go_through_the_modules_transfer_hooks():
    def on_after_batch_transfer(self, batch, _):
        return batch["pixels"].reshape(-1, 6), batch["class"]

    data = Rows()
    rows = [{"pixels": x.reshape(2, 3), "class": y} for x, y in zip(data.x, data.y, strict=True)]
    model = module(on_after_batch_transfer=on_after_batch_transfer)
    callback = TemperatureCallback("sqrt-dim")
    trainer_of(callback).fit(model, DataLoader(rows, 16))
    assert callback.placement.feature_dim == 16


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_precisions(precision):
    model, callback = module(), TemperatureCallback("sqrt-dim")
    trainer = trainer_of(callback, precision=precision)
    trainer.fit(model, loader())
    wide = torch.float64 if precision == "64-true" else torch.float32
    assert model.net[2].norm.running_mean.dtype == wide
    assert callback.placement.task.n_samples == 64
    assert 0 < float(trainer.callback_metrics["gradient_ratio"]) < 1


class Noisy(Rows):
    """Draws from the random states of Python and NumPy, as augmentations do."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + random.random() + float(np.random.rand()), y  # noqa: NPY002


def test_measuring_moves_no_random_state(rng_guard):
    guard = rng_guard()
    model = module(on_fit_start=lambda self: guard.__exit__(None, None, None))
    guard.__enter__()
    trainer_of(TemperatureCallback("sqrt-dim")).fit(model, loader(Noisy(), shuffle=True))


@pytest.mark.filterwarnings("ignore:the T of rule:temperance.errors.TemperanceWarning")
def test_the_batches_come_in_the_order_that_they_have_without_the_callback():
    def split(self):
        rows = torch.utils.data.random_split(Rows(96), [64, 32])[0]
        return DataLoader(rows, 16, shuffle=True, generator=torch.Generator().manual_seed(2))

    def order(*callbacks, **settings):
        seen = []

        def training_step(self, batch, _):
            seen.append(batch[0][:, 0].tolist())
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        torch.manual_seed(0)
        model = module(training_step=training_step, **settings)
        own = torch.Generator().manual_seed(2)
        data = None if settings else loader(shuffle=True, generator=own)
        trainer_of(*callbacks).fit(model, data)
        return seen

    for settings in ({}, {"train_dataloader": split}):
        with_it = order(TemperatureCallback("sqrt-dim", "none"), **settings)
        assert with_it == order(**settings)


def test_what_is_logged_is_of_the_step_that_it_is_logged_at(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    seen = []

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(pl_module.trainer.callbacks[0]._watch.ratio(batch[1]))

    callback, logger = TemperatureCallback(8.0), CSVLogger(tmp_path)
    trainer = trainer_of(callback, Look(), max_epochs=3, logger=logger, log_every_n_steps=6)
    trainer.fit(module(), loader())  # 4 steps in an epoch
    with (Path(logger.log_dir) / "metrics.csv").open(newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["gradient_ratio"]]
    assert [int(row["step"]) for row in rows] == [5, 11]
    logged = [float(row["gradient_ratio"]) for row in rows]
    assert logged == pytest.approx([seen[5], seen[11]])


def test_strategies_that_would_lose_the_head_are_refused():
    callback = TemperatureCallback(4.0)
    trainer = trainer_of(callback, strategy="ddp_spawn", devices=1)
    with pytest.raises(InvalidInput) as error:
        refuse_strategy(trainer)
    assert error.value.subject == "strategy"
    refuse_strategy(trainer_of())
    refuse_strategy(trainer_of(strategy="ddp", devices=1))


# ------------------------------------------------------------------ ensembles
def ensemble_module(**methods):
    def training_step(self, batch, _):
        return member_loss(self.ensemble(batch[0]), batch[1])

    model = module(training_step=training_step, **methods)
    model.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model.ensemble = convert(model.net, 3)
    del model.net
    return model


def gradients_of(*callbacks, **settings):
    found = []
    model = ensemble_module(
        on_before_optimizer_step=lambda self, _: found.append(
            {n: p.grad.clone() for n, p in self.named_parameters() if p.grad is not None}
        )
    )
    torch.manual_seed(3)
    trainer = trainer_of(*callbacks, max_steps=1, **settings)
    trainer.fit(model, loader())
    return model, found[0], trainer


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_diversity_term_is_added_to_the_loss(accumulation):
    torch.manual_seed(0)
    _, plain, _ = gradients_of(accumulate_grad_batches=accumulation)
    torch.manual_seed(0)
    _, found, trainer = gradients_of(
        DiversityCallback(0.5, 0.2), accumulate_grad_batches=accumulation
    )
    torch.manual_seed(0)
    fresh = ensemble_module()
    term = diversity_loss(fresh, 0.2, strength=0.5, form="range")
    term.backward()
    logged = float(trainer.callback_metrics["diversity_loss"])
    assert logged == pytest.approx(float(term.detach()), abs=1e-6)
    names = [n for n, p in fresh.named_parameters() if p.grad is not None]
    assert names
    for name in names:
        own = dict(fresh.named_parameters())[name].grad
        torch.testing.assert_close(found[name], plain[name] + own, rtol=1e-4, atol=1e-7)


def test_strength_0_only_logs():
    torch.manual_seed(0)
    _, plain, _ = gradients_of()
    torch.manual_seed(0)
    _, found, trainer = gradients_of(DiversityCallback(0.0, 0.2))
    assert all(torch.equal(plain[n], found[n]) for n in plain)
    assert float(trainer.callback_metrics["diversity_loss"]) < 0


def test_members_that_would_stay_equal_are_refused():
    model = ensemble_module()
    model.ensemble = convert(net_with_norm(), 3, spread=0.0)
    with pytest.raises(InvalidInput) as error:
        trainer_of(DiversityCallback(0.1)).fit(model, loader())
    assert error.value.subject == "members"
    with pytest.raises(InvalidInput) as error:
        trainer_of(DiversityCallback(0.1)).fit(module(), loader())
    assert error.value.subject == "model"


def net_with_norm():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


# ------------------------------------------------------------------ the command line and the rest
def test_arguments_are_plain_and_typed_as_a_command_line_wants_them():
    for callback in (TemperatureCallback, DiversityCallback):
        hints = typing.get_type_hints(callback.__init__)
        hints.pop("return")
        kinds = {k for hint in hints.values() for k in (typing.get_args(hint) or (hint,))}
        assert kinds <= {float, int, str, bool, type(None)}
        for package in PACKAGES:
            assert issubclass(callback, importlib.import_module(package).Callback)


class CliModule(pl.LightningModule):
    """A module for a command line, which wants classes of a file."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class CliData(pl.LightningDataModule):
    def train_dataloader(self):
        return loader()


def run_cli(monkeypatch, *arguments):
    from lightning.pytorch.cli import LightningCLI

    monkeypatch.setattr("sys.argv", ["train.py"])  # pytest's own would be warned of
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # of how Lightning uses it
    quiet = ["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"]
    flags = [f"--trainer.{name}=false" for name in quiet]
    flags += ["--trainer.accelerator=cpu", "--trainer.max_epochs=1"]
    settings = {"save_config_callback": None, "seed_everything_default": 0}
    return LightningCLI(CliModule, CliData, args=["fit", *arguments, *flags], **settings)


def test_a_command_line_reads_the_yaml_of_the_docs(tmp_path, monkeypatch):
    pytest.importorskip("jsonargparse")
    page = (EXAMPLE.parents[1] / "integrations.md").read_text(encoding="utf-8")
    config = tmp_path / "config.yaml"
    config.write_text(re.search(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1])
    cli = run_cli(monkeypatch, "--config", str(config))
    callback = cli.trainer.callbacks[0]
    assert (callback.temperature, callback.options.max_batches) == ("sqrt-dim", 200)
    assert float(cli.model.net[2].temperature) == callback.placement.temperature == 4.0


def test_a_command_line_takes_the_callbacks_as_arguments(monkeypatch):
    pytest.importorskip("jsonargparse")
    cli = run_cli(
        monkeypatch,
        "--trainer.callbacks+=TemperatureCallback",
        "--trainer.callbacks.temperature=3",
        "--trainer.callbacks.norm=layer",
    )
    assert float(cli.model.net[2].temperature) == 3.0
    assert cli.model.net[2].norm_kind == "layer"


def test_without_lightning_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(integration, "_Callback", object)
    for make in (TemperatureCallback, lambda: DiversityCallback(0.1)):
        with pytest.raises(MissingPackage) as error:
            make()
        assert error.value.extra == "lightning"


def test_the_example_runs():
    found = runpy.run_path(str(EXAMPLE))["main"]()
    assert found["accuracy"] > 0.9
    assert found["temperature"] == pytest.approx(128**0.5, rel=1e-6)
    assert found["largest difference after folding"] < 1e-4
