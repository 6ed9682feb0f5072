"""Experiment: one frozen, validated description of a run."""

import dataclasses
import warnings
from dataclasses import InitVar, dataclass
from typing import Literal

from .. import settings
from ..algorithms import MOON, Algorithm, has_own_model, stores_state
from ..algorithms.fednova import effective_steps
from ..components import COMPONENTS, check_component
from ..data.base import Reading
from ..data.datasets import source
from ..data.partition import check_kind
from ..models.encoders import ENCODERS
from ..optimizers import SGD, Constant, LocalOptimizer, Schedule, StepOptions, scheduled_lr
from ..privacy import NoPrivacy, Privacy
from ..registry import find
from ..server_optimizers import Average, ServerOptimizer
from ..settings import setting
from .checks import CUSTOM_MODEL, check_combinations

ADDED = {"added": "0.2"}  # the version that introduced a component, as in `setting`
PARTIES = 10  # default number of parties
HOLDOUT = 0.2  # default share of held-out samples


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
        names=True,
    )
    task: Literal["classification", "regression", "multilabel"] = setting(
        "classification",
        "classification: one class per sample; regression: numbers; multilabel: labels that are 0 "
        "or 1. The last two are for dataset=csv, npz or hub",
        added="0.2",
    )
    ignore: str | None = setting(
        None, "with dataset=csv or hub: columns to ignore, as a,b,c", names=True
    )
    classes: str | None = setting(
        None, "the classes as a,b,c, for files that may lack some of them", names=True
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
        names=True,
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
    dp: Privacy = dataclasses.field(default_factory=NoPrivacy, metadata=ADDED)
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
        check_combinations(self)

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

    @property
    def has_party_states(self) -> bool:
        """Return True if parties may store something from one round to the next."""
        return self.personal is not None or stores_state(self.algorithm)

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

    def effective_steps(self, steps: int, t: int) -> float:
        """Return the weight of so many local steps in round t, a in FedNova's formula."""
        options = self.step_options(t)
        pull = options.lr * self.algorithm.proximal_weight
        return effective_steps(steps, options.momentum, pull)

    def parties_per_round(self) -> int:
        """Return how many parties take part in a round."""
        return max(1, round(self.sample_fraction * self.parties))


def split_names(text: str | None) -> tuple[str, ...]:
    """Split the setting `a,b,c` into names."""
    names = [name.strip() for name in (text or "").split(",")]
    return tuple(name for name in names if name)
