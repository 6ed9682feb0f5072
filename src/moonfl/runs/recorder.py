"""The facts of a run: told as each round ends, and kept in the run directory with a checkpoint."""

import json
import math
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..aggregation import robust
from ..errors import DivergenceError, InputError, RunError
from ..experiment import Experiment, to_dict
from ..metrics import Score
from ..task import Task
from ..trained_model import Blueprint, TrainedModel
from ..types import Params, Server, Update
from . import checkpoint, stopping
from .analysis import analyse
from .directory import BEST, CHECKPOINT, FINAL, ROUNDS, Fact, finished
from .files import append_line, write_atomically
from .states import States
from .tensor_files import save

GLOBAL = "global"  # the name of the model that all parties trained


@dataclass(frozen=True)
class Result:
    """What a run found out. Accuracy is the last round's; the best round's stands beside it."""

    experiment: Experiment
    rounds: list[Fact]
    models: dict[
        str, Params
    ]  # what was evaluated: "global", w^T with its buffers; under SOLO each party's
    blueprint: Blueprint  # what makes a module of them
    directory: Path | None = None
    chosen_models: dict[str, Params] | None = (
        None  # likewise, of the round that is best on the validation samples
    )
    names: tuple[str, ...] = ()  # of the parties, where they have any

    @property
    def model(self) -> TrainedModel:
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

    @property
    def chosen(self) -> Fact | None:
        """The first round with the highest accuracy on the validation samples, which needs no test set to be found."""
        return stopping.chosen(self.rounds)

    def summary(self) -> Fact:
        best = {"best_accuracy": self.best["accuracy"], "best_round": self.best["round"]}
        if self.chosen is not None:
            best |= {
                "chosen_accuracy": self.chosen["accuracy"],
                "chosen_round": self.chosen["round"],
            }
        beside = ("accuracy_std", "macro_f1", "balanced_accuracy", "sites")
        last = {key: self.rounds[-1][key] for key in beside if key in self.rounds[-1]}
        where = {"directory": str(self.directory)} if self.directory else {}
        return {
            "accuracy": self.accuracy,
            **last,
            **best,
            **where,
            "settings": to_dict(self.experiment),
            "rounds": self.rounds,
        }


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
        chosen_models: dict[str, Params] | None = None,
    ) -> None:
        self.exp, self.task, self.watch, self.directory = exp, task, watch, directory
        self.states = states or States()
        self.facts = facts or []
        self.chosen_models = chosen_models  # of the best round on the validation samples so far
        self.clock = time.perf_counter()

    def log(self, t: int, server: Server, updates: list[Update], scores: dict[str, Score]) -> bool:
        """Keep and tell the facts of a round; whether it was the last."""
        now = time.perf_counter()
        check_names(self.exp, server, updates)
        if not all(
            math.isfinite(part.loss)
            for of in scores.values()
            for part in (of, of.validation)
            if part
        ):
            raise DivergenceError(
                f"after round {t + 1} the combined model's loss is not finite: training has diverged; "
                "lower lr, the weight of the method's own term, or the server's step size"
            )
        sums = {
            key: sum(u.metrics.get(key, 0) for u in updates)
            for key in ("bytes_down", "bytes_up", "cpu_seconds")
        }
        fact = {"round": t + 1, **summarise(scores), **sums, "seconds": now - self.clock}
        fact["parties"] = [
            {**u.metrics, "party": u.party, "samples": u.num_samples, "steps": u.num_steps}
            | ({"missing": u.missing} if u.missing else {})
            for u in updates
        ]
        self.facts.append(fact)
        chosen, last = stopping.chosen(self.facts), finished(self.exp, self.facts)
        if chosen is fact:
            self.chosen_models = self.exp.algorithm.deployed(server)
            if self.directory is not None:
                save(self.directory / BEST, self.chosen_models)
        if self.directory is not None:
            if (
                last
            ):  # before the last line, as the best model is: what has all its lines is finished
                final = analyse(self.exp, self.task, server, updates)
                write_atomically(self.directory / FINAL, json.dumps(final, allow_nan=False))
            append_line(self.directory / ROUNDS, json.dumps(fact, allow_nan=False))
            number = None if chosen is None else int(chosen["round"])
            checkpoint.write(
                self.directory / CHECKPOINT, self.exp, t + 1, server, self.states, number
            )
        self.clock = time.perf_counter()
        self.watch(fact)
        return last

    def result(self, server: Server) -> Result:
        models = self.exp.algorithm.deployed(server)
        return Result(
            self.exp,
            self.facts,
            models,
            self.task.blueprint(),
            self.directory,
            self.chosen_models,
            self.task.names,
        )


def check_names(exp: Experiment, server: Server, updates: list[Update]) -> None:
    """Of models; reports and exports go by them."""
    names = exp.algorithm.deployed(server).keys()
    own = {f"party{u.party}" for u in updates if u.num_steps > 0}
    if names != {GLOBAL} and not (
        own <= names and all(re.fullmatch(r"party\d+", name) for name in names)
    ):
        raise InputError(
            f"deployed() of {type(exp.algorithm).__name__} gives {', '.join(names)}; it must give one model, called "
            f"{GLOBAL}, or one for each party that trained: party0, party1, ..."
        )


def summarise(scores: dict[str, Score]) -> Fact:
    """One model: its score. Several (SOLO): means, and of accuracy also the deviation and each of them."""
    if not scores:
        raise RunError(
            "no party could train: each has a single sample, and the model has BatchNorm"
        )
    accuracies = {name: score.accuracy for name, score in scores.items()}
    fact: Fact = {"accuracy": statistics.fmean(accuracies.values())}
    if len(scores) > 1:
        fact |= {"accuracy_std": statistics.pstdev(accuracies.values()), "accuracies": accuracies}
    (first, *others) = scores.values()
    if first.sites is not None and not others:
        fact |= {"sites": {str(i): list(counted) for i, counted in first.sites.items()}}
    for key in ("loss", "macro_f1", "balanced_accuracy"):
        fact[key] = statistics.fmean(getattr(score, key) for score in scores.values())
    validations = [score.validation for score in scores.values() if score.validation is not None]
    for key in ("accuracy", "loss") if validations else ():
        fact[f"validation_{key}"] = statistics.fmean(getattr(score, key) for score in validations)
    return fact


def choices(exp: Experiment, task: Task) -> dict[str, str]:
    """What this run does where implementations differ (docs/implementation-choices.md)."""
    made = {
        "aggregation": robust.described(exp),
        "optimiser": "SGD, its state fresh every round",
        "batches": "the last incomplete batch is dropped; a party smaller than a batch trains on what it has",
        "accuracy": "of the last round; the best round's is named so",
    }
    if exp.algorithm.meaning:
        made["algorithm"] = exp.algorithm.meaning
    if exp.validation is not None:
        made["validation"] = (
            "of rounds with the same accuracy on the validation samples the first is chosen"
        )
    if task.batch_norm:
        made["batch_norm"] = (
            "statistics are averaged as FedAvg averages weights; a party of one sample does not train"
        )
    if task.partition_note:
        made["partition"] = task.partition_note
    return made
