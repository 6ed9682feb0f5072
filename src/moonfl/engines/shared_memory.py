"""Transfer of tensors between processes through anonymous shared memory.

A packet on a Unix socket carries a message. If tensors belong to it, a file descriptor of memory
with their values and their layout comes with the packet. The memory has no name, so nothing is left
behind when a process dies. The tensors of each label arrive in one buffer (tree.py, `flat_buffer`).
Every packet also says how many packets its sender has read, so that their memory can be reused.
"""

import ctypes
import functools
import os
import pickle
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..tree import aligned, contiguous_stride
from ..types import State

MAX_PACKET = 2**14  # bytes; a longer message goes through the memory
MAX_FREE = 2**25  # bytes of memory that a Channel keeps for its next packets
LARGEST_TRANSFER = 2**30  # bytes per system call; Linux transfers at most 2 GiB


class Entry(NamedTuple):
    """A tensor of a State: its keys, and its place in a block."""

    label: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    block: int
    offset: int  # bytes from the start of the block


class Layout(NamedTuple):
    """The tensors of a State in memory: blocks in a row, one for the new tensors of each label."""

    labels: tuple[str, ...]  # listed, because some may be empty
    entries: tuple[Entry, ...]
    blocks: tuple[int, ...]  # bytes of each


class Packet(NamedTuple):
    """What is sent through the socket: the message, or the numbers of bytes in the memory."""

    message: Any = None
    tensors: int = 0
    layout: int = 0
    long_message: int = 0
    read: int = 0  # packets of the other end that the sender has read


class Memory(NamedTuple):
    """Memory of a packet that was sent."""

    number: int  # of the packet, from 1
    descriptor: int
    size: int


class Channel:
    """One end of a connection between two processes.

    Creating memory and returning it to the system takes longer than copying the values. Memory
    that the other end has read is therefore used for the next packet, up to MAX_FREE bytes of it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._sent = 0  # packets
        self._read = 0
        self._unread: deque[Memory] = deque()  # in the order of the packets
        self._free: list[Memory] = []

    def fileno(self) -> int:
        """Return the descriptor of the socket, for `select.poll`."""
        return self.connection.fileno()

    def close(self) -> None:
        """Close the connection and release its memory."""
        self.connection.close()
        for memory in (*self._unread, *self._free):
            os.close(memory.descriptor)
        self._unread.clear()
        self._free.clear()

    def send(self, message: Any, tensors: State) -> None:
        """Send a message and the tensors that belong to it."""
        packet = pickle.dumps(Packet(message, read=self._read))
        self._sent += 1
        if not tensors and len(packet) <= MAX_PACKET:
            self.connection.sendall(packet)
            return
        layout, spans = _lay_out(tensors)
        header = _encode_layout(layout)
        long_message = b""
        if len(packet) > MAX_PACKET:
            long_message = pickle.dumps(message)
            message = None
        start = sum(layout.blocks)
        packet = pickle.dumps(Packet(message, start, len(header), len(long_message), self._read))
        descriptor = self._take_memory(start + len(header) + len(long_message))
        for offset, span in spans.memory():
            _write(descriptor, span, offset)
        _write(descriptor, header + long_message, start)
        socket.send_fds(self.connection, [packet], [descriptor])

    def receive(self) -> tuple[Any, State]:
        """Receive what `send` sent. The tensors are copies in memory of this process."""
        content, descriptors, _, _ = socket.recv_fds(self.connection, 2 * MAX_PACKET, 1)
        if not content:
            raise EOFError("the other side ended")
        packet: Packet = pickle.loads(content)
        self._read += 1
        self._release(packet.read)
        if packet.tensors + packet.layout + packet.long_message == 0:
            return packet.message, {}
        if not descriptors:
            raise EOFError("the other side ended in the middle of a message")
        try:
            header = os.pread(descriptors[0], packet.layout, packet.tensors)
            layout = _decode_layout(header)
            message = packet.message
            if packet.long_message > 0:
                rest = bytearray(packet.long_message)
                _read(descriptors[0], memoryview(rest), packet.tensors + packet.layout)
                message = pickle.loads(rest)
            return message, _read_tensors(descriptors[0], layout)
        finally:
            os.close(descriptors[0])

    def _take_memory(self, size: int) -> int:
        """Return the descriptor of memory for the packet that is being sent."""
        if self._free:
            _, descriptor, previous_size = self._free.pop()
        else:
            descriptor = os.memfd_create("moonfl")
            previous_size = 0
        self._unread.append(Memory(self._sent, descriptor, max(size, previous_size)))
        return descriptor

    def _release(self, read: int) -> None:
        """Make the memory of packets available again, up to the packet with the number `read`."""
        free = sum(memory.size for memory in self._free)
        while self._unread and self._unread[0].number <= read:
            memory = self._unread.popleft()
            if free + memory.size <= MAX_FREE:
                self._free.append(memory)
                free += memory.size
            else:
                os.close(memory.descriptor)


def open_channel() -> tuple[socket.socket, socket.socket]:
    """Return the sockets of both ends; packets arrive whole or not at all."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _read_tensors(descriptor: int, layout: Layout) -> State:
    """Copy the blocks into memory that torch allocates, and return the tensors in them."""
    start = 0
    blocks: list[Tensor] = []
    for size in layout.blocks:
        block = torch.empty(size, dtype=torch.uint8)
        _read(descriptor, _memory(block.data_ptr(), size), start)
        blocks.append(block)
        start += size
    tensors: dict[str, dict[str, Tensor]] = {label: {} for label in layout.labels}
    typed: dict[tuple[int, torch.dtype], Tensor] = {}
    for label, name, dtype, shape, number, offset in layout.entries:
        if (number, dtype) not in typed:
            typed[number, dtype] = blocks[number].view(dtype)
        values = typed[number, dtype]
        stride = contiguous_stride(shape)
        tensors[label][name] = values.as_strided(shape, stride, offset // dtype.itemsize)
    return dict(tensors)


def _lay_out(tensors: State) -> tuple[Layout, "Spans"]:
    """Give each tensor its place. Return the layout, and what to write at which offset.

    A tensor that has two names is sent once, e.g. MOON's update, which is also its next negative.
    """
    entries: list[Entry] = []
    blocks: list[int] = []
    places: dict[Any, tuple[int, int]] = {}
    spans = Spans()
    start = 0  # of the current block
    for label, params in tensors.items():
        size = 0
        for name, tensor in params.items():
            key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if key not in places:
                places[key] = (len(blocks), size)
                spans.add(start + size, tensor.contiguous())
                size += aligned(tensor.nbytes)
            shape = tuple(tensor.shape)
            entries.append(Entry(label, name, tensor.dtype, shape, *places[key]))
        blocks.append(size)
        start += size
    return Layout(tuple(tensors), tuple(entries), tuple(blocks)), spans


class Spans:
    """Memory to be written, in which neighbouring tensors of one buffer become one span."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []  # kept alive until they are written
        self.spans: list[tuple[int, int, int]] = []  # offset in the target, address, bytes
        self.storage = 0

    def add(self, offset: int, tensor: Tensor) -> None:
        """Add a contiguous tensor that is written at an offset."""
        if tensor.numel() == 0:
            return
        self.tensors.append(tensor)
        address = tensor.data_ptr()
        storage = tensor.untyped_storage().data_ptr()
        if self.spans and storage == self.storage:
            first, start, _ = self.spans[-1]
            if address - start == offset - first:
                self.spans[-1] = (first, start, address - start + tensor.nbytes)
                return
        self.storage = storage
        self.spans.append((offset, address, tensor.nbytes))

    def memory(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the spans with their offsets."""
        for offset, address, size in self.spans:
            yield offset, _memory(address, size)


@functools.lru_cache(maxsize=64)
def _encode_layout(layout: Layout) -> bytes:
    return pickle.dumps(layout)


@functools.lru_cache(maxsize=64)
def _decode_layout(content: bytes) -> Layout:
    layout: Layout = pickle.loads(content)
    return layout


def _memory(address: int, size: int) -> memoryview:
    """Return memory of a tensor, which must stay alive."""
    return memoryview((ctypes.c_char * size).from_address(address))


def _write(descriptor: int, content: bytes | memoryview, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view[:LARGEST_TRANSFER], offset)
        view = view[written:]
        offset += written


def _read(descriptor: int, target: memoryview, offset: int) -> None:
    while target:
        count = os.preadv(descriptor, [target[:LARGEST_TRANSFER]], offset)
        if count == 0:
            raise EOFError("a message is shorter than announced")
        target = target[count:]
        offset += count
