"""What a statistic is: a function of features with a name, and what is known of its behaviour."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from temperance.errors import InvalidInput
from temperance.records import Statistic

__all__ = ["Doubling", "Needs", "StatisticSpec", "UndefinedStatistic"]

Needs = Literal["features", "moments", "scatter", "spectrum", "neighbours", "silhouettes"]
Doubling = Literal["same", "near", "changes"]


class UndefinedStatistic(InvalidInput):
    """A statistic that does not exist on these rows, by its name.

    Args:
        name: name of the statistic.
        expected: what its formula needs.
        found: what the rows are.
        fix: what to do about it.

    Example:
        >>> from temperance.task.statistic_spec import UndefinedStatistic
        >>> print(UndefinedStatistic("fisher_ratio", expected="spread in a class", found="none"))
        statistic fisher_ratio: expected spread in a class, found none. Leave it out.
    """

    def __init__(self, name: str, *, expected: str, found: str, fix: str = "Leave it out.") -> None:
        self.name = name
        super().__init__(f"statistic {name}", expected=expected, found=found, fix=fix)

    @property
    def reason(self) -> str:
        """Why, without the name."""
        return f"expected {self.expected}, found {self.found}"


@dataclass(frozen=True)
class StatisticSpec:
    """One row of the table ``STATISTICS``.

    Attributes:
        name: its key, as rules and tables use it.
        function: gives the number, a Python float, of ``Features``, or of what ``needs`` names
            where that is there already; raises ``UndefinedStatistic`` where it does not exist.
        title: its name for people.
        unit: what the number counts or measures: ``x`` stands for the unit of the features.
        formula: how it is computed.
        reference: where it comes from.
        needs: what several statistics share: the sums of ``Moments`` (``moments``), those with the
            scatter matrix (``scatter``) or its eigenvalues (``spectrum``), nearest neighbours of
            drawn rows (``neighbours``), their ``silhouettes``, or only the ``features``.
        scale: power of a by which it changes where all features are multiplied by a > 0: 0 for
            invariant; None where there is no such law.
        rotation: whether a rotation of the features leaves it as it is.
        translation: whether adding one vector to all rows leaves it as it is.
        doubling: what happens where every row is there twice: ``same``, ``near`` (changes by a
            share of the order of 1 / rows of a class), or ``changes``.
        range: smallest and largest value that it can have.
        integer: whether it counts something.
        interval: how its interval is made: ``jackknife`` (groups of rows left out in turn),
            ``wilson`` (a share of rows), or ``none`` (a plain fact of these rows).
        held: what is held fixed where rows are left out, in words; empty where nothing is.
        remarks: what its status mentions where it occurs, see ``temperance.task.remarks``.
        record: where it has a spread of its own, gives the whole record: called with the features,
            and ``repeats``, ``seed`` and ``progress`` by name.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.statistic_spec import StatisticSpec
        >>> largest = StatisticSpec(
        ...     "largest", lambda features: float(abs(features.x).max()), title="largest value",
        ...     unit="x", formula="max |x_ij|", reference="mine", scale=1, rotation=False,
        ...     translation=False,
        ... )
        >>> largest.function(Features.from_arrays([[0.0], [-3.0]], [0, 1]))
        3.0
    """

    name: str
    function: Callable[[Any], float]
    title: str
    unit: str
    formula: str
    reference: str
    needs: Needs = "features"
    scale: int | None = 0
    rotation: bool = True
    translation: bool = True
    doubling: Doubling = "same"
    range: tuple[float, float] = (-math.inf, math.inf)
    integer: bool = False
    interval: Literal["jackknife", "wilson", "none"] = "jackknife"
    held: str = ""
    remarks: tuple[str, ...] = ()
    record: Callable[..., Statistic] | None = None

    @property
    def needs_seed(self) -> bool:
        """Whether the value depends on a seed, where there are more rows than are drawn."""
        return self.needs in ("neighbours", "silhouettes") or self.record is not None
