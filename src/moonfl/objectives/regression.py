"""Regression: mean squared error of standardised targets; RMSE and R2.

Targets are standardised with their mean and standard deviation over all parties, which the model
holds in its layer `rescale`: its predictions are in the original units, and only the loss is in
standardised ones. So the learning rate does not depend on the unit of the target.

Errors and targets are summed in standardised units as integers, multiples of 2^-64. Integers add up
exactly, so that RMSE and R2 do not depend on how samples are divided into chunks.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.moments import Moments, mean_and_std
from ..measures import RMSE, Measure
from ..metrics import Score, by_owner
from ..models.base import TARGET_STATISTICS
from ..types import Params
from .base import Objective

FRACTION = 64  # binary digits behind the point of a sum
LARGEST = 1e100  # larger squared errors are those of a model that has diverged


class Errors(NamedTuple):
    """Sums over some samples for each target, in standardised units and multiples of 2^-64.

    Those of squared targets are in multiples of 2^-128, so that they are exact.
    """

    loss: float  # sum over the samples
    samples: int
    y: list[int]  # targets
    y_squared: list[int]
    squared_errors: list[int]
    parties: dict[int, tuple[list[int], int]]  # party -> (squared errors, samples), if known


@dataclass(frozen=True)
class Regression(Objective[Errors]):
    """One or more numbers per sample; y is float64 [N, targets]."""

    name: ClassVar[str] = "regression"
    measure: ClassVar[Measure] = RMSE
    choice: ClassVar[str] = (
        "mean squared error of targets that are standardised by their mean and standard deviation "
        "over all parties; RMSE and R2 in the units of the data"
    )
    mean: Tensor | None = None  # of the targets over all parties, float64 [targets]
    std: Tensor | None = None

    def supervised(self, logits: Tensor, y: Tensor) -> Tensor:
        _, std = self._scales()
        return ((logits - y) / std.to(y.device)).square().mean()

    def predict(self, logits: Tensor) -> Tensor:
        return logits  # the model returns the units of the data

    def tally(self, logits: Tensor, y: Tensor, loss: float, party: Tensor | None) -> Errors:
        mean, std = (values.numpy() for values in self._scales())
        targets = (y.cpu().numpy() - mean) / std
        with np.errstate(over="ignore", invalid="ignore"):  # of a model that has diverged
            squared_errors = np.square((logits.double().cpu().numpy() - y.cpu().numpy()) / std)
        if not (squared_errors < LARGEST).all():
            loss = math.nan  # training has diverged, and NaN has no integer
            squared_errors = np.zeros_like(squared_errors)
        return Errors(
            loss=loss,
            samples=len(targets),
            y=exact_sums(targets),
            y_squared=exact_sums(targets, power=2),
            squared_errors=exact_sums(squared_errors),
            parties=by_owner(party, lambda rows: exact_sums(squared_errors[rows])),
        )

    def total(self, parts: Sequence[Errors]) -> Errors:
        parties: dict[int, tuple[list[int], int]] = {}
        for part in parts:
            for i, (sums, number) in part.parties.items():
                before, number_before = parties.get(i, ([0] * len(sums), 0))
                parties[i] = (add([before, sums]), number_before + number)
        return Errors(
            loss=sum(part.loss for part in parts),
            samples=sum(part.samples for part in parts),
            y=add([part.y for part in parts]),
            y_squared=add([part.y_squared for part in parts]),
            squared_errors=add([part.squared_errors for part in parts]),
            parties=parties,
        )

    def score(self, test: Errors, validation: Errors | None = None) -> Score:
        """Return RMSE and R2.

        RMSE is the root of the mean over samples and targets, in the original units. R2 is
        1 - squared errors / squared deviations from the mean of the same samples, the mean over
        targets. That of a constant target is 1 if all predictions are exact, and otherwise 0.
        """
        r2 = [
            coefficient(test.samples, *sums)
            for sums in zip(test.y, test.y_squared, test.squared_errors, strict=True)
        ]
        sites = {i: (self._original(e), n) for i, (e, n) in test.parties.items()}
        return Score(
            loss=test.loss / test.samples,
            rmse=math.sqrt(self._original(test.squared_errors) / test.samples),
            r2=math.fsum(r2) / len(r2),
            sites=sites or None,
            validation=None if validation is None else self.score(validation),
        )

    def counts(self, y: Tensor, classes: int) -> Tensor:
        """Return the number of samples for each target: every sample has all of them."""
        return torch.full((classes,), len(y))

    @property
    def statistics(self) -> Params:
        return dict(zip(TARGET_STATISTICS, self._scales(), strict=True))

    def fit(self, targets: Iterable[Moments]) -> "Regression":
        parts = list(targets)
        mean, std = mean_and_std(parts, tuple(parts[0].mean.shape))
        return replace(self, mean=mean, std=std)

    def with_statistics(self, buffers: Params) -> "Regression":
        mean, std = (buffers[name].cpu() for name in TARGET_STATISTICS)
        return replace(self, mean=mean, std=std)

    def _scales(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the targets."""
        if self.mean is None or self.std is None:
            raise ValueError("the statistics of the targets come before the loss")
        return self.mean, self.std

    def _original(self, squared_errors: list[int]) -> float:
        """Return a sum of squared errors in the original units, the mean over targets."""
        _, std = self._scales()
        parts = [
            to_float(error) * scale**2
            for error, scale in zip(squared_errors, std.tolist(), strict=True)
        ]
        return math.fsum(parts) / len(parts)


def exact_sums(values: NDArray[np.float64], power: int = 1) -> list[int]:
    """Return the sum of each column, or of its powers, of values in multiples of 2^-64.

    Smaller digits of a value are cut off.
    """
    columns = np.ldexp(values, FRACTION).T.tolist()
    return [sum(int(value) ** power for value in column) for column in columns]


def to_float(value: int) -> float:
    """Return the number that an integer in multiples of 2^-64 stands for."""
    return value / (1 << FRACTION)


def add(sums: Sequence[list[int]]) -> list[int]:
    """Return the sums of several lists, element by element."""
    return [sum(column) for column in zip(*sums, strict=True)]


def coefficient(samples: int, y: int, y_squared: int, squared_errors: int) -> float:
    """Return R2 of one target, computed from integers: no digits cancel."""
    deviations = samples * y_squared - y * y  # samples * sum((y - mean)^2)
    if deviations <= 0:
        return 1.0 if squared_errors == 0 else 0.0
    return 1 - (samples * (squared_errors << FRACTION)) / deviations
