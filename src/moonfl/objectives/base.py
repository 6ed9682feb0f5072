"""Objective: the contract of a kind of task (`task=`)."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from ..data.moments import Moments
from ..measures import Measure
from ..metrics import Counts, Score
from ..types import Params

C = TypeVar("C", bound=Counts)


class Objective(Generic[C]):
    """What a model is trained for and evaluated by; a value, like an algorithm.

    What it counts over a chunk of samples can be added up over chunks and workers.
    Counts are small and contain no sample.
    """

    name: ClassVar[str]  # the value of the setting `task`
    measure: ClassVar[Measure]  # by which rounds are compared
    choice: ClassVar[str] = ""  # what is done where implementations differ, stored with the results

    def choices(self) -> dict[str, str]:
        """Return the implementation choices of the task."""
        key = self.measure.name
        choices = {key: "of the last round; the best round is reported separately"}
        if self.choice:
            choices["task"] = self.choice
        return choices

    def supervised(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        raise NotImplementedError

    def predict(self, logits: Tensor) -> Tensor:
        """Return probabilities, or the predicted numbers, from the outputs of a model."""
        raise NotImplementedError

    def tally(self, logits: Tensor, y: Tensor, loss: float, party: Tensor | None) -> C:
        """Return the counts over some samples.

        `loss` is the sum of their losses. `party` is the owner of each sample, if they have one.
        """
        raise NotImplementedError

    def total(self, parts: Sequence[C]) -> C:
        """Return the sum of several counts, added in their order."""
        raise NotImplementedError

    def score(self, test: C, validation: C | None = None) -> Score:
        """Return the metrics from the counts on the test and the validation samples."""
        raise NotImplementedError

    def counts(self, y: Tensor, classes: int) -> Tensor:
        """Return the number of samples of each class, int64 [classes]."""
        raise NotImplementedError

    def strata(self, y: Tensor) -> Tensor:
        """Return the class of each sample, by which a common test set is shared."""
        return torch.zeros(len(y), dtype=torch.long)

    @property
    def statistics(self) -> Params:
        """Return the buffers of the model that the objective determines."""
        return {}

    def fit(self, targets: Iterable[Moments]) -> "Objective[Any]":
        """Return the objective with statistics of the targets, from the sums of each party."""
        return self

    def with_statistics(self, buffers: Params) -> "Objective[Any]":
        """Return the objective with the statistics that the buffers of a model hold."""
        return self
