"""Recorder: stores each round in the run directory. Result: what a run returns."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from .. import aggregation
from ..errors import InputError
from ..experiment import Experiment, to_dict
from ..measures import Measure, measure_of
from ..party_models import own_tensors
from ..personal import GLOBAL, SHARED, deployed
from ..task import Task
from ..trained_model import Blueprint, TrainedModel
from ..types import Params, Server, Update
from . import checkpoint
from .analysis import analyse
from .files import Log, write_atomically
from .html import result_html
from .index import BEST, CHECKPOINT, FINAL, PARTITION, ROUNDS, SETTINGS, hash_file
from .schema import PrivacyRecord, RoundRecord, encode
from .states import States
from .stopping import best_round, selected_round
from .tensor_files import save

GLOBAL_FIELDS = (  # of a round record, about the global model next to those of the parties
    "global_score",
    "global_party_score",
    "global_party_score_std",
    "global_party_score_worst",
)
Watch = Callable[[RoundRecord], None]


def ignore(record: RoundRecord) -> None:
    """Do nothing with a round."""


@dataclass(frozen=True)
class Result:
    """The result of a run. `score` is that of the last round; `best` is the best round."""

    experiment: Experiment
    rounds: list[RoundRecord]
    # "global": w^T with its buffers; one per party under SOLO, with personal tensors, and in
    # addition to the global one for methods that train one for each party
    models: dict[str, Params]
    blueprint: Blueprint  # turns them into modules
    directory: Path | None = None
    chosen_models: dict[str, Params] | None = None  # of the round that is best on validation data
    names: tuple[str, ...] = ()  # of the parties, if they have any

    @property
    def model(self) -> TrainedModel:
        """Return the trained model in eval mode; it takes samples as they are stored."""
        if SHARED in self.models:
            raise InputError(
                f"the sites keep a part of the model (personal={self.experiment.personal}), so "
                "there is no complete model here; result.models['shared'] is what they share"
            )
        if GLOBAL not in self.models:
            raise InputError(
                f"every party has its own model ({', '.join(self.models)}); "
                "result.blueprint.deployed(result.models[NAME]) is the module of one"
            )
        return self.blueprint.deployed(self.models[GLOBAL])

    @property
    def measure(self) -> Measure:
        """Return the metric by which rounds are compared: accuracy, RMSE or mAP."""
        return measure_of(self.rounds[-1])

    @property
    def score(self) -> float:
        """Return the measure on the test set after the last round."""
        return self.measure.value(self.rounds[-1])

    @property
    def accuracy(self) -> float:
        """Return the test accuracy after the last round; other tasks have a `score`."""
        accuracy = self.rounds[-1].accuracy
        if accuracy is None:
            raise InputError(f"this run has no accuracy; result.score is its {self.measure.name}")
        return accuracy

    @property
    def best(self) -> RoundRecord:
        """Return the first round that is best on the test set.

        A round that was evaluated without some sites is not the best if others have more sites.
        """
        return best_round(self.rounds)

    @property
    def chosen(self) -> RoundRecord | None:
        """Return the first round that is best on validation data, if rounds are validated."""
        return selected_round(self.rounds)

    def _repr_html_(self) -> str:
        """Return a small table and the curve of the run, which notebooks show."""
        return result_html(self.experiment, self.rounds, self.directory)

    def summary(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        last = self.rounds[-1]
        measure = self.measure
        values: dict[str, Any] = {measure.key: self.score}
        party = measure.by_party
        over_parties = (measure.std, party, f"{party}_std", f"{party}_worst")
        others = (*GLOBAL_FIELDS, "macro_f1", "balanced_accuracy", "r2", "sites", "absent")
        for key in (*over_parties, *others):
            if key in last:
                values[key] = last[key]
        values |= {f"best_{measure.key}": measure.value(self.best), "best_round": self.best.round}
        if self.chosen is not None:
            values[f"chosen_{measure.key}"] = measure.value(self.chosen)
            values["chosen_round"] = self.chosen.round
        if self.directory is not None:
            values["directory"] = str(self.directory)
        values["settings"] = to_dict(self.experiment)
        values["rounds"] = msgspec.to_builtins(self.rounds)
        return values


class Recorder:
    """Stores the records of the rounds; with a directory, also on disk with a checkpoint."""

    def __init__(
        self,
        exp: Experiment,
        task: Task,
        *,
        watch: Watch = ignore,
        before_analysis: Watch = ignore,
        directory: Path | None = None,
        states: States | None = None,
        records: list[RoundRecord] | None = None,
        selected_models: dict[str, Params] | None = None,
    ) -> None:
        """Start with the records and the selected models of a resumed run.

        `watch` is called with each round when it is stored, `before_analysis` with the last one
        before the final analysis, which takes seconds.
        """
        self.exp = exp
        self.task = task
        self.watch = watch
        self.before_analysis = before_analysis
        self.directory = directory
        self.states = states or States()
        self.records = records or []
        self.selected_models = selected_models
        self.hashes: dict[str, str] = {}  # of the files that this recorder has written or found
        self.rounds_log: Log | None = None  # opened with the first round

    def log(
        self, record: RoundRecord, server: Server, updates: list[Update], *, last: bool
    ) -> None:
        """Store a round and report it; `last` is True if the run ends with it."""
        check_model_names(self.exp, server, updates)
        self.records.append(record)
        selected = selected_round(self.records)
        if selected is record:
            self.selected_models = deployed(self.exp, server)
        if self.directory is not None:
            self._write(self.directory, server, updates, last=last)
        self.watch(record)

    def _write(self, directory: Path, server: Server, updates: list[Update], *, last: bool) -> None:
        """Write the newest record with its checkpoint.

        The analysis comes before the last line, like the best model: a run that has all its lines
        is complete.
        """
        record = self.records[-1]
        selected = selected_round(self.records)
        if selected is record and self.selected_models is not None:
            save(directory / BEST, self.selected_models)
            self.hashes.pop(BEST, None)
        if last:
            self.before_analysis(record)
            final = analyse(self.exp, self.task, server, updates)
            final.privacy = privacy_record(self.exp, record.round)
            write_atomically(directory / FINAL, encode(final))
        if self.rounds_log is None:
            self.rounds_log = Log(directory / ROUNDS)
        self.rounds_log.append(f"{encode(record)}\n")
        self.hashes[ROUNDS] = self.rounds_log.sha256
        names = [SETTINGS, PARTITION]
        if selected is not None:
            names.append(BEST)
        if last:
            names.append(FINAL)
        for name in names:
            if name not in self.hashes:
                self.hashes[name] = hash_file(directory / name, record.round)
        checkpoint.write(
            directory / CHECKPOINT,
            self.exp,
            record.round,
            server,
            states=self.states,
            selected=None if selected is None else selected.round,
            files=self.hashes,
        )

    def result(self, server: Server) -> Result:
        """Return the result of the run."""
        return Result(
            experiment=self.exp,
            rounds=self.records,
            models=self._models(server),
            blueprint=self.task.blueprint(),
            directory=self.directory,
            chosen_models=self.selected_models,
            names=self.task.names,
        )

    def _models(self, server: Server) -> dict[str, Params]:
        """Return the trained models by name.

        Each party that trained and has its own tensors has a model, if its state is on this
        machine. A global model that is incomplete without them is left out.
        """
        models = deployed(self.exp, server)
        if not self.exp.has_party_models:
            return models
        sent = {**server.params, **server.buffers}
        party_models: dict[str, Params] = {}
        for i in self.states.parties():
            state = self.states.load(i, before=self.exp.rounds)
            own = own_tensors(self.exp, self.task, state) if state else {}
            if own:
                party_models[f"party{i}"] = {**sent, **own}
        if SHARED in models:
            return party_models or models
        return {**models, **party_models}


def check_model_names(exp: Experiment, server: Server, updates: list[Update]) -> None:
    """Check the names that `deployed` returns: reports and exports depend on them."""
    names = deployed(exp, server).keys()
    if names in ({GLOBAL}, {SHARED}):
        return
    trained = {f"party{u.party}" for u in updates if u.num_steps > 0}
    if not trained <= names or not all(re.fullmatch(r"party\d+", name) for name in names):
        raise InputError(
            f"deployed() of {exp.algorithm.label} returns {', '.join(names)}; it must "
            f"return one model, called {GLOBAL}, or one for each party that trained: party0, ..."
        )


def privacy_record(exp: Experiment, rounds: int) -> PrivacyRecord | None:
    """Return the guarantee of a run after so many rounds; None if it has none."""
    if not exp.dp.is_private:
        return None
    guarantee = exp.dp.guarantee(exp.sample_fraction, rounds)
    return PrivacyRecord(
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        rounds=rounds,
        accountant=guarantee.accountant,
    )


def describe_optimizer(exp: Experiment) -> str:
    """Describe the choices of the local optimizer."""
    words = [f"{exp.optimizer.label}; its state is reset in every round"]
    if exp.grad_clip is not None:
        words.append(
            "gradients, including the method's own terms and without weight decay, are clipped "
            "by their norm over all parameters"
        )
    if exp.warmup > 0:
        words.append("in round t of the warm-up the learning rate is lr t / (warmup + 1)")
    return "; ".join(words)


def implementation_choices(exp: Experiment, task: Task) -> dict[str, str]:
    """Describe what this run does where implementations differ (docs/implementation-choices.md)."""
    choices = {
        "aggregation": aggregation.describe(
            exp.aggregation, exp.trim, exp.clip, exp.algorithm.weighting
        ),
        "optimizer": describe_optimizer(exp),
        "batches": (
            "the last incomplete batch is dropped; "
            "a party smaller than a batch trains on all it has"
        ),
        **task.objective.choices(),
    }
    if exp.precision != "float32":
        choices["precision"] = (
            f"the network is computed with autocast to {exp.precision}, also in evaluation; "
            "weights, losses and aggregation are float32"
        )
    if exp.algorithm.choice:
        choices["algorithm"] = exp.algorithm.choice
    if exp.dp.is_private:
        choices["aggregation"] = exp.dp.choice
    if exp.validation is not None:
        choices["validation"] = (
            f"of several rounds with the same validation {task.objective.measure.name} the first "
            "is selected"
        )
    if task.personal:
        choices["personal"] = (
            f"{', '.join(task.personal)} stay at each party, and start from the same initial "
            "weights; a party's model is evaluated on the samples that this party holds out"
        )
    if exp.finetune is not None:
        choices["finetune"] = (
            f"a party's model is evaluated after {exp.finetune} epochs of supervised training with "
            "the run's local optimizer on the party's training samples; it is not stored or sent"
        )
    if task.batch_norm:
        statistics = (
            "stay at the party" if exp.personal == "batchnorm" else "are averaged like weights"
        )
        choices["batch_norm"] = (
            f"statistics {statistics}; a party with a single sample does not train"
        )
    if task.partition_note:
        choices["partition"] = task.partition_note
    return choices
