"""Execution of the runs of a sweep: one after the other, or side by side in processes.

A run in its own process, with one worker, keeps a core busy from its start to the end of its final
analysis. The workers of one run wait for each other in every round. Side by side is therefore
faster where memory suffices; docs/how-to/track-tune-conclude.md has a measurement.
"""

import contextlib
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from ..api.experiments import Execution
from ..api.named_runs import REPEAT_HINTS, complete_run, ended_run, read_ended_run, run_name
from ..engines.base import num_cores
from ..engines.worker import prepare_process
from ..errors import DivergenceError, InputError, RunError, notify
from ..experiment import Experiment
from ..report.runs import Run
from ..runs.states import free_memory
from ..task import DatasetCache, Task, make_task, with_derived_settings, with_noise
from .space import Setting

# the options of a run, for as long as it is executed; the flag is True if no other run is
MakeExecution = Callable[[Experiment, bool], contextlib.AbstractContextManager[Execution]]


@dataclass(frozen=True)
class Job:
    """A run of a sweep."""

    label: str
    experiment: Experiment
    task: Task
    out: Path


def side_by_side(exp: Experiment, jobs: int | None, workers: int | None) -> int:
    """Return how many runs are executed at a time."""
    can_fork = sys.platform == "linux" and exp.device == "cpu"
    if not can_fork or torch.accelerator.is_available():
        if jobs is not None and jobs > 1:
            raise InputError(
                f"--jobs {jobs} needs Linux and training on the CPU, without an accelerator; "
                "use --jobs 1"
            )
        return 1
    return jobs or max(1, num_cores() // (workers or 1))


def setting_jobs(setting: Setting, seeds: int, folder: Path, datasets: DatasetCache) -> list[Job]:
    """Return the runs of a setting, one per seed."""
    task = make_task(setting.experiment, datasets.read(setting.experiment))
    first = with_derived_settings(setting.experiment, task)
    jobs = []
    for seed in range(first.seed, first.seed + seeds):
        exp = replace(first, seed=seed)
        jobs.append(Job(f"{setting.label} seed={seed}", exp, task, folder / run_name(exp)))
    return jobs


def missing_runs(
    settings: Iterable[Setting], seeds: int, folder: Path, datasets: DatasetCache
) -> Iterator[Job]:
    """Yield the runs that are neither finished nor diverged."""
    for setting in settings:
        for job in setting_jobs(setting, seeds, folder, datasets):
            ended = ended_run(job.experiment, job.out, task=job.task, hints=REPEAT_HINTS)
            if ended is None:
                yield job


def read_runs(
    setting: Setting, seeds: int, folder: Path, datasets: DatasetCache
) -> tuple[dict[int, Run], list[int]]:
    """Return the finished runs of a setting by seed, and the seeds that diverged."""
    exp = setting.experiment
    if exp.parties == 0:
        exp = with_derived_settings(exp, make_task(exp, datasets.read(exp)))
    exp = with_noise(exp)
    runs: dict[int, Run] = {}
    diverged: list[int] = []
    for seed in range(exp.seed, exp.seed + seeds):
        run = read_ended_run(folder / run_name(replace(exp, seed=seed)))
        if run is not None and run.diverged:
            diverged.append(seed)
        elif run is not None:
            runs[seed] = run
    return runs, diverged


def execute(jobs: Iterable[Job], count: int, options: MakeExecution) -> None:
    """Execute the runs, `count` at a time. A run that diverges does not end the others."""
    if count > 1:
        with Processes(count, options) as processes:
            for job in jobs:
                processes.start(job)
        return
    for job in jobs:
        notify(f"{job.label}: {job.out}")
        with options(job.experiment, True) as execution:
            train(job, execution)


def train(job: Job, options: Execution) -> None:
    """Start or resume a run; a divergence is reported and stored in its directory."""
    try:
        complete_run(job.experiment, job.out, task=job.task, options=options, hints=REPEAT_HINTS)
    except DivergenceError as error:
        notify(f"moonfl: {job.label}: {error}")


@dataclass(frozen=True)
class Process:
    """A run in its own process."""

    job: Job
    process: BaseProcess
    messages: Connection  # receives (kind, text) if the run fails


class Processes:
    """Runs in processes, which end with this one, however it ends."""

    def __init__(self, count: int, options: MakeExecution) -> None:
        self.count = count
        self.options = options
        self.running: list[Process] = []

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the runs; after an error end them: they can be resumed."""
        try:
            while kind is None and self.running:
                self._wait()
        finally:
            for entry in self.running:
                entry.process.kill()
                entry.process.join()

    def start(self, job: Job) -> None:
        """Start a run as soon as fewer than `count` are running."""
        while len(self.running) >= self.count:
            self._wait()
        notify(f"{job.label}: {job.out}")
        ours, theirs = multiprocessing.Pipe(duplex=False)
        fork = multiprocessing.get_context("fork")
        args = (job, self.options, self.count, theirs, os.getpid())
        process = fork.Process(target=serve, args=args)
        with warnings.catch_warnings():
            # Newer Pythons warn about forks in a process with threads; the child uses none.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        self.running.append(Process(job, process, ours))

    def _wait(self) -> None:
        """Wait until a run ends, and raise the error that it had."""
        wait([entry.process.sentinel for entry in self.running])
        for entry in [entry for entry in self.running if not entry.process.is_alive()]:
            self.running.remove(entry)
            entry.process.join()
            if entry.messages.poll():
                with contextlib.suppress(EOFError):
                    kind, text = entry.messages.recv()
                    raise kind(f"{entry.job.label}: {text}")
            code = entry.process.exitcode
            if code is not None and code < 0:
                raise RunError(
                    f"{entry.job.label}: the process of the run was ended by signal {-code}; most "
                    "often memory ran out: try --jobs 1"
                )
            if code != 0:
                raise RunError(f"{entry.job.label}: the run failed; its error is printed above")


def serve(job: Job, options: MakeExecution, count: int, messages: Connection, parent: int) -> None:
    """Execute a run in a forked process, one of `count` at a time."""
    prepare_process()
    if os.getppid() != parent:  # it died before this process asked to end with it
        return
    torch.set_num_threads(1)  # threads of the parent do not exist here, and cores are taken
    threadpool_limits(1)
    try:
        with options(job.experiment, False) as execution:
            train(job, share(execution, count))
    except (InputError, RunError, OSError) as error:
        kind = InputError if isinstance(error, InputError) else RunError
        messages.send((kind, str(error)))


def share(options: Execution, count: int) -> Execution:
    """Return the options of one of `count` runs at a time; they share what the user left open."""
    memory = options.state_memory
    if memory is None:
        memory = free_memory() // 4 // count
    workers = options.workers or max(1, num_cores() // count)
    return replace(options, workers=workers, state_memory=memory)
