"""``temperance suggest``: a training temperature from M, C and what else is known of the task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temperance.cli.output import number, print_json, print_table
from temperance.cli.training_options import NORMS, print_training, training_of

if TYPE_CHECKING:
    from temperance.records import Suggestion


def suggest(
    features: Annotated[
        int, typer.Option("--features", "-M", help="M: in_features of the output layer.")
    ],
    classes: Annotated[int, typer.Option("--classes", "-C", help="C: number of classes.")],
    csg: Annotated[
        float | None, typer.Option(help="Cumulative Spectral Gradient of the task, 0 to C - 1.")
    ] = None,
    statistic: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of another statistic that the rule needs, repeatable."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", "--n", help="n: training rows, where the rule needs them.", min=1
        ),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="sgd, adamw, adam, nadam, radam or rmsprop.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.", min=1)] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the training rows, instead of --steps.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of a step.", min=1)] = None,
    schedule: Annotated[
        str | None, typer.Option(help="cosine (to 0) or constant.  [default: cosine]")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of sgd.  [default: 0.9]")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay.  [default: 0]")] = None,
    label_noise: Annotated[
        float | None, typer.Option(help="Share of labels that are wrong.  [default: 0]")
    ] = None,
    tuned_lr: Annotated[
        float | None,
        typer.Option(help="The peak learning rate that is best at T = 1, if one was tuned."),
    ] = None,
    norm: Annotated[
        str | None,
        typer.Option(
            help="Norm in front of the output layer: batch, layer or none.  [default: the rule's]"
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="Name of a rule (see: temperance rules), or a file of temperance fit."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Suggest a training temperature, with its terms and what the other rules say.

    With --optimizer, --lr, --batch-size, --n and --steps or --epochs the rule budget, which sees
    the training, can answer, too. It has a T for each --norm; the published rules are for one norm
    each, and say so where another is asked for.
    """
    if norm is not None and norm not in NORMS:
        raise typer.BadParameter(f"one of {', '.join(NORMS)}", param_hint="--norm")
    from temperance.records import Task, to_dict
    from temperance.rules import find_rule
    from temperance.rules import suggest as run

    facts = training_of(
        {
            "optimizer": optimizer,
            "lr": lr,
            "steps": steps,
            "epochs": epochs,
            "batch_size": batch_size,
            "schedule": schedule,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "label_noise": label_noise,
            "tuned_lr": tuned_lr,
        },
        samples,
        norm=norm,
    )
    task = Task(
        features,
        classes,
        n_samples=samples,
        statistics=_statistics(statistic or (), csg),  # type: ignore[arg-type]
        training=facts,
    )
    chosen: Any = find_rule(rule, task)
    suggestion = run(task, chosen)
    if as_json:
        print_json(to_dict(suggestion))
        return
    _print(suggestion)
    if tuned_lr is not None and not any("tuned_lr" in term for term in suggestion.terms):
        print(f"Note: --tuned-lr is not used: rule {suggestion.rule} knows no such rate.")
    print_training(chosen, task)
    _print_others(suggestion)
    if source := getattr(getattr(chosen, "domain", None), "training", None):
        trained = "; ".join(f"{name} {_words(seen)}" for name, seen in source)
        print(f"The rule was fitted on {chosen.domain.source}, trained with {trained}.")


def _statistics(texts: Sequence[str], csg: float | None) -> dict[str, float]:
    found = {} if csg is None else {"csg": csg}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            number_given = float(value)
        except ValueError:
            name = ""
        if not (name := name.strip()):
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--statistic")
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint="--statistic")
        found[name] = number_given
    return found


def _words(seen: tuple[Any, ...]) -> str:
    numbers = len(seen) == 2 and not any(isinstance(value, str) for value in seen)
    return " to ".join(map(str, seen)) if numbers else ", ".join(map(str, seen))


def _meaning(suggestion: Suggestion) -> str:
    """What the numbers of the terms are: some rules add them up, some multiply them."""
    values = list(suggestion.terms.values())
    if math.isclose(sum(values), suggestion.unclipped, rel_tol=1e-9, abs_tol=1e-12):
        return "share, all add up"
    if math.isclose(math.prod(values), suggestion.unclipped, rel_tol=1e-9):
        return "factor, all multiply"
    return "value"


def _print(suggestion: Suggestion) -> None:
    by = f"rule {suggestion.rule}"
    if suggestion.fallback:
        by = f"fallback {suggestion.fallback} of {by}"
    print(f"T = {number(suggestion.temperature)}   ({by}, norm: {suggestion.norm})")
    if suggestion.prediction:
        ranges = [
            f"{number(low)} to {number(high)} ({level})"
            for level, (low, high) in suggestion.prediction.items()
        ]
        print(f"Best T of one training like those of the fit: {', '.join(ranges)}.")
    place = "no norm" if suggestion.norm == "none" else "the norm"
    print(f"Train with softmax(logits / T), {place} in front of the output layer.")
    if suggestion.expectation:
        print(f"What to expect: {suggestion.expectation}.")
    if suggestion.in_domain:
        print("The task lies inside the rule's domain.")
    for reason in suggestion.reasons:
        print(f"Note: {reason}.")
    terms = [[name, number(value)] for name, value in suggestion.terms.items()]
    print_table(f"Terms of {suggestion.rule}", ("term", _meaning(suggestion)), terms)


def _print_others(suggestion: Suggestion) -> None:
    rows = [
        [name, number(o.temperature), number(o.unclipped), o.norm, o.note]
        for name, o in suggestion.others.items()
    ]
    print_table("Other rules", ("rule", "T", "unclipped", "norm", "note"), rows)
