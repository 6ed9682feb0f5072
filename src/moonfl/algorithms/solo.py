"""SOLO: every party trains alone, and its own model is evaluated.

The baseline of Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021.
https://arxiv.org/abs/2103.16257
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from ..types import Mean, Params, Server, Update, party_model_name
from .base import Algorithm


@dataclass(frozen=True)
class Solo(Algorithm):
    """One round of many epochs (300 in the paper), reported as mean and std over the parties."""

    label: ClassVar[str] = "SOLO"
    takes_server_optimizer: ClassVar[bool] = False
    federated: ClassVar[bool] = False
    weighting: ClassVar[str] = "nothing is aggregated; mean and standard deviation are over parties"

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Server:
        models = {party_model_name(u.party): u.model for u in updates}
        return replace(server, memory=models)

    def deployed(self, server: Server) -> dict[str, Params]:
        return dict(server.memory)
