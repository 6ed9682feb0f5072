"""Evaluation metrics: the score of a model, and what is counted over samples to compute it.

Held-out samples are evaluated in chunks. The objectives (objectives/) define what they count over a
chunk or over all samples, and turn it into a `Score`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T")


class Counts(Protocol):
    """What every task counts over some samples; each adds its own fields."""

    @property
    def loss(self) -> float:
        """Return the sum of the losses of the samples."""

    @property
    def parties(self) -> dict[int, Any]:
        """Return what is counted by the owner of the samples, if it is known."""


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


def by_owner(
    owner: Tensor | None, count: Callable[[NDArray[np.bool_]], T]
) -> dict[int, tuple[T, int]]:
    """Return what `count` returns for the samples of each owner, and their number.

    `owner` is that of each sample; None: samples have none.
    """
    parts: dict[int, tuple[T, int]] = {}
    if owner is not None:
        owners = owner.cpu().numpy()
        for i in np.unique(owners):
            rows = owners == i
            parts[int(i)] = (count(rows), int(rows.sum()))
    return parts
