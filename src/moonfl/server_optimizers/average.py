"""The plain server, and the contract every server step of this package follows."""

from dataclasses import dataclass

from ..types import Params, State


@dataclass(frozen=True)
class Average:
    """Takes the old model and the combined one and gives the next; here, the combined one.

    Sees trainable parameters only. Fields are the hyperparameters; what must survive a round is `memory`.
    """

    def init(self, params: Params) -> State:
        """The memory before the first round."""
        return {}

    def step(self, old: Params, combined: Params, memory: State) -> tuple[Params, State]:
        """The next model and the next memory."""
        return combined, memory
