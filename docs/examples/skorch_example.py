"""skorch: T from a rule, or found by a grid search, inside of scikit-learn.

    python docs/examples/skorch_example.py

Needs ``pip install skorch``; the digits of scikit-learn are the data.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

from temperance.integrations.skorch import TemperatureCallback, TemperedModule


class Net(nn.Module):
    """A network as you have it: it gives logits, and nothing in it knows of temperatures."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
        self.classifier = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give logits."""
        return self.classifier(self.body(x))


def main() -> dict[str, float]:
    """Train with the T of a rule, then let cross-validation choose among three."""
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    x = x.astype("float32") / 16
    net = NeuralNetClassifier(
        TemperedModule,
        module__module=Net,
        module__temperature="sqrt-dim",
        module__example=torch.zeros(2, 64),
        criterion=nn.CrossEntropyLoss,  # the outputs are logits
        optimizer=torch.optim.AdamW,
        lr=3e-3,
        max_epochs=5,
        callbacks=[TemperatureCallback()],
        verbose=0,
    )
    net.fit(x[:1200], y[:1200])
    ruled = float((net.predict(x[1200:]) == y[1200:]).mean())

    grid = {"module__temperature": [1.0, 4.0, 8.0]}
    search = GridSearchCV(net, grid, scoring="neg_log_loss", cv=2).fit(x[:600], y[:600])
    return {
        "temperature of the rule": net.history[-1, "temperature"],
        "accuracy": ruled,
        "best of the grid": float(search.best_params_["module__temperature"]),
    }


if __name__ == "__main__":
    print(main())
