"""The facts of a run: experiment.toml, and rounds.jsonl with one line a round."""

import contextlib
import itertools
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from . import kernels
from .errors import InputError, RunError
from .experiment import Experiment, to_dict, to_toml
from .task import Score, Task
from .types import Params, Server, Update

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
    """Keeps the facts of each round, and writes them where there is a directory."""

    def __init__(self, exp: Experiment, task: Task, directory: Path | None, watch: Callable[[Fact], None]) -> None:
        self.facts: list[Fact] = []
        self.exp, self.directory, self.watch = exp, directory, watch
        self.clock = time.perf_counter()
        if directory is not None:
            facts = {"versions": versions(), "choices": choices(exp, task)}
            write_atomically(directory / "experiment.toml", to_toml(exp, facts))
            write_atomically(directory / "rounds.jsonl", "")

    def log(self, t: int, server: Server, updates: list[Update], scores: dict[str, Score]) -> None:
        now = time.perf_counter()
        if not all(math.isfinite(score.loss) for score in scores.values()):
            raise RunError(
                f"after round {t + 1} the combined model's test loss is not finite: training has diverged; "
                "lower lr, the weight of the method's own term, or the server's step size"
            )
        sums = {key: sum(u.metrics.get(key, 0) for u in updates) for key in ("bytes_down", "bytes_up", "cpu_seconds")}
        fact = {"round": t + 1, **summarise(scores), **sums, "seconds": now - self.clock}
        fact["parties"] = [
            {"party": u.party, "samples": u.num_samples, "steps": u.num_steps, **u.metrics} for u in updates
        ]
        self.clock = now
        self.facts.append(fact)
        if self.directory is not None:
            with open(self.directory / "rounds.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(fact, allow_nan=False) + "\n")
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


def new_directory(out: Path, force: bool) -> Path:
    """Make a run directory; one that holds a run is overwritten only by force."""
    if any((out / name).exists() for name in ("experiment.toml", "rounds.jsonl")) and not force:
        raise InputError(f"{out} already holds a run; choose another --out, or --force to overwrite it")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the run directory {out} cannot be made: {error.strerror}") from None
    return out


def write_atomically(path: Path, text: str) -> None:
    """All of it or nothing: written beside, then renamed."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
