"""What server and party exchange, as labelled tensors: for worker processes, Flower and files."""

from collections.abc import Mapping

from torch import Tensor

from . import tree
from .errors import RunError
from .types import Server, State, Update

SENT_AND_STORED = "(sent, stored)"  # what finish_round returns
STORED_AND_SENT = "(stored, sent)"  # what finish returns


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


def check_pair(hook: str, contents: str, result: object) -> tuple[State, State]:
    """Return what a hook of a method returned, if it is two states; `contents` names them."""
    parts = result if isinstance(result, tuple) else (result,)
    if len(parts) != 2 or not all(isinstance(part, Mapping) for part in parts):
        types = ", ".join(type(part).__name__ for part in parts)
        raise RunError(f"{hook} must return two dicts, {contents}, got {types}")
    first, second = parts
    return first, second


def check_server(hook: str, result: object) -> Server:
    """Return what a hook of a method returned, if it is a server.

    Its tensors are not read: a mean is computed, and a stored tensor loaded, each time it is read.
    """
    if not isinstance(result, Server):
        raise RunError(
            f"{hook} must return a Server, got {type(result).__name__}; use "
            "dataclasses.replace(server, params=...)"
        )
    for name in ("params", "shared", "memory"):
        if not isinstance(getattr(result, name), Mapping):
            raise RunError(f"{hook} must return a Server whose {name} are a dict")
    return result


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
