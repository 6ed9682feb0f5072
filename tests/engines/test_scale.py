"""The cost of a round depends on the parties that take part, not on the number of all parties."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.problems import TINY, gaussians, with_algorithm
from moonfl.data.base import Examples
from moonfl.engines.base import Engine, make_engine
from moonfl.experiment import Experiment
from moonfl.federation import aggregate, init_server, sample_parties
from moonfl.runs import checkpoint
from moonfl.runs.states import States
from moonfl.task import Task
from moonfl.types import Server

PER_ROUND = 100
SAMPLES = 8  # of a party


def many_parties(number: int) -> tuple[Experiment, Task]:
    """Return an experiment with generated data, of which 100 parties take part in a round."""
    task = gaussians()
    shape = task.parties[0].x.shape[1:]
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(number * SAMPLES, *shape, generator=rng)
    y = torch.arange(number * SAMPLES) % 3
    samples = zip(x.split(SAMPLES), y.split(SAMPLES), strict=True)
    parties = [Examples(*values) for values in samples]
    exp = with_algorithm(replace(TINY, epochs=1), "moon")
    exp = replace(exp, parties=number, sample_fraction=PER_ROUND / number)
    return exp, replace(task, parties=parties)


def rounds(exp: Experiment, task: Task, engine: Engine, states: States) -> Callable[[], float]:
    """Return a function that trains one round and returns the CPU seconds of this process."""
    server = init_server(exp, task)
    round_numbers = iter(range(100))

    def train_round() -> float:
        nonlocal server
        t = next(round_numbers)
        start = time.process_time()
        updates = engine.train(server, sample_parties(exp, t), t)
        server = aggregate(exp, server, updates, t=0)
        states.commit()
        states.release()
        assert len(updates) == PER_ROUND
        return time.process_time() - start

    return train_round


def resident_bytes() -> int:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_round_does_not_depend_on_the_number_of_all_parties(tmp_path: Path, workers: int) -> None:
    """Rounds of 1,000 and of 20,000 parties take turns; the fastest of each are compared."""
    functions: dict[int, Callable[[], float]] = {}
    seconds: dict[int, list[float]] = {1_000: [], 20_000: []}
    with ExitStack() as stack:
        for number in seconds:
            folder = tmp_path / str(number)
            folder.mkdir()
            exp, task = many_parties(number)
            states = States(folder=folder)
            engine = stack.enter_context(closing(make_engine(exp, task, workers, states)))
            functions[number] = rounds(exp, task, engine, states)
        for train_round in functions.values():
            train_round()
        before = resident_bytes()
        for _ in range(6):
            for number, train_round in functions.items():
                seconds[number].append(train_round())
        growth = resident_bytes() - before
    assert min(seconds[20_000]) < 1.5 * min(seconds[1_000])
    assert growth < 2**26


def checkpoints(number: int, folder: Path) -> Callable[[], float]:
    """Return a function that stores 100 states and returns the CPU seconds of their checkpoint.

    All parties have taken part, and all have a file in the folder.
    """
    folder.mkdir()
    states = States(folder=folder)
    for party in range(number):
        states.save(party, 0, {})
        (folder / f"party-{party}-round-0.safetensors").touch()
    server = Server(params={"w": torch.zeros(10)}, buffers={})
    round_numbers = iter(range(1, 100))

    def write() -> float:
        t = next(round_numbers)
        for party in range(PER_ROUND):
            states.save(party, t, {"previous": {"w": torch.full((10,), float(t))}})
        start = time.process_time()
        checkpoint.write(folder, TINY, t, server, states=states, selected=None, files={})
        return time.process_time() - start

    write()
    return write


def test_a_checkpoint_does_not_depend_on_the_number_of_all_parties(tmp_path: Path) -> None:
    numbers = (1_000, 20_000)
    functions = {number: checkpoints(number, tmp_path / str(number)) for number in numbers}
    seconds: dict[int, list[float]] = {number: [] for number in numbers}
    for _ in range(8):
        for number, write in functions.items():
            seconds[number].append(write())
    # An index that lists all parties takes ten times as long.
    assert min(seconds[20_000]) < 3 * min(seconds[1_000])
    sizes = [(tmp_path / str(number) / "round-9.json").stat().st_size for number in numbers]
    assert abs(sizes[0] - sizes[1]) < 10
    saved = checkpoint.read(tmp_path / "20000", TINY)
    assert saved is not None
    assert len(saved.parties) == 20_000
    assert saved.parties[99].round == 9
