"""The facts of a run: told as each round ends, and kept in the run directory with a checkpoint."""

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import checkpoint, robust
from .analysis import analyse
from .deployed import Blueprint, Deployed
from .errors import DivergenceError, InputError, RunError
from .experiment import Experiment, to_dict
from .files import append_line, write_atomically
from .rundir import CHECKPOINT, FINAL, ROUNDS, Fact
from .states import States
from .task import Score, Task
from .types import Params, Server, Update

GLOBAL = "global"  # the name of the model that all parties trained


@dataclass(frozen=True)
class Result:
    """What a run found out. Accuracy is the last round's; the best round's stands beside it."""

    experiment: Experiment
    rounds: list[Fact]
    models: dict[str, Params]  # what was evaluated: "global", w^T with its buffers; under SOLO each party's
    blueprint: Blueprint  # what makes a module of them
    directory: Path | None = None

    @property
    def model(self) -> Deployed:
        """The trained model in eval mode, which takes samples as they are stored."""
        if GLOBAL not in self.models:
            raise InputError(
                f"every party has a model of its own ({', '.join(self.models)}); "
                "result.blueprint.deployed(result.models[NAME]) is the module of one"
            )
        return self.blueprint.deployed(self.models[GLOBAL])

    @property
    def accuracy(self) -> float:
        return float(self.rounds[-1]["accuracy"])

    @property
    def best(self) -> Fact:
        """The first round with the highest accuracy."""
        return max(self.rounds, key=lambda fact: fact["accuracy"])

    def summary(self) -> Fact:
        best = {"best_accuracy": self.best["accuracy"], "best_round": self.best["round"]}
        spread = {k: v for k, v in self.rounds[-1].items() if k == "accuracy_std"}
        where = {"directory": str(self.directory)} if self.directory else {}
        return {
            "accuracy": self.accuracy, **spread, **best, **where,
            "settings": to_dict(self.experiment), "rounds": self.rounds,
        }  # fmt: skip


class Recorder:
    """Keeps the facts of each round and, where there is a directory, writes them with a checkpoint."""

    def __init__(
        self,
        exp: Experiment,
        task: Task,
        watch: Callable[[Fact], None] = lambda fact: None,
        directory: Path | None = None,
        states: States | None = None,
        facts: list[Fact] | None = None,
    ) -> None:
        self.exp, self.task, self.watch, self.directory = exp, task, watch, directory
        self.states = states or States()
        self.facts = facts or []
        self.clock = time.perf_counter()

    def log(self, t: int, server: Server, updates: list[Update], scores: dict[str, Score]) -> None:
        now = time.perf_counter()
        if not all(math.isfinite(score.loss) for score in scores.values()):
            raise DivergenceError(
                f"after round {t + 1} the combined model's test loss is not finite: training has diverged; "
                "lower lr, the weight of the method's own term, or the server's step size"
            )
        sums = {key: sum(u.metrics.get(key, 0) for u in updates) for key in ("bytes_down", "bytes_up", "cpu_seconds")}
        fact = {"round": t + 1, **summarise(scores), **sums, "seconds": now - self.clock}
        fact["parties"] = [
            {**u.metrics, "party": u.party, "samples": u.num_samples, "steps": u.num_steps}
            | ({"missing": u.missing} if u.missing else {})
            for u in updates
        ]
        self.facts.append(fact)
        if self.directory is not None:
            if t + 1 == self.exp.rounds:  # before the last line: what has all its lines is finished
                final = analyse(self.exp, self.task, server, updates)
                write_atomically(self.directory / FINAL, json.dumps(final, allow_nan=False))
            append_line(self.directory / ROUNDS, json.dumps(fact, allow_nan=False))
            checkpoint.write(self.directory / CHECKPOINT, self.exp, t + 1, server, self.states)
        self.clock = time.perf_counter()
        self.watch(fact)


def summarise(scores: dict[str, Score]) -> Fact:
    """One model: its score. Several (SOLO): mean and deviation of their accuracy, and each of them."""
    if not scores:
        raise RunError("no party could train: each has a single sample, and the model has BatchNorm")
    accuracies = {name: score.accuracy for name, score in scores.items()}
    fact: Fact = {"accuracy": statistics.fmean(accuracies.values())}
    if len(scores) > 1:
        fact |= {"accuracy_std": statistics.pstdev(accuracies.values()), "accuracies": accuracies}
    (first, *others) = scores.values()
    if first.sites is not None and not others:
        fact |= {"sites": {str(i): list(counted) for i, counted in first.sites.items()}}
    return fact | {"loss": statistics.fmean(score.loss for score in scores.values())}


def choices(exp: Experiment, task: Task) -> dict[str, str]:
    """What this run does where implementations differ (docs/meanings.md)."""
    made = {
        "aggregation": robust.described(exp),
        "optimiser": "SGD, its state fresh every round",
        "batches": "the last incomplete batch is dropped; a party smaller than a batch trains on what it has",
        "accuracy": "of the last round; the best round's is named so",
    }
    if exp.algorithm.meaning:
        made["algorithm"] = exp.algorithm.meaning
    if task.batch_norm:
        made["batch_norm"] = "weights and statistics are combined alike; a party of one sample does not train"
    if task.partition_note:
        made["partition"] = task.partition_note
    return made
