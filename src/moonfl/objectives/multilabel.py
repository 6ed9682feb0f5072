"""Multi-label classification: binary cross-entropy; mAP and macro-F1.

Average precision needs the ranking of all samples. Instead of scores, their histogram is counted:
logits are rounded to multiples of 1/64 and limited to +-16. The mAP is exactly that of the rounded
logits, and it adds up over chunks: a label has no more than 4098 counts, however many the samples.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..measures import MEAN_AVERAGE_PRECISION, Measure
from ..metrics import Score, by_owner
from .base import Objective

RESOLUTION = 64  # steps per unit of a logit
LIMIT = 16  # larger logits are equal
CODES = 2 * LIMIT * RESOLUTION + 1  # distinct rounded logits
Histogram = Mapping[int, int]  # (2 label + is_positive) CODES + rounded logit -> samples


class LabelCounts(NamedTuple):
    """Counts over some samples for each label."""

    loss: float  # sum over the samples
    samples: int
    actual: list[int]  # samples that have the label
    predicted: list[int]  # samples that are predicted to have it, with a probability above 0.5
    hits: list[int]  # both
    histogram: Histogram
    parties: dict[int, tuple[Histogram, int]]  # party -> (histogram, samples), if known


@dataclass(frozen=True)
class MultiLabel(Objective[LabelCounts]):
    """Any number of labels per sample; y holds 0 and 1, float32 [N, labels]."""

    name: ClassVar[str] = "multilabel"
    measure: ClassVar[Measure] = MEAN_AVERAGE_PRECISION
    choice: ClassVar[str] = (
        "binary cross-entropy, mean over labels; F1 at probability 0.5; mAP of logits rounded to "
        "1/64, mean over the labels that occur"
    )

    def supervised(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, y)

    def predict(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def tally(self, logits: Tensor, y: Tensor, loss: float, party: Tensor | None) -> LabelCounts:
        actual = y.cpu().numpy() > 0.5
        predicted = logits.cpu().numpy() > 0
        keys = histogram_keys(logits, actual)
        return LabelCounts(
            loss=loss,
            samples=len(actual),
            actual=actual.sum(axis=0).tolist(),
            predicted=predicted.sum(axis=0).tolist(),
            hits=(actual & predicted).sum(axis=0).tolist(),
            histogram=count_keys(keys),
            parties=by_owner(party, lambda rows: count_keys(keys[rows])),
        )

    def total(self, parts: Sequence[LabelCounts]) -> LabelCounts:
        by_party: dict[int, list[tuple[Histogram, int]]] = {}
        for part in parts:
            for i, entry in part.parties.items():
                by_party.setdefault(i, []).append(entry)
        parties = {}
        for i, entries in by_party.items():
            histogram = merge(histogram for histogram, _ in entries)
            parties[i] = (histogram, sum(number for _, number in entries))
        return LabelCounts(
            loss=sum(part.loss for part in parts),
            samples=sum(part.samples for part in parts),
            actual=np.sum([part.actual for part in parts], axis=0).tolist(),
            predicted=np.sum([part.predicted for part in parts], axis=0).tolist(),
            hits=np.sum([part.hits for part in parts], axis=0).tolist(),
            histogram=merge(part.histogram for part in parts),
            parties=parties,
        )

    def score(self, test: LabelCounts, validation: LabelCounts | None = None) -> Score:
        """Return mAP and macro-F1.

        mAP is the mean of the average precision over the labels that occur, and 0 if none does.
        Macro-F1 is the mean over the labels that occur or are predicted.
        """
        f1_scores = [
            2 * hits / (actual + predicted)
            for actual, predicted, hits in zip(test.actual, test.predicted, test.hits, strict=True)
            if actual + predicted > 0
        ]
        labels = len(test.actual)
        sites = {
            i: (number * mean_average_precision(histogram, labels), number)
            for i, (histogram, number) in test.parties.items()
        }
        return Score(
            loss=test.loss / test.samples,
            mean_average_precision=mean_average_precision(test.histogram, labels),
            macro_f1=fmean(f1_scores) if f1_scores else 0.0,
            sites=sites or None,
            validation=None if validation is None else self.score(validation),
        )

    def counts(self, y: Tensor, classes: int) -> Tensor:
        """Return the number of samples that have each label."""
        return y.sum(dim=0).long()


def histogram_keys(logits: Tensor, actual: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the key of the histogram that each score belongs to, [N, labels]."""
    steps = torch.nan_to_num(logits.double()).clamp(-LIMIT, LIMIT) * RESOLUTION
    codes = steps.round().long().cpu().numpy() + LIMIT * RESOLUTION
    labels = np.arange(actual.shape[1])
    keys: NDArray[np.int64] = (2 * labels + actual) * CODES + codes
    return keys


def count_keys(keys: NDArray[np.int64]) -> Histogram:
    """Return how often each key occurs."""
    values, numbers = np.unique(keys, return_counts=True)
    return dict(zip(values.tolist(), numbers.tolist(), strict=True))


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of several histograms."""
    total: dict[int, int] = {}
    for histogram in histograms:
        for key, number in histogram.items():
            total[key] = total.get(key, 0) + number
    return total


def mean_average_precision(histogram: Histogram, labels: int) -> float:
    """Return the mean of the average precision over the labels that occur; 0 if none does."""
    table = np.zeros((labels, 2, CODES), dtype=np.int64)
    table.reshape(-1)[list(histogram)] = list(histogram.values())
    precisions = [average_precision(part) for part in table if part[1].any()]
    return fmean(precisions) if precisions else 0.0


def average_precision(counts: NDArray[np.int64]) -> float:
    """Return sum (R_k - R_{k-1}) P_k over the distinct scores, from the largest.

    `counts` are the samples without and with the label by score, [2, CODES].
    """
    positives = counts[1, ::-1]
    found = positives.cumsum()
    ranked = counts.sum(axis=0)[::-1].cumsum()
    precision = found / np.maximum(ranked, 1)
    return float((positives * precision).sum() / found[-1])
