"""Arms: the settings that a comparison trains side by side.

An arm is a norm, a temperature (fixed, or moving in training) and a label smoothing. All arms of a
comparison share their seeds: the same initial weights, the same order of the data, the same budget.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from temperance.errors import InvalidInput
from temperance.head import SHAPES, Ramp
from temperance.records import Suggestion

__all__ = ["BASELINE", "DEFAULT_ARMS", "Arm", "merge_arms", "parse_arm"]

NORMS = {"plain": "none", "bn": "batch", "ln": "layer", "cosine": "cosine"}
BASELINE = "plain"
DEFAULT_ARMS = (
    *("plain", "bn", "ln", "bn:T=sqrt", "bn:T=budget", "bn:T=suggested"),
    "plain:smoothing=0.1",
)
SCALES = {"adacos": "adacos", "cosface": "cosface-bound", "normface": "normface"}
DYNAMIC = "adacos-dynamic"
_GRAMMAR = (
    "NORM[:T=VALUE][:ramp=SHAPE][:smoothing=VALUE], NORM one of plain, bn, ln, cosine; T a number, "
    "sqrt, suggested or the name of a rule (all also as suggested/4 or suggested*4), learned, "
    "learned@START or START..END; for cosine also s, a number, "
    f"{', '.join(SCALES)} or {DYNAMIC}; SHAPE one of {', '.join(SHAPES)}"
)


@dataclass(frozen=True)
class Arm:
    """One setting of a comparison.

    Attributes:
        name: how it was asked for, for instance ``bn:T=suggested``.
        norm: ``none``, ``batch``, ``layer`` or ``cosine``.
        temperature: T in training and in the model; where it moves, T at the first step.
        smoothing: label smoothing of the training loss, 0 to below 1.
        aliases: other names of the same setting, which is trained once.
        learned: whether T is learned.
        end: T at the last step of a ramp; None for no ramp.
        ramp: shape of the ramp.
        adaptive: whether T follows the batches by AdaCos.
    """

    name: str
    norm: str
    temperature: float
    smoothing: float = 0.0
    aliases: tuple[str, ...] = ()
    learned: bool = False
    end: float | None = None
    ramp: str = "linear"
    adaptive: bool = False

    @property
    def setting(self) -> tuple[str, float, float, str]:
        """What makes two arms the same training."""
        return self.norm, self.temperature, self.smoothing, self.moves

    @property
    def moves(self) -> str:
        """How T moves in training, in words; empty for a fixed T."""
        if self.learned:
            return f"learned from {self.temperature:.6g}"
        if self.adaptive:
            return f"AdaCos from {self.temperature:.6g}"
        if self.end is not None:
            return f"{self.temperature:.6g} to {self.end:.6g}, {self.ramp}"
        return ""

    @property
    def schedule(self) -> Ramp | None:
        """The ramp that T follows, if it follows one."""
        return None if self.end is None else Ramp(self.temperature, self.end, self.ramp)

    @property
    def folds(self) -> bool:
        """Whether norm and T fold into one linear layer."""
        return self.norm not in ("layer", "cosine")

    @property
    def suggested(self) -> bool:
        """Whether this arm trains with the suggested temperature."""
        names = (self.name, *self.aliases)
        return not self.moves and any(re.search(r"T=suggested(:|$)", name) for name in names)

    @property
    def prefix(self) -> str:
        """The word for its norm in the grammar: ``plain``, ``bn``, ``ln`` or ``cosine``."""
        return next(word for word, norm in NORMS.items() if norm == self.norm)

    @property
    def title(self) -> str:
        """Name for tables and plots, for instance ``BN, T = 3.48 (suggested)``."""
        norm = {"none": "plain", "batch": "BN", "layer": "LN"}.get(self.norm, self.norm)
        text = f"{norm}, {self._value()}"
        return f"{text}, smoothing {self.smoothing:g}" if self.smoothing else text

    def _value(self) -> str:
        number = f"{self.temperature:.3g}"
        if self.learned:
            return f"T learned from {number}"
        if self.end is not None:
            shape = "" if self.ramp == "linear" else f" ({self.ramp})"
            return f"T = {number} to {self.end:.3g}{shape}"
        if self.adaptive:
            return "s by AdaCos"
        if self.norm == "cosine":
            return f"s = {1 / self.temperature:.3g}"
        if self.suggested:
            return f"T = {number} (suggested)"
        if asked := re.search(r"T=([a-z][a-z-]*)(?:([*/])([^:]+))?(?=:|$)", self.name):
            word = f"{asked[1]} {asked[2]} {asked[3]}" if asked[2] else asked[1]
            return f"T = {number}" + ("" if asked[1] == "sqrt" else f" ({word})")
        return f"T = {number if float(number) == self.temperature else f'{self.temperature:g}'}"


def merge_arms(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """Join arms that are the same training under two names; the first name stays.

    Args:
        arms: arms in the order in which they were asked for.

    Returns:
        Arms with different settings; what was joined is in ``aliases``.

    Example:
        >>> from temperance.training.arms import Arm, merge_arms
        >>> one = merge_arms([Arm("bn", "batch", 1.0), Arm("bn:T=suggested", "batch", 1.0)])
        >>> [(arm.name, arm.title) for arm in one]
        [('bn', 'BN, T = 1 (suggested)')]
    """
    found: dict[tuple[str, float, float, str], Arm] = {}
    for arm in arms:
        first = found.get(arm.setting)
        found[arm.setting] = (
            arm if first is None else replace(first, aliases=(*first.aliases, arm.name))
        )
    return tuple(found.values())


def parse_arm(text: str, *, feature_dim: int, suggestion: Suggestion) -> Arm:
    """Read an arm such as ``bn:T=suggested``, ``bn:T=4..1`` or ``cosine:s=adacos``.

    Args:
        text: ``NORM[:T=VALUE][:ramp=SHAPE][:smoothing=VALUE]``; NORM is plain, bn, ln or cosine.
            T (1 if absent) is a number; ``sqrt`` for ``sqrt(M)``, ``suggested`` or the name of a
            rule, not for cosine heads, whose T is another one; each times or over a number, as
            ``suggested/4``
            (three runs around the suggested T are what more compute is best spent on, see
            ``studies/budget``); ``START..END``
            (or ``START->END``, in quotes) for a ramp; ``learned``, from the suggested T on, or
            ``learned@START``. A cosine head may have a scale in place of T: a number, ``adacos``
            (the fixed one, also the default and where a learned T starts), ``cosface``,
            ``normface``, or ``adacos-dynamic``.
        feature_dim: M, for ``T=sqrt``.
        suggestion: what ``T=suggested`` stands for; its others have the scales.

    Returns:
        The arm.

    Raises:
        InvalidInput: if the text does not follow the grammar.

    Example:
        >>> from temperance import Task, suggest
        >>> from temperance.training.arms import parse_arm
        >>> s = suggest(Task(feature_dim=64, n_classes=10))
        >>> parse_arm("bn:T=sqrt", feature_dim=64, suggestion=s).title
        'BN, T = 8'
        >>> parse_arm("bn:T=sqrt..1:ramp=exponential", feature_dim=64, suggestion=s).title
        'BN, T = 8 to 1 (exponential)'
    """
    norm, *options = text.split(":")
    pairs = [option.partition("=") for option in options]
    given = {key: value for key, _, value in pairs}
    allowed = {"T", "ramp", "smoothing"} | ({"s"} if norm == "cosine" else set())
    if norm not in NORMS or len(given) < len(pairs) or not allowed.issuperset(given):
        raise _bad_arm(text)
    if {"s", "T"} <= set(given):
        raise _bad_arm(text)
    arm = _with_value(Arm(text, NORMS[norm], 1.0), given, feature_dim, suggestion)
    if "ramp" in given:
        if arm.end is None or given["ramp"] not in SHAPES:
            raise _bad_arm(text)
        arm = replace(arm, ramp=given["ramp"])
    if "smoothing" in given:
        arm = replace(arm, smoothing=_number(text, given["smoothing"]))
    ends = (arm.temperature, arm.temperature if arm.end is None else arm.end)
    if not all(math.isfinite(t) and t > 0 for t in ends) or not 0 <= arm.smoothing < 1:
        raise _bad_arm(text)
    return arm


# ------------------------------------------------------------------ values
def _with_value(arm: Arm, given: dict[str, str], feature_dim: int, suggestion: Suggestion) -> Arm:
    """The arm with its T, and how that moves."""
    cosine = arm.norm == "cosine"

    rules = (suggestion.rule, *suggestion.others)

    def read(value: str) -> float:
        word = re.fullmatch(r"([a-z][a-z-]*)(?:([*/])(.+))?", value)
        if word is None or word[1] not in ("sqrt", "suggested", *rules):
            return _number(arm.name, value)
        if cosine:
            raise _no_scale(arm.name, value)
        bases = {"sqrt": math.sqrt(feature_dim), "suggested": suggestion.temperature}
        base = bases.get(word[1]) or _of_rule(arm.name, word[1], suggestion)
        factor = 1.0 if word[2] is None else _number(arm.name, word[3])
        return _times(base, factor, word[2])

    if "T" not in given:
        return _with_scale(arm, given.get("s", "adacos"), suggestion) if cosine else arm
    value = given["T"]
    if value == "learned":
        start = _with_scale(arm, "adacos", suggestion).temperature if cosine else None
        return replace(arm, learned=True, temperature=start or suggestion.temperature)
    if value.startswith("learned@"):
        return replace(arm, learned=True, temperature=read(value.removeprefix("learned@")))
    ends = re.split(r"\.\.|->", value)
    if len(ends) == 2:
        return replace(arm, temperature=read(ends[0]), end=read(ends[1]))
    return replace(arm, temperature=read(value))


def _with_scale(arm: Arm, scale: str, suggestion: Suggestion) -> Arm:
    """The arm with T = 1 / s."""
    rule = SCALES.get("adacos" if scale == DYNAMIC else scale)
    if rule is None:
        number = _number(arm.name, scale)
        return replace(arm, temperature=1 / number if number > 0 else math.nan)
    other = suggestion.others.get(rule)
    if other is None or other.temperature is None:
        raise InvalidInput(
            "arm",
            expected="a scale that is defined for this number of classes",
            found=f"{arm.name!r}: {rule} has none",
            fix="For two classes take --arm cosine:s=cosface, a number, or cosine:T=learned@0.1.",
        )
    return replace(arm, temperature=other.temperature, adaptive=scale == DYNAMIC)


def _of_rule(text: str, rule: str, suggestion: Suggestion) -> float:
    """T of a rule: of the one that the suggestion follows, or of one beside it."""
    if rule == suggestion.rule:
        return suggestion.temperature
    other = suggestion.others[rule]
    if other.temperature is None:
        raise InvalidInput(
            "arm",
            expected=f"a rule that has a T for this task, in place of {rule}",
            found=f"{text!r}: {other.note}",
            fix="Leave this arm out, or name another rule (see: temperance rules).",
        )
    return other.temperature


def _times(base: float, factor: float, sign: str | None) -> float:
    """A T times or over a factor; NaN, which no arm takes, for one that is not positive."""
    if not factor > 0:
        return math.nan
    return base / factor if sign == "/" else base * factor


def _number(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise _bad_arm(text) from None


def _no_scale(name: str, value: str) -> InvalidInput:
    return InvalidInput(
        "arm",
        expected="a T below 1 or a scale s = 1 / T for a cosine head",
        found=f"{name!r}: {value} is a T for features that are not at length 1",
        fix="For instance --arm cosine:s=adacos, --arm cosine:s=16 or --arm cosine:T=learned.",
    )


def _bad_arm(text: str) -> InvalidInput:
    return InvalidInput(
        "arm",
        expected=_GRAMMAR,
        found=repr(text),
        fix="For instance --arm bn:T=4 --arm bn:T=4..1 --arm plain:smoothing=0.1.",
    )
