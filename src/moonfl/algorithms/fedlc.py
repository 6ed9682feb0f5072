"""FedLC: calibrate the logits by the party's class counts, so that rare classes get a margin.

Zhang, Li, Li, Xu, Wu, Ding, Wu, Federated Learning with Label Distribution Skew via Logits
Calibration, ICML 2022. https://arxiv.org/abs/2209.00189
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..settings import setting
from ..types import Batch, Output, Params, Party, Term
from .base import Algorithm


@dataclass(frozen=True)
class FedLC(Algorithm):
    """l = l_sup of the logits f_c - tau n_c^(-1/4), where n_c is the party's count of class c.

    A class that the party does not have (n_c = 0) drops out of its softmax: the limit of the
    formula. The true class is in the sum of the softmax; the paper leaves it out, and the loss then
    has no lower bound.
    """

    needs_classes: ClassVar[str] = "calibrates the softmax by class counts"
    replaces_supervised: ClassVar[bool] = True
    choice: ClassVar[str] = (
        "the softmax includes the true class, and leaves out classes that a party does not have"
    )

    tau: float = setting(1.0, "scale of the margins; 0 is FedAvg", low=0)

    def term(self, party: Party) -> Term | None:
        if self.tau == 0:
            return None
        margins = self.tau * party.class_counts.float().pow(-1 / 4)  # [classes], inf if n_c = 0

        def calibrate(output: Output, batch: Batch, w: Params) -> Tensor:
            calibrated = party.supervised(output.logits - margins, batch)
            return calibrated - party.supervised(output.logits, batch)  # replaces l_sup

        return calibrate
