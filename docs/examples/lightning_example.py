"""Lightning: the callback measures, suggests T and puts the head in; the fit is as ever.

    python docs/examples/lightning_example.py

Needs ``pip install 'temperance[lightning]'``; scikit-learn's digits are the data.
"""

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import temperance as tp
from temperance.integrations.lightning import TemperatureCallback


class Classifier(pl.LightningModule):
    """A LightningModule as you have it: nothing in it knows of temperatures."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give logits."""
        return self.net(x)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Give the loss."""
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Log the accuracy."""
        right = self(batch[0]).argmax(1) == batch[1]
        self.log("accuracy", right.float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Called when the head is in: weight decay stays off norms and biases."""
        return torch.optim.AdamW(tp.parameter_groups(self, 0.01), lr=3e-3)


def main() -> dict[str, float]:
    """Train, fold, and compare the folded model with the trained one."""
    pl.seed_everything(0, verbose=False)
    x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    train, val = random_split(TensorDataset(x.float() / 16, y), [1437, 360])
    callback = TemperatureCallback("sqrt-dim")
    trainer = pl.Trainer(
        max_epochs=4,
        accelerator="cpu",
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, DataLoader(train, 64, shuffle=True, drop_last=True), DataLoader(val, 360))
    print(callback.placement)

    example = x[:8].float() / 16
    deployable = tp.fold(model.net.eval(), example)  # one nn.Linear again
    with torch.no_grad():
        difference = (deployable(example) - model.net(example)).abs().max()
    return {
        "accuracy": float(trainer.callback_metrics["accuracy"]),
        "temperature": float(trainer.callback_metrics["temperature"]),
        "largest difference after folding": float(difference),
    }


if __name__ == "__main__":
    print(main())
