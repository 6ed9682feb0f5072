"""FedAvg: the weighted mean of locally trained models.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017. https://arxiv.org/abs/1602.05629
"""

from dataclasses import dataclass

from .base import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """w^{t+1} = sum |D^i|/|D| w_i^t: the defaults of the contract."""
