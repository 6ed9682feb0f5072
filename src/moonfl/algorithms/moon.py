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
from .base import Algorithm
from .moon_l2 import L2Distance


def model_contrastive(z: Tensor, z_glob: Tensor, z_prev: list[Tensor], tau: float) -> Tensor:
    """Return Eq. 3, the mean over the batch of -log(e^{p/tau} / (e^{p/tau} + sum_i e^{n_i/tau})).

    p = sim(z, z_glob) and n_i = sim(z, z_prev_i); sim is the cosine, all z are [B, D]. The loss is
    0 without negatives.
    """
    others = torch.stack([z_glob, *z_prev], dim=1)  # [B, 1 + k, D], the positive pair first
    logits = F.cosine_similarity(z[:, None], others, dim=2) / tau  # [B, 1 + k]
    return F.cross_entropy(logits, logits.new_zeros(len(z), dtype=torch.long))


def previous_models(party: Party) -> list[Params]:
    """Return the party's own earlier models, the newest first."""
    return [party.state[f"prev{i}"] for i in range(len(party.state))]


@dataclass(frozen=True)
class MOON(Algorithm):
    """l = l_sup + mu l_con, where l_con contrasts the representations of three models."""

    choice: ClassVar[str] = (
        "no contrastive term in a party's first round; then its newest previous models, however old"
    )

    mu: float = setting(1.0, "weight of the model-contrastive term; 0 is FedAvg", low=0)
    tau: float = setting(0.5, "temperature of the model-contrastive term", above=0)
    negatives: int = setting(1, "k, number of previous models that serve as negatives", low=1)
    contrast: Literal["model", "l2"] = setting(
        "model", "model: Eq. 3; l2: ||z - z_glob||, the ablation of Sec. 4.7"
    )

    def local_loss(self, party: Party) -> Loss:
        if self.contrast == "l2":
            return L2Distance(self.mu).local_loss(party)
        if not party.state:  # the first round of this party
            return super().local_loss(party)
        prev = [party.frozen(model) for model in previous_models(party)]
        glob = party.frozen(party.global_model)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            z, logits = model(batch.x)  # Algorithm 1, line 14
            supervised = party.supervised(logits, batch)  # line 13
            z_glob = glob(batch.x, batch.rows).z
            z_prev = [frozen(batch.x, batch.rows).z for frozen in prev]
            contrastive = model_contrastive(z, z_glob, z_prev, self.tau)
            return supervised + self.mu * contrastive  # lines 15 to 18

        return loss

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        if self.contrast == "l2":
            return {}, {}
        newest_first = [trained, *previous_models(party)][: self.negatives]
        return {f"prev{i}": model for i, model in enumerate(newest_first)}, {}
