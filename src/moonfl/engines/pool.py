"""The pool: the parties of a round are trained by worker processes, one per core, with the embedded engine's bits.

Workers are forked, so that they see the data without a copy, and models and methods need not be picklable. The parent
keeps the party states and hands each worker a party at a time, the longest first.
"""

import contextlib
import ctypes
import itertools
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from .. import tree
from ..errors import InputError, RunError, notify
from ..experiment import Experiment
from ..local import Workbench, local_update
from ..metrics import Score, Tally
from ..runs.states import States
from ..task import Task
from ..types import Server, State, Update
from . import shared_memory

Job = tuple[
    str, int, int
]  # what, and two numbers it needs: ("train", party, round), ("evaluate", first, last chunk)
Answer = tuple[Any, State]


@dataclass
class Worker:
    process: BaseProcess
    connection: Connection
    job: int | None = None  # the job it is at, by its place in the list


@dataclass
class Pool:
    exp: Experiment
    task: Task
    size: int
    states: States = field(default_factory=States)
    workers: list[Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(self.size):
            self.workers.append(self._hire())

    def train(self, server: Server, chosen: list[int], t: int) -> list[Update]:
        """The updates of the chosen parties, in the order chosen."""
        longest_first = sorted(chosen, key=lambda i: -len(self.task.parties[i].y))
        jobs: list[Job] = [("train", i, t) for i in longest_first]
        common = {
            "params": server.params,
            "buffers": server.buffers,
            **tree.add_prefix("shared", server.shared),
        }
        updates: dict[int, Update] = {}
        self.states.clear_updates()

        def done(job: Job, told: Any, tensors: State) -> None:
            (_, i, _), (samples, steps, metrics) = job, told
            params, buffers = tensors.get("params", {}), tensors.get("buffers", {})
            update = Update(
                i, params, buffers, samples, steps, tree.select_prefix("extra", tensors), metrics
            )
            self.states.save(i, t, tree.select_prefix("state", tensors))
            updates[i] = self.states.store_update(update)

        self._work(common, jobs, done, lambda job: self.states.load(job[1], before=t))
        return [updates[i] for i in chosen]

    def evaluate(self, server: Server) -> dict[str, Score]:
        """The score of every deployed model; what it is judged on is cut between the workers."""
        chunks = len(self.task.chunks())
        cuts = [chunks * k // self.size for k in range(self.size + 1)]
        jobs: list[Job] = [("evaluate", a, b) for a, b in itertools.pairwise(cuts) if a < b]
        scores = {}
        for name, model in self.exp.algorithm.deployed(server).items():
            parts: dict[int, list[Tally]] = {}

            def done(job: Job, told: Any, tensors: State, parts: dict[int, Any] = parts) -> None:
                parts[job[1]] = told

            self._work({"model": model}, jobs, done, lambda job: None)
            scores[name] = self.task.score(
                [chunk for first in sorted(parts) for chunk in parts[first]]
            )
        return scores

    def close(self) -> None:
        for worker in self.workers:
            worker.connection.close()
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
        self.workers.clear()
        self.states.close()

    def _work(
        self,
        common: State,
        jobs: list[Job],
        done: Callable[[Job, Any, State], None],
        state_of: Callable[[Job], State | None],
    ) -> None:
        """Every job done, `done` told of each as it ends; a job whose worker dies is tried once more."""
        waiting, tries = list(range(len(jobs)))[::-1], [0] * len(jobs)
        with self._no_answers_left():
            for worker in self.workers:
                self._tell(worker, common)
            while waiting or any(worker.job is not None for worker in self.workers):
                for worker in self.workers:
                    if worker.job is None and waiting:
                        worker.job = waiting.pop()
                        tries[worker.job] += 1
                        self._assign(worker, jobs[worker.job], state_of(jobs[worker.job]))
                ready = wait(
                    [worker.connection for worker in self.workers if worker.job is not None]
                )
                for worker in [worker for worker in self.workers if worker.connection in ready]:
                    job = worker.job
                    assert job is not None
                    try:
                        told, tensors = shared_memory.receive(worker.connection)
                    except (EOFError, OSError):
                        self._replace(worker, jobs[job], tries[job], common)
                        waiting.append(job)
                        continue
                    worker.job = None
                    if isinstance(told, Exception):
                        raise told
                    done(jobs[job], told, tensors)

    @contextlib.contextmanager
    def _no_answers_left(self) -> Iterator[None]:
        """After a failure no worker is at its job still, or its answer would be taken for that of a later one."""
        try:
            yield
        except BaseException:
            for worker in [worker for worker in self.workers if worker.job is not None]:
                self._dismiss(worker)
            raise

    def _assign(self, worker: Worker, job: Job, state: State | None) -> None:
        with contextlib.suppress(ConnectionError):  # it died; the wait for its answer will tell
            shared_memory.send(
                worker.connection, (*job, state is not None), tree.add_prefix("state", state or {})
            )

    def _tell(self, worker: Worker, common: State) -> None:
        with contextlib.suppress(ConnectionError):  # likewise
            shared_memory.send(worker.connection, ("common", 0, 0), common)

    def _replace(self, worker: Worker, job: Job, tried: int, common: State) -> None:
        worker.process.join(
            timeout=1
        )  # to hear how it died; where it was our side that failed, it lives
        self._dismiss(worker)
        what, number, t = job
        where = f"training party {number} in round {t + 1}" if what == "train" else "evaluating"
        reason = f"a worker process died while {where} (exit code {worker.process.exitcode})"
        if tried > 1:
            raise RunError(
                f"{reason}, for the second time: most often memory ran out; try fewer workers"
            )
        notify(f"moonfl: {reason}; trying once more")
        self._tell(self.workers[-1], common)

    def _dismiss(self, worker: Worker) -> None:
        """End a worker, whatever it is at, and hire another."""
        worker.process.kill()
        worker.process.join()
        worker.connection.close()
        self.workers.remove(worker)
        self.workers.append(self._hire())

    def _hire(self) -> Worker:
        ours, theirs = multiprocessing.Pipe()
        others = [worker.connection for worker in self.workers]
        process = multiprocessing.get_context("fork").Process(
            target=_serve,
            args=(self.exp, self.task, theirs, [*others, ours], os.getpid()),
            daemon=True,
        )
        with (
            warnings.catch_warnings()
        ):  # newer Pythons warn of forking beside threads; workers use none of theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return Worker(process, ours)


def _serve(
    exp: Experiment, task: Task, connection: Connection, inherited: list[Connection], parent: int
) -> None:
    """A worker's life: hear what is common to the jobs that follow, then do them one by one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(
        1, signal.SIGKILL
    )  # PR_SET_PDEATHSIG: end with the parent, also in mid-training
    if os.getppid() != parent:
        return
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    bench = Workbench(task.build)
    common: State = {}
    while True:
        try:
            message, tensors = shared_memory.receive(connection)
        except (EOFError, ConnectionError):
            return
        if message[0] == "common":
            common = tensors
            continue
        try:
            told, answer = _do(exp, task, bench, common, message, tensors)
        except (InputError, RunError) as error:
            told, answer = error, {}
        except Exception:
            told, answer = RuntimeError(f"in a worker process:\n{traceback.format_exc()}"), {}
        shared_memory.send(connection, told, answer)


def _do(
    exp: Experiment, task: Task, bench: Workbench, common: State, message: Any, tensors: State
) -> Answer:
    what, a, b, has_state = message
    if what == "evaluate":
        bench.clear()
        return task.evaluate_chunks(bench.module(common["model"]), range(a, b)), {}
    server = Server(
        common.get("params", {}), common.get("buffers", {}), tree.select_prefix("shared", common)
    )
    state = tree.select_prefix("state", tensors) if has_state else None
    update, kept = local_update(exp, task, bench, server, state, a, b)
    told = (update.num_samples, update.num_steps, update.metrics)
    parts = {"params": update.params, "buffers": update.buffers}
    return told, {
        **parts,
        **tree.add_prefix("extra", update.extra),
        **tree.add_prefix("state", kept),
    }
