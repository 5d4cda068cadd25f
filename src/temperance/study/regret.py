"""Regret: what a rule's temperature costs on a task, against the best one in hindsight.

For a task (a data set under one setting) and a metric the best T of those that were trained is
chosen by the mean over seeds on the *validation* rows. The rule's T is what ``temperance.suggest``
gives a user who knows M, C and the statistics of the training rows. Both are judged on the *test*
rows, mean over seeds, straight between trained temperatures in log T::

    regret = accuracy(best T) - accuracy(rule's T)      in percentage points
    regret = NLL(rule's T) - NLL(best T)                in nats, and in percent of NLL(best T)

Since validation chooses and test judges, a regret can be negative: the choice in hindsight pays for
the noise of its validation rows. A T outside the trained ones is judged at the edge and counted,
and so are tasks whose best T is an edge: their regret is a lower bound. A run that diverged counts
as chance: accuracy 1/C, NLL ln C.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from temperance.errors import InvalidInput
from temperance.rules import Rule
from temperance.study.curves import BestTemperature, best_temperature, metric_curve, value_at
from temperance.study.refit import Refit, refitted
from temperance.study.regret_records import (
    ANY,
    METRIC_SPECS,
    JudgedTask,
    RegretReport,
    TaskRegret,
    check_metrics,
    short_labels,
)
from temperance.study.regret_rules import (
    Candidate,
    Choice,
    Reader,
    baselines,
    check_names,
    given_rules,
)
from temperance.study.regret_summary import Judged, notes_of, summarize
from temperance.study.resample import METHOD
from temperance.study.runs import Curve
from temperance.study.selection import mixed_settings, select_curves
from temperance.study.trial import NORMS

__all__ = ["Refit", "regret"]


def regret(
    curves: Sequence[Curve],
    rules: Sequence[str | Rule] | Mapping[str, Rule] | None = None,
    *,
    metrics: Sequence[str] = ("accuracy", "nll", "nll_posthoc"),
    norm: str | None = None,
    any_norm: bool = False,
    fitted: Sequence[Refit] = (),
    bootstrap: int = 2000,
    seed: int = 0,
) -> RegretReport:
    """Judge rules by what their T costs against the best T in hindsight.

    No rule is judged on a data set that it was fitted on: published rules not on those of their
    paper, rules with ``fitted_on`` not on these, and rules of ``fitted`` are fitted again for each
    data set on the curves of the others, of the same norm and loss. ``T = 1`` and the best constant
    (one T for all tasks of a norm and loss, for each metric, chosen by validation on the other data
    sets) are always judged, too.

    Args:
        curves: the runs of a study.
        rules: names, rules, or rules by the name that they get in the report; None for all of
            ``RULES`` that can be judged.
        metrics: of ``accuracy``, ``nll``, ``nll_posthoc``.
        norm: judge on curves of this norm only.
        any_norm: judge every rule on all curves together. Else rules are compared within each norm
            of the curves, each rule within its own.
        fitted: rules to fit again.
        bootstrap: draws of data sets for the intervals.
        seed: of these draws.

    Returns:
        Summaries by group and metric, the single losses, and what to know when reading them.

    Raises:
        InvalidInput: if there are no curves (of that norm); if a rule that was named cannot be
            judged on any task; if a curve has too few temperatures.
        NotFound: if there is no rule of a name; if the runs lack a metric.

    Example:
        >>> from temperance.study.regret import regret
        >>> from temperance.study.runs import curves_of_rows, example_rows
        >>> rows, tasks = example_rows((1.0, 2.0, 4.0, 8.0))
        >>> for row in rows:
        ...     row["metrics"]["test_nll"] = row["metrics"]["val_nll"]
        >>> report = regret(curves_of_rows(rows, tasks), (), metrics=["nll"], bootstrap=50)
        >>> [(s.rule, round(s.mean.value, 3)) for s in report.summaries]
        [('T = 1', 0.048)]
        >>> dict(report.not_judged)
        {'best constant': 'no other data set to choose it on'}
    """
    court = _court(select_curves(curves, norm=norm), check_metrics(metrics), any_norm)
    given = given_rules(rules)
    check_names([*(c.name for c in given), *(spec.name for spec in fitted)])
    found: list[Judged] = []
    for group, places in _groups(court, any_norm).items():
        members = [court.curves[place] for place in places]
        here = [*baselines(members, court.read), *given, *refitted(fitted, members)]
        found += [_judge(court, candidate, places, group=group) for candidate in here]
    not_judged = _not_judged(found, court)
    summaries = summarize(found, court.tasks, bootstrap=bootstrap, seed=seed)
    settings = {"metrics": list(court.metrics), "norm": norm, "any_norm": any_norm}
    return RegretReport(
        summaries=summaries,
        rows=tuple(row for judged in found for row in judged.rows),
        tasks=court.tasks,
        not_judged=not_judged,
        notes=(*court.notes, *notes_of(summaries, court.tasks)),
        settings={**settings, "bootstrap": bootstrap, "seed": seed, "intervals": METHOD},
    )


# ------------------------------------------------------------------ the tasks
@dataclass(frozen=True, eq=False)
class _Court:
    """The tasks, each metric of them read once, and the best T of each."""

    curves: tuple[Curve, ...]
    tasks: tuple[JudgedTask, ...]
    metrics: tuple[str, ...]
    read: Reader
    best: Callable[[Curve, str], BestTemperature]
    notes: tuple[str, ...]


def _court(curves: Sequence[Curve], metrics: tuple[str, ...], any_norm: bool) -> _Court:
    read = cache(metric_curve)
    best = cache(lambda curve, metric: best_temperature(curve, f"val_{metric}"))
    usable, lost = [], []
    for curve in curves:
        try:
            for metric in metrics:
                best(curve, metric)
            usable.append(curve)
        except InvalidInput as error:  # diverged everywhere, or hardly any T
            lost.append(error)
    if not usable:
        raise lost[0]
    notes = []
    if lost:
        notes.append(
            f"{len(lost)} of {len(curves)} tasks are left out; the first: {lost[0].subject}, "
            f"{lost[0].found} instead of {lost[0].expected}."
        )
    alone = sum(read(curve, f"test_{metrics[0]}").n_seeds == 1 for curve in usable)
    if alone:
        notes.append(f"{alone} of {len(usable)} tasks have one seed: their figures are noisier.")
    if mixed := [n for n in mixed_settings(usable) if n != "norm"]:
        notes.append(f"Trainings of several settings are judged together: {', '.join(mixed)}.")
    said = () if any_norm else ("norm",)
    labels = short_labels([curve.setting for curve in usable], without=said)
    tried = [read(curve, f"test_{metrics[0]}").temperatures.tolist() for curve in usable]
    tasks = tuple(map(_task, usable, labels, tried))
    return _Court(tuple(usable), tasks, metrics, read, best, tuple(notes))


def _task(curve: Curve, label: str, tried: Sequence[float]) -> JudgedTask:
    return JudgedTask(
        dataset=curve.dataset,
        norm=str(curve.setting["norm"]),
        label=label,
        feature_dim=curve.task.feature_dim,
        n_classes=curve.task.n_classes,
        grid=(tried[0], tried[-1]),
        setting=dict(curve.setting),
    )


def _groups(court: _Court, any_norm: bool) -> dict[str, list[int]]:
    """Places of the curves that are compared with each other."""
    if any_norm:
        return {ANY: list(range(len(court.curves)))}
    norms = [task.norm for task in court.tasks]
    groups = {norm: [i for i, own in enumerate(norms) if own == norm] for norm in NORMS}
    return {norm: places for norm, places in groups.items() if places}


# ------------------------------------------------------------------ judging
def _judge(court: _Court, candidate: Candidate, places: Sequence[int], *, group: str) -> Judged:
    rows: list[TaskRegret] = []
    left_out: Counter[str] = Counter()
    fits = group == ANY or candidate.norm in (None, group)
    for place in places if fits else ():
        choices = {m: candidate.choose(court.curves[place], m) for m in court.metrics}
        refused = [choice for choice in choices.values() if isinstance(choice, str)]
        left_out.update(refused[:1])
        rows += [
            _row(court, place, metric, choice=choice, rule=(candidate.name, group))
            for metric, choice in choices.items()
            if isinstance(choice, Choice)
        ]
    return Judged(candidate, group, tuple(rows), dict(left_out))


def _row(
    court: _Court, place: int, metric: str, *, choice: Choice, rule: tuple[str, str]
) -> TaskRegret:
    curve, spec = court.curves[place], METRIC_SPECS[metric]
    best = court.best(curve, metric)
    test = court.read(curve, f"test_{metric}")
    wanted = [choice.temperature, best.grid_temperature, 1.0]
    value, at_best, plain = map(float, value_at(test, wanted)[0])
    loss = spec.sign * (at_best - value) * spec.scale + 0.0
    outside = str(value_at(test, choice.temperature)[1])
    low, high = court.tasks[place].grid
    edges = {"": choice.temperature, "below": low, "above": high}
    return TaskRegret(
        rule=rule[0],
        group=rule[1],
        metric=metric,
        task=place,
        temperature=choice.temperature,
        judged_at=edges[outside],
        fallback=choice.fallback,
        in_domain=choice.in_domain,
        best_temperature=best.grid_temperature,
        best_at_edge=best.at_edge != "",
        value=value,
        best=at_best,
        plain=plain,
        regret=loss,
        relative=100 * loss / at_best if spec.sign < 0 and at_best > 0 else None,
        gain=spec.sign * (value - plain) * spec.scale + 0.0,  # no negative zero
    )


def _not_judged(found: Sequence[Judged], court: _Court) -> dict[str, str]:
    """Rules without a row anywhere, with the reason; an error if one was asked for."""
    there = ", ".join(sorted({task.norm for task in court.tasks}))
    missing: dict[str, str] = {}
    for name in dict.fromkeys(j.candidate.name for j in found):
        mine = [j for j in found if j.candidate.name == name]
        if any(j.rows for j in mine):
            continue
        reasons = sum((Counter(j.left_out) for j in mine), Counter()).most_common(1)
        candidate = mine[0].candidate
        other_norm = f"it is for norm {candidate.norm}, the runs have norm {there}"
        missing[name] = reasons[0][0] if reasons else other_norm
        if candidate.asked:
            raise InvalidInput(
                f"rule {name}",
                expected="a task that it can be judged on",
                found=missing[name],
                fix="Leave the rule out, or add the runs that it needs."
                if reasons
                else "Judge rules on every norm (any_norm=True, --any-norm), or run that norm.",
            )
    return missing
