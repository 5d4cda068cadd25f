"""Accelerate: a loop of your own; the head goes in before ``prepare`` and the optimizer.

    python docs/examples/accelerate_example.py        # or: accelerate launch ...

Needs ``pip install accelerate``; scikit-learn's digits are the data.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import temperance as tp
from temperance.integrations.placement import place


def main() -> dict[str, float]:
    """Train, fold, and compare the folded model with the trained one."""
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    x = x.float() / 16
    loader = DataLoader(TensorDataset(x[:1437], y[:1437]), 32, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10)).to(accelerator.device)

    placement = place(model, loader, "sqrt-dim")  # measure, suggest, insert, set the statistics
    accelerator.print(placement)
    optimizer = torch.optim.AdamW(tp.parameter_groups(model, 0.01), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(6):  # your own loop, unchanged
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

    trained = accelerator.unwrap_model(model, keep_fp32_wrapper=False).eval()  # no autocast
    deployable = tp.fold(trained, x[:8])  # one nn.Linear again
    with torch.no_grad():
        right = deployable(x[1437:]).argmax(1) == y[1437:]
        difference = (deployable(x[1437:]) - trained(x[1437:])).abs().max()
    return {
        "accuracy": float(right.float().mean()),
        "temperature": placement.temperature,
        "largest difference after folding": float(difference),
    }


if __name__ == "__main__":
    print(main())
