"""The metric by which models of a kind of task are compared: accuracy, RMSE or mAP.

The record of a round that was evaluated has exactly one of them, so that records say themselves
how they are compared.
Everything that selects, stops, prints or reports goes through a `Measure`.
This module does not import torch: reports must start fast.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .runs.schema import PartySum, RoundRecord


@dataclass(frozen=True)
class Measure:
    """A metric, its fields in a round record, its direction, and how it is written."""

    key: str  # field of RoundRecord with the value on the test samples
    name: str  # in texts and tables
    std: str = "score_std"  # fields of the values that are derived from it
    by_model: str = "scores"
    by_party: str = "party_score"
    validation: str = "validation_score"
    output: str = "class"  # what a model has one output for
    outputs: str = "classes"
    higher_is_better: bool = True
    is_share: bool = True  # from 0 to 1: written in percent, and differences in points
    is_root: bool = False  # the square root of a mean, which sums over samples belong to

    def value(self, record: RoundRecord) -> float:
        """Return the value on the test samples."""
        return float(getattr(record, self.key))

    def validation_value(self, record: RoundRecord) -> float | None:
        """Return the value on the validation samples; None if there are none."""
        value: float | None = getattr(record, self.validation)
        return value

    def model_value(self, record: RoundRecord, name: str) -> float:
        """Return the value of one model; that of the record if it has no values by model."""
        values: dict[str, float] = getattr(record, self.by_model) or {}
        return values.get(name, self.value(record))

    def is_better(self, value: float, other: float) -> bool:
        """Return True if the first value is better than the other."""
        return value > other if self.higher_is_better else value < other

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values."""
        return max(values) if self.higher_is_better else min(values)

    def worst(self, values: Iterable[float]) -> float:
        """Return the worst of some values."""
        return min(values) if self.higher_is_better else max(values)

    def from_sums(self, sums: Sequence[PartySum]) -> float:
        """Return the value over the samples of some parties, from a sum and a number of each."""
        mean = sum(part for part, _ in sums) / sum(number for _, number in sums)
        return math.sqrt(mean) if self.is_root else mean

    @property
    def factor(self) -> int:
        """Return the factor from a value to the number that is shown."""
        return 100 if self.is_share else 1

    @property
    def title(self) -> str:
        """Return the name at the beginning of a sentence."""
        return self.name.capitalize() if self.name.islower() else self.name

    def count_outputs(self, number: int) -> str:
        """Return a number of outputs as text, such as "10 classes" or "1 target"."""
        return f"{number} {self.output if number == 1 else self.outputs}"

    @property
    def superlative(self) -> str:
        """Return the adjective of the best value."""
        return "highest" if self.higher_is_better else "lowest"

    @property
    def with_unit(self) -> str:
        """Return the name for an axis or a column, with its unit if it has one."""
        return f"{self.name}, %" if self.is_share else self.name

    def text(self, value: float) -> str:
        """Return a value as text, such as "81.2 %" or "3.142"."""
        return f"{100 * value:.1f} %" if self.is_share else round_digits(value, 4)

    def std_text(self, value: float) -> str:
        """Return a standard deviation as text, without a unit."""
        return f"{100 * value:.1f}" if self.is_share else round_digits(value, 2)


ACCURACY = Measure(
    key="accuracy",
    name="accuracy",
    std="accuracy_std",
    by_model="accuracies",
    by_party="party_accuracy",
    validation="validation_accuracy",
)
RMSE = Measure(
    key="rmse",
    name="RMSE",
    output="target",
    outputs="targets",
    higher_is_better=False,
    is_share=False,
    is_root=True,
)
MEAN_AVERAGE_PRECISION = Measure(
    key="mean_average_precision", name="mAP", output="label", outputs="labels"
)
MEASURES = (ACCURACY, RMSE, MEAN_AVERAGE_PRECISION)


def round_digits(value: float, digits: int) -> str:
    """Return a number with this many significant digits, without an exponent if it is usual."""
    if value == 0 or not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def is_evaluated(record: object) -> bool:
    """Return True if models were evaluated after the round of a record (`evaluate_every`)."""
    return any(getattr(record, measure.key) is not None for measure in MEASURES)


def measure_of(record: object) -> Measure:
    """Return the measure that a record or a score has."""
    for measure in MEASURES:
        if getattr(record, measure.key) is not None:
            return measure
    raise ValueError("a round that was not evaluated has no measure")


def value_of(record: RoundRecord) -> float:
    """Return the value of a round's measure on the test samples."""
    return measure_of(record).value(record)
