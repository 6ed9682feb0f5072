"""FedNTD: distil the global model's view of the classes that are not the true one.

Lee, Jeong, Shin, Bae, Yun, Preservation of the Global Knowledge by Not-True Distillation in
Federated Learning, NeurIPS 2022. https://arxiv.org/abs/2106.03097
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..settings import setting
from ..types import Batch, Output, Params, Party, Term
from .base import Algorithm


def not_true(logits: Tensor, y: Tensor) -> Tensor:
    """Return the logits without the one of the true class, [B, classes - 1]."""
    column = torch.arange(logits.shape[1] - 1, device=y.device)
    others = column + (column >= y[:, None])  # [B, classes - 1], skips y
    return logits.gather(1, others)


def not_true_distillation(logits: Tensor, logits_glob: Tensor, y: Tensor, tau: float) -> Tensor:
    """Return the mean over the batch of KL(p_glob || p).

    p is the softmax of logits/tau over the classes other than y, and p_glob that of logits_glob.
    """
    log_p = F.log_softmax(not_true(logits, y) / tau, dim=1)
    log_p_glob = F.log_softmax(not_true(logits_glob, y) / tau, dim=1)
    return F.kl_div(log_p, log_p_glob, reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class FedNTD(Algorithm):
    """l = l_sup + beta KL(p_glob || p), over the classes other than the true one."""

    needs_classes: ClassVar[str] = "distils the softmax over the classes other than the true one"

    weight: float = setting(1.0, "beta, weight of the distillation; 0 is FedAvg", low=0)
    tau: float = setting(1.0, "temperature of the distillation", above=0)

    def term(self, party: Party) -> Term:
        glob = party.frozen(party.global_model)

        def distil(output: Output, batch: Batch, w: Params) -> Tensor:
            logits_glob = glob(batch.x, batch.rows).logits
            kl = not_true_distillation(output.logits, logits_glob, batch.y, self.tau)
            return self.weight * kl

        return distil
