"""MOON: pull the representation towards the global model's, away from the party's previous one.

Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021. https://arxiv.org/abs/2103.16257
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..settings import setting
from ..types import Batch, Loss, Params, Party, State
from .fedavg import FedAvg


def model_contrastive(z: Tensor, z_glob: Tensor, z_prev: list[Tensor], tau: float) -> Tensor:
    """-log( e^{sim(z, z_glob)/tau} / (e^{sim(z, z_glob)/tau} + sum_i e^{sim(z, z_prev_i)/tau}) ), Eq. 3.

    All z are [B, D]; sim is the cosine. The mean over the batch; 0 without negatives.
    """
    others = torch.stack([z_glob, *z_prev], dim=1)  # [B, 1 + k, D], the positive pair first
    logits = F.cosine_similarity(z[:, None], others, dim=2) / tau  # [B, 1 + k]
    return F.cross_entropy(logits, logits.new_zeros(len(z), dtype=torch.long))


def previous(party: Party) -> list[Params]:
    """The party's own earlier models, the newest first."""
    return [party.state[f"prev{i}"] for i in range(len(party.state))]


@dataclass(frozen=True)
class MOON(FedAvg):
    meaning: ClassVar[str] = (
        "contrast=model has no term at a party's first round, then its newest models, however old"
    )

    mu: float = setting(1.0, "weight of the model-contrastive term; 0 is FedAvg", low=0)
    tau: float = setting(0.5, "temperature of the model-contrastive term", above=0)
    negatives: int = setting(
        1, "k, how many of its previous models a party keeps as negatives", low=1
    )
    contrast: Literal["model", "l2"] = setting(
        "model", "model: Eq. 3; l2: ||z - z_glob||, the ablation of Sec. 4.7"
    )

    def local_loss(self, party: Party) -> Loss:
        prev = [party.frozen(model) for model in previous(party)]
        if self.contrast == "model" and not prev:  # the first participation
            return super().local_loss(party)
        glob = party.frozen(party.global_model)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            z, logits = model(batch.x)  # Algorithm 1, line 14
            supervised = party.supervised(logits, batch)  # line 13
            if self.contrast == "l2":
                distance: Tensor = torch.linalg.vector_norm(z - glob(batch).z, dim=1)  # [B]
                return supervised + self.mu * distance.mean()
            contrastive = model_contrastive(
                z, glob(batch).z, [read(batch).z for read in prev], self.tau
            )
            return supervised + self.mu * contrastive  # lines 15 to 18

        return loss

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        newest_first = [trained, *previous(party)] if self.contrast == "model" else []
        return {f"prev{i}": model for i, model in enumerate(newest_first[: self.negatives])}, {}
