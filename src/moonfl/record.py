"""The run directory: experiment.toml, partition.json, rounds.jsonl with one line a round, checkpoint/, final.json."""

import contextlib
import fcntl
import hashlib
import itertools
import json
import math
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from . import checkpoint, kernels
from .analysis import analyse
from .errors import DivergenceError, InputError, RunError
from .experiment import Experiment, to_dict, to_toml
from .files import append_line, write_atomically
from .states import States
from .task import Score, Task
from .types import Params, Server, Update

SETTINGS, ROUNDS, PARTITION, FINAL = "experiment.toml", "rounds.jsonl", "partition.json", "final.json"
CHECKPOINT = "checkpoint"
Fact = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a run found out. Accuracy is the last round's; the best round's stands beside it."""

    experiment: Experiment
    rounds: list[Fact]
    models: dict[str, Params]  # what was evaluated: "global", w^T with its buffers; under SOLO each party's
    directory: Path | None = None

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
            {"party": u.party, "samples": u.num_samples, "steps": u.num_steps, **u.metrics} for u in updates
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
    return fact | {"loss": statistics.fmean(score.loss for score in scores.values())}


def choices(exp: Experiment, task: Task) -> dict[str, str]:
    """What this run does where implementations differ (docs/meanings.md)."""
    made = {
        "aggregation": exp.algorithm.weighting,
        "optimiser": "SGD, its state fresh every round",
        "batches": "the last incomplete batch is dropped; a party smaller than a batch trains on what it has",
        "accuracy": "of the last round; the best round's is named so",
    }
    if exp.algorithm.meaning:
        made["algorithm"] = exp.algorithm.meaning
    if task.batch_norm:
        made["batch_norm"] = "weights and statistics are averaged; a party of one sample does not train"
    if task.partition_note:
        made["partition"] = task.partition_note
    return made


def versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("moonfl", "torch", "numpy")}
    return packages | {"kernels": kernels.in_use(), "python": platform.python_version(), "machine": platform.machine()}


def claim_directory(name: str) -> Path:
    """Make and return the first of `runs/NAME`, `runs/NAME-2`, ... that is not there yet."""
    for number in itertools.count(1):
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError("numbers do not end")


@contextlib.contextmanager
def new_directory(out: Path, force: bool, exp: Experiment, task: Task) -> Iterator[Path]:
    """A run directory, locked, in which nothing has happened; one that holds a run is overwritten only by force."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the run directory {out} cannot be made: {error.strerror}") from None
    with locked(out):
        if not force and holds_a_run(out):
            raise InputError(
                f"{out} already holds a run; `moonfl resume {out}` goes on with it, --force overwrites it, "
                "another --out keeps it"
            )
        for name in (SETTINGS, ROUNDS, FINAL):
            (out / name).unlink(missing_ok=True)
        shutil.rmtree(out / CHECKPOINT, ignore_errors=True)
        (out / CHECKPOINT).mkdir(exist_ok=True)
        write_atomically(out / PARTITION, json.dumps(dealt(task)))
        write_atomically(out / ROUNDS, "")
        write_atomically(out / SETTINGS, to_toml(exp, {"versions": versions(), "choices": choices(exp, task)}))
        yield out


def holds_a_run(out: Path) -> bool:
    """Whether there is something to lose; a start that was cut off before its first round leaves nothing."""
    there = [
        path for path in (out / SETTINGS, out / FINAL, out / ROUNDS, *(out / CHECKPOINT).glob("*")) if path.exists()
    ]
    return any(path != out / ROUNDS or path.stat().st_size > 0 for path in there)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """This run directory for us alone; the lock goes with the process that holds it, however that ends."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        for wait in (0.1, 0.4, 1.5, None):  # the workers of a run that was killed need a moment to end
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if wait is None:
                    raise InputError(f"{directory} is in use by another run") from None
                time.sleep(wait)
        yield
    finally:
        os.close(descriptor)


def dealt(task: Task) -> Fact:
    """Who has which samples, and a hash that tells whether the data are still the same."""
    counts = [np.bincount(p.y.cpu().numpy(), minlength=len(task.classes)).tolist() for p in task.parties]
    hashed = hashlib.sha256()
    for examples in (*task.parties, task.test):
        for tensor in examples:
            hashed.update(tensor.cpu().contiguous().numpy().data)
    return {"classes": list(task.classes), "counts": counts, "sha256": hashed.hexdigest()}


def read_facts(directory: Path, rounds: int, exp: Experiment, task: Task) -> list[Fact]:
    """The facts of the first `rounds` rounds; the data must be those of then."""
    path = directory / ROUNDS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        facts = [json.loads(line) for line in lines[:rounds]]
        intact = [(fact["round"], float(fact["accuracy"]) >= 0) for fact in facts] == [
            (t + 1, True) for t in range(rounds)
        ]
        path = directory / PARTITION
        same_data = json.loads(path.read_bytes())["sha256"] == dealt(task)["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        again = f"`moonfl run {directory / SETTINGS} --out {directory} --force` starts the run again"
        raise InputError(f"{path} is missing or damaged ({error}); {again}") from None
    path = directory / ROUNDS
    if rounds == 0 and len(lines) > 1:
        raise InputError(f"{path} has rounds, but {directory / CHECKPOINT} holds no checkpoint: it was changed or lost")
    if not intact:
        raise InputError(f"{path} has not the {rounds} rounds that the checkpoint has; it was changed or cut")
    if not same_data:
        raise InputError(f"{exp.dataset} is not as it was when {directory} began: other samples, or dealt otherwise")
    return facts


def go_back(directory: Path, facts: list[Fact], exp: Experiment) -> None:
    """Make the directory that of the run after these facts: later rounds are void."""
    checkpoint.forget_after(directory / CHECKPOINT, len(facts))
    if len(facts) < exp.rounds:
        (directory / FINAL).unlink(missing_ok=True)
    write_atomically(directory / ROUNDS, "".join(json.dumps(fact) + "\n" for fact in facts))
