"""The library's front door."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from .engines import make_engine
from .experiment import Experiment
from .federation import run as run_federation
from .record import Fact, Recorder, Result, new_directory
from .task import Task, make_task


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    force: bool = False,
    workers: int | None = None,
    state_memory: int | None = None,
    task: Task | None = None,
    watch: Callable[[Fact], None] = lambda fact: None,
) -> Result:
    """Run an experiment; with `out`, keep its facts in that directory (`force`: overwrite a run that is there).

    `workers` processes train the parties, by default one per core. Above `state_memory` bytes, by default a quarter of
    what is free, party states are on disk. The results are the same for any number of either.
    `watch` is called with each round's facts. `task` is what `make_task` made of the experiment, where that is at hand.
    """
    task = task or make_task(experiment)
    with contextlib.closing(make_engine(experiment, task, workers, state_memory)) as engine:
        directory = None if out is None else new_directory(Path(out), force)
        recorder = Recorder(experiment, task, directory, watch)
        server = run_federation(experiment, task, engine, recorder)
    return Result(experiment, recorder.facts, experiment.algorithm.deployed(server), directory)
