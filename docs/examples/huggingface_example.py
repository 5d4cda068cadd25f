"""Hugging Face's Trainer: one callback more, and a folded model that plain transformers loads.

    python docs/examples/huggingface_example.py

Needs ``pip install 'temperance[transformers]'`` and accelerate and datasets, as Trainer does;
scikit-learn's digits are the data, a small ViT without weights is the model.
"""

import tempfile

import numpy as np
import torch
from datasets import Dataset
from sklearn.datasets import load_digits
from transformers import (
    AutoModelForImageClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from temperance.integrations.huggingface import TemperatureTrainerCallback, save_folded


def accuracy(predicted: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    """Give what Trainer reports of an evaluation."""
    logits, labels = predicted
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def main() -> dict[str, float]:
    """Train, save the folded model, load it with plain transformers, and compare."""
    x, y = load_digits(return_X_y=True)
    pixels = (x / 16).reshape(-1, 1, 8, 8).astype("float32")
    data = Dataset.from_dict({"pixel_values": list(pixels), "label": y})
    data = data.with_format("torch").train_test_split(test_size=360, seed=0)
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8,
        patch_size=4,
        num_channels=1,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        num_labels=10,
    )
    callback = TemperatureTrainerCallback("sqrt-dim")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=f"{folder}/training",
            num_train_epochs=5,
            per_device_train_batch_size=64,
            dataloader_drop_last=True,
            learning_rate=3e-3,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            ViTForImageClassification(config),
            arguments,
            train_dataset=data["train"],
            eval_dataset=data["test"],
            compute_metrics=accuracy,
            callbacks=[callback],
        )
        trainer.train()
        print(callback.placement)
        example = {"pixel_values": data["test"][:64]["pixel_values"]}
        saved = save_folded(trainer.model, f"{folder}/model", example=example)
        loaded = AutoModelForImageClassification.from_pretrained(saved.folder)
        with torch.no_grad():
            predicted = loaded.eval()(data["test"][:]["pixel_values"]).logits.argmax(-1)
    return {
        "accuracy": trainer.evaluate()["eval_accuracy"],
        "accuracy when loaded": float((predicted == data["test"][:]["label"]).float().mean()),
        "temperature": callback.placement.temperature,
        "largest difference of a logit": saved.max_difference,
    }


if __name__ == "__main__":
    print(main())
