"""Engines: where the parties of a round are trained. All of them give the same bits."""

import os
import sys
from typing import Protocol

from ..experiment import Experiment
from ..states import States
from ..task import Score, Task
from ..types import Server, Update
from .embedded import Embedded
from .pool import Pool


class Engine(Protocol):
    def train(self, server: Server, chosen: list[int], t: int) -> list[Update]: ...

    def evaluate(self, server: Server) -> dict[str, Score]: ...

    def close(self) -> None: ...


def make_engine(exp: Experiment, task: Task, workers: int | None = None, state_memory: int | None = None) -> Engine:
    """The pool with `workers` processes (None: one per core), or this process alone where that is all there is to gain.

    A GPU is used from this process, and where processes cannot be forked safely there is no pool. Above `state_memory`
    bytes (None: a quarter of what is free) party states are on disk.
    """
    states = States(state_memory)
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    workers = min(workers, exp.parties_per_round())
    if workers == 1 or exp.device != "cpu" or sys.platform != "linux":
        return Embedded(exp, task, states)
    return Pool(exp, task, workers, states)
