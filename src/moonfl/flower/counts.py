"""What a site counts when it evaluates a model, for each task: the message and its checks.

A count is only accepted if it can be true of the number of samples that the site holds out, so that
no site can claim more influence on a metric than its samples have.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ..data.targets import CLASSIFICATION, MULTILABEL, REGRESSION
from ..metrics import Counts
from ..objectives.classification import Tally
from ..objectives.multilabel import CODES, LabelCounts
from ..objectives.regression import FRACTION, Errors
from .refusals import NotFiniteError, RefusedError, sanitize

MAX_MEAN_LOSS = 10**6  # no honest classifier has a larger mean loss
MAX_SQUARE = 10**12  # largest mean square of standardised targets or errors
PER_CLASS = ("actual", "predicted", "hits")


class ClassCounts(msgspec.Struct, kw_only=True, frozen=True):
    """What a party counted for a classifier, see objectives.classification.Tally."""

    loss: float  # summed over the samples
    actual: list[int]
    predicted: list[int]
    hits: list[int]


class ErrorCounts(msgspec.Struct, kw_only=True, frozen=True):
    """What a party summed for a regression, see objectives.regression.Errors."""

    loss: float
    y: list[int]
    y_squared: list[int]
    squared_errors: list[int]


class ScoreCounts(msgspec.Struct, kw_only=True, frozen=True):
    """What a party counted for several labels, see objectives.multilabel.LabelCounts."""

    loss: float
    actual: list[int]
    predicted: list[int]
    hits: list[int]
    scores: list[int]  # the keys of the histogram
    numbers: list[int]  # samples with each of them


@dataclass(frozen=True)
class CountsFormat:
    """How the counts of a task become a message and back."""

    message: type  # a struct
    pack: Callable[[Any], Any]  # counts -> the struct
    # (struct, party, samples, classes) -> counts, or RefusedError
    unpack: Callable[[Any, int, int, int], Counts]
    max_mean_loss: int = MAX_MEAN_LOSS


def pack_classes(tally: Tally) -> ClassCounts:
    """Return the counts of a classifier as part of a message."""
    return ClassCounts(
        loss=tally.loss, actual=tally.actual, predicted=tally.predicted, hits=tally.hits
    )


def unpack_classes(counts: ClassCounts, party: int, size: int, classes: int) -> Tally:
    """Return the counts of a classifier, if they can be true."""
    check_class_counts(counts, size, classes)
    for key in ("actual", "predicted"):
        total = sum(getattr(counts, key))
        if total != size:
            raise RefusedError(f"its {key} counts sum to {total}, but it holds out {size} samples")
    check_hits(counts)
    return Tally(
        loss=counts.loss,
        actual=counts.actual,
        predicted=counts.predicted,
        hits=counts.hits,
        parties={party: (sum(counts.hits), size)},
    )


def check_class_counts(counts: ClassCounts | ScoreCounts, size: int, classes: int) -> None:
    """Check the numbers of samples for each class or label."""
    for key in PER_CLASS:
        values = getattr(counts, key)
        in_range = all(0 <= value <= size for value in values)
        if not in_range or len(values) != classes:
            raise RefusedError(
                f"{key} must be an integer from 0 to {size} for each of {classes} classes, "
                f"got {sanitize(str(values))}"
            )


def check_hits(counts: ClassCounts | ScoreCounts) -> None:
    """Check the numbers of correct predictions for each class or label."""
    for actual, predicted, hits in zip(counts.actual, counts.predicted, counts.hits, strict=True):
        if hits > min(actual, predicted):
            raise RefusedError(
                "it reports more correct samples of a class than samples or predictions of it"
            )


def pack_errors(errors: Errors) -> ErrorCounts:
    """Return the sums of a regression as part of a message."""
    return ErrorCounts(
        loss=errors.loss,
        y=errors.y,
        y_squared=errors.y_squared,
        squared_errors=errors.squared_errors,
    )


def unpack_errors(counts: ErrorCounts, party: int, size: int, targets: int) -> Errors:
    """Return the sums of a regression, if they can be true."""
    largest = {
        "y_squared": size * MAX_SQUARE << 2 * FRACTION,
        "squared_errors": size * MAX_SQUARE << FRACTION,
    }
    for key, limit in largest.items():
        values = getattr(counts, key)
        if len(values) != targets or not all(0 <= value <= limit for value in values):
            raise RefusedError(
                f"{key} must be a sum over {size} samples for each of {targets} targets, with a "
                f"mean of at most {MAX_SQUARE:g} in standardised units"
            )
    # (sum y)^2 <= n sum y^2
    is_possible = len(counts.y) == targets and all(
        y * y <= size * y_squared for y, y_squared in zip(counts.y, counts.y_squared, strict=True)
    )
    if not is_possible:
        raise RefusedError(f"y must be the sum of {size} numbers with the squares that it reports")
    return Errors(
        loss=counts.loss,
        samples=size,
        y=counts.y,
        y_squared=counts.y_squared,
        squared_errors=counts.squared_errors,
        parties={party: (counts.squared_errors, size)},
    )


def pack_labels(counts: LabelCounts) -> ScoreCounts:
    """Return the counts of several labels as part of a message."""
    scores = sorted(counts.histogram)
    return ScoreCounts(
        loss=counts.loss,
        actual=counts.actual,
        predicted=counts.predicted,
        hits=counts.hits,
        scores=scores,
        numbers=[counts.histogram[score] for score in scores],
    )


def unpack_labels(counts: ScoreCounts, party: int, size: int, labels: int) -> LabelCounts:
    """Return the counts of several labels, if they can be true."""
    check_class_counts(counts, size, labels)
    check_hits(counts)
    scores, numbers = counts.scores, counts.numbers
    ascending = all(a < b for a, b in itertools.pairwise(scores))
    in_range = all(0 <= score < 2 * labels * CODES for score in scores)
    if not (ascending and in_range and len(numbers) == len(scores)):
        raise RefusedError(f"scores must be different integers from 0 to {2 * labels * CODES - 1}")
    totals = [[0, 0] for _ in range(labels)]  # samples without and with each label
    for score, number in zip(scores, numbers, strict=True):
        if number < 1:
            raise RefusedError("numbers of samples with a score must be at least 1")
        label, is_positive = divmod(score // CODES, 2)
        totals[label][is_positive] += number
    if totals != [[size - actual, actual] for actual in counts.actual]:
        raise RefusedError(f"its scores are not those of {size} samples for each label")
    histogram = dict(zip(scores, numbers, strict=True))
    return LabelCounts(
        loss=counts.loss,
        samples=size,
        actual=counts.actual,
        predicted=counts.predicted,
        hits=counts.hits,
        histogram=histogram,
        parties={party: (histogram, size)},
    )


FORMATS = {
    CLASSIFICATION: CountsFormat(ClassCounts, pack_classes, unpack_classes),
    REGRESSION: CountsFormat(ErrorCounts, pack_errors, unpack_errors, max_mean_loss=MAX_SQUARE),
    MULTILABEL: CountsFormat(ScoreCounts, pack_labels, unpack_labels),
}


def check_loss(loss: float, size: int, max_mean: int) -> None:
    """Check the sum of the losses of some samples."""
    if not math.isfinite(loss):
        raise NotFiniteError("its loss is not finite")
    if not 0 <= loss <= max_mean * size:
        raise RefusedError(
            f"it reports {loss} as the sum of its losses; it must be from 0 to {max_mean * size:g}"
        )
