"""The federation: the only loop over rounds, for every engine."""

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from . import seeds, tree
from .aggregation import AGGREGATIONS, aggregation_rule, clip_update
from .engines import Engine
from .errors import RunError
from .exchange import check_server, check_state
from .experiment import Experiment
from .models.base import STATISTICS
from .privacy import PrivateRound
from .runs.rounds import round_record
from .runs.schema import RoundRecord
from .runs.stopping import is_finished
from .task import Task
from .types import Params, Server, State, Update


class Recorder(Protocol):
    """Stores what is known of each round."""

    @property
    def records(self) -> Sequence[RoundRecord]:
        """Return the records of the finished rounds."""

    def log(
        self, record: RoundRecord, server: Server, updates: list[Update], *, last: bool
    ) -> None:
        """Store a round; `last` is True if the run ends with it."""


def run(
    exp: Experiment, task: Task, engine: Engine, recorder: Recorder, start: Server | None = None
) -> Server:
    """Run Algorithm 1, "Server executes". A resumed run starts from the server `start`."""
    server = start or init_server(exp, task)
    for t in range(len(recorder.records), exp.rounds):
        clock = time.perf_counter()
        sampled = sample_parties(exp, t)
        updates = engine.train(server, sampled, t)
        server = aggregate(exp, server, updates, t)
        scores = engine.evaluate(server, t) if exp.is_evaluated(t) else None
        seconds = time.perf_counter() - clock
        record = round_record(t, updates, scores, lr=exp.learning_rate(t), seconds=seconds)
        last = is_finished(exp.rounds, exp.patience, [*recorder.records, record])
        recorder.log(record, server, updates, last=last)
        if last:
            break
    return server


def init_server(exp: Experiment, task: Task) -> Server:
    """Return the server before the first round."""
    params, buffers = task.init_shared(exp.seed)
    server = exp.algorithm.init_server(params, buffers)
    return Server(
        params=server.params,
        buffers=server.buffers,
        shared=server.shared,
        memory=server.memory,
        optimizer_state=exp.server.init(params),
    )


def sample_parties(exp: Experiment, t: int) -> list[int]:
    """Return the parties of round t in ascending order, from a stream that the seed determines.

    A privacy mechanism may sample in its own way.
    """
    if exp.dp.is_private:
        return exp.dp.sample(exp.parties, exp.sample_fraction, exp.seed, t)
    order = torch.randperm(exp.parties, generator=seeds.rng(exp.seed, "sampling", t))
    return sorted(order[: exp.parties_per_round()].tolist())


def aggregate(exp: Experiment, server: Server, updates: list[Update], t: int) -> Server:
    """Return the server after round t: clip, aggregate, then apply the server optimizer.

    With differential privacy nothing after `privatise` sees the update of a party.

    Sums are taken in the order of the parties, whatever the order of the updates. One thread is
    enough: those of torch would wait actively, on the cores that the workers need.
    """
    with seeds.one_thread():
        return _aggregate(exp, server, updates, t)


def _aggregate(exp: Experiment, server: Server, updates: list[Update], t: int) -> Server:
    """Return the server after a round."""
    trained = sorted((u for u in updates if u.num_steps > 0), key=lambda u: u.party)
    if exp.dp.is_private:
        trained = exp.dp.privatise(trained, private_round(exp, server, t))
    if not trained:
        return server
    effective_steps = functools.partial(exp.effective_steps, t=t)
    trained = AGGREGATIONS[exp.aggregation].prepare(trained, server.params, effective_steps)
    if exp.clip is not None and not exp.dp.is_private:
        trained = [clip_update(u, server.params, exp.clip) for u in trained]
    mean = aggregation_rule(exp.aggregation, exp.trim)
    combined = exp.algorithm.combine(server, trained, exp.parties, mean)
    aggregated = checked(exp, server, combined)
    optimizer = exp.server
    params, optimizer_state = optimizer.step(
        server.params, aggregated.params, server.optimizer_state
    )
    buffers = server.buffers
    if not exp.dp.is_private:
        buffers = {**mean((u.buffers, u.num_samples) for u in trained)}
        # A mean of equal float64 values may differ from them in the last digit.
        buffers |= {name: server.buffers[name] for name in STATISTICS if name in buffers}
    return Server(
        params={**params},
        buffers=buffers,
        shared=aggregated.shared,
        memory=aggregated.memory,
        optimizer_state=in_memory(optimizer_state),
    )


def checked(exp: Experiment, server: Server, combined: object) -> Server:
    """Return what a method's `combine` returned, with all tensors in memory, after checking it."""
    method = exp.algorithm.label
    result = check_server(f"combine of {method}", combined)
    params = {**result.params}
    shared = in_memory(result.shared)
    memory = in_memory(result.memory)
    check_state(f"combine of {method} returns", {"params": params, **shared}, "the server to send")
    check_state(f"combine of {method} returns", memory, "the server to store")
    check_same_tensors(method, "params", server.params, params)
    for label in {**server.shared, **shared}:
        check_same_tensors(method, label, server.shared.get(label, {}), shared.get(label, {}))
    return replace(result, params=params, shared=shared, memory=memory)


def check_same_tensors(method: str, label: str, before: Params, after: Params) -> None:
    """Check that tensors have the names, shapes and dtypes of those before the round."""
    name = tree.changed_tensor(before, after)
    if name is not None:
        raise RunError(
            f"{method} changes '{name}' of '{label}' in a round from {described(before, name)} to "
            f"{described(after, name)}; tensors keep their names, shapes and types from "
            "init_server on"
        )


def described(params: Params, name: str) -> str:
    """Describe the type and shape of a tensor that may be missing."""
    if name not in params:
        return "nothing"
    return f"{params[name].dtype} {list(params[name].shape)}"


def private_round(exp: Experiment, server: Server, t: int) -> PrivateRound:
    """Return what a privacy mechanism knows about round t before it sees an update."""
    assert exp.clip is not None  # checked with the other settings
    return PrivateRound(
        t=t,
        seed=exp.seed,
        parties=exp.parties,
        rate=exp.sample_fraction,
        clip=exp.clip,
        params=server.params,
        extra=exp.algorithm.extra_like(server.params, exp.effective_steps(1, t)),
    )


def in_memory(state: State) -> State:
    """Load every tensor: updates may be on disk, and are removed when the round ends."""
    return {
        label: {**params} if isinstance(params, Mapping) else params
        for label, params in state.items()
    }
