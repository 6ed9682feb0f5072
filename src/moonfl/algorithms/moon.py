"""MOON: pull the representation towards the global model's, away from the party's previous one.

Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021. https://arxiv.org/abs/2103.16257
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.contrast import contrast
from ..settings import setting
from ..types import Batch, Output, Params, Party, State, Term
from .base import Algorithm
from .moon_l2 import l2_distance


def model_contrastive(z: Tensor, z_glob: Tensor, z_prev: list[Tensor], tau: float) -> Tensor:
    """Return Eq. 3, the mean over the batch of -log(e^{p/tau} / (e^{p/tau} + sum_i e^{n_i/tau})).

    p = sim(z, z_glob) and n_i = sim(z, z_prev_i); sim is the cosine, all z are [B, D]. The loss is
    0 without negatives.
    """
    loss = contrast(z, [z_glob, *z_prev], tau)  # in native code, with the same bits
    if loss is not None:
        return loss
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

    def term(self, party: Party) -> Term | None:
        if self.contrast == "l2":
            return l2_distance(self.mu, party)
        if not party.state:  # the first round of this party
            return None
        prev = [party.frozen(model) for model in previous_models(party)]
        glob = party.frozen(party.global_model)

        def contrastive(output: Output, batch: Batch, w: Params) -> Tensor:
            z_glob = glob(batch.x, batch.rows).z  # Algorithm 1, lines 15 and 16
            z_prev = [model(batch.x, batch.rows).z for model in prev]
            return self.mu * model_contrastive(output.z, z_glob, z_prev, self.tau)  # 17 and 18

        return contrastive

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        if self.contrast == "l2":
            return {}, {}
        newest_first = [trained, *previous_models(party)][: self.negatives]
        return {f"prev{i}": model for i, model in enumerate(newest_first)}, {}
