"""MOON's ablation with an l2 distance in place of the contrastive term (Sec. 4.7 of the paper).

Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021. https://arxiv.org/abs/2103.16257
Selected by `algorithm=moon contrast=l2`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..types import Batch, Loss, Party
from .base import Algorithm


@dataclass(frozen=True)
class L2Distance(Algorithm):
    """l = l_sup + mu ||z - z_glob||, the mean over the batch."""

    mu: float

    def local_loss(self, party: Party) -> Loss:
        glob = party.frozen(party.global_model)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            z, logits = model(batch.x)
            z_glob = glob(batch.x, batch.rows).z
            distance: Tensor = torch.linalg.vector_norm(z - z_glob, dim=1)  # [B]
            return party.supervised(logits, batch) + self.mu * distance.mean()

        return loss
