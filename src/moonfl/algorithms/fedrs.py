"""FedRS: restrict the softmax, so that a party hardly changes the classes that it does not have.

Li, Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data,
KDD 2021. https://doi.org/10.1145/3447548.3467254
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..settings import setting
from ..types import Batch, Output, Params, Party, Term
from .base import Algorithm


@dataclass(frozen=True)
class FedRS(Algorithm):
    """l = l_sup of the logits a_c f_c; a_c is alpha for classes that the party lacks, else 1.

    The authors' published code has a_c = alpha + (1 - alpha) n_c / max n instead, where n_c is the
    party's count of class c.
    """

    needs_classes: ClassVar[str] = "restricts the softmax to the classes that a party has"
    replaces_supervised: ClassVar[bool] = True
    choice: ClassVar[str] = "a class that a party has is not restricted, however rare it is"

    alpha: float = setting(
        0.5, "scale of the logits of missing classes; 1 is FedAvg", low=0, high=1
    )

    def term(self, party: Party) -> Term:
        missing = party.class_counts == 0  # [classes]

        def restrict(output: Output, batch: Batch, w: Params) -> Tensor:
            scaled = output.logits.where(~missing, self.alpha * output.logits)
            return party.supervised(scaled, batch) - party.supervised(output.logits, batch)

        return restrict
