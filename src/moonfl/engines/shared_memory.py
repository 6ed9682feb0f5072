"""Tensors from one process to another through anonymous shared memory: a file descriptor travels, the bytes stay.

The memory belongs to no name, so nothing is left behind when a process dies.
"""

import mmap
import os
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from ..types import State

ALIGN = 64
Entry = tuple[str, str, torch.dtype, tuple[int, ...], int]  # label, name, dtype, shape, offset


def send(connection: Connection, message: Any, tensors: State) -> None:
    """A small message and the tensors that go with it."""
    entries, sources, size = _lay_out(tensors)
    descriptor = os.memfd_create("moonfl")
    try:
        os.ftruncate(descriptor, max(size, 1))
        with mmap.mmap(descriptor, max(size, 1)) as memory:
            for offset, tensor in sources.items():
                content = _bytes(tensor)
                memory[offset : offset + len(content)] = content
        connection.send((message, list(tensors), entries, size))
        with _socket(connection) as channel:
            socket.send_fds(channel, [b"f"], [descriptor])
    finally:
        os.close(descriptor)


def receive(connection: Connection) -> tuple[Any, State]:
    """What `send` sent; the tensors are copies in storage of this process, aligned as torch aligns it."""
    message, labels, entries, size = connection.recv()
    with _socket(connection) as channel:
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:
        raise EOFError("the other side ended in the middle of a message")
    tensors: dict[str, dict[str, Tensor]] = {label: {} for label in labels}
    copies: dict[int, Tensor] = {}
    with (
        os.fdopen(descriptors[0], "rb") as file,
        mmap.mmap(file.fileno(), max(size, 1), access=mmap.ACCESS_READ) as memory,
    ):
        for label, name, dtype, shape, offset in entries:
            if offset not in copies:
                copies[offset] = torch.empty(shape, dtype=dtype)
                content = _bytes(copies[offset])
                if len(content) > 0:
                    content[:] = memory[offset : offset + len(content)]
            tensors[label][name] = copies[offset]
    return message, dict(tensors)


def _lay_out(tensors: State) -> tuple[list[Entry], dict[int, Tensor], int]:
    """Where each tensor goes; one that stands under two names (MOON's update and its next negative) goes once."""
    entries: list[Entry] = []
    sources: dict[int, Tensor] = {}
    places: dict[Any, int] = {}
    size = 0
    for label, name, tensor in _walk(tensors):
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in places:
            places[key] = size
            sources[size] = tensor.contiguous()
            size += max(1, -(-tensor.numel() * tensor.element_size() // ALIGN)) * ALIGN
        entries.append((label, name, tensor.dtype, tuple(tensor.shape), places[key]))
    return entries, sources, size


def _walk(tensors: State) -> Iterator[tuple[str, str, Tensor]]:
    for label, params in tensors.items():
        for name, tensor in params.items():
            yield label, name, tensor


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def _socket(connection: Connection) -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=os.dup(connection.fileno()))
