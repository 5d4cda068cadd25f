"""``temperance train``: the main job on own data, with progress, and resumable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temperance.cli.output import number, print_json, print_table
from temperance.errors import Interrupted

if TYPE_CHECKING:
    from temperance.records import Estimate
    from temperance.training.plan import Progress
    from temperance.training.table import ArmSummary, Comparison


def train(
    data: Annotated[
        str,
        typer.Argument(
            help="digits; a folder with a folder per class; Parquet; .npz; .csv; or IDX files."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    model: Annotated[
        str,
        typer.Option(
            help="convnet, resnet, resnet14, vit, mlp, probe; a timm or torchvision name."
        ),
    ] = "auto",
    feature_dim: Annotated[
        int | None, typer.Option("--features", "-M", help="M of the library's own nets.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Local safetensors file to start from.")
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="NORM[:T=VALUE][:ramp=SHAPE][:smoothing=VALUE], repeatable. NORM: plain, bn, ln, "
            "cosine. T: 4, sqrt, suggested, budget or another rule, suggested/4, learned, 4..1 (a "
            "ramp); cosine heads also s=adacos, s=adacos-dynamic, s=16."
        ),
    ] = None,
    rule: Annotated[str | None, typer.Option(help="Rule that T=suggested follows.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training rows.")] = 20,
    seeds: Annotated[int, typer.Option(help="Trainings per arm.", min=1)] = 3,
    batch_size: Annotated[int, typer.Option(help="Rows per step.")] = 64,
    optimizer: Annotated[str, typer.Option(help="sgd (momentum 0.9) or adamw.")] = "sgd",
    lr: Annotated[
        float | None, typer.Option(help="Peak learning rate. [default: sgd 0.05, adamw 0.001]")
    ] = None,
    tuned_lr: Annotated[
        float | None,
        typer.Option(help="The peak learning rate that was best at T = 1 here, if one was tuned."),
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="[default: sgd 0.0005, adamw 0.01]")
    ] = None,
    augment: Annotated[
        str, typer.Option(help="Of pictures in training: none, shift, or shift-flip.")
    ] = "none",
    train_rows: Annotated[
        int | None, typer.Option(help="Train on that many rows, drawn by class.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the pictures.")] = None,
    on_bad: Annotated[
        str, typer.Option(help="Pictures that cannot be read: error (list them) or skip.")
    ] = "error",
    label: Annotated[str, typer.Option(help="Label column of a table.")] = "label",
    ignore: Annotated[
        list[str] | None, typer.Option(help="Label whose rows are left out, repeatable.")
    ] = None,
    split_seed: Annotated[int, typer.Option(help="Seed of splits and measurements.", min=0)] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    workers: Annotated[
        int | None,
        typer.Option(help="Runs side by side, one thread each. [default: number of CPUs]", min=1),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with a training in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a classifier with a temperature, beside the usual alternatives, and report honestly."""
    from temperance.training.arms import DEFAULT_ARMS
    from temperance.training.job import run_job
    from temperance.training.loop import Budget
    from temperance.training.plan import Plan

    budget = Budget(
        epochs=epochs,
        batch_size=batch_size,
        optimizer=optimizer,
        lr=lr,
        weight_decay=weight_decay,
        augment=augment,
    )
    plan = Plan(
        source=data,
        model=model,
        feature_dim=feature_dim,
        weights=None if weights is None else str(weights),
        arms=tuple(arm or DEFAULT_ARMS),
        seeds=seeds,
        budget=budget,
        rule=rule,
        tuned_lr=tuned_lr,
        train_rows=train_rows,
        image_size=image_size,
        on_bad="skip" if on_bad == "skip" else _only_error(on_bad),
        label=label,
        ignore=tuple(ignore or ()),
        split_seed=split_seed,
        device=_device(device),
        workers=workers or _workers(_device(device)),
    )
    with _progress(quiet=as_json) as progress, _resumable():
        comparison = run_job(plan, out, resume=resume, progress=progress)
    _print(comparison, out, as_json=as_json)
    if comparison.choice is None:
        raise typer.Exit(1)


def _only_error(text: str) -> Any:
    if text != "error":
        raise typer.BadParameter("error or skip", param_hint="--on-bad")
    return text


def _device(text: str) -> str:
    import torch

    if text == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=text)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise typer.BadParameter(
            f"{text!r} cannot be used: {reason}", param_hint="--device"
        ) from None
    return text


def _workers(device: str) -> int:
    import os

    return 1 if device.startswith("cuda") else max(1, os.cpu_count() or 1)


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "training", resume="Run the same command with --resume to go on."
        ) from None


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress]:
    """Progress on the error stream: a bar with the time left, or a line per stage in a log."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from temperance.training.plan import Progress

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        now = bar.add_task("starting", total=None)

        def stage(text: str) -> None:
            nonlocal now
            bar.remove_task(now)  # a task cannot lose its total
            now = bar.add_task(text, total=None)
            if not console.is_terminal and not quiet:
                console.print(text)

        def epoch(title: str, seed: int, done: int, total: int) -> None:
            bar.update(now, description=f"{title}, seed {seed}", completed=done, total=total)

        def scan(done: int, total: int) -> None:
            bar.update(now, completed=done, total=total)

        yield Progress(stage=stage, scan=scan, epoch=epoch)


# ------------------------------------------------------------------ the table
def _print(comparison: Comparison, out: Path, *, as_json: bool) -> None:
    from temperance.records import to_dict

    if as_json:
        print_json({**to_dict(comparison), "out": str(out)})
        return
    for notice in comparison.notices:
        print(f"Note: {notice}")
    suggestion, csg = comparison.suggestion, comparison.task.statistics["csg"]
    spread = (
        "" if csg.interval is None else f" [{number(csg.interval[0])}, {number(csg.interval[1])}]"
    )
    print(
        f"{comparison.data['name']}: {comparison.model}, M = {comparison.task.feature_dim}, "
        f"{comparison.task.n_classes} classes, csg = {number(csg.value)}{spread}"
    )
    by = suggestion.fallback or suggestion.rule
    print(f"Suggested T = {number(suggestion.temperature)} ({by}, norm: {suggestion.norm})")
    if suggestion.expectation:
        print(f"  {suggestion.expectation}")
    for reason in suggestion.reasons:
        print(f"  {reason}")
    _print_tables(comparison)
    if comparison.choice is None:
        print("No arm came to an end: see report.json for what each run says.")
    else:
        print(f"Shipped: {comparison.choice.arm}, seed {comparison.choice.seed}.")
    print(f"Report: {out / 'report.html'}")


def _print_tables(comparison: Comparison) -> None:
    columns = ("arm", "accuracy %", "NLL", "ECE %", "post-hoc T", "NLL after", "ECE % after")
    print_table(
        f"Test rows: {comparison.data['rows']['test']}, mean over {comparison.plan['seeds']} seeds",
        columns,
        [_row(a) for a in comparison.arms],
    )
    paired = ("arm", "accuracy (points)", "NLL", "NLL after post-hoc", "verdict (NLL after)")
    rows = [_difference_row(a) for a in comparison.arms if a.differences]
    alone = [_alone_row(a, comparison) for a in comparison.arms if _is_alone(a, comparison)]
    if rows:
        print_table(f"Difference to {comparison.baseline}, paired, 95 % interval", paired, rows)
    if alone:
        print_table("What T did by itself: difference to the same norm at T = 1", paired, alone)


def _row(summary: ArmSummary) -> list[str]:
    if not summary.metrics:
        return [summary.title, *[f"{summary.outcomes[0]}"] * 6]
    value = {name: e.value for name, e in summary.metrics.items()}
    posthoc = sum(summary.posthoc_temperatures) / len(summary.posthoc_temperatures)
    return [
        summary.title,
        f"{100 * value['accuracy']:.2f}",
        f"{value['nll']:.4f}",
        f"{100 * value['ece']:.2f}",
        f"{posthoc:.2f}",
        f"{value['nll_posthoc']:.4f}",
        f"{100 * value['ece_posthoc']:.2f}",
    ]


def _is_alone(summary: ArmSummary, comparison: Comparison) -> bool:
    return summary.against_norm is not None and summary.against_norm.other != comparison.baseline


def _alone_row(summary: ArmSummary, comparison: Comparison) -> list[str]:
    found = summary.against_norm
    assert found is not None
    title = next(a.title for a in comparison.arms if a.arm.name == found.other)
    return _cells(f"{summary.title} less {title}", found.metrics, found.verdicts)


def _difference_row(summary: ArmSummary) -> list[str]:
    return _cells(summary.title, summary.differences, summary.verdicts)


def _cells(
    title: str, differences: Mapping[str, Estimate], verdicts: Mapping[str, str]
) -> list[str]:
    def cell(name: str, scale: float, digits: int) -> str:
        e = differences[name]
        text = f"{scale * e.value:+.{digits}f}"
        if e.interval is None:
            return text
        return f"{text} [{scale * e.interval[0]:+.{digits}f}, {scale * e.interval[1]:+.{digits}f}]"

    return [
        title,
        cell("accuracy", 100, 2),
        cell("nll", 1, 4),
        cell("nll_posthoc", 1, 4),
        verdicts["nll_posthoc"],
    ]
