"""What server and party exchange, as labelled tensors: for worker processes, Flower and files."""

from . import tree
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
