"""MOON's ablation with an l2 distance in place of the contrastive term (Sec. 4.7 of the paper).

Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021. https://arxiv.org/abs/2103.16257
Selected by `algorithm=moon contrast=l2`.
"""

import torch
from torch import Tensor

from ..types import Batch, Output, Params, Party, Term


def l2_distance(mu: float, party: Party) -> Term:
    """Return the term mu ||z - z_glob||, the mean over the batch."""
    glob = party.frozen(party.global_model)

    def distance(output: Output, batch: Batch, w: Params) -> Tensor:
        z_glob = glob(batch.x, batch.rows).z
        distances: Tensor = torch.linalg.vector_norm(output.z - z_glob, dim=1)  # [B]
        return mu * distances.mean()

    return distance
