"""The law of the budget: a temperature from how large the head is and how it will be trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, ClassVar

from temperance.errors import InvalidInput, NotFound
from temperance.records import Task
from temperance.rules.budget_file import TUNED, Coefficients, Family
from temperance.rules.budget_terms import fact_value, statistics_in, value_of_term
from temperance.rules.training import Training, missing_facts, read_training

__all__ = ["Budget", "BudgetDomain", "t_quantile"]

_HELD_OUT = {"tasks", "datasets", "better", "gain", "median_gain"}  # what expectation tells


@dataclass(frozen=True)
class BudgetDomain:
    """Where the law of the budget was fitted: for each family of optimizers the ranges of its runs.

    Attributes:
        coefficients: the law.
        target: whose best T it gives.
    """

    coefficients: Coefficients
    target: str

    @property
    def temperatures(self) -> tuple[float, float]:
        """Smallest and largest T of the runs; no other is suggested."""
        return self.coefficients.temperatures

    @property
    def source(self) -> str:
        """Where the ranges come from."""
        return self.coefficients.source

    @property
    def feature_dim(self) -> tuple[int, int]:
        """Smallest and largest M of any family."""
        return self._ends("M")

    @property
    def n_classes(self) -> tuple[int, int]:
        """Smallest and largest C of any family."""
        return self._ends("C")

    def _ends(self, name: str) -> tuple[int, int]:
        laws = self.coefficients.families(self.target).values()
        low, high = zip(*(dict(law.domain)[name] for law in laws), strict=True)
        return int(min(low)), int(max(high))

    def compared(self, task: Task) -> dict[str, tuple[Any, tuple[Any, ...]]]:
        """Give each fact that the domain is about: what the task has, and what the runs had."""
        training = read_training(task)
        seen = _law_of(self.coefficients.families(self.target), training).domain
        return {name: (_here(name, task, training), values) for name, values in seen}

    def reasons(self, task: Task) -> list[str]:
        """Say in words why a task lies outside; an empty list when it lies inside."""
        training = read_training(task)
        law = _law_of(self.coefficients.families(self.target), training)
        domain = self.coefficients.domain_of(law)
        facts = {name: _here(name, task, training) for name, _ in domain.training}
        plain = replace(task, n_samples=training.n, training=facts)
        unknown = [f"{remark}: the law does not know what that does" for remark in training.remarks]
        return domain.reasons(plain) + unknown


def _here(name: str, task: Task, training: Training) -> Any:
    if name == "optimizer":  # without decay, Adam and AdamW take the same steps
        same = training.optimizer == "adam" and training.weight_decay == 0
        return "adamw" if same else training.optimizer
    if name == "norm":
        return training.norm or Budget.norm
    if name == "schedule":
        return training.schedule
    return fact_value(name, task, training)


@dataclass(frozen=True)
class Budget:
    """The temperature that a training budget asks for, by the family of its optimizer.

    ``log T = intercept + sum of coefficient * term``, so that T is a product of powers::

        T ~ M^a n^b steps^c lr^d ...

    The coefficients are those of a log-linear fit to the best temperatures of many trainings; they
    are read from a file. The prediction interval is that of one further training like those of
    the fit: it holds the spread around the law and the uncertainty of its coefficients. No T
    beyond those of the runs is suggested.

    Args:
        coefficients: the law; ``load_coefficients()`` for the one that comes with the library.
        target: whose best T: ``nll_posthoc``, ``nll`` or ``accuracy``, all on rows that were not
            trained on; "" for the target that the coefficients name.

    Raises:
        NotFound: if the coefficients have no such target.

    Reference:
        Our own finding: docs/theory for the form, docs/evidence for coefficients and regret.
    """

    coefficients: Coefficients
    target: str = ""

    name: ClassVar[str] = "budget"
    norm: ClassVar[str] = "batch"
    fallback: ClassVar[str | None] = "hasegawa-sakai"
    extrapolates: ClassVar[bool] = True
    reference: ClassVar[str] = "our own fit, docs/evidence"
    formula: ClassVar[str] = "T = exp(intercept + sum of coefficient * term), by optimizer"
    trust: ClassVar[str] = "trainings whose optimizer, rate and steps are known and in its domain"

    def __post_init__(self) -> None:
        if self.target == "":
            object.__setattr__(self, "target", self.coefficients.target)
        self.coefficients.families(self.target)

    @property
    def default(self) -> bool:
        """Whether ``suggest`` takes the rule by itself where it knows the training."""
        return self.coefficients.default

    def default_for(self, task: Task) -> bool:
        """Whether ``suggest`` takes the rule by itself for a task whose training it knows.

        Where fresh data support the law; and where the rate was tuned at T = 1, since only a law
        that they support comes with the coefficients, and who says ``tuned_lr`` asks for it.
        """
        training = read_training(task)
        name = training.family + TUNED
        supported = name in self.coefficients.fit.get("held_out", {})
        tuned = self._law(training) is self.coefficients.families(self.target).get(name)
        return self.default or (tuned and supported)

    @property
    def domain(self) -> BudgetDomain:
        """The ranges of the runs."""
        return BudgetDomain(self.coefficients, self.target)

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """Data sets of the fit: the rule must not be judged on them."""
        return tuple(self.coefficients.fit["datasets"])

    @property
    def needs(self) -> tuple[str, ...]:
        """Statistics that the law of any family is made of."""
        laws = self.coefficients.families(self.target).values()
        return statistics_in(tuple(term for law in laws for term, _ in law.terms))

    def norm_of(self, task: Task) -> str:
        """Give the norm that the value is for: that of the training, batch where it has none."""
        norm = read_training(task).norm
        seen = dict(self._law(read_training(task)).domain).get("norm", ())
        return norm if norm in seen else self.norm

    def why_not(self, task: Task) -> str:
        """Say why the law has no value for the training of a task; "" where it has one."""
        if lacking := missing_facts(task):
            return f"needs of the training: {', '.join(lacking)}"
        try:
            self._law(read_training(task))
        except (InvalidInput, NotFound) as error:
            return str(error)
        return ""

    def log_terms(self, task: Task) -> dict[str, float]:
        """Give the shares that add up to log T."""
        training = read_training(task)
        law = self._law(training)
        shares = {
            term: coefficient * value_of_term(term, task, training)
            for term, coefficient in law.terms
        }
        return {"intercept": law.intercept, **shares}

    def terms(self, task: Task) -> dict[str, float]:
        """Give the factors whose product is T."""
        return {name: _exp(share) for name, share in self.log_terms(task).items()}

    def __call__(self, task: Task) -> float:
        """Give the temperature for a task and its training."""
        return _exp(sum(self.log_terms(task).values()))

    def prediction(self, task: Task, level: float = 0.95) -> tuple[float, float]:
        """Give the interval in which the best T of one training like those of the fit lies.

        ``log T +- t sqrt(residual_sd^2 + x' S x)``, with x the terms (1 for the intercept), S the
        covariance of the coefficients and t the quantile of Student's distribution.

        Args:
            task: the task with the facts of its training.
            level: share of such trainings whose best T lies in it, above 0 and below 1.

        Returns:
            Smallest and largest T.

        Raises:
            InvalidInput: as calling the rule, and for a level out of range.
        """
        training = read_training(task)
        law = self._law(training)
        x = [1.0, *(value_of_term(term, task, training) for term, _ in law.terms)]
        variance = law.residual_sd**2 + _quadratic(x, law.covariance)
        half = t_quantile((1 + level) / 2, law.degrees_of_freedom) * math.sqrt(max(variance, 0.0))
        middle = sum(self.log_terms(task).values())
        return _exp(middle - half), _exp(middle + half)

    def expectation(self, task: Task) -> str:
        """Say what the law did on unseen data with optimizers of this family, against T = 1."""
        training = read_training(task)
        families = self.coefficients.families(self.target)
        name = training.family + TUNED
        law, advice = self._law(training), ""
        norms = (
            (self.norm, *dict(families[name].domain).get("norm", ())) if name in families else ()
        )
        if training.tuned_lr is None and self.norm_of(task) in norms:
            advice = (
                "if this learning rate was tuned at T = 1, say so (tuned_lr): that T is another"
            )
        if training.tuned_lr is not None and law is not families.get(name):
            advice = f"tuned_lr is not used: no law for a tuned rate with {training.optimizer}"
            advice += f" and norm {self.norm_of(task)}" if name in families else ""
        if not law.terms:
            found = f"no form was shown to beat T = 1 with {training.optimizer}"
            return _joined(f"{found}: this is the norm alone", advice)
        name = name if law is families.get(name) else training.family
        return _joined(self._on_unseen(name, self.norm_of(task)), advice)

    def _on_unseen(self, family: str, norm: str) -> str:
        found = self.coefficients.fit.get("held_out", {}).get(family)
        if not found or not found.keys() >= _HELD_OUT:
            tuned = family.endswith(TUNED)
            return "no figures of unseen data come with the law of a tuned rate" if tuned else ""
        if self.target != self.coefficients.target:
            return f"figures of unseen data are known for {self.coefficients.target} only"
        if norm != self.norm:  # the judged trainings had a BatchNorm
            return f"what the law did on unseen data is known for norm {self.norm} only, not {norm}"
        better, gain, median = found["better"], found["gain"], found["median_gain"]
        return (
            f"on {found['tasks']} trainings of {found['datasets']} held-out data sets this law "
            f"beat T = 1 in {100 * better[0]:.0f} % ({100 * better[1]:.0f} to "
            f"{100 * better[2]:.0f} %); NLL after a post-hoc T was {median:.2g} lower in the "
            f"middle one and {gain[0]:.2g} on average ({gain[1]:.2g} to {gain[2]:.2g})"
        )

    def _law(self, training: Training) -> Family:
        families = self.coefficients.families(self.target)
        if training.family not in families:
            raise InvalidInput(
                f"rule {self.name}, optimizer",
                expected=f"one of the families {', '.join(families)}",
                found=training.optimizer,
                fix="Take a rule that does without the training, such as hasegawa-sakai.",
            )
        return _law_of(families, training)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _law_of(families: Mapping[str, Family], training: Training) -> Family:
    """The law for a rate tuned at T = 1, where that is known and there is one for the norm."""
    plain = families[training.family]
    tuned = families.get(training.family + TUNED)
    if tuned is None or training.tuned_lr is None:
        return plain
    norms = dict(tuned.domain).get("norm", ())
    return tuned if not norms or (training.norm or Budget.norm) in norms else plain


def t_quantile(level: float, degrees: float) -> float:
    """Give a quantile of Student's t distribution, exact for 1 and 2 degrees of freedom.

    From 3 on it is a series, within 1 % up to a level of 0.995. Between 1 and 3 the whole number
    below counts: the interval is rather too wide.

    Args:
        level: probability below the quantile, 0.5 to below 1.
        degrees: degrees of freedom, 1 or more.

    Returns:
        The quantile.

    Raises:
        InvalidInput: for a level out of range.

    Example:
        >>> from temperance.rules.budget import t_quantile
        >>> round(t_quantile(0.975, 10), 2), round(t_quantile(0.975, 1e6), 2)
        (2.23, 1.96)

    Reference:
        M. Abramowitz, I. Stegun, Handbook of Mathematical Functions, 1964, 26.7.5.
    """
    if not 0.5 <= level < 1:
        raise InvalidInput(
            "level of an interval",
            expected="above 0 and below 1",
            found=f"{2 * level - 1:g}",
            fix="Give for instance 0.95.",
        )
    if degrees < 2:
        return math.tan(math.pi * (level - 0.5))
    if degrees < 3:
        return (2 * level - 1) / math.sqrt(2 * level * (1 - level))
    x = NormalDist().inv_cdf(level)
    parts = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + sum(part / degrees**power for power, part in enumerate(parts, 1))


def _quadratic(x: list[float], table: tuple[tuple[float, ...], ...]) -> float:
    rows = zip(x, table, strict=True)
    return sum(a * b * value for a, row in rows for b, value in zip(x, row, strict=True))


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
