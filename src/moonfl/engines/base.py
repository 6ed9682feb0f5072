"""The interface of an engine, and the selection of one.

An engine trains the parties of a round and evaluates models. `Embedded` works in this process,
`Pool` in worker processes, and flower/engine.py at sites. All give bit-identical results.
"""

import contextlib
import multiprocessing
import os
import sys
from numbers import Integral
from pathlib import Path
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

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # microseconds of CPU time in every period


class Engine(Protocol):
    """The interface that the loop over rounds (federation.py) uses."""

    def train(self, server: Server, parties: list[int], t: int) -> list[Update]:
        """Train these parties in round `t` and return their updates in the same order."""

    def evaluate(self, server: Server, t: int) -> dict[str, Score]:
        """Evaluate the models after round `t` and return the scores by name.

        These are the models that the algorithm deploys, or those of the parties.
        """

    def close(self) -> None:
        """Release processes and temporary files."""


def num_cores() -> int:
    """Return the number of CPU cores that this process may use, within a container's limit."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # ValueError: "max" means no limit
        quota, period = CPU_LIMIT.read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def check_workers(workers: int | None) -> None:
    """Check a number of workers; None stands for one per core."""
    if workers is None:
        return
    is_integer = isinstance(workers, Integral) and not isinstance(workers, bool)
    if not is_integer or workers < 1:
        raise InputError(f"workers must be an integer >= 1, got {workers!r}")


def make_engine(
    exp: Experiment, task: Task, workers: int | None = None, states: States | None = None
) -> Engine:
    """Return a pool with `workers` processes, or the embedded engine if a pool is of no use.

    By default there is one worker per core, but never more than parties per round. A pool is not
    possible on systems other than Linux, and in a process that may not have children (a worker of
    multiprocessing.Pool). On a machine with an accelerator, autograd does not work after a fork.
    There `workers` must be passed for a pool, whose workers are spawned: each has a copy of the
    data, and a script needs `if __name__ == "__main__":`. To fork on such a machine, hide the
    accelerator, e.g. by CUDA_VISIBLE_DEVICES= in the environment.
    """
    check_workers(workers)
    states = states or States()
    is_explicit = workers is not None
    workers = min(workers or num_cores(), exp.parties_per_round())
    if workers == 1 or sys.platform != "linux" or multiprocessing.current_process().daemon:
        return Embedded(exp, task, states)
    if exp.device == "cpu" and not torch.accelerator.is_available():
        return Pool(exp, task, workers, states)
    if is_explicit:
        return Pool(exp, task, workers, states, start_method="spawn")
    return Embedded(exp, task, states)
