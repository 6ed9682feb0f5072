"""Classification: cross-entropy; accuracy, macro-F1 and balanced accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..measures import ACCURACY, Measure
from ..metrics import Score, Tally, score, tally, total
from .base import Objective


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
        return tally(logits, y, loss, party)

    def total(self, parts: Sequence[Tally]) -> Tally:
        return total(parts)

    def score(self, test: Tally, validation: Tally | None = None) -> Score:
        return score(test, validation)

    def counts(self, y: Tensor, classes: int) -> Tensor:
        return torch.bincount(y, minlength=classes)

    def strata(self, y: Tensor) -> Tensor:
        return y
