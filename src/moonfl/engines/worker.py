"""A worker process of the pool, and the messages between it and the parent process.

The parent sends `Common` with the tensors that all following jobs use, such as the global model.
Then it sends an `Assignment` for each job, small jobs before the worker needs them. The worker does
them in order and answers each with a `Trained`, an `Evaluated` or a `Failure`. Tensors accompany a
message through shared memory (shared_memory.py).
"""

import ctypes
import os
import signal
import socket
import traceback
from dataclasses import dataclass
from typing import NamedTuple

import torch

from .. import tree
from ..errors import InputError, RunError
from ..exchange import extra_from, server_from, update_state
from ..experiment import Experiment
from ..local import Workbench, local_update
from ..metrics import Counts
from ..party_models import PartyTallies, evaluate_party
from ..personal import LABEL
from ..task import Task
from ..types import Params, State, Update
from .shared_memory import Channel

PR_SET_PDEATHSIG = 1  # option of Linux's prctl: the signal that a process gets when its parent dies


@dataclass(frozen=True)
class TrainJob:
    """Train one party in one round. Its tensors are the state of the party."""

    party: int
    round: int

    def __str__(self) -> str:
        return f"training party {self.party} in round {self.round + 1}"


@dataclass(frozen=True)
class EvaluateJob:
    """Evaluate the common model on the chunks from `start` to before `stop`."""

    start: int
    stop: int

    def __str__(self) -> str:
        return "evaluating"


@dataclass(frozen=True)
class EvaluatePartyJob:
    """Evaluate the model of one party on the samples that it holds out.

    Its tensors are those of the party's own; the others are common.
    """

    party: int
    round: int

    def __str__(self) -> str:
        return f"evaluating party {self.party}"


Job = TrainJob | EvaluateJob | EvaluatePartyJob


class Common(NamedTuple):
    """Parent to worker: tensors that all following jobs use."""


class Assignment(NamedTuple):
    """Parent to worker: a job."""

    job: Job
    has_state: bool = False  # False before the first round of a party


class Trained(NamedTuple):
    """Worker to parent: the answer to a TrainJob. Its tensors are the update and the new state."""

    num_samples: int
    num_steps: int
    metrics: dict[str, float]


class Evaluated(NamedTuple):
    """Worker to parent: the answer to an EvaluateJob, one tally per chunk."""

    tallies: list[Counts]


class EvaluatedParty(NamedTuple):
    """Worker to parent: the answer to an EvaluatePartyJob."""

    tallies: PartyTallies


class Failure(NamedTuple):
    """Worker to parent: the exception that a job raised."""

    error: Exception


Answer = Trained | Evaluated | EvaluatedParty | Failure


def unpack_training(party: int, answer: Trained, tensors: State) -> tuple[Update, State]:
    """Return the update and the new state of a party from a worker's answer."""
    update = Update(
        party=party,
        params=tensors["params"],
        buffers=tensors["buffers"],
        num_samples=answer.num_samples,
        num_steps=answer.num_steps,
        extra=extra_from(tensors),
        metrics=answer.metrics,
    )
    return update, tree.select_prefix("state", tensors)


@dataclass
class Worker:
    """The state of a worker process between two messages."""

    exp: Experiment
    task: Task
    bench: Workbench
    common: State

    def handle(self, assignment: Assignment, tensors: State) -> tuple[Answer, State]:
        """Do a job. Return the answer and its tensors."""
        try:
            if isinstance(assignment.job, EvaluateJob):
                return self.evaluate(assignment.job), {}
            if isinstance(assignment.job, EvaluatePartyJob):
                return self.evaluate_party(assignment.job, tensors[LABEL]), {}
            state = tree.select_prefix("state", tensors) if assignment.has_state else None
            return self.train(assignment.job, state)
        except (InputError, RunError) as error:
            return Failure(error), {}
        except Exception:  # user code may raise anything, also exceptions that cannot be pickled
            return Failure(RuntimeError(f"in a worker process:\n{traceback.format_exc()}")), {}

    def train(self, job: TrainJob, state: State | None) -> tuple[Answer, State]:
        """Train a party."""
        update, new_state = local_update(
            self.exp,
            self.task,
            self.bench,
            server_from(self.common),
            state=state,
            party=job.party,
            t=job.round,
        )
        tensors = {**update_state(update), **tree.add_prefix("state", new_state)}
        return Trained(update.num_samples, update.num_steps, update.metrics), tensors

    def evaluate(self, job: EvaluateJob) -> Evaluated:
        """Evaluate the common model on some chunks."""
        self.bench.clear()
        model = self.bench.module(self.common["model"])
        return Evaluated(self.task.evaluate_chunks(model, range(job.start, job.stop)))

    def evaluate_party(self, job: EvaluatePartyJob, own: Params) -> EvaluatedParty:
        """Evaluate the model of a party."""
        tallies = evaluate_party(
            self.exp,
            self.task,
            self.bench,
            self.common["model"],
            own=own,
            party=job.party,
            t=job.round,
        )
        return EvaluatedParty(tallies)


def serve(
    exp: Experiment,
    task: Task,
    connection: socket.socket,
    inherited: list[Channel],
    parent: int,
) -> None:
    """Run a forked worker process until the parent closes its end of the channel or dies.

    `inherited` are the parent's channels, which the fork copied. A worker closes them, or the
    others would not notice when the parent closes its end.
    """
    prepare_process()
    if os.getppid() != parent:  # it died before prctl
        return
    for other in inherited:
        other.close()
    _do_jobs(exp, task, Channel(connection))


def serve_spawned(connection: socket.socket, parent: int) -> None:
    """Run a worker process that was not forked: it receives the experiment and the task first."""
    prepare_process()
    if os.getppid() != parent:
        return
    channel = Channel(connection)
    try:
        (exp, task), _ = channel.receive()
    except (EOFError, ConnectionError):
        return
    _do_jobs(exp, task, channel)


def prepare_process() -> None:
    """Leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _do_jobs(exp: Experiment, task: Task, channel: Channel) -> None:
    """Do jobs until the channel is closed."""
    torch.set_num_threads(1)
    worker = Worker(exp, task, Workbench(task.build), common={})
    while True:
        try:
            message, tensors = channel.receive()
        except (EOFError, ConnectionError):
            return
        if isinstance(message, Common):
            worker.common = tensors
            continue
        answer, answer_tensors = worker.handle(message, tensors)
        try:
            channel.send(answer, answer_tensors)
        except ConnectionError:
            return
