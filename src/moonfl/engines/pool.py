"""A pool of worker processes that train the parties of a round, one process per core.

Workers are forked, so that they share the data with the parent without a copy, and models and
methods need not be picklable. With an accelerator they are spawned, and receive both in a message.

The parent keeps the party states. It gives the parties to the workers, the largest first, and takes
the updates and the new states back. A worker gets its next small parties ahead of time, with their
states, so that it never waits for the parent. Results are bit-identical to those of the embedded
engine. worker.py is what runs in a worker process.

What happens when a worker dies? The parent notices that its channel is closed, starts another
worker in its place, and gives its jobs out once more. Nothing is lost, because the parent still has
the states that the parties started from. If a job loses its worker a second time, the run ends with
a RunError; the usual cause is that memory ran out. An exception in a worker, such as divergence, is
sent to the parent and raised there. In both cases the workers that are still busy are replaced, so
that a late answer is never taken for the answer to a later job. Workers that outlive a killed
parent are killed by the kernel (PR_SET_PDEATHSIG).
"""

import contextlib
import itertools
import multiprocessing
import os
import pickle
import select
import warnings
from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from ..errors import InputError, RunError, notify
from ..exchange import server_state
from ..experiment import Experiment
from ..metrics import Counts, Score
from ..party_models import PartyTallies, own_tensors, score_party_models
from ..personal import LABEL
from ..runs.states import States
from ..task import EVALUATION_BATCH, Task
from ..tree import add_prefix, num_bytes
from ..types import Params, Server, State, Update
from .shared_memory import Channel, open_channel
from .worker import (
    Assignment,
    Common,
    EvaluateJob,
    EvaluatePartyJob,
    Failure,
    Job,
    TrainJob,
    serve,
    serve_spawned,
    unpack_training,
)

MAX_TRIES = 2  # of a job whose worker dies
MAX_QUEUE = 16  # jobs that a worker has at a time
QUEUED_SAMPLES = 1024  # samples times epochs that wait at a worker: too few to unbalance workers
QUEUED_BYTES = 2**25  # states that wait at a worker


@dataclass(eq=False)
class WorkerProcess:
    """A worker as the parent sees it."""

    process: BaseProcess
    channel: Channel
    jobs: "deque[Job]" = field(default_factory=deque)  # the worker is doing the first one
    samples: int = 0  # that these jobs process


class Pool:
    """An engine that trains parties in worker processes."""

    def __init__(
        self,
        exp: Experiment,
        task: Task,
        size: int,
        states: States | None = None,
        *,
        start_method: Literal["fork", "spawn"] = "fork",
    ) -> None:
        self.exp = exp
        self.start_method = start_method
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
        with contextlib.closing(self._run(jobs, server_state(server))) as answers:
            for job, answer, tensors in answers:
                update, new_state = unpack_training(job.party, answer, tensors)
                self.states.save(job.party, t, new_state)
                updates[job.party] = self.states.store_update(update)
        return [updates[i] for i in parties]

    def evaluate(self, server: Server, t: int) -> dict[str, Score]:
        """Evaluate every model that the algorithm deploys and return the scores by name.

        The held-out samples are divided between the workers. The parties' own models are evaluated
        by party and have one score.
        """
        if self.exp.has_party_models:
            return self._evaluate_parties(server, t)
        models = self.exp.algorithm.deployed(server)
        return {name: self._evaluate(params) for name, params in models.items()}

    def close(self) -> None:
        """End all workers and remove temporary files."""
        for worker in self.workers:
            worker.channel.close()
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
        tallies: dict[int, list[Counts]] = {}
        with contextlib.closing(self._run(jobs, {"model": params})) as answers:
            for job, answer, _ in answers:
                tallies[job.start] = answer.tallies
        in_order = [tallies[job.start] for job in jobs]
        return self.task.score(list(itertools.chain.from_iterable(in_order)))

    def _evaluate_parties(self, server: Server, t: int) -> dict[str, Score]:
        """Evaluate the model of each party on the samples that it holds out."""
        jobs = [EvaluatePartyJob(i, t) for i in range(len(self.task.parties))]
        shared = server.model
        tallies: dict[int, PartyTallies] = {}
        with contextlib.closing(self._run(jobs, {"model": shared})) as answers:
            for job, answer, _ in answers:
                tallies[job.party] = answer.tallies
        return score_party_models(self.task, [tallies[job.party] for job in jobs])

    def _run(
        self, jobs: Sequence[Job], common: State
    ) -> Generator[tuple[Any, Any, State], None, None]:
        """Do all jobs. Yield each with its answer and tensors as soon as it is done."""
        waiting = deque(jobs)
        tries: Counter[Job] = Counter()
        limit = queue_limit(common)
        try:
            for worker in self.workers:
                self._send(worker, Common(), common)
            while waiting or any(worker.jobs for worker in self.workers):
                self._hand_out(waiting, limit)
                for worker in _wait_for_answers(self.workers):
                    try:
                        answer, tensors = worker.channel.receive()
                    except (EOFError, OSError):
                        waiting.extendleft(reversed(worker.jobs))
                        tries[worker.jobs[0]] += 1
                        replacement = self._replace_dead(worker, tries[worker.jobs[0]])
                        self._send(replacement, Common(), common)
                        continue
                    job = worker.jobs.popleft()
                    worker.samples -= self._samples(job)
                    if isinstance(answer, Failure):
                        raise answer.error
                    self._hand_out(waiting, limit)
                    yield job, answer, tensors
        finally:
            for worker in list(self.workers):
                if worker.jobs:  # there was an error here or in the caller
                    self._replace(worker)

    def _hand_out(self, waiting: "deque[Job]", limit: int) -> None:
        """Give jobs to the workers, the next one always to the worker with the fewest samples."""
        while waiting:
            job = waiting[0]
            samples = self._samples(job)
            worker = min(self.workers, key=lambda worker: worker.samples)
            is_small = worker.samples + samples <= QUEUED_SAMPLES and len(worker.jobs) < limit
            if worker.jobs and not is_small:
                return
            worker.jobs.append(waiting.popleft())
            worker.samples += samples
            self._assign(worker, job)

    def _samples(self, job: Job) -> int:
        """Return the samples that a job processes."""
        if isinstance(job, TrainJob):
            return self.exp.epochs * len(self.task.parties[job.party].y)
        if isinstance(job, EvaluatePartyJob):
            training = (self.exp.finetune or 0) * len(self.task.parties[job.party].y)
            return training + EVALUATION_BATCH * len(self.task.chunks(job.party))
        return EVALUATION_BATCH * (job.stop - job.start)

    def _assign(self, worker: WorkerProcess, job: Job) -> None:
        """Give a job to a worker, together with what it needs of the party's state."""
        if isinstance(job, EvaluatePartyJob):
            state = self.states.load(job.party, before=self.exp.rounds)
            own = own_tensors(self.exp, self.task, state)
            self._send(worker, Assignment(job), {LABEL: own})
            return
        state = None
        if isinstance(job, TrainJob):
            state = self.states.load(job.party, before=job.round)
        tensors = add_prefix("state", state or {})
        self._send(worker, Assignment(job, has_state=state is not None), tensors)

    def _send(self, worker: WorkerProcess, message: Common | Assignment, tensors: State) -> None:
        """Send a message; if the worker is dead, waiting for its answer will show it."""
        with contextlib.suppress(ConnectionError):
            worker.channel.send(message, tensors)

    def _send_task(self, channel: Channel) -> None:
        """Send the experiment and the task to a worker that is not forked."""
        try:
            channel.send((self.exp, self.task), {})
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(
                f"workers={self.size} with an accelerator start new processes, to which the model "
                f"or the method cannot be sent ({error}); define both at the top of a module, or "
                "use workers=1"
            ) from None

    def _replace_dead(self, worker: WorkerProcess, tries: int) -> WorkerProcess:
        """Start another worker in place of a dead one, unless its job was tried too often."""
        worker.process.join(timeout=1)  # wait for the exit code
        replacement = self._replace(worker)
        reason = (
            f"a worker process died while {worker.jobs[0]} (exit code {worker.process.exitcode})"
        )
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
        worker.channel.close()
        self.workers.remove(worker)
        return self._start_worker()

    def _start_worker(self) -> WorkerProcess:
        connection, theirs = open_channel()
        ours = Channel(connection)
        inherited = [worker.channel for worker in self.workers] + [ours]
        process: BaseProcess
        if self.start_method == "fork":
            args = (self.exp, self.task, theirs, inherited, os.getpid())
            fork = multiprocessing.get_context("fork")
            process = fork.Process(target=serve, args=args, daemon=True)
        else:
            self._send_task(ours)
            spawn = multiprocessing.get_context("spawn")
            args_of_spawned = (theirs, os.getpid())
            process = spawn.Process(target=serve_spawned, args=args_of_spawned, daemon=True)
        with warnings.catch_warnings():
            # Newer Pythons warn about forks in a process with threads; workers use none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        worker = WorkerProcess(process, ours)
        self.workers.append(worker)
        return worker


def queue_limit(common: State) -> int:
    """Return how many jobs a worker may have; a state is about as large as the common tensors."""
    size = sum(map(num_bytes, common.values()))
    return max(1, min(MAX_QUEUE, QUEUED_BYTES // max(size, 1)))


def _wait_for_answers(workers: list[WorkerProcess]) -> list[WorkerProcess]:
    """Wait until at least one busy worker has sent an answer or died, and return these workers."""
    poll = select.poll()
    by_descriptor = {}
    for worker in workers:
        if worker.jobs:
            by_descriptor[worker.channel.fileno()] = worker
            poll.register(worker.channel, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll()]
