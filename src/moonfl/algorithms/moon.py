"""MOON: pull the representation towards the global model's, away from the party's previous one.

Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021. https://arxiv.org/abs/2103.16257
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ..kernels.contrast import model_contrastive
from ..settings import setting
from ..types import Batch, Output, Params, Party, State, Term
from .base import Algorithm
from .moon_l2 import l2_distance


@dataclass(frozen=True)
class MOON(Algorithm):
    """l = l_sup + mu l_con, l_con = -log(e^{p/tau} / (e^{p/tau} + sum e^{n/tau})): Eq. 3 and 4."""

    choice: ClassVar[str] = (
        "no contrastive term in a party's first round; then its newest previous models, however old"
    )
    mu: float = setting(1.0, "weight of the model-contrastive term; 0 is FedAvg", low=0)
    tau: float = setting(0.5, "temperature of the model-contrastive term", above=0)
    negatives: int = setting(1, "k, number of previous models that serve as negatives", low=1)
    contrast: Literal["model", "l2"] = setting("model", "model: Eq. 3; l2: ablation of Sec. 4.7")

    def term(self, party: Party) -> Term | None:
        if self.contrast == "l2":
            return l2_distance(self.mu, party)
        if self.mu == 0 or not party.state:  # FedAvg, or the first round of this party
            return None
        prev = [party.frozen(model) for model in party.state.values()]  # the newest first
        glob = party.frozen(party.global_model)

        def contrastive(output: Output, batch: Batch, w: Params) -> Tensor:
            z_glob = glob(batch.x, batch.rows).z  # p = cos(z, z_glob)
            z_prev = [model(batch.x, batch.rows).z for model in prev]  # n = cos(z, z_prev)
            return self.mu * model_contrastive(output.z, z_glob, z_prev, self.tau)

        return contrastive

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        if self.contrast == "l2":
            return {}, {}
        newest_first = [trained, *party.state.values()][: self.negatives]
        return {f"prev{i}": model for i, model in enumerate(newest_first)}, {}
