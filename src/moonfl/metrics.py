"""How good a model is: what is counted on samples, chunk by chunk, and what the counts make."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from torch import Tensor


class Tally(NamedTuple):
    """What was counted on some samples: whole numbers for each class, cheap to send."""

    loss: float  # the sum
    actual: list[int]  # samples of the class
    predicted: list[int]  # samples taken for it
    hits: list[int]  # both
    parties: dict[int, tuple[int, int]]  # where samples are a party's: right, of how many


class Score(NamedTuple):
    accuracy: float
    loss: float
    macro_f1: float
    balanced_accuracy: float
    sites: dict[int, tuple[int, int]] | None = (
        None  # on each party's own held-out data: right, of how many
    )
    validation: "Score | None" = None  # on what parties keep apart to choose a round by


def tally(logits: Tensor, y: Tensor, loss: float, party: Tensor | None = None) -> Tally:
    """`loss` is the sum over these samples, `party` whose they are."""
    classes, predicted, actual = (
        logits.shape[1],
        logits.argmax(dim=1).cpu().numpy(),
        y.cpu().numpy(),
    )
    right = predicted == actual
    counts = [
        np.bincount(of, minlength=classes).tolist() for of in (actual, predicted, actual[right])
    ]
    owners = np.zeros(0, dtype=np.int64) if party is None else party.cpu().numpy()
    parties = {
        int(i): (int(right[owners == i].sum()), int((owners == i).sum())) for i in np.unique(owners)
    }
    return Tally(loss, counts[0], counts[1], counts[2], parties)


def total(tallies: Sequence[Tally]) -> Tally:
    """Of all of them, summed in their order."""
    columns = zip(*((of.actual, of.predicted, of.hits) for of in tallies), strict=True)
    counts = [[sum(of_class) for of_class in zip(*column, strict=True)] for column in columns]
    parties: dict[int, tuple[int, int]] = {}
    for i, (right, number) in (pair for of in tallies for pair in of.parties.items()):
        before = parties.get(i, (0, 0))
        parties[i] = (before[0] + right, before[1] + number)
    return Tally(sum(of.loss for of in tallies), counts[0], counts[1], counts[2], parties)


def score(test: Tally, validation: Tally | None = None) -> Score:
    """F1 of a class is 2 hits / (predicted + actual), its recall hits / actual; both are averaged over classes, each
    one counting the same: F1 over those that occur or are predicted, recall over those that occur."""
    number, classes = (
        sum(test.actual),
        list(zip(test.actual, test.predicted, test.hits, strict=True)),
    )
    return Score(
        accuracy=sum(test.hits) / number,
        loss=test.loss / number,
        macro_f1=fmean(
            2 * hits / (actual + predicted)
            for actual, predicted, hits in classes
            if actual + predicted
        ),
        balanced_accuracy=fmean(hits / actual for actual, _, hits in classes if actual),
        sites=test.parties or None,
        validation=None if validation is None else score(validation),
    )
