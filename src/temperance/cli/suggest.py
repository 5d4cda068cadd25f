"""``temperance suggest``: a training temperature from M, C and, if known, the csg."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temperance.cli.output import number, print_json, print_table

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
        int | None, typer.Option(help="Training rows, where the rule needs them.", min=1)
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="Name of a rule (see: temperance rules), or a file of temperance fit."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Suggest a training temperature, with its terms and what the other rules say."""
    from temperance.records import Task, to_dict
    from temperance.rules import find_rule
    from temperance.rules import suggest as run

    given = _statistics(statistic or (), csg)
    task = Task(features, classes, n_samples=samples, statistics=given)  # type: ignore[arg-type]
    chosen: Any = find_rule(rule, task)
    suggestion = run(task, chosen)
    if as_json:
        print_json(to_dict(suggestion))
        return
    _print(suggestion)
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
    print("Train with softmax(logits / T), the norm in front of the output layer.")
    if suggestion.in_domain:
        print("The task lies inside the rule's domain.")
    for reason in suggestion.reasons:
        print(f"Note: {reason}.")
    terms = [[name, number(value)] for name, value in suggestion.terms.items()]
    print_table(f"Terms of {suggestion.rule}", ("term", _meaning(suggestion)), terms)
    rows = [
        [name, number(o.temperature), number(o.unclipped), o.norm, o.note]
        for name, o in suggestion.others.items()
    ]
    print_table("Other rules", ("rule", "T", "unclipped", "norm", "note"), rows)
