"""FedDecorr: decorrelate the dimensions of the representation, which heterogeneous data collapse.

Shi, Liang, Zhang, Tan, Bai, Towards Understanding and Mitigating Dimensional Collapse in
Heterogeneous Federated Learning, ICLR 2023. https://arxiv.org/abs/2210.00226
"""

from dataclasses import dataclass

from torch import Tensor

from ..settings import setting
from ..types import Batch, Output, Params, Party, Term
from .base import Algorithm

EPSILON = 1e-8  # added to variances, so that a constant dimension has a finite gradient


def decorrelation(z: Tensor) -> Tensor:
    """Return ||K||_F^2 / d^2, where K is the correlation matrix of the d dimensions of z, [B, d].

    A single sample has no correlations; the result is 0 then.
    """
    if len(z) < 2:
        return z.new_zeros(())
    centred = z - z.mean(0)
    standardised = centred / (centred.var(0) + EPSILON).sqrt()
    correlations = standardised.T @ standardised / (len(z) - 1)  # [d, d]
    return correlations.square().mean()


@dataclass(frozen=True)
class FedDecorr(Algorithm):
    """l = l_sup + beta ||K||_F^2 / d^2, with the correlation matrix K of z over the batch."""

    weight: float = setting(0.1, "beta, weight of the decorrelation term; 0 is FedAvg", low=0)

    def term(self, party: Party) -> Term:
        def decorrelate(output: Output, batch: Batch, w: Params) -> Tensor:
            return self.weight * decorrelation(output.z)

        return decorrelate
