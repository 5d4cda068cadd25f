"""``temperance suggest``: a training temperature from M, C and, if known, the csg."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
    rule: Annotated[
        str | None, typer.Option(help="Name of a rule (see: temperance rules).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Suggest a training temperature, with its terms and what the other rules say."""
    from temperance.records import Statistic, Task, to_dict
    from temperance.rules import suggest as run

    statistics = {} if csg is None else {"csg": Statistic(csg, settings={"given": True})}
    suggestion = run(Task(features, classes, statistics=statistics), rule)
    if as_json:
        print_json(to_dict(suggestion))
        return
    _print(suggestion)


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
    terms = [[name, number(share)] for name, share in suggestion.terms.items()]
    print_table(f"Terms of {suggestion.rule}", ("term", "share"), terms)
    rows = [
        [name, number(o.temperature), number(o.unclipped), o.norm, o.note]
        for name, o in suggestion.others.items()
    ]
    print_table("Other rules", ("rule", "T", "unclipped", "norm", "note"), rows)
