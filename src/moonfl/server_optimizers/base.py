"""ServerOptimizer: the base class of server optimizers."""

from dataclasses import dataclass

from ..types import Params, State


@dataclass(frozen=True)
class ServerOptimizer:
    """Computes the next model from the current and the aggregated one; by default the latter.

    It sees trainable parameters only. Its fields are the hyperparameters. What must survive a round
    is returned as state.
    """

    def init(self, params: Params) -> State:
        """Return the state before the first round."""
        return {}

    def step(self, params: Params, aggregated: Params, state: State) -> tuple[Params, State]:
        """Return the next model and the next state."""
        return aggregated, state
