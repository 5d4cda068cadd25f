"""The verbs in one program, and how errors reach the shell."""

from __future__ import annotations

import io
import sys
import warnings
from typing import Annotated

import typer

from temperance.cli.calibrate import calibrate
from temperance.cli.ensemble import ensemble
from temperance.cli.evaluate import evaluate
from temperance.cli.export import export
from temperance.cli.fit import fit
from temperance.cli.measure import measure
from temperance.cli.output import print_error
from temperance.cli.predict import predict
from temperance.cli.regret import regret
from temperance.cli.rules import rules
from temperance.cli.suggest import suggest
from temperance.cli.sweep import sweep
from temperance.cli.train import train
from temperance.errors import TemperanceError
from temperance.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="temperance",
    help="Set the softmax temperature of classifiers: before, during and after training.",
    epilog="Example: temperance suggest --features 512 --classes 10",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"temperance {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command(
    epilog="Example: temperance suggest --features 512 --classes 10 --n 50000 --optimizer sgd "
    "--lr 0.1 --momentum 0.9 --epochs 30 --batch-size 128"
)(suggest)
app.command(epilog="Example: temperance rules --json")(rules)
app.command(epilog="Example: temperance measure digits --out runs/measured")(measure)
app.command(epilog="Example: temperance train digits --out runs/digits --seeds 3 --epochs 20")(
    train
)
app.command(
    epilog="Example: temperance ensemble digits --members 4 --tau 0.2 --deep --out runs/ensemble"
)(ensemble)
app.command(epilog="Example: temperance calibrate val.npz --out runs/calibrated")(calibrate)
app.command(epilog="Example: temperance evaluate test.npz --ood other.npy --out runs/judged")(
    evaluate
)
app.command(epilog="Example: temperance sweep plan.toml --out runs/sweep --workers 4")(sweep)
app.command(epilog="Example: temperance fit runs/sweep --out rule.json")(fit)
app.command(epilog="Example: temperance regret runs/sweep --out runs/regret")(regret)
app.command(epilog="Example: temperance predict runs/digits new.png --json")(predict)
app.command(epilog="Example: temperance export runs/digits --format onnx --posthoc")(export)


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"temperance: {message}", file=sys.stderr)


def main(argv: list[str] | None = None) -> None:
    """Run the command line; errors of the library become one sentence and an exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # names that the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.showwarning = _print_warning
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning
        try:
            app(args=arguments, prog_name="temperance")
        except TemperanceError as error:
            print_error(error, as_json="--json" in arguments)
            sys.exit(error.exit_code)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            failed = TemperanceError(
                f"{where}{error.strerror or error}. What was finished is kept; free the disk or "
                "choose another folder (train goes on with --resume)."
            )
            print_error(failed, as_json="--json" in arguments)
            sys.exit(failed.exit_code)
