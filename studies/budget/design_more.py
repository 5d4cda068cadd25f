"""Plans that came after the law had been fitted: ``python design_more.py FOLDER``; ``--costs``.

On data sets of the law:
``tuned``: learning rate and T on one grid, for what is left of the gain where the rate is tuned;
``tuned-rmsprop``: the same with RMSprop; ``tuned-third``: a third seed of ``tuned``.
``long``: trainings of 6,000 to 60,000 steps, longer than any that the law was fitted on.
``kinds``: attention nets (of pictures, of letters) and convolutions over letters.
``augment``: the same settings without and with augmentation; ``augment-pictures``: shifts.

On data sets that nothing in this study has seen, three seeds:
``fresh-nets``: the nets of the law; ``fresh-kinds``: those of ``kinds``; ``fresh-one``: T = 1 where
the grid of those starts above it; ``fresh-tuned``: as
``tuned``; ``fresh-tuned-2``, ``fresh-tuned-3``: second draws, with AdamW and with SGD.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from design import (
    GLYPHS,
    LAW,
    PHOTOS,
    TABLE,
    TEXT,
    Data,
    Setting,
    any_net,
    common,
    drawn,
    log_between,
    one_of,
    write,
)

FRESH = (
    Data("emoji", "picture", 41, 1729, 3072, PHOTOS[:2], 32, 3),
    Data("glyphs-cyrillic", "picture", 64, 4608, 1024, GLYPHS, 32),
    Data("glyphs-symbols", "picture", 577, 6000, 1024, GLYPHS, 32),
    Data("tate-media", "text", 13, 866, 512, TEXT),
    Data("computing-terms", "text", 44, 4358, 512, TEXT),
    Data("soybean", "table", 19, 410, 132, TABLE[:1]),
    Data("dna", "table", 3, 1912, 180, TABLE[:1]),
    Data("vehicle", "table", 4, 508, 18, TABLE),
    Data("cells", "table", 2, 1211, 58, TABLE),
    Data("credit", "table", 2, 2424, 26, TABLE),
    Data("stackoverflow", "table", 2, 3356, 24, TABLE),
)
"""Data sets of ``studies/data`` with 400 training rows or more that no part of this study used."""

RATES = {
    "sgd": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
    "adamw": [3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
    "rmsprop": [3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
}
TEMPERATURES = [2.0**k for k in range(-2, 9)]


def tuned(u: Sequence[float], sets: Sequence[Data]) -> tuple[Setting, float]:
    """A setting with BN in front of the head, whose rate is on a grid as its T is."""
    setting, cost = any_net(in_front(u), sets, conv=0.2, steps=(60, 3000))
    return setting | {"lr": RATES[setting["optimizer"]]}, cost


def without_rmsprop(u: Sequence[float]) -> tuple[float, ...]:
    """The same draw with another optimizer in its place."""
    return (0.7 * u[0], *u[1:])


def with_sgd(u: Sequence[float]) -> tuple[float, ...]:
    """The same draw with SGD."""
    return (0.1, *u[1:])


def with_adamw(u: Sequence[float]) -> tuple[float, ...]:
    """The same draw with AdamW."""
    return (0.5, *u[1:])


def with_rmsprop(u: Sequence[float]) -> tuple[float, ...]:
    """The same draw with RMSprop."""
    return (1.0, *u[1:])


def long(u: Sequence[float]) -> tuple[Setting, float]:
    """A setting of the law that is trained for longer than all of those."""
    return any_net(u, LAW, conv=0.2, steps=(6000, 60000))


LETTERS = "letters:96|one-hot:64"
TOKENS = {"vit": 16, "transformer": 24}


def sequence(u: Sequence[float], sets: Sequence[Data]) -> tuple[Setting, float]:
    """An attention net, or one of convolutions over letters."""
    data = one_of(u[10], [d for d in sets if d.kind != "table" and d.side != 8])
    setting = common(u, data, steps=(30, 3000))
    width = round(log_between(u[11], 16, 256))
    model = "vit" if data.side else one_of(u[12], ("transformer", "textcnn"), (0.4, 0.6))
    if model != "textcnn":
        width = max(16, round(width / 2 / 16) * 16)  # heads want a width that divides
    setting |= {"features": "input" if data.side else LETTERS, "feature_dim": width}
    return setting | {"model": model}, sequence_seconds(setting, data, model, width)


def sequence_seconds(setting: Setting, data: Data, model: str, m: int) -> float:
    """CPU seconds of one trial, roughly."""
    if model == "textcnn":
        products = 96.0 * 64 * 32 + 96 * 5 * 32 * 64 + 48 * 5 * 64 * m
    else:
        products = TOKENS[model] * (2 * 8 * m * m + 4 * 2 * TOKENS[model] * m + 200 * m)
    least = 1.5e-3 if model == "textcnn" else 5e-3  # attention nets are trained one by one
    step = least + 3 * setting["batch_size"] * (products + m * data.classes) / 1.5e10
    return setting["steps"] * step + 8 * 2000 * products / 1.5e10


def augmented(
    u: Sequence[float], sets: Sequence[Data], *, conv: float = 0.5, most: int = 6000
) -> tuple[Setting, float]:
    """A setting without and with augmentation; shifts for convolutions, noise for features."""
    setting, cost = any_net(u, sets, conv=conv, steps=(60, most))
    kind = "shift" if setting["features"] == "input" else "noise"
    return setting | {"augment": ["none", kind], "label_noise": 0.0}, cost


def in_front(u: Sequence[float]) -> tuple[float, ...]:
    """The same draw with BN in front of the head, the norm that the rule is judged with."""
    return (u[0], 0.0, *u[2:])


def three_seeds(found: list[tuple[Setting, float]]) -> list[tuple[Setting, float]]:
    """Three seeds, for what is claimed."""
    settings = [s | {"seed": [0, 1, 2]} for s, _ in found]
    return [(s, cost / 2 * 3) for s, (_, cost) in zip(settings, found, strict=True)]


on_grid = partial(drawn, grid=lambda _: TEMPERATURES)


def one(found: list[tuple[Setting, float]]) -> list[tuple[Setting, float]]:
    """T = 1 of settings whose grid starts above it: what a rule is compared with must be there."""
    lacking = [(s, cost / len(s["temperature"])) for s, cost in found if s["temperature"][0] > 1]
    return [(setting | {"temperature": [1.0]}, cost) for setting, cost in lacking]


def third_seed(found: list[tuple[Setting, float]]) -> list[tuple[Setting, float]]:
    """The same settings with one more seed, for what is claimed of them."""
    return [(setting | {"seed": [2]}, cost / 2) for setting, cost in found]


def plans() -> dict[str, list[tuple[Setting, float]]]:
    """All plans by name."""
    fresh_nets = three_seeds(
        drawn(lambda u: any_net(in_front(u), FRESH, conv=0.2), seed=404, count=48, most=45)
    )
    fresh_kinds = three_seeds(
        drawn(lambda u: sequence(in_front(u), FRESH), seed=405, count=28, most=120)
    )
    both = on_grid(lambda u: tuned(without_rmsprop(u), LAW), seed=400, count=36, most=150)
    return {
        "tuned": both,
        "tuned-third": third_seed(both),
        "tuned-rmsprop": on_grid(
            lambda u: tuned(with_rmsprop(u), LAW), seed=407, count=12, most=100
        ),
        "long": drawn(long, seed=401, count=18, most=300),
        "kinds": drawn(lambda u: sequence(u, LAW), seed=402, count=56, most=150),
        "augment": drawn(lambda u: augmented(u, LAW), seed=403, count=28, most=70),
        "augment-pictures": drawn(  # the cost of "augment" left no convolutions in it
            lambda u: augmented(u, [d for d in LAW if d.side], conv=1, most=1500),
            seed=409,
            count=10,
            most=200,
        ),
        "fresh-nets": fresh_nets,
        "fresh-kinds": fresh_kinds,
        "fresh-one": one([*fresh_nets, *fresh_kinds]),
        "fresh-tuned": three_seeds(
            on_grid(lambda u: tuned(u, FRESH), seed=406, count=18, most=100)
        ),
        "fresh-tuned-3": three_seeds(
            on_grid(lambda u: tuned(with_sgd(u), FRESH), seed=410, count=16, most=100)
        ),
        "fresh-tuned-2": three_seeds(
            on_grid(lambda u: tuned(with_adamw(u), FRESH), seed=408, count=16, most=100)
        ),
    }


if __name__ == "__main__":
    write(plans(), Path(sys.argv[1]), "--costs" in sys.argv)
