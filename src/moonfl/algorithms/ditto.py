"""Ditto: each party trains a second model for itself, which is pulled towards the global one.

Li, Hu, Beirami, Smith, Ditto: Fair and Robust Federated Learning Through Personalization,
ICML 2021. https://arxiv.org/abs/2012.04221
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from .. import tree
from ..settings import setting
from ..types import Batch, Params, Party, Phase, State
from .base import Algorithm

OWN = "v"  # label of the party's own model


@dataclass(frozen=True)
class Ditto(Algorithm):
    """h_i(v) = l_sup(v) + lam/2 ||v - w^t||^2; the global model w is trained as without Ditto."""

    choice: ClassVar[str] = (
        "v starts from the global model of the party's first round and is trained as long as w"
    )

    lam: float = setting(
        0.1, "weight of the pull towards the global model; 0: every party alone", low=0
    )

    def phases(self, party: Party, main: Phase) -> Sequence[Phase]:
        def loss(model: nn.Module, batch: Batch) -> Tensor:
            pull = self.lam / 2 * tree.sq_dist(tree.params_of(model), party.global_params)
            return party.supervised(model(batch.x).logits, batch) + pull

        start = party.state.get(OWN, party.global_model)
        return (main, Phase(loss=loss, stream="ditto", model=OWN, start=start))

    def own_model(self, state: State) -> Params:
        return state.get(OWN, {})
