"""Transfer of tensors between processes through anonymous shared memory.

A message and the layout of the tensors go through the pipe, followed by a file descriptor of the
memory. The memory has no name, so nothing is left behind when a process dies.
"""

import mmap
import os
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..types import State

ALIGNMENT = 64  # bytes


class Entry(NamedTuple):
    """A tensor of a State: its keys, and its place in the memory."""

    label: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


class Layout(NamedTuple):
    """The tensors of a State in the memory. Labels are listed, because some may be empty."""

    labels: list[str]
    entries: list[Entry]
    size: int  # bytes


def send(connection: Connection, message: Any, tensors: State) -> None:
    """Send a small message and the tensors that belong to it."""
    layout, sources = _lay_out(tensors)
    size = max(layout.size, 1)
    descriptor = os.memfd_create("moonfl")
    try:
        os.ftruncate(descriptor, size)
        with mmap.mmap(descriptor, size) as memory:
            for offset, tensor in sources.items():
                content = _bytes(tensor)
                memory[offset : offset + len(content)] = content
        connection.send((message, layout))
        with _socket(connection) as channel:
            socket.send_fds(channel, [b"f"], [descriptor])
    finally:
        os.close(descriptor)


def receive(connection: Connection) -> tuple[Any, State]:
    """Receive what `send` sent. The tensors are copies in memory of this process."""
    message, layout = connection.recv()
    with _socket(connection) as channel:
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:
        raise EOFError("the other side ended in the middle of a message")
    tensors: dict[str, dict[str, Tensor]] = {label: {} for label in layout.labels}
    copies: dict[int, Tensor] = {}
    with (
        os.fdopen(descriptors[0], "rb") as file,
        mmap.mmap(file.fileno(), max(layout.size, 1), access=mmap.ACCESS_READ) as memory,
    ):
        for entry in layout.entries:
            if entry.offset not in copies:
                copies[entry.offset] = _read(memory, entry)
            tensors[entry.label][entry.name] = copies[entry.offset]
    return message, dict(tensors)


def _read(memory: mmap.mmap, entry: Entry) -> Tensor:
    """Copy a tensor into storage that torch allocates and aligns."""
    tensor = torch.empty(entry.shape, dtype=entry.dtype)
    content = _bytes(tensor)
    if len(content) > 0:
        content[:] = memory[entry.offset : entry.offset + len(content)]
    return tensor


def _lay_out(tensors: State) -> tuple[Layout, dict[int, Tensor]]:
    """Give each tensor its place. Return the layout, and the tensors by offset.

    A tensor that has two names is sent once, e.g. MOON's update, which is also its next negative.
    """
    entries: list[Entry] = []
    sources: dict[int, Tensor] = {}
    offsets: dict[Any, int] = {}
    size = 0
    for label, name, tensor in _walk(tensors):
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in offsets:
            offsets[key] = size
            sources[size] = tensor.contiguous()
            blocks = -(-tensor.numel() * tensor.element_size() // ALIGNMENT)
            size += max(1, blocks) * ALIGNMENT
        entries.append(
            Entry(
                label=label,
                name=name,
                dtype=tensor.dtype,
                shape=tuple(tensor.shape),
                offset=offsets[key],
            )
        )
    return Layout(list(tensors), entries, size), sources


def _walk(tensors: State) -> Iterator[tuple[str, str, Tensor]]:
    for label, params in tensors.items():
        for name, tensor in params.items():
            yield label, name, tensor


def _bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor."""
    if tensor.numel() == 0:
        return memoryview(b"")
    return tensor.view(-1).view(torch.uint8).numpy().data


def _socket(connection: Connection) -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=os.dup(connection.fileno()))
