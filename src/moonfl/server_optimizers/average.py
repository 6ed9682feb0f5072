"""Average: the aggregated model becomes the next global model."""

from dataclasses import dataclass

from .base import ServerOptimizer


@dataclass(frozen=True)
class Average(ServerOptimizer):
    """w^{t+1} is the aggregated model: the defaults of the contract."""
