"""``temperance ensemble``: members in one backbone, beside a single model, and resumable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from temperance.cli.output import number, print_json, print_table
from temperance.cli.train import _device, _only_error, _progress, _resumable

if TYPE_CHECKING:
    from temperance.training.ensemble_table import EnsembleComparison, MethodSummary


def ensemble(
    data: Annotated[
        str,
        typer.Argument(
            help="digits; a folder with a folder per class; Parquet; .npz; .csv; or IDX files."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    model: Annotated[
        str,
        typer.Option(help="convnet, resnet, resnet14, vit, mlp, mlp1; a timm or torchvision name."),
    ] = "auto",
    feature_dim: Annotated[
        int | None, typer.Option("--features", "-M", help="M of the library's own nets.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option("--from", help="Local safetensors file to fine-tune from.")
    ] = None,
    members: Annotated[int, typer.Option(help="Members in the backbone.")] = 4,
    tau: Annotated[
        float | None, typer.Option(help="Temperature of the diversity term. [default: 0.2]")
    ] = None,
    sweep_tau: Annotated[
        str | None, typer.Option(help="Train each of these, such as 0.1,0.2,0.5,1.")
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(help="Of the diversity term. [default: 0.001; with the form range 5]"),
    ] = None,
    form: Annotated[
        str, typer.Option(help="Of the diversity term: paper, or range (in nats of the loss).")
    ] = "paper",
    gamma_rate: Annotated[
        float | None, typer.Option(help="How much faster gamma learns. [default: 10]")
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="repeat: every member sees every row; split: its share.")
    ] = "repeat",
    loss: Annotated[
        str, typer.Option(help="members: mean of their losses; mean: loss of their mean.")
    ] = "members",
    init: Annotated[
        str, typer.Option(help="function: scales and shifts are kept; paper: there are none.")
    ] = "function",
    heads: Annotated[
        str | None,
        typer.Option(help="copy or fresh. [default: copy with --from, else fresh]"),
    ] = None,
    start: Annotated[float | None, typer.Option(help="Where gamma starts. [default: 2]")] = None,
    spread: Annotated[
        float | None, typer.Option(help="Of gamma around its start. [default: 1]")
    ] = None,
    temperature: Annotated[
        str, typer.Option(help="T in every member: suggested (by --rule), 1, or a number.")
    ] = "1",
    rule: Annotated[str | None, typer.Option(help="Rule that the suggestion follows.")] = None,
    posthoc: Annotated[
        str, typer.Option(help="Fit T after training: after or before the members are averaged.")
    ] = "after",
    deep: Annotated[
        bool, typer.Option("--deep", help="Train a deep ensemble of as many members, too.")
    ] = False,
    epochs: Annotated[int, typer.Option(help="Passes over the training rows.")] = 20,
    seeds: Annotated[int, typer.Option(help="Trainings per method.", min=1)] = 3,
    batch_size: Annotated[int, typer.Option(help="Rows per step.")] = 64,
    optimizer: Annotated[str, typer.Option(help="sgd (momentum 0.9) or adamw.")] = "sgd",
    lr: Annotated[
        float | None, typer.Option(help="Peak learning rate. [default: sgd 0.05, adamw 0.001]")
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
    resume: Annotated[bool, typer.Option(help="Go on with a training in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train or fine-tune many members in one backbone, and judge them beside a single model."""
    from temperance.ensemble import GAMMA_RATE, SPREAD, START
    from temperance.training.ensemble_job import run_ensemble
    from temperance.training.ensemble_plan import EnsemblePlan
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
    training = Plan(
        source=data,
        model=model,
        feature_dim=feature_dim,
        weights=None if weights is None else str(weights),
        seeds=seeds,
        budget=budget,
        rule=rule,
        train_rows=train_rows,
        image_size=image_size,
        on_bad="skip" if on_bad == "skip" else _only_error(on_bad),
        label=label,
        ignore=tuple(ignore or ()),
        split_seed=split_seed,
        device=_device(device),
    )
    plan = EnsemblePlan(
        training,
        members=members,
        taus=_taus(tau, sweep_tau),
        strength=strength,
        form=form,
        gamma_rate=GAMMA_RATE if gamma_rate is None else gamma_rate,
        protocol=protocol,
        of=loss,
        init=init,
        heads=heads,
        start=START if start is None else start,
        spread=SPREAD if spread is None else spread,
        temperature=temperature,
        when=posthoc,
        deep=deep,
    )
    with _progress(quiet=as_json) as progress, _resumable():
        comparison = run_ensemble(plan, out, resume=resume, progress=progress)
    _print(comparison, out, as_json=as_json)
    if comparison.choice is None:
        raise typer.Exit(1)


def _taus(tau: float | None, sweep: str | None) -> tuple[float, ...]:
    from temperance.training.ensemble_plan import TAU

    if sweep is None:
        return (TAU if tau is None else tau,)
    if tau is not None:
        raise typer.BadParameter("give one of --tau and --sweep-tau", param_hint="--sweep-tau")
    try:
        return tuple(float(part) for part in sweep.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"numbers with commas between them, such as 0.1,0.2,0.5; found {sweep!r}",
            param_hint="--sweep-tau",
        ) from None


# ------------------------------------------------------------------ the table
def _print(comparison: EnsembleComparison, out: Path, *, as_json: bool) -> None:
    from temperance.records import to_dict

    if as_json:
        print_json({**to_dict(comparison), "out": str(out)})
        return
    for notice in comparison.notices:
        print(f"Note: {notice}")
    print(
        f"{comparison.data['name']}: {comparison.model}, {comparison.plan['members']} members, "
        f"T = {number(comparison.temperature)} in each (norm: {comparison.norm})"
    )
    columns = (
        "method", "accuracy %", "NLL", "ECE %", "Brier", "NLL after", "ECE % after",
        "disagree %",
    )  # fmt: skip
    print_table(
        f"Test rows: {comparison.data['rows']['test']}, mean over {comparison.plan['seeds']} "
        f"seeds; after: post-hoc T, fitted {comparison.plan['when']} averaging",
        columns,
        [_row(m) for m in comparison.methods],
    )
    compared = [m for m in comparison.methods if m.differences]
    if compared:
        print_table(
            "Difference to the single model, paired, 95 % interval",
            ("method", "accuracy (points)", "NLL", "NLL after post-hoc", "verdict (NLL after)"),
            [_difference_row(m) for m in compared],
        )
    print_table(
        "Cost, all members together; ms: of a prediction, measured here",
        ("method", "parameters", "multiply-adds per row", "training s", "ms per row"),
        [_cost_row(m) for m in comparison.methods],
    )
    choice = comparison.choice
    if choice is None:
        print("No ensemble came to an end: see report.json for what each run says.")
    else:
        print(f"Shipped: members.safetensors, tau {choice.tau:g}, seed {choice.seed}.")
    print(f"Report: {out / 'report.html'}")


def _row(method: MethodSummary) -> list[str]:
    if not method.metrics:
        return [method.title, *[", ".join(method.outcomes)] * 6, ""]
    value = {name: e.value for name, e in method.metrics.items()}
    apart = method.uncertainty.get("disagreement")
    return [
        method.title,
        f"{100 * value['accuracy']:.2f}",
        f"{value['nll']:.4f}",
        f"{100 * value['ece']:.2f}",
        f"{value['brier']:.4f}",
        f"{value['nll_posthoc']:.4f}",
        f"{100 * value['ece_posthoc']:.2f}",
        "" if apart is None else f"{100 * apart:.2f}",
    ]


def _cost_row(method: MethodSummary) -> list[str]:
    milliseconds, count = method.milliseconds_per_row, method.multiply_adds
    return [
        method.title,
        f"{method.parameters}",
        "" if count is None else f"{count}",
        f"{method.seconds:.1f}",
        "" if milliseconds is None else f"{milliseconds:.4f}",
    ]


def _difference_row(method: MethodSummary) -> list[str]:
    cells = [method.title]
    for name, scale, digits in (("accuracy", 100, 2), ("nll", 1, 4), ("nll_posthoc", 1, 4)):
        found = method.differences[name]
        text = f"{scale * found.value:+.{digits}f}"
        if found.interval is not None:
            low, high = (scale * end for end in found.interval)
            text += f" [{low:+.{digits}f}, {high:+.{digits}f}]"
        cells.append(text)
    return [*cells, method.verdicts["nll_posthoc"]]
