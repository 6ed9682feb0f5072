"""What server and party exchange, as labelled tensors: for worker processes, Flower and files."""

from collections.abc import Mapping

from torch import Tensor

from . import tree
from .errors import RunError
from .types import Server, State, Update


def server_state(server: Server) -> State:
    """Return the part of the server that is sent to the parties."""
    return {
        "params": server.params,
        "buffers": server.buffers,
        **tree.add_prefix("shared", server.shared),
    }


def server_from(state: State) -> Server:
    """Return the server as the parties know it."""
    return Server(
        params=state["params"],
        buffers=state["buffers"],
        shared=tree.select_prefix("shared", state),
    )


def update_state(update: Update) -> State:
    """Return the tensors of an update."""
    return {
        "params": update.params,
        "buffers": update.buffers,
        **tree.add_prefix("extra", update.extra),
    }


def extra_from(state: State) -> State:
    """Return what an update sends in addition to the model."""
    return tree.select_prefix("extra", state)


def check_pair(hook: str, result: object) -> None:
    """Check that a hook of a method returned two states: one is sent, and one is stored."""
    states = result if isinstance(result, tuple) else ()
    if len(states) != 2 or not all(isinstance(state, Mapping) for state in states):
        raise RunError(
            f"{hook} must return two dicts, one that is sent and one that is stored, got "
            f"{type(result).__name__}"
        )


def check_state(event: str, state: State, purpose: str) -> None:
    """Check a state of a method: memory, files and messages carry named tensors on the CPU."""
    for label, params in state.items():
        is_mapping = isinstance(params, Mapping)
        if not is_mapping or not all(isinstance(value, Tensor) for value in params.values()):
            raise RunError(
                f"{event} '{label}' for {purpose}, which is not a dict of tensors by name; a "
                "number is written as torch.tensor(number)"
            )
        for name, value in params.items():
            if value.device.type != "cpu":
                raise RunError(
                    f"{event} '{label}' for {purpose} with '{name}' on the device {value.device}; "
                    "call .cpu()"
                )
