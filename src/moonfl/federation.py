"""The federation: the only loop over rounds, whatever the engine."""

from dataclasses import replace
from typing import Protocol

import torch

from . import seeds
from .aggregation import robust
from .engines.base import Engine
from .experiment import Experiment
from .metrics import Score
from .seeds import one_thread
from .task import Task
from .types import Server, Update


class Log(Protocol):
    def log(self, t: int, server: Server, updates: list[Update], scores: dict[str, Score]) -> bool:
        """Keep what is to be known of a round; whether it was the last."""


def run(
    exp: Experiment,
    task: Task,
    engine: Engine,
    recorder: Log,
    done: tuple[int, Server] | None = None,
) -> Server:
    """Algorithm 1, "Server executes"; `done` is how many rounds are done, and the server after them."""
    first, server = done or (0, init_server(exp, task))
    for t in range(first, exp.rounds):
        chosen = sample_parties(exp, t)
        updates = engine.train(server, chosen, t)
        server = aggregate(exp, server, updates)
        if recorder.log(t, server, updates, engine.evaluate(server)):
            break
    return server


def init_server(exp: Experiment, task: Task) -> Server:
    params, buffers = task.init_model(exp.seed)
    server = exp.algorithm.init_server(params, buffers)
    return replace(server, step=exp.server.init(params))


def sample_parties(exp: Experiment, t: int) -> list[int]:
    """The parties of round t, ascending, from a stream fixed by the seed."""
    order = torch.randperm(exp.parties, generator=seeds.rng(exp.seed, "sampling", t))
    return sorted(order[: exp.parties_per_round()].tolist())


def aggregate(exp: Experiment, server: Server, updates: list[Update]) -> Server:
    """algorithm.combine on what was trained, clipped if asked for, then the server's step; sums go in party order."""
    trained = sorted((u for u in updates if u.num_steps > 0), key=lambda u: u.party)
    if not trained:
        return server
    if exp.clip is not None:
        with one_thread():  # a norm is a sum
            trained = [robust.clipped(u, server.params, exp.clip) for u in trained]
    mean = robust.mean_of(exp)
    combined = exp.algorithm.combine(server, trained, exp.parties, mean)
    params, step = exp.server.step(server.params, combined.params, server.step)
    buffers = mean((u.buffers, u.num_samples) for u in trained)
    # Updates may be on disk until the round ends; what is kept of them is not.
    shared, memory, step = (
        {label: {**of} for label, of in state.items()}
        for state in (combined.shared, combined.memory, step)
    )
    return Server({**params}, buffers, shared, memory, step)
