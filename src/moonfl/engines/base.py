"""Engines: where the parties of a round are trained. All of them give the same bits."""

import multiprocessing
import os
import sys
from typing import Protocol

import torch

from ..errors import InputError
from ..experiment import Experiment
from ..metrics import Score
from ..runs.states import States
from ..task import Task
from ..types import Server, Update
from .embedded import Embedded
from .pool import Pool


class Engine(Protocol):
    def train(self, server: Server, chosen: list[int], t: int) -> list[Update]: ...

    def evaluate(self, server: Server) -> dict[str, Score]: ...

    def close(self) -> None: ...


def num_cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise InputError(f"workers must be >= 1, not {workers}")


def make_engine(
    exp: Experiment, task: Task, workers: int | None = None, states: States | None = None
) -> Engine:
    """The pool with `workers` processes (None: one per core), or this process alone where that is all there is to gain.

    There is no pool where forked processes could not train: off Linux, in a process that may have no children (a worker
    of multiprocessing.Pool), and beside an accelerator, whose presence keeps torch's autograd from working in a fork
    (hide it, as by CUDA_VISIBLE_DEVICES=, to train on the CPU with a pool).
    """
    check_workers(workers)
    childless = multiprocessing.current_process().daemon
    can_fork = sys.platform == "linux" and not childless and not torch.accelerator.is_available()
    workers = min(workers or num_cores(), exp.parties_per_round())
    if workers == 1 or exp.device != "cpu" or not can_fork:
        return Embedded(exp, task, states or States())
    return Pool(exp, task, workers, states or States())
