"""Evaluation metrics: the score of a model, and the counts over samples of a classifier.

Held-out samples are evaluated in chunks. A `Tally` holds the counts of one chunk or of all; `score`
turns it into a `Score`. The counts of other tasks are in objectives/.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor


class Counts(Protocol):
    """What every task counts over some samples; each adds its own fields."""

    @property
    def loss(self) -> float:
        """Return the sum of the losses of the samples."""

    @property
    def parties(self) -> dict[int, Any]:
        """Return what is counted by the owner of the samples, if it is known."""


class Tally(NamedTuple):
    """Counts over some samples, small enough to send over a network."""

    loss: float  # sum over the samples
    actual: list[int]  # per class: samples of the class
    predicted: list[int]  # per class: samples predicted as the class
    hits: list[int]  # per class: samples of the class that are predicted as the class
    parties: dict[int, tuple[int, int]]  # party -> (correct predictions, samples), if known


class Score(NamedTuple):
    """The metrics of one model. One of accuracy, rmse and mean_average_precision is set."""

    loss: float
    accuracy: float | None = None
    macro_f1: float | None = None
    balanced_accuracy: float | None = None
    rmse: float | None = None
    r2: float | None = None
    mean_average_precision: float | None = None
    # party -> (sum over its held-out samples, number of them); correct predictions, for accuracy
    sites: Mapping[int, tuple[float, int]] | None = None
    absent: Mapping[int, str] = MappingProxyType({})  # parties whose samples are missing, and why
    validation: "Score | None" = None  # on the validation samples, which select the best round


def tally(logits: Tensor, y: Tensor, loss: float, party: Tensor | None = None) -> Tally:
    """Count over one chunk of samples.

    `loss` is the sum over the samples. `party` is the owner of each sample, if samples have one.
    """
    classes = logits.shape[1]
    predicted = logits.argmax(dim=1).cpu().numpy()
    actual = y.cpu().numpy()
    correct = predicted == actual
    parties = {}
    if party is not None:
        owners = party.cpu().numpy()
        for i in np.unique(owners):
            samples = owners == i
            parties[int(i)] = (int(correct[samples].sum()), int(samples.sum()))
    return Tally(
        loss=loss,
        actual=np.bincount(actual, minlength=classes).tolist(),
        predicted=np.bincount(predicted, minlength=classes).tolist(),
        hits=np.bincount(actual[correct], minlength=classes).tolist(),
        parties=parties,
    )


def total(tallies: Sequence[Tally]) -> Tally:
    """Return the sum of several tallies, added in their order."""
    parties: dict[int, tuple[int, int]] = {}
    for part in tallies:
        for i, (correct, number) in part.parties.items():
            correct_before, number_before = parties.get(i, (0, 0))
            parties[i] = (correct_before + correct, number_before + number)
    return Tally(
        loss=sum(part.loss for part in tallies),
        actual=_sum_per_class([part.actual for part in tallies]),
        predicted=_sum_per_class([part.predicted for part in tallies]),
        hits=_sum_per_class([part.hits for part in tallies]),
        parties=parties,
    )


def score(test: Tally, validation: Tally | None = None) -> Score:
    """Compute the metrics from the counts on the test and validation samples.

    The F1 of a class is 2 hits / (predicted + actual) and its recall is hits / actual. Macro-F1 is
    the unweighted mean over classes that occur or are predicted; balanced accuracy is the
    unweighted mean of the recall over classes that occur.
    """
    number = sum(test.actual)
    f1_scores = []
    recalls = []
    for actual, predicted, hits in zip(test.actual, test.predicted, test.hits, strict=True):
        if actual + predicted > 0:
            f1_scores.append(2 * hits / (actual + predicted))
        if actual > 0:
            recalls.append(hits / actual)
    return Score(
        accuracy=sum(test.hits) / number,
        loss=test.loss / number,
        macro_f1=fmean(f1_scores),
        balanced_accuracy=fmean(recalls),
        sites=test.parties or None,
        validation=None if validation is None else score(validation),
    )


def _sum_per_class(counts: Sequence[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*counts, strict=True)]
