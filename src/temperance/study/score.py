"""The figures of one trained model: accuracy, NLL and ECE, before and after a post-hoc temperature.

A lower NLL at some training temperature may be no more than what one number fitted afterwards would
have repaired as well. So every outcome is scored twice: as it is, and after a temperature that is
fitted on the validation rows and applied to the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.evaluation import fit_temperature
from temperance.evaluation.calibration import bin_edges, ece_of_bins, table_of_bins
from temperance.evaluation.predictions import read_predictions
from temperance.evaluation.scores import RowScores, score_rows
from temperance.study.outcome import Outcome, StudyData

__all__ = ["METRICS", "score"]

METRICS = (
    "val_accuracy",
    "val_nll",
    "val_nll_posthoc",
    "test_accuracy",
    "test_nll",
    "test_nll_posthoc",
    "test_ece",
    "test_ece_posthoc",
    "posthoc_temperature",
)


def score(outcome: Outcome, data: StudyData) -> dict[str, float]:
    """Judge one outcome on the validation and test rows.

    The post-hoc temperature is the T of the lowest NLL on the validation rows. It divides the
    logits of an outcome, which are divided by the training T already. Where the fit does not
    converge (all validation rows are right, or the NLL does not depend on T) it is 1, as in
    ``Report``, and the figures after it are those before it.

    Args:
        outcome: an outcome that is ``done``, with logits of ``val`` and ``test``.
        data: the rows that it was trained and judged on; only their labels are read.

    Returns:
        The numbers named in ``METRICS``, all finite: accuracy and ECE (15 bins of equal width) as
        shares of 1, NLL in nats. The accuracy does not depend on the post-hoc temperature.

    Raises:
        InvalidInput: if the outcome is not done, or its logits are not finite or do not belong to
            these rows.

    Example:
        >>> import numpy as np
        >>> from temperance.study.outcome import Outcome, StudyData
        >>> from temperance.study.score import score
        >>> from temperance.study.trial import Trial
        >>> y = np.array([0, 1, 1, 0])
        >>> data = StudyData("four", {}, {"val": y, "test": y}, 2)
        >>> z = np.array([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [4.0, 0.0]], np.float32)
        >>> done = Outcome(Trial("four"), "done", logits={"val": z, "test": z})
        >>> metrics = score(done, data)
        >>> metrics["test_accuracy"], round(metrics["posthoc_temperature"], 3)  # 4 / log 3
        (0.75, 3.641)

    Reference:
        Guo, Pleiss, Sun, Weinberger, On calibration of modern neural networks, 2017,
        arXiv 1706.04599: the post-hoc temperature (section 4.2) and the ECE (section 2).
    """
    z = {split: _shifted(outcome, data, split) for split in ("val", "test")}
    temperature = fit_temperature(logits=z["val"], labels=data.y["val"]).applied
    metrics = {"posthoc_temperature": float(temperature)}
    for split in z:
        predictions = read_predictions(logits=z[split], labels=data.y[split])
        before = score_rows(predictions)
        after = before if temperature == 1.0 else score_rows(predictions, temperature=temperature)
        metrics[f"{split}_accuracy"] = float(before.correct.mean())
        for ending, rows in (("", before), ("_posthoc", after)):
            metrics[f"{split}_nll{ending}"] = float(rows.nll.mean())
            metrics[f"{split}_ece{ending}"] = _ece(rows)
    return {name: metrics[name] for name in METRICS}


def _shifted(outcome: Outcome, data: StudyData, split: str) -> NDArray[np.float64]:
    """Logits less the largest of their row: the same model, never taken for probabilities.

    An outcome says that its numbers are logits, so the guard of ``fit_temperature`` against rows
    that sum to 1 would only hit models that put out the same logits for all rows.
    """
    if outcome.outcome != "done" or outcome.logits is None:
        raise _refusal("an outcome that is done, with logits", repr(outcome.outcome))
    if split not in outcome.logits or split not in data.y:
        raise _refusal(f"logits and labels of {split}", "none")
    z: NDArray[Any] = np.asarray(outcome.logits[split])
    wanted = (len(data.y[split]), data.n_classes)
    if z.shape != wanted:
        raise _refusal(f"logits of {split} of shape {list(wanted)}", f"shape {list(z.shape)}")
    if not np.isfinite(z).all():
        raise _refusal("finite logits", f"others in the logits of {split}")
    wide = z.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide


def _ece(rows: RowScores) -> float:
    return ece_of_bins(table_of_bins(rows, bin_edges(rows.confidence)))


def _refusal(expected: str, found: str) -> InvalidInput:
    fix = "Score what an engine of the study returned, with the data that it was given."
    return InvalidInput("outcome", expected=expected, found=found, fix=fix)
