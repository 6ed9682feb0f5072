"""Experiment: one frozen, validated description of a run; TOML files and key=value overrides."""

import dataclasses
import hashlib
import re
import tomllib
import warnings
from collections.abc import Collection
from dataclasses import InitVar, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w
from torch import nn

from . import settings
from .aggregation import AGGREGATIONS
from .algorithms import MOON, Algorithm, has_own_model, replaces_aggregation
from .components import (
    BASES,
    COMPONENTS,
    PLUS,
    build_component,
    check_component,
    component_name,
    component_to_table,
    owners_of,
    parts_of,
    setting_paths,
    stored_settings,
    with_name,
)
from .data.base import Reading
from .data.datasets import source
from .data.partition import CLASS_PARTITIONS, check_kind
from .data.targets import CLASSIFICATION, REGRESSION
from .errors import InputError, notify, unknown
from .models.encoders import ENCODERS
from .optimizers import SGD, Constant, LocalOptimizer, Schedule, StepOptions, scheduled_lr
from .registry import find, find_loaded, origin
from .runs.index import read_file
from .server_optimizers import Average, ServerOptimizer
from .settings import RENAMED, setting

Trust = bool | Collection[str]  # whether code that a file names may be executed, or which names
CUSTOM_MODEL = "own"  # model= of a run whose model was passed to moonfl.federate
CUSTOM_DATA = "given"  # dataset= of a run whose data were passed to moonfl.federate
ADDED = {"added": "0.2"}  # the version that introduced a component, as in `setting`
PARTIES = 10  # default number of parties
HOLDOUT = 0.2  # default share of held-out samples
NOTES = ("versions", "choices")  # tables of a run's experiment.toml that are not settings
READER_SETTINGS = {  # settings of a reader, and the datasets that have it
    "label": ("csv", "hub"),
    "ignore": ("csv", "hub"),
    "impute": ("csv", "hub", CUSTOM_DATA),
    "encode": ("csv", "hub", CUSTOM_DATA),
    "categorical": ("csv", "hub", CUSTOM_DATA),
    "min_category": ("csv", "hub", CUSTOM_DATA),
    "image_size": ("folder", "hub"),
    "split": ("emnist",),
    "subset": ("hub",),
    "classes": ("csv", "folder", "npz", "hub", CUSTOM_DATA),
    "holdout_by": ("csv", "npz", "hub", CUSTOM_DATA),
}
TASK_DATASETS = ("csv", "npz", "hub", CUSTOM_DATA)  # that may have other targets than classes
PARTITION_SETTINGS = {  # settings of one kind of partition
    "classes_per_party": "labels",
    "shards_per_party": "shards",
}


@dataclass(frozen=True)
class Experiment:
    """Everything that determines the result of a run. The defaults are the paper's, on digits."""

    dataset: str = setting(
        "digits",
        "digits, mnist, fashion-mnist, emnist, svhn, cifar10, cifar100, tiny-imagenet, folder, "
        "npz, csv, hub, or sites",
    )
    data_dir: str = setting(
        "data",
        "folder of the datasets; with dataset=folder, npz or csv that folder or file; with "
        "dataset=hub a folder, or the name of a dataset on the Hugging Face hub",
    )
    label: str | None = setting(
        None,
        "with dataset=csv or hub: the column with the classes; with task=regression or multilabel "
        "the columns of the targets, as a,b,c; none: the column 'label'",
    )
    task: Literal["classification", "regression", "multilabel"] = setting(
        "classification",
        "classification: one class per sample; regression: numbers; multilabel: labels that are 0 "
        "or 1. The last two are for dataset=csv, npz or hub",
        added="0.2",
    )
    ignore: str | None = setting(None, "with dataset=csv or hub: columns to ignore, as a,b,c")
    classes: str | None = setting(
        None, "the classes as a,b,c, for files that may lack some of them"
    )
    impute: Literal["refuse", "mean", "indicator"] = setting(
        "refuse",
        "missing values of a table: refuse, mean over all parties, or indicator: the mean and a "
        "feature that marks them",
        added="0.2",
    )
    encode: Literal["refuse", "onehot"] = setting(
        "refuse", "columns of a table with categories: refuse or onehot", added="0.2"
    )
    categorical: str | None = setting(
        None,
        "with encode=onehot: columns whose numbers are codes of categories, as a,b,c",
        added="0.2",
    )
    min_category: int = setting(
        5,
        "with encode=onehot: training rows of all parties that a category needs for a feature of "
        "its own",
        added="0.2",
        low=1,
    )
    image_size: int | None = setting(
        None,
        "with dataset=folder or hub: images are resized to this many pixels per side; "
        "none: all images have the same size",
        low=1,
        high=4096,
    )
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] | None = setting(
        None,
        "with dataset=emnist: balanced, byclass, bymerge, digits, letters or mnist; none: balanced",
        added="0.2",
    )
    subset: str | None = setting(
        None,
        "with dataset=hub: the subset (configuration) of a dataset that has several",
        added="0.2",
    )
    holdout: float | None = setting(
        None,
        "share of each party's samples held out as test set, for data without one; none: 0.2",
        above=0,
        below=1,
    )
    holdout_by: str | None = setting(
        None,
        "with dataset=csv, npz or hub: the column, such as a patient, whose groups are held out as "
        "a whole; none: single samples are held out",
        added="0.2",
    )
    validation: float | None = setting(
        None,
        "share of each party's training samples held out to select a round; none: no selection",
        above=0,
        below=1,
    )
    patience: int | None = setting(
        None,
        "stop after this many rounds without a better validation accuracy; none: never",
        low=1,
    )
    standardise: bool | None = setting(
        None,
        "whether inputs are standardised by mean and standard deviation over all parties; "
        "none: floating-point features are, images are not",
    )
    model: str | None = setting(
        None,
        "encoder: mlp, simple-cnn, wide-cnn, resnet18, resnet50, cnn1d, or a custom one as "
        "package.module:name; none: the default of the dataset",
    )
    head: bool = setting(True, "whether the network has a projection head")
    out_dim: int = setting(256, "output dimension of the projection head", low=1, high=65536)
    algorithm: Algorithm = dataclasses.field(default_factory=MOON)
    server: ServerOptimizer = dataclasses.field(default_factory=Average)
    aggregation: Literal["mean", "median", "trimmed-mean", "fednova"] = setting(
        "mean",
        "mean: with the algorithm's weights; median or trimmed-mean: coordinate-wise, "
        "every party has one vote; fednova: mean of updates scaled to the same number of steps",
        added="0.2",
    )
    trim: float | None = setting(
        None,
        "with aggregation=trimmed-mean: the share of parties left out at either end",
        low=0,
        below=0.5,
    )
    clip: float | None = setting(
        None, "largest norm of a party's update; larger ones are scaled down to it", above=0
    )
    personal: str | None = setting(
        None,
        "tensors that stay at the party: batchnorm, output, head, encoder, or a regular expression "
        "that matches their whole names; none: the whole model is shared",
        added="0.2",
    )
    finetune: int | None = setting(
        None,
        "a party's model is evaluated after this many epochs on the party's samples; "
        "none: as it is",
        added="0.2",
        low=1,
    )
    evaluate_every: int = setting(
        1,
        "models are evaluated every so many rounds, and always after the last one",
        added="0.2",
        low=1,
    )
    partition: str = setting(
        "dirichlet",
        "how samples are split among parties: dirichlet, dirichlet-balanced, labels, shards, "
        "quantity, iid, or column",
    )
    parties: int = setting(
        0, "N, the number of parties; 0: one per value of the column, otherwise 10", low=0
    )
    beta: float = setting(
        0.5,
        "concentration of the Dirichlet distribution, with partition=dirichlet, "
        "dirichlet-balanced or quantity; smaller values give more uneven parties",
        above=0,
    )
    min_samples: int = setting(
        10, "smallest number of samples of a party, except with partition=iid or column", low=1
    )
    classes_per_party: int | None = setting(
        None, "with partition=labels: number of classes of each party; none: 2", added="0.2", low=1
    )
    shards_per_party: int | None = setting(
        None, "with partition=shards: number of shards of each party; none: 2", added="0.2", low=1
    )
    partition_seed: int = setting(
        0, "seed of the partition; 0 gives the paper's party sizes", low=0, high=2**32 - 1
    )
    column: str | None = setting(
        None, "with partition=column: the column whose values are the parties"
    )
    shift: Literal["noise", "rotation", "scale"] | None = setting(
        None,
        "feature shift between parties, with any partition: noise is added, images are rotated, "
        "or values are scaled down; none: no shift",
        added="0.2",
    )
    shift_level: float | None = setting(
        None,
        "with shift: its level at the last party, increasing from party to party; none: noise of "
        "standard deviation 0.1 (of the pixel range or of a feature's), 45 degrees, or 0.5 less",
        added="0.2",
        above=0,
    )
    sample_fraction: float = setting(
        1.0, "share of the parties that take part in a round", above=0, high=1
    )
    rounds: int = setting(20, "T, number of communication rounds", low=1)
    epochs: int = setting(10, "E, number of local epochs", low=1)
    batch_size: int = setting(64, "samples per batch", low=1, high=2**31 - 1)
    lr: float = setting(0.01, "learning rate of the local optimizer", above=0)
    momentum: float = setting(0.9, "momentum of the local optimizer", low=0, below=1)
    weight_decay: float = setting(1e-5, "weight decay of the local optimizer", low=0)
    optimizer: LocalOptimizer = dataclasses.field(default_factory=SGD, metadata=ADDED)
    nesterov: bool = setting(
        False, "with optimizer=sgd: whether its momentum is Nesterov's", added="0.2"
    )
    grad_clip: float | None = setting(
        None,
        "largest norm of a party's gradient in every local step; clip limits its update of the "
        "whole round; none: no limit",
        added="0.2",
        above=0,
    )
    schedule: Schedule = dataclasses.field(default_factory=Constant, metadata=ADDED)
    warmup: int = setting(
        0,
        "number of rounds in which the learning rate rises to lr; the schedule follows",
        added="0.2",
        low=0,
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32",
        "float32, or bfloat16: torch computes the network with autocast to bfloat16; weights, "
        "losses and aggregation stay float32",
        added="0.2",
    )
    augment: bool = setting(
        True, "whether CIFAR's training images are augmented as in the authors' code"
    )
    seed: int = setting(
        0, "seed of initial weights, batches and party sampling", low=0, high=2**63 - 1
    )
    scale: Literal["small"] | None = setting(
        None, "small: reduced size for quick runs; reports mark such runs"
    )
    device: str = setting("cpu", "device that trains the model: cpu, cuda, cuda:1, ...")
    combination: InitVar[str | None] = None  # the former name of `aggregation`

    def __post_init__(self, combination: str | None) -> None:
        if combination is not None:
            warnings.warn(
                "combination is deprecated; use aggregation", DeprecationWarning, stacklevel=3
            )
            name = "mean" if combination == "none" else combination
            object.__setattr__(self, "aggregation", name)
        settings.check(self)
        for kind in COMPONENTS:
            check_component(kind, getattr(self, kind))
        if self.model is None:
            object.__setattr__(self, "model", source(self.dataset).model)
        if self.model != CUSTOM_MODEL:
            find("model", str(self.model), ENCODERS)
        check_kind(self.partition)
        if self.parties == 0 and self.partition != "column":
            object.__setattr__(self, "parties", PARTIES)
        self._check_method()
        self._check_training()
        self._check_data()
        self._check_task()

    def _check_method(self) -> None:
        """Refuse combinations of method settings that make no sense."""
        name = component_name(self.algorithm)
        server = component_name(self.server)
        if not self.algorithm.takes_server_optimizer and server != "average":
            raise InputError(
                f"algorithm={name} cannot be combined with server={server}; use server=average"
            )
        if (self.aggregation == "trimmed-mean") != (self.trim is not None):
            raise InputError(
                "aggregation=trimmed-mean and trim=SHARE belong together; set both or neither"
            )
        if self.aggregation == "fednova" and replaces_aggregation(self.algorithm):
            raise InputError(
                f"aggregation=fednova cannot be combined with algorithm={name}, which aggregates "
                "parameters in its own way; use aggregation=mean"
            )
        if self.patience is not None and self.validation is None:
            raise InputError(
                "patience needs validation samples; set validation=SHARE too, for example 0.1"
            )
        self._check_party_models(name)
        if self.algorithm.federated:
            return
        if self.personal is not None:
            raise InputError(
                f"algorithm={name} shares nothing, got personal={self.personal}; remove personal"
            )
        if self.rounds != 1:
            raise InputError(
                f"algorithm={name} has a single round, got rounds={self.rounds}; set rounds=1 and "
                "choose the length of training with epochs"
            )
        if self.aggregation != "mean" or self.clip is not None:
            raise InputError(
                f"algorithm={name} aggregates nothing; leave aggregation, trim and clip unset"
            )
        if self.sample_fraction != 1:
            raise InputError(
                f"algorithm={name} trains every party, "
                f"got sample_fraction={self.sample_fraction:g}; set sample_fraction=1"
            )

    def _check_training(self) -> None:
        """Refuse combinations of settings of local training that make no sense."""
        optimizer = component_name(self.optimizer)
        if self.nesterov and not (self.optimizer.uses_momentum and self.momentum > 0):
            raise InputError(
                "nesterov=true needs optimizer=sgd and momentum > 0, "
                f"got optimizer={optimizer} and momentum={self.momentum:g}"
            )
        if not self.optimizer.uses_momentum and self.momentum != Experiment.momentum:
            raise InputError(
                f"momentum={self.momentum:g} has no effect with optimizer={optimizer}; remove "
                "momentum (Adam's is optimizer.beta1), or use optimizer=sgd"
            )
        if self.warmup >= self.rounds and self.warmup > 0:
            raise InputError(
                f"warmup must be smaller than rounds={self.rounds}, got {self.warmup}: the "
                "learning rate would never reach lr"
            )
        if not self.algorithm.federated and self.schedule != Constant():
            raise InputError(
                f"algorithm={component_name(self.algorithm)} has a single round, so "
                f"schedule={component_name(self.schedule)} has no effect; remove schedule"
            )
        self.learning_rate(self.rounds - 1)  # the smallest one
        self._check_sgd()

    def _check_sgd(self) -> None:
        """Refuse another optimizer than plain SGD where the method's formulas assume it."""
        changes = []
        if not self.optimizer.uses_momentum:
            changes.append(f"optimizer={component_name(self.optimizer)}")
        if self.nesterov:
            changes.append("nesterov=true")
        if self.grad_clip is not None:
            changes.append(f"grad_clip={self.grad_clip:g}")
        reasons = {
            f"algorithm={component_name(self.algorithm)}": self.algorithm.requires_sgd,
            f"aggregation={self.aggregation}": AGGREGATIONS[self.aggregation].requires_sgd,
        }
        for key, reason in reasons.items():
            if changes and reason:
                raise InputError(
                    f"{key} cannot be combined with {' and '.join(changes)}: {reason}; use "
                    "optimizer=sgd without nesterov and grad_clip, or another method"
                )

    def _check_party_models(self, name: str) -> None:
        """Refuse combinations of settings of the parties' models that make no sense."""
        if self.personal is not None:
            check_pattern("personal", self.personal)
        for key, example in self.algorithm.requires.items():
            if getattr(self, key) is None:
                raise InputError(f"algorithm={name} needs {key}; set it, as in {key}={example}")
        if has_own_model(self.algorithm):
            for key in ("personal", "finetune"):
                value = getattr(self, key)
                if value is not None:
                    raise InputError(
                        f"algorithm={name} already trains a complete model for each party, got "
                        f"{key}={value}; remove {key}"
                    )
        if self.finetune is not None and not self.algorithm.federated:
            raise InputError(
                f"algorithm={name} has no global model, got finetune={self.finetune}; "
                "remove finetune and choose the length of training with epochs"
            )

    def _check_data(self) -> None:
        """Refuse combinations of data settings that make no sense."""
        if (self.partition == "column") != (self.column is not None):
            raise InputError(
                "partition=column and column=NAME belong together; set both or neither"
            )
        if self.holdout_by is not None and self.holdout_by == self.column:
            raise InputError(
                f"holdout_by={self.holdout_by} would hold out whole parties, because column is the "
                "same; use a column that divides the samples of a party, such as the patient"
            )
        for key, kind in PARTITION_SETTINGS.items():
            if getattr(self, key) is not None and self.partition != kind:
                raise InputError(
                    f"{key} belongs to partition={kind}, not to partition={self.partition}"
                )
        self._check_shift()
        self._check_table()
        for key, datasets in READER_SETTINGS.items():
            is_set = getattr(self, key) != getattr(Experiment, key)
            if is_set and self.dataset not in (*datasets, "sites"):
                raise InputError(
                    f"{key} belongs to dataset={' or '.join(datasets)}, "
                    f"not to dataset={self.dataset}"
                )

    def _check_table(self) -> None:
        """Refuse settings of the encoding of tables that make no sense."""
        for key in ("categorical", "min_category"):
            if getattr(self, key) != getattr(Experiment, key) and self.encode == "refuse":
                raise InputError(f"{key} belongs to encode=onehot; set both, or remove {key}")

    def _check_task(self) -> None:
        """Refuse data, partitions and methods that need classes if the task has none."""
        if self.task == CLASSIFICATION:
            return
        if self.dataset not in TASK_DATASETS:
            reason = "has classes"
            if self.dataset == "sites":
                reason = "supports classification only"
            raise InputError(
                f"dataset={self.dataset} {reason}, got task={self.task}; use "
                f"dataset={', '.join(TASK_DATASETS)}, or remove task"
            )
        if self.partition in CLASS_PARTITIONS:
            raise InputError(
                f"partition={self.partition} splits samples by their class, and task={self.task} "
                "has none; set column=NAME, or partition=iid or quantity"
            )
        if self.task == REGRESSION and self.classes is not None:
            raise InputError("classes=a,b,c belongs to labels, and task=regression has numbers")
        for part in parts_of(self.algorithm):
            reason = getattr(part, "needs_classes", "")
            if reason:
                raise InputError(
                    f"algorithm={component_name(part)} needs one class per sample, because it "
                    f"{reason}; task={self.task} has none: choose another method"
                )

    def _check_shift(self) -> None:
        """Refuse settings of a feature shift that make no sense."""
        if self.shift_level is not None and self.shift is None:
            raise InputError(
                "shift_level needs a kind of shift; set shift=noise, rotation or scale too"
            )
        if self.shift == "scale" and self.shift_level is not None and self.shift_level >= 1:
            raise InputError(
                f"shift_level must be < 1 with shift=scale, got {self.shift_level:g}: the last "
                "party's values are multiplied by 1 - shift_level"
            )
        if self.shift is not None and self.dataset == "sites":
            raise InputError(
                f"shift={self.shift} is for data that moonfl splits; sites have their own data: "
                "remove shift"
            )

    @property
    def reading(self) -> Reading:
        """Return how the user's files are read."""
        return Reading(
            label=self.label or Reading.label,
            task=self.task,
            column=self.column,
            ignore=split_names(self.ignore),
            classes=split_names(self.classes),
            holdout_by=self.holdout_by,
            image_size=self.image_size,
            split=self.split,
            impute=self.impute,
            encode=self.encode,
            categorical=split_names(self.categorical),
            subset=self.subset,
        )

    @property
    def has_schedule(self) -> bool:
        """Return True if the learning rate changes from round to round."""
        return self.schedule != Constant() or self.warmup > 0

    @property
    def has_party_models(self) -> bool:
        """Return True if each party has a model of its own, which it evaluates by itself."""
        is_adapted = self.personal is not None or self.finetune is not None
        return is_adapted or has_own_model(self.algorithm)

    def is_evaluated(self, t: int) -> bool:
        """Return True if models are evaluated after round t, which counts from 0."""
        return (t + 1) % self.evaluate_every == 0 or t + 1 == self.rounds

    def learning_rate(self, t: int) -> float:
        """Return the learning rate of the local optimizer in round t, which counts from 0."""
        return scheduled_lr(self.lr, self.schedule, self.warmup, t, self.rounds)

    def step_options(self, t: int) -> StepOptions:
        """Return what the local optimizer uses in round t."""
        return StepOptions(
            lr=self.learning_rate(t),
            momentum=self.momentum if self.optimizer.uses_momentum else 0.0,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            grad_clip=self.grad_clip,
        )

    def parties_per_round(self) -> int:
        """Return how many parties take part in a round."""
        return max(1, round(self.sample_fraction * self.parties))


def check_pattern(key: str, pattern: str) -> None:
    """Check that a setting is a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise InputError(
            f"{key} must be a keyword or a regular expression, got {pattern!r}: {error}"
        ) from None


def split_names(text: str | None) -> tuple[str, ...]:
    """Split the setting `a,b,c` into names."""
    names = [name.strip() for name in (text or "").split(",")]
    return tuple(name for name in names if name)


def to_dict(exp: Experiment) -> dict[str, Any]:
    """Return plain values; components, such as the algorithm, as tables with their name.

    A setting that a later version added (`setting(..., added=VERSION)`) is left out while it has
    its default, so new settings do not change the hashes of existing experiments.
    """
    values = {name: getattr(exp, name) for name in stored_settings(exp)}
    for kind in COMPONENTS.keys() & values.keys():
        values[kind] = component_to_table(values[kind])
    return {key: value for key, value in values.items() if value is not None}


def canonical_toml(exp: Experiment) -> str:
    """Return TOML that identifies the experiment in this and later versions."""
    former_names = {new: old for old, new in RENAMED.items()}
    values = to_dict(exp)
    return tomli_w.dumps({former_names.get(key, key): value for key, value in values.items()})


def fingerprint(exp: Experiment) -> str:
    """Return a hash of every setting that affects the result; data location and device do not."""
    identity = canonical_toml(replace(exp, data_dir="data", device="cpu"))
    return hashlib.sha256(identity.encode()).hexdigest()


def from_dict(values: dict[str, Any]) -> Experiment:
    """Return the experiment with these values; `to_dict` is the inverse."""
    values = rename_keys({key: value for key, value in values.items() if key not in NOTES})
    components: dict[str, Any] = {}
    for kind in COMPONENTS:
        table = values.pop(kind, None)
        if table is not None:
            table = table if isinstance(table, dict) else {"name": table}
            components[kind] = build_component(kind, table)
    check_tables(values, {"algorithm": MOON(), "server": Average()} | components)
    return replace(settings.build(Experiment, values, ""), **components)


def rename_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the present names of settings that were renamed."""
    for old, new in RENAMED.items():
        if old in values and new in values:
            raise InputError(f"{new} and its former name {old} are both set; remove {old}")
    values = {RENAMED.get(key, key): value for key, value in values.items()}
    if values.get("aggregation", "mean") in (None, "none"):  # the former default
        values["aggregation"] = "mean"
    return values


def check_tables(values: dict[str, Any], components: dict[str, Any]) -> None:
    """Refuse settings of a component, such as the algorithm, outside their TOML table."""
    for key in values.keys() - set(settings.names(Experiment)):
        for kind, component in components.items():
            if any(key in settings.names(type(part)) for part in parts_of(component)):
                raise InputError(
                    f"{key} is a setting of the {kind}: write it below [{kind}] with "
                    f'name = "{component_name(component)}"'
                )


def to_toml(exp: Experiment, notes: dict[str, dict[str, str]] | None = None) -> str:
    """Return the experiment as TOML; `notes` are tables that are not settings."""
    return tomli_w.dumps(to_dict(exp) | (notes or {}))


def from_toml(
    path: Path, changes: dict[str, str] | None = None, trust: Trust = False
) -> Experiment:
    """Read an experiment from a TOML file, with some values changed.

    Code that only the file names is executed if it is trusted.
    """
    values = read_toml(path) | (changes or {})
    check_trust(path, values, trust)
    try:
        return from_dict(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def check_trust(path: Path, values: dict[str, Any], trust: Trust) -> None:
    """Refuse code of others than moonfl that a file names, unless it is trusted or loaded."""
    if trust is True:
        return
    trusted = trust or ()
    for key, name in user_code(values):
        if name not in trusted and not is_loaded(key, name):
            raise InputError(
                f"{path} names code that is not part of moonfl and would be executed: "
                f"{key}={name}, from {origin(name)}. Read it; if you trust it, add --trust "
                "(trust=True)"
            )


def user_code(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the dotted paths of code among plain values, each with its setting."""
    names = {"model": values.get("model")}
    for kind in COMPONENTS:
        table = values.get(kind)
        names[kind] = table.get("name") if isinstance(table, dict) else table
    parts = [(key, part) for key, name in names.items() for part in str(name).split(PLUS)]
    return [(key, part.strip()) for key, part in parts if ":" in part]


def code_names(exp: Experiment) -> tuple[str, ...]:
    """Return the dotted paths of code that an experiment names."""
    return tuple(name for _, name in user_code(to_dict(exp)))


def is_loaded(key: str, name: str) -> bool:
    """Return True for a class of the right kind that this process has already imported.

    A function is not accepted, except from the script that is running: it would be called.
    """
    target = find_loaded(name)
    base = BASES.get(key, nn.Module)
    if isinstance(target, type):
        return issubclass(target, base)
    return callable(target) and getattr(target, "__module__", None) == "__main__"


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    content = read_file(path)
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # bad TOML or UTF-8, excessive nesting
        raise InputError(f"{path} is not TOML: {error}") from None


def override(exp: Experiment, changes: list[str]) -> Experiment:
    """Return the experiment with `key=value` changes.

    A key is a field of Experiment, a setting of the algorithm (`mu=5`, `moon.mu=5` or
    `algorithm.mu=5`), or `KIND.KEY` for another component, as in `server.lr=0.1`. `KIND=NAME`, as
    in `algorithm=moon`, wherever it stands among the changes, starts from the defaults of that
    class; a component that the experiment already has keeps its settings.
    """
    pairs = parse_changes(changes)
    values = to_dict(exp)
    for kind in COMPONENTS:
        values.setdefault(kind, component_to_table(getattr(exp, kind)))
        if kind in pairs:
            values[kind] = with_name(kind, values[kind], pairs.pop(kind))
    if pairs.get("dataset", exp.dataset) != exp.dataset:
        values.pop("model", None)
    if "column" in pairs and "partition" not in pairs and pairs["column"] != "none":
        pairs["partition"] = "column"
    if pairs.get("partition") == "column" and "parties" not in pairs:
        pairs["parties"] = "0"
    changed: dict[tuple[str, ...], str] = {}
    for key, text in pairs.items():
        path = find_path(key, values)
        if path in changed:
            raise InputError(f"{path[-1]} is set twice, by {changed[path]} and {key}; remove one")
        changed[path] = key
        *tables, name = path
        table = values
        for inner in tables:
            table = table.setdefault(inner, {})
        table[name] = text
    return from_dict(values)


def parse_changes(changes: list[str]) -> dict[str, str]:
    """Return the keys and values of `key=value` texts; each key may occur once."""
    pairs: dict[str, str] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise InputError(f"'{change}' is not of the form key=value, such as rounds=10")
        if key in RENAMED:
            notify(f"moonfl: the key {key} is deprecated; use {RENAMED[key]}")
            key = RENAMED[key]
        if key in pairs:
            raise InputError(f"{key} is set twice; remove one of the two")
        pairs[key] = value
    return pairs


def find_path(key: str, values: dict[str, Any]) -> tuple[str, ...]:
    """Return where the setting that an override names is in the values of an experiment."""
    own = settings.names(Experiment)
    paths: dict[str, list[tuple[str, ...]]] = {}
    for kind in COMPONENTS:
        paths |= setting_paths(kind, values[kind])
    for name in paths.keys() & set(own):
        raise InputError(
            f"algorithm={values['algorithm']['name']} has a setting {name}, "
            "which every experiment has; rename it"
        )
    if key in own:
        return (key,)
    if key not in paths:
        raise unknown_key(key, values, [*own, *paths])
    if len(paths[key]) > 1:
        choices = [f"{path[1]}.{path[2]}" for path in paths[key]]
        raise InputError(f"{key} is a setting of several parts; write {' or '.join(choices)}")
    return paths[key][0]


def unknown_key(key: str, values: dict[str, Any], valid: list[str]) -> InputError:
    """Return the error for a key that this experiment lacks; name the components that have it."""
    prefix, dot, name = key.rpartition(".")
    kind = prefix if prefix in COMPONENTS else "algorithm"
    owners = owners_of(kind, name)
    if dot and prefix in owners:
        owners = [prefix]
    elif dot and prefix != kind:
        owners = []
    if owners:
        return InputError(
            f"{key} belongs to {kind}={' or '.join(owners)}, and this experiment has "
            f"{kind}={values[kind]['name']}; add {kind}={' or '.join(owners)}"
        )
    return unknown("key", key, valid)
