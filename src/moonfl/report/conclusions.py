"""Conclusions from a few seeds: the interval of a paired difference, and a verdict.

Two methods are run with the same seeds. The differences of their final accuracies, one per seed,
are a sample of size n from all seeds.

- Interval: the 95 % interval of the mean difference by Student's t with n - 1 degrees of freedom.
- Verdict: the two-sided paired t-test at the level 5 %. Where several methods are compared with a
  baseline, the p-values are corrected by the method of Holm (Scandinavian Journal of Statistics 6,
  1979), so that the probability of any wrong verdict is at most 5 %, however the comparisons depend
  on each other. The interval is not corrected; a verdict never claims more than it.
- Seeds needed: the smallest n with which the test detects a difference of the observed mean and
  standard deviation with probability 80 %, at the level 5 % / number of comparisons.

The test assumes independent seeds and approximately normal differences.
"""

import bisect
import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from .statistics import mean_std
from .tables import Interval, MeanStd

LEVEL = 0.05  # probability of a wrong verdict
POWER = 0.8  # probability with which the seeds needed detect the difference
MAX_SEEDS = 1000  # more needed seeds are not counted
ROUNDING = 1e-9  # smaller differences are rounding errors; test sets have fewer samples
NO_VARIANCE = "the same {} with every seed leaves no variance to estimate"
ONE_SEED = "one seed shows no variation between seeds; run 3 or more"


class Verdict(enum.Enum):
    """What the differences between a method and its baseline show."""

    BETTER = "better"
    WORSE = "worse"
    OPEN = "not distinguishable"
    EQUAL = "equal"
    NONE = "no verdict"


@dataclass(frozen=True)
class Pairing:
    """The differences of two methods, one per common seed."""

    differences: tuple[float, ...]
    problem: str = ""  # why they support no verdict, such as a diverged run
    higher_is_better: bool = True  # False for an error such as RMSE
    unit: float = 1.0  # size of the values; differences far below it are rounding errors


@dataclass(frozen=True)
class Conclusion:
    """What follows from the differences of two methods."""

    differences: tuple[float, ...]
    verdict: Verdict
    detail: str = ""  # why there is no verdict, or how many seeds would be needed
    interval: Interval | None = None  # of the mean difference; None if it cannot be computed
    p_value: float | None = None  # with Holm's correction

    @property
    def text(self) -> str:
        """Return the verdict in words."""
        gap = ": " if self.verdict is Verdict.NONE else " "
        return f"{self.verdict.value}{gap}{self.detail}" if self.detail else self.verdict.value

    @property
    def mean(self) -> MeanStd | None:
        """Return mean and standard deviation of the differences; None if there are none."""
        return mean_std(self.differences)


def conclude(pairings: Sequence[Pairing]) -> list[Conclusion]:
    """Return a conclusion for each pairing; all of them are corrected as one family."""
    problems = [find_problem(pairing) for pairing in pairings]
    tested = [k for k, problem in enumerate(problems) if problem is None]
    adjusted = holm([p_value(pairings[k].differences) for k in tested])
    p_values = dict(zip(tested, adjusted, strict=True))
    conclusions = []
    for k, (pairing, problem) in enumerate(zip(pairings, problems, strict=True)):
        if problem is None:
            conclusions.append(decide(pairing, p_values[k], len(tested)))
        else:
            conclusions.append(problem)
    return conclusions


def find_problem(pairing: Pairing) -> Conclusion | None:
    """Return the conclusion of a pairing that cannot be tested; None if it can be."""
    differences = pairing.differences
    if pairing.problem or len(differences) < 2:
        reason = pairing.problem
        if not reason:
            reason = ONE_SEED if differences else "there is no common seed"
        return Conclusion(differences, Verdict.NONE, reason)
    if have_variance(differences, pairing.unit):
        return None
    if abs(differences[0]) <= ROUNDING * pairing.unit:
        return Conclusion(differences, Verdict.EQUAL, f"with each of {len(differences)} seeds")
    return Conclusion(differences, Verdict.NONE, NO_VARIANCE.format("difference"))


def have_variance(values: Sequence[float], unit: float) -> bool:
    """Return True if values differ by more than rounding errors of numbers of the size `unit`."""
    return max(values) - min(values) > ROUNDING * unit


def decide(pairing: Pairing, adjusted: float, comparisons: int) -> Conclusion:
    """Return the conclusion of a test, from its p-value with Holm's correction."""
    differences = pairing.differences
    interval = t_interval(differences)
    seeds = len(differences)
    if adjusted < LEVEL:
        is_better = (interval.low > 0) == pairing.higher_is_better
        verdict = Verdict.BETTER if is_better else Verdict.WORSE
        detail = ""
    else:
        verdict = Verdict.OPEN
        # Without the correction the interval would support a verdict: say why there is none.
        excludes_zero = interval.low > 0 or interval.high < 0
        family = f" in {comparisons} comparisons" if excludes_zero else ""
        needed = describe_count(seeds_needed(differences, LEVEL / comparisons))
        detail = f"with {seeds} seeds{family}; {needed} seeds would be needed"
    return Conclusion(
        differences=differences,
        verdict=verdict,
        detail=detail,
        interval=interval,
        p_value=adjusted,
    )


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of the mean over seeds; None for a single value or equal ones."""
    if len(values) < 2 or not have_variance(values, max(map(abs, values))):
        return None
    return t_interval(values)


def t_interval(values: Sequence[float]) -> Interval:
    """Return the 95 % interval of the mean of values that differ, by Student's t."""
    mean, error = mean_and_error(values)
    half = critical_value(len(values), LEVEL) * error
    return Interval(mean - half, mean + half)


def p_value(differences: Sequence[float]) -> float:
    """Return the p-value of the two-sided paired t-test; the differences must not be all equal."""
    mean, error = mean_and_error(differences)
    return float(2 * special.stdtr(len(differences) - 1, -abs(mean / error)))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    numbers = np.asarray(values, dtype=float)
    return float(numbers.mean()), float(numbers.std(ddof=1)) / len(numbers) ** 0.5


def critical_value(seeds: int, level: float) -> float:
    """Return the |t| that equal methods exceed with probability `level`."""
    return float(special.stdtrit(seeds - 1, 1 - level / 2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values with Holm's correction, in the same order."""
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, k in enumerate(order):
        largest = max(largest, (len(p_values) - rank) * p_values[k])
        adjusted[k] = min(1.0, largest)
    return adjusted


def power(effect: float, seeds: int, level: float) -> float:
    """Return the probability that the test detects a mean difference of `effect` std.

    A significant difference in the wrong direction does not count.
    """
    critical = critical_value(seeds, level)
    return float(1 - special.nctdtr(seeds - 1, effect * seeds**0.5, critical))


def seeds_needed(differences: Sequence[float], level: float) -> int | None:
    """Return how many seeds detect the observed difference; None if more than MAX_SEEDS."""
    mean, error = mean_and_error(differences)
    effect = abs(mean) / (error * len(differences) ** 0.5)
    counts = range(len(differences) + 1, MAX_SEEDS + 1)
    first = bisect.bisect_left(counts, POWER, key=lambda seeds: power(effect, seeds, level))
    return counts[first] if first < len(counts) else None


def describe_count(seeds: int | None) -> str:
    """Return a number of seeds in words, with two significant digits: it is an estimate."""
    if seeds is None:
        return f"more than {MAX_SEEDS}"
    return f"about {float(f'{seeds:.2g}'):.0f}"
