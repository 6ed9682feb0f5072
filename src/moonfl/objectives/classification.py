"""Classification: cross-entropy; accuracy, macro-F1 and balanced accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..measures import ACCURACY, Measure
from ..metrics import Score, by_owner
from .base import Objective


class Tally(NamedTuple):
    """Counts over some samples, small enough to send over a network."""

    loss: float  # sum over the samples
    actual: list[int]  # per class: samples of the class
    predicted: list[int]  # per class: samples predicted as the class
    hits: list[int]  # per class: samples of the class that are predicted as the class
    parties: dict[int, tuple[int, int]]  # party -> (correct predictions, samples), if known


@dataclass(frozen=True)
class Classification(Objective[Tally]):
    """One class per sample; y holds class indices, int64 [N]."""

    name: ClassVar[str] = "classification"
    measure: ClassVar[Measure] = ACCURACY

    def supervised(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y)

    def predict(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)

    def tally(self, logits: Tensor, y: Tensor, loss: float, party: Tensor | None) -> Tally:
        classes = logits.shape[1]
        predicted = logits.argmax(dim=1).cpu().numpy()
        actual = y.cpu().numpy()
        correct = predicted == actual
        return Tally(
            loss=loss,
            actual=np.bincount(actual, minlength=classes).tolist(),
            predicted=np.bincount(predicted, minlength=classes).tolist(),
            hits=np.bincount(actual[correct], minlength=classes).tolist(),
            parties=by_owner(party, lambda rows: int(correct[rows].sum())),
        )

    def total(self, parts: Sequence[Tally]) -> Tally:
        parties: dict[int, tuple[int, int]] = {}
        for part in parts:
            for i, (correct, number) in part.parties.items():
                correct_before, number_before = parties.get(i, (0, 0))
                parties[i] = (correct_before + correct, number_before + number)
        return Tally(
            loss=sum(part.loss for part in parts),
            actual=_sum_per_class([part.actual for part in parts]),
            predicted=_sum_per_class([part.predicted for part in parts]),
            hits=_sum_per_class([part.hits for part in parts]),
            parties=parties,
        )

    def score(self, test: Tally, validation: Tally | None = None) -> Score:
        """Return accuracy, macro-F1 and balanced accuracy.

        The F1 of a class is 2 hits / (predicted + actual) and its recall is hits / actual. Macro-F1
        is the unweighted mean over classes that occur or are predicted; balanced accuracy is the
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
            validation=None if validation is None else self.score(validation),
        )

    def counts(self, y: Tensor, classes: int) -> Tensor:
        return torch.bincount(y, minlength=classes)

    def strata(self, y: Tensor) -> Tensor:
        return y


def _sum_per_class(counts: Sequence[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*counts, strict=True)]
