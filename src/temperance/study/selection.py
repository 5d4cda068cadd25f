"""Which curves are fitted or judged together, and which data sets are kept out."""

from __future__ import annotations

from collections.abc import Sequence

from temperance.errors import InvalidInput, NotFound
from temperance.study.data_set_names import plain_name, same_data_set
from temperance.study.runs import Curve

__all__ = ["mixed_settings", "select_curves", "split_curves"]

_TASK_FIELDS = ("dataset", "features", "model", "feature_dim", "train_rows", "label_noise")


def select_curves(
    curves: Sequence[Curve],
    *,
    norm: str | None = None,
    loss: str | None = None,
    without: Sequence[str] = (),
) -> list[Curve]:
    """Choose curves by norm and loss, and leave data sets out.

    Args:
        curves: what ``read_curves`` gave.
        norm: ``none``, ``layer`` or ``batch``; None for all.
        loss: ``plain`` or ``normalized``; None for all.
        without: names of data sets that are left out, in any spelling.

    Returns:
        The chosen curves, in their order.

    Raises:
        NotFound: if a name in ``without`` is not among the data sets.
        InvalidInput: if nothing is left.
    """
    left_out = {plain_name(_known(name, curves)) for name in without}
    wanted = {"norm": norm, "loss": loss}
    inside = [c for c in curves if plain_name(c.dataset) not in left_out]
    if curves and not inside:
        raise InvalidInput(
            "runs",
            expected="a data set that is not left out",
            found=f"all of them are: {', '.join(without)}",
            fix="Leave fewer out, or add runs.",
        )
    kept = [
        c
        for c in inside
        if all(value is None or c.setting[name] == value for name, value in wanted.items())
    ]
    if not kept:
        there = sorted({f"norm {c.setting['norm']}, {c.setting['loss']} loss" for c in inside})
        raise InvalidInput(
            "runs",
            expected=f"norm {norm or 'any'}, {loss or 'any'} loss",
            found="; ".join(there) or "none",
            fix="Choose a norm and a loss that the runs have.",
        )
    return kept


def _known(name: str, curves: Sequence[Curve]) -> str:
    if not any(same_data_set(name, c.dataset) for c in curves):
        raise NotFound(
            "data set",
            found=f"there are no runs of {name!r}",
            candidates=sorted({c.dataset for c in curves}),
            fix="Name one of them.",
        )
    return name


def split_curves(
    curves: Sequence[Curve], hold_out: Sequence[str]
) -> tuple[list[Curve], list[Curve]]:
    """Divide curves into those of a fit and those of the data sets that are kept out of it.

    Args:
        curves: what ``read_curves`` gave.
        hold_out: names of data sets.

    Returns:
        The curves inside, and those that are kept out.

    Raises:
        NotFound: if a name is not among the data sets.
        InvalidInput: if nothing is left inside.
    """
    inside = select_curves(curves, without=hold_out)
    there = {c.dataset for c in inside}
    return inside, [c for c in curves if c.dataset not in there]


def mixed_settings(curves: Sequence[Curve]) -> list[str]:
    """Name what differs between the trainings of curves besides their tasks.

    Args:
        curves: those that are fitted or judged together.

    Returns:
        Fields of ``Trial``, sorted; none where all were trained alike.

    Example:
        >>> from temperance.study.runs import curves_of_rows, example_rows
        >>> from temperance.study.selection import mixed_settings
        >>> mixed_settings(curves_of_rows(*example_rows((1.0, 2.0, 4.0), datasets=("a", "b"))))
        []
    """
    settings = [curve.setting for curve in curves]
    names = {name for setting in settings for name in setting} - set(_TASK_FIELDS)
    return sorted(n for n in names if len({str(setting.get(n)) for setting in settings}) > 1)
