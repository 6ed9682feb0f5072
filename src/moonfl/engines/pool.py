"""A pool of worker processes that train the parties of a round, one process per core.

Workers are forked, so that they share the data with the parent without a copy, and models and
methods need not be picklable. The parent keeps the party states. It gives every worker one party at
a time, the largest first, and takes the update and the new state back. Results are bit-identical to
those of the embedded engine. worker.py is what runs in a worker process.

What happens when a worker dies? The parent notices that its connection is closed, starts another
worker in its place, and gives the job out once more. Nothing is lost, because the parent still has
the state that the party started from. If a job loses its worker a second time, the run ends with a
RunError; the usual cause is that memory ran out. An exception in a worker, such as divergence, is
sent to the parent and raised there. In both cases the workers that are still busy are replaced, so
that a late answer is never taken for the answer to a later job. Workers that outlive a killed
parent are killed by the kernel (PR_SET_PDEATHSIG).
"""

import contextlib
import itertools
import multiprocessing
import os
import warnings
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from ..errors import RunError, notify
from ..experiment import Experiment
from ..metrics import Score, Tally
from ..runs.states import States
from ..task import Task
from ..tree import add_prefix
from ..types import Params, Server, State, Update
from . import shared_memory
from .worker import (
    Assignment,
    Common,
    EvaluateJob,
    Failure,
    TrainJob,
    common_tensors,
    serve,
    unpack_training,
)

MAX_TRIES = 2  # of a job whose worker dies
J = TypeVar("J", TrainJob, EvaluateJob)


@dataclass(eq=False)
class WorkerProcess:
    """A worker as the parent sees it."""

    process: BaseProcess
    connection: Connection


class Pool:
    """An engine that trains parties in worker processes."""

    def __init__(
        self, exp: Experiment, task: Task, size: int, states: States | None = None
    ) -> None:
        self.exp = exp
        self.task = task
        self.size = size
        self.states = states or States()
        self.workers: list[WorkerProcess] = []
        for _ in range(size):
            self._start_worker()

    def train(self, server: Server, parties: list[int], t: int) -> list[Update]:
        """Train these parties in round `t` and return their updates in the same order."""
        self.states.clear_updates()
        updates: dict[int, Update] = {}
        largest_first = sorted(parties, key=lambda i: -len(self.task.parties[i].y))
        jobs = [TrainJob(i, t) for i in largest_first]
        with contextlib.closing(self._run(jobs, common_tensors(server))) as answers:
            for job, answer, tensors in answers:
                update, new_state = unpack_training(job.party, answer, tensors)
                self.states.save(job.party, t, new_state)
                updates[job.party] = self.states.store_update(update)
        return [updates[i] for i in parties]

    def evaluate(self, server: Server) -> dict[str, Score]:
        """Evaluate every model that the algorithm deploys and return the scores by name.

        The held-out samples are divided between the workers.
        """
        models = self.exp.algorithm.deployed(server)
        return {name: self._evaluate(params) for name, params in models.items()}

    def close(self) -> None:
        """End all workers and remove temporary files."""
        for worker in self.workers:
            worker.connection.close()
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
        self.workers.clear()
        self.states.close()

    def _evaluate(self, params: Params) -> Score:
        """Evaluate one model."""
        chunks = len(self.task.chunks())
        cuts = [chunks * k // self.size for k in range(self.size + 1)]
        ranges = [(start, stop) for start, stop in itertools.pairwise(cuts) if start < stop]
        jobs = [EvaluateJob(start, stop) for start, stop in ranges]
        tallies: dict[int, list[Tally]] = {}
        with contextlib.closing(self._run(jobs, {"model": params})) as answers:
            for job, answer, _ in answers:
                tallies[job.start] = answer.tallies
        in_order = [tallies[job.start] for job in jobs]
        return self.task.score(list(itertools.chain.from_iterable(in_order)))

    def _run(self, jobs: list[J], common: State) -> Generator[tuple[J, Any, State], None, None]:
        """Do all jobs. Yield each with its answer and tensors as soon as it is done."""
        waiting = jobs[::-1]
        running: dict[WorkerProcess, J] = {}
        tries: Counter[J] = Counter()
        try:
            for worker in self.workers:
                self._send(worker, Common(), common)
            while waiting or running:
                for worker in self.workers:
                    if waiting and worker not in running:
                        job = waiting.pop()
                        tries[job] += 1
                        running[worker] = job
                        self._assign(worker, job)
                for worker in _wait_for_answers(list(running)):
                    job = running[worker]
                    try:
                        answer, tensors = shared_memory.receive(worker.connection)
                    except (EOFError, OSError):
                        del running[worker]
                        replacement = self._replace_dead(worker, job, tries[job])
                        self._send(replacement, Common(), common)
                        waiting.append(job)
                        continue
                    del running[worker]
                    if isinstance(answer, Failure):
                        raise answer.error
                    yield job, answer, tensors
        finally:
            for worker in running:  # none, unless there was an error here or in the caller
                self._replace(worker)

    def _assign(self, worker: WorkerProcess, job: TrainJob | EvaluateJob) -> None:
        """Give a job to a worker, together with the state of the party that it trains."""
        state = None
        if isinstance(job, TrainJob):
            state = self.states.load(job.party, before=job.round)
        tensors = add_prefix("state", state or {})
        self._send(worker, Assignment(job, has_state=state is not None), tensors)

    def _send(self, worker: WorkerProcess, message: Common | Assignment, tensors: State) -> None:
        """Send a message; if the worker is dead, waiting for its answer will show it."""
        with contextlib.suppress(ConnectionError):
            shared_memory.send(worker.connection, message, tensors)

    def _replace_dead(
        self, worker: WorkerProcess, job: TrainJob | EvaluateJob, tries: int
    ) -> WorkerProcess:
        """Start another worker in place of a dead one, unless its job was tried too often."""
        worker.process.join(timeout=1)  # wait for the exit code
        replacement = self._replace(worker)
        reason = f"a worker process died while {job} (exit code {worker.process.exitcode})"
        if tries >= MAX_TRIES:
            raise RunError(
                f"{reason}, for the second time: most often memory ran out; try fewer workers"
            )
        notify(f"moonfl: {reason}; trying once more")
        return replacement

    def _replace(self, worker: WorkerProcess) -> WorkerProcess:
        """End a worker, whatever it is doing, and start another."""
        worker.process.kill()
        worker.process.join()
        worker.connection.close()
        self.workers.remove(worker)
        return self._start_worker()

    def _start_worker(self) -> WorkerProcess:
        ours, theirs = multiprocessing.Pipe()
        inherited = [worker.connection for worker in self.workers] + [ours]
        process = multiprocessing.get_context("fork").Process(
            target=serve,
            args=(self.exp, self.task, theirs, inherited, os.getpid()),
            daemon=True,
        )
        with warnings.catch_warnings():
            # Newer Pythons warn about forks in a process with threads; workers use none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        worker = WorkerProcess(process, ours)
        self.workers.append(worker)
        return worker


def _wait_for_answers(workers: list[WorkerProcess]) -> list[WorkerProcess]:
    """Wait until at least one worker has sent an answer or died, and return these workers."""
    ready = wait([worker.connection for worker in workers])
    return [worker for worker in workers if worker.connection in ready]
