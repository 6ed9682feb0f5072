"""Channels between processes: memory is reused only after the other end has read it."""

import os
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from helpers.equality import same
from moonfl.engines import shared_memory
from moonfl.engines.shared_memory import Channel, open_channel
from moonfl.types import State


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = map(Channel, open_channel())
    with closing(ours), closing(theirs):
        yield ours, theirs


def numbers(value: float, size: int = 1000) -> State:
    return {"params": {"w": torch.full((size,), float(value))}, "empty": {}}


def open_memory() -> int:
    """Return how many pieces of shared memory this process has open."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return sum("memfd:moonfl" in link for link in links)


def test_packets_that_wait_keep_their_values(ends: tuple[Channel, Channel]) -> None:
    """Packets are sent ahead, and packets in the other direction arrive in between."""
    ours, theirs = ends
    expected = 0
    for value in range(12):
        ours.send(value, numbers(value))
        if value % 3 == 0:  # the other end reads one of three, and says so
            message, tensors = theirs.receive()
            assert message == expected
            assert same(tensors, numbers(expected))
            expected += 1
            theirs.send("answer", numbers(-value, size=10))
            assert same(ours.receive()[1], numbers(-value, size=10))
    while expected < 12:
        message, tensors = theirs.receive()
        assert message == expected
        assert same(tensors, numbers(expected))
        expected += 1


def test_memory_is_reused_after_an_answer(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    before = open_memory()
    for value in range(20):
        ours.send("job", numbers(value, size=1000 + 100 * (value % 3)))
        assert same(theirs.receive()[1], numbers(value, size=1000 + 100 * (value % 3)))
        theirs.send("answer", numbers(value))
        ours.receive()
    assert open_memory() == before + 2  # one in each direction


def test_much_memory_is_returned_to_the_system(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "MAX_FREE", 1_000_000)
    ours, theirs = ends
    before = open_memory()
    for value in range(5):
        ours.send("job", numbers(value, size=100_000))
    for _ in range(5):
        theirs.receive()
    assert open_memory() == before + 5
    theirs.send("read", {})
    ours.receive()
    assert open_memory() == before + 2  # of 400 KB each
    ours.close()
    assert open_memory() == before
