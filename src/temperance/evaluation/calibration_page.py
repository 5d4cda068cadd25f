"""What ``temperance calibrate`` leaves behind: numbers to apply, a report, a page, a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from temperance import serial
from temperance.errors import InvalidInput
from temperance.evaluation import html, plots
from temperance.evaluation.calibrate_file import Calibration
from temperance.evaluation.calibrators import Calibrator
from temperance.evaluation.prepare import prepare_reliability
from temperance.files import write_bytes

__all__ = ["finding", "read_calibration", "write_calibration"]

FILE = "calibration.json"
_ROWS = (
    ("accuracy", "Accuracy %", "percent", 2),
    ("nll", "NLL (nats)", "number", 4),
    ("brier", "Brier score", "number", 4),
    ("ece", "ECE %", "percent", 2),
)


def write_calibration(folder: Path, found: Calibration) -> None:
    """Write ``calibration.json``, ``report.json``, ``report.html`` and ``plots/reliability.png``.

    Args:
        folder: output folder, which is there.
        found: what ``calibrate_file`` gave.
    """
    reports = {"Before": found.before, "After": found.after}
    png = plots.png_bytes(plots.plot_reliability(prepare_reliability(reports)))
    (folder / "plots").mkdir(exist_ok=True)
    write_bytes(folder / "plots" / "reliability.png", png)
    write_bytes(folder / "report.json", serial.dumps(found).encode())
    html.save_html(_page(found, png), folder / "report.html")
    text = json.dumps(found.calibrator.to_dict(), indent=2, allow_nan=False)
    write_bytes(folder / FILE, text.encode())


def read_calibration(path: str | Path) -> Calibrator:
    """Read ``calibration.json``, or the folder that it is in.

    Args:
        path: the file or the folder.

    Returns:
        The calibrator.

    Raises:
        InvalidInput: if there is none, or it is not whole.
    """
    file = Path(path)
    file = file / FILE if file.is_dir() else file
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(
            str(file),
            expected="the calibration.json of temperance calibrate",
            found=getattr(error, "strerror", None) or str(error),
            fix="Name that file or its folder.",
        ) from error
    kind = data.get("record", "Calibrator") if isinstance(data, dict) else type(data).__name__
    if kind != "Calibrator":
        raise InvalidInput(
            str(file), expected="a calibration", found=str(kind), fix="Name its calibration.json."
        )
    return Calibrator.from_dict(data)


def finding(found: Calibration) -> list[str]:
    """Say in sentences what the calibration did to the judged rows."""
    words = []
    for name, title, kind, digits in _ROWS:
        scale = 100.0 if kind == "percent" else 1.0
        before, after = (r.metrics[name].value * scale for r in (found.before, found.after))
        verdict = found.comparison.verdicts[name]
        name = title.split(" %")[0].split(" (")[0]
        unit = " %" if kind == "percent" else ""
        words.append(f"{name} {before:.{digits}f} to {after:.{digits}f}{unit} ({verdict})")
    return [
        f"On {found.rows['judged']:,} rows that were not fitted on: {'; '.join(words)}.",
        *(f"{note[0].upper()}{note[1:]}." for note in found.notes),
    ]


def _page(found: Calibration, png: bytes) -> str:
    calibrator, plan = found.calibrator, found.plan
    sections: list[html.Section] = [
        html.Callout(" ".join(finding(found)), title="What it did"),
        html.Heading("The calibration"),
        html.Paragraph(_fit_words(found)),
        html.Heading("Before and after"),
        _table(found),
        html.Figure(png, alt="Reliability diagrams before and after the calibration"),
        html.Heading("How to use it"),
        html.Steps(tuple(_steps(calibrator, one_column=found.one_column))),
    ]
    subtitle = f"{plan['file']}; method {calibrator.method}; {found.rows['fit_used']:,} fit rows"
    footer = "All figures are in report.json."
    return html.render_html(sections, title="Calibration report", subtitle=subtitle, footer=footer)


def _fit_words(found: Calibration) -> str:
    calibrator = found.calibrator
    text = (
        f"Method {calibrator.method}, status: {calibrator.status}; free numbers: "
        f"{calibrator.n_parameters}; NLL of the fit rows {calibrator.nll_before:.4f} to "
        f"{calibrator.nll_after:.4f} nats."
    )
    if "temperature" in calibrator.parameters:
        temperature = calibrator.parameters["temperature"]
        ends = ""
        if found.interval is not None:
            ends = f" [{found.interval[0]:.4g}, {found.interval[1]:.4g}]"
        text += f" T = {temperature:.5g}{ends}."
    return text


def _table(found: Calibration) -> html.Table:
    rows: list[tuple[Any, ...]] = []
    columns = [html.Column("Figure"), *(html.Column(t, k, d) for _, t, k, d in _ROWS)]
    for title, report in (("Before", found.before), ("After", found.after)):
        rows.append((title, *(report.metrics[name] for name, *_ in _ROWS)))
    shown = ("After shows", *(found.comparison.verdicts[name] for name, *_ in _ROWS))
    return html.Table(
        tuple(columns),
        (*rows, shown),
        caption=f"{found.rows['judged']:,} rows that were not fitted on, 95 % intervals over rows",
    )


def _steps(calibrator: Calibrator, *, one_column: bool) -> list[str]:
    steps = [
        "On the command line: `temperance predict MODEL INPUT --calibration calibration.json`.",
        'In Python: `read_calibration("calibration.json").probs(logits)` from '
        "`temperance.evaluation.calibration_page`.",
    ]
    if calibrator.method != "temperature" and not calibrator.plain:
        return steps
    value = calibrator.parameters["temperature"]
    if one_column:
        steps.append(f"Anywhere, for class 1: `p = 1 / (1 + np.exp(-logits / {value!r}))`.")
    else:
        steps.append(
            f"Anywhere, in three lines of NumPy: `z = logits / {value!r}`, "
            "`z -= z.max(1, keepdims=True)`, `p = np.exp(z) / np.exp(z).sum(1, keepdims=True)`."
        )
    return steps
