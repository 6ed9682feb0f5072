"""Task: the model builder, the parties' data, the test set, and how a model is judged."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from . import seeds, tree
from .data.augment import Preparation, is_pixels
from .data.base import Dataset, Examples, check_names
from .data.datasets import load
from .data.images import Images
from .data.locations import directory
from .data.moments import compute_moments, mean_and_std, statistics_shape
from .data.partition import Index, Partition, PartitionRequest, partition_samples, split_off
from .errors import InputError, unknown
from .experiment import HOLDOUT, Experiment
from .metrics import Score, Tally, score, tally, total
from .models.base import (
    has_batch_norm,
    is_batch_norm,
    standardises,
    with_dense_parameters,
    with_memory_format,
)
from .models.encoders import ENCODERS, ModelSource, build_model
from .trained_model import SAMPLES, Blueprint
from .types import Batch, Params

EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Task:
    build: Callable[[], nn.Module]  # a model with weights of no importance
    parties: (
        Sequence[Examples] | dict[int, Examples]
    )  # each party's own data; a site has one party's alone
    test: Examples
    preparation: Preparation
    batch_norm: bool  # whether the model has BatchNorm, which a batch of one sample must not meet
    classes: tuple[str, ...] = ()
    partition_note: str = ""
    names: tuple[str, ...] = ()  # of the parties, where they have any
    test_party: Tensor | None = (
        None  # whose sample each of the test set is, where parties hold them out
    )
    validation: Examples | None = None  # what parties keep apart to choose a round by
    scales: tuple[Tensor, Tensor] | None = (
        None  # mean and deviation of the federation, where the model standardises
    )
    features: tuple[str, ...] = ()  # the columns of a table, in the order they have in x

    def init_model(self, seed: int) -> tuple[Params, Params]:
        """w^0 and its buffers: the same for every algorithm."""
        with seeds.seeded(seed, "weights"):
            model = self.build()
        buffers = dict(tree.copy(tree.buffers_of(model)))
        if self.scales is not None:
            mean, std = self.scales
            buffers |= {
                "standardise.mean": mean.to(buffers["standardise.mean"]),
                "standardise.std": std.to(mean),
            }
        return tree.copy(tree.params_of(model)), buffers

    def supervised(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(logits, batch.y)

    @property
    def held_out(self) -> dict[str, Examples]:
        """What models are judged on, by name."""
        return (
            {"test": self.test}
            if self.validation is None
            else {"test": self.test, "validation": self.validation}
        )

    def chunks(self) -> list[tuple[str, Tensor]]:
        """All of it, cut into rows of one set each, which several processes may share."""
        cut = (
            (name, torch.arange(len(of.y)).split(EVALUATION_BATCH))
            for name, of in self.held_out.items()
        )
        return [(name, rows) for name, parts in cut for rows in parts if len(rows) > 0]

    @torch.no_grad()
    def evaluate_chunks(self, model: nn.Module, numbers: range) -> list[Tally]:
        """What is counted on each of these chunks."""
        model.eval()
        found, unsaved = [], tree.hidden_state_of(model)
        for number, (name, rows) in zip(
            numbers, self.chunks()[numbers.start : numbers.stop], strict=True
        ):
            party = (
                self.test_party[rows] if self.test_party is not None and name == "test" else None
            )
            examples, rows = self.held_out[name], rows.to(self.test.y.device)
            batch = Batch(self.preparation.batch(examples.x, rows), examples.y[rows], rows)
            tree.restore_hidden_state(
                model, unsaved
            )  # no chunk may know what was judged before it, or where
            with seeds.seeded(0, "evaluation", number):  # by a model that draws in evaluation, too
                logits = model(batch.x).logits
            found.append(
                tally(logits, batch.y, float(self.supervised(logits, batch)) * len(rows), party)
            )
        return found

    def tallies(self, found: list[Tally]) -> dict[str, Tally]:
        """What was counted on all chunks, by the set they are of."""
        names = [name for name, _ in self.chunks()]
        pairs = list(zip(names, found, strict=True))
        return {
            name: total([part for of, part in pairs if of == name]) for name in dict.fromkeys(names)
        }

    def score(self, found: list[Tally]) -> Score:
        """From what was counted on all chunks."""
        return score(**self.tallies(found))

    def partition_record(self) -> dict[str, Any]:
        """Who has which samples, and a hash that tells whether the data are still the same."""
        parties = [self.parties[i] for i in range(len(self.parties))]
        counts = [self.counts(party) for party in parties]
        shape, dtype = parties[0].x.shape[1:], str(parties[0].x.dtype).removeprefix("torch.")
        names = {
            key: list(of) for key, of in (("names", self.names), ("features", self.features)) if of
        }
        return {
            "classes": list(self.classes),
            "counts": counts,
            **names,
            "shape": list(shape),
            "dtype": dtype,
            "sha256": hash_examples(*parties, *self.held_out.values()),
        }

    def blueprint(self) -> Blueprint:
        """What makes a model of its weights when the run is over; of the data it keeps a few test samples alone."""
        x = self.test.take(torch.arange(min(SAMPLES, len(self.test.y)))).x
        samples = x if len(x) > 0 else None
        shape = tuple(x.shape[1:])
        return Blueprint(
            self.build, shape, x.dtype, self.classes, self.preparation, samples, self.features
        )

    def counts(self, examples: Examples) -> list[int]:
        """Samples of each class."""
        counts: list[int] = np.bincount(
            examples.y.cpu().numpy(), minlength=len(self.classes)
        ).tolist()
        return counts


def hash_examples(*parts: Examples) -> str:
    hashed = hashlib.sha256()
    for values in (values for examples in parts for values in examples):
        for content in (
            values.contents()
            if isinstance(values, Images)
            else [values.cpu().contiguous().numpy().data]
        ):
            hashed.update(content)
    return hashed.hexdigest()


def make_partition(exp: Experiment, data: Dataset) -> Partition:
    """Partition the training samples of a dataset among the parties of an experiment."""
    request = PartitionRequest(
        labels=data.train.y.cpu().numpy(),
        parties=exp.parties,
        columns=data.columns,
        beta=exp.beta,
        seed=exp.partition_seed,
        min_samples=exp.min_samples,
        column=exp.column,
        dataset=exp.dataset,
    )
    return partition_samples(exp.partition, request)


def make_task(
    exp: Experiment, data: Dataset | None = None, model: ModelSource | None = None
) -> Task:
    """Read the data (unless given), deal them out, and get the model ready (`model`: not the experiment's)."""
    data = data or load(exp.dataset, directory(exp.data_dir), exp.reading)
    partition, train, test, party = (
        make_partition(exp, data),
        data.train.to(exp.device),
        data.test,
        None,
    )
    parts = partition.parts
    check_names("a class", data.classes)
    check_names("a party", partition.names)
    if test is None:
        parts, test, party = _apart(
            train, parts, exp.holdout or HOLDOUT, "holdout", "holdout=SHARE"
        )
    elif exp.holdout is not None:
        raise InputError("holdout=SHARE is for data without a test set; these have one")
    elif exp.column in data.test_columns:
        party = _whose(
            data.test_columns[exp.column], partition.names, f"column '{exp.column}' of the test set"
        )
    validation = None
    if exp.validation is not None:
        parts, validation, _ = _apart(
            train, parts, exp.validation, "validation", "validation=SHARE"
        )
    parties = [train.take(torch.from_numpy(part)) for part in parts]
    shape, dtype = tuple(train.x.shape[1:]), train.x.dtype
    network = make_builder(exp, shape, dtype, len(data.classes), model)
    check_model(network, exp.model not in ENCODERS and not isinstance(model, nn.Module))
    shared = mean_and_std(map(compute_moments, parties), shape) if network.standardises else None
    return Task(
        network.build,
        parties,
        test.to(exp.device),
        data.preparation,
        network.batch_norm,
        data.classes,
        partition.note,
        partition.names,
        party,
        validation,
        shared,
        data.features,
    )


def _whose(values: NDArray[np.generic], names: tuple[str, ...], where: str) -> Tensor:
    """Of which party each sample is."""
    number = {name: i for i, name in enumerate(names)}
    for name in map(str, np.unique(values)):
        if name not in number:
            raise InputError(f"{where}: {unknown('party', name, names)}")
    return torch.tensor([number[str(value)] for value in values])


def _apart(
    train: Examples, parts: list[Index], share: float, purpose: seeds.Purpose, key: str
) -> tuple[list[Index], Examples, Tensor]:
    """What is left of each party's part, what is kept apart of all of them, and whose each sample of that is."""
    cut = [split_off(part, share, seeds.rng(0, purpose, 0, i)) for i, part in enumerate(parts)]
    rows = torch.from_numpy(np.concatenate([held for _, held in cut]))
    if len(rows) == 0:
        raise InputError(
            f"no party has samples enough to keep a share of {share:g} apart; raise {key}"
        )
    party = torch.from_numpy(np.repeat(np.arange(len(cut)), [len(held) for _, held in cut]))
    return [kept for kept, _ in cut], train.take(rows), party


def with_party_count(exp: Experiment, task: Task) -> Experiment:
    """With as many parties as the column had values, where nobody said how many."""
    return exp if exp.parties else replace(exp, parties=len(task.parties))


class Network(NamedTuple):
    build: Callable[[], nn.Module]
    made: nn.Module  # one that it has built
    batch_norm: bool
    standardises: bool  # its inputs, by mean and deviation of the federation


def make_builder(
    exp: Experiment,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    classes: int,
    model: ModelSource | None = None,
) -> Network:
    """What makes the model for samples as they are stored."""
    pixels = is_pixels(dtype, len(shape))
    wanted = exp.standardise if exp.standardise is not None else dtype.is_floating_point
    if exp.standardise and not dtype.is_floating_point:
        raise InputError(
            "standardise=true is for numbers; pixels have a scale of their own, and words have none"
        )
    like = statistics_shape(shape) if wanted else None

    def build() -> nn.Module:
        made = build_model(
            str(exp.model) if model is None else model,
            shape,
            classes,
            exp.head,
            exp.out_dim,
            dtype=torch.float32 if pixels else dtype,
            statistics_shape=like,
        )
        return with_memory_format(with_dense_parameters(made.to(exp.device)), torch.channels_last)

    made = tree.build_module(build)
    if exp.standardise and not standardises(made):
        raise InputError(
            "standardise=true: a model that gives (z, logits) itself takes samples as they are"
        )
    batch_norm = has_batch_norm(made)
    if batch_norm and exp.batch_size == 1:
        raise InputError(
            f"batch_size=1 cannot train model={exp.model}: its BatchNorm needs at least 2 samples"
        )
    return Network(build, made, batch_norm, standardises(made))


def check_model(network: Network, own: bool) -> None:
    """What cannot be trained here is told before the first round; `own`: a function of the user's makes it."""
    model = network.made
    if not tree.params_of(model):
        raise InputError(
            "the model has no parameter that can be trained: all of them are frozen, or there are none"
        )
    if any(param.is_complex() for param in tree.params_of(model).values()):
        raise InputError(
            "the model has complex parameters, which cannot be trained here; use pairs of real ones"
        )
    shared = tree.find_shared(model, tree.build_module(network.build)) if own else None
    if shared is not None:
        raise InputError(
            f"what makes the model gives the same '{shared}' every time, so that models would change each other; make "
            "what is trained anew, by copy.deepcopy where it was loaded once, or give the module itself"
        )
    for name, layer in model.named_modules():
        if is_batch_norm(layer) and layer.running_mean is None:
            raise InputError(
                f"BatchNorm '{name}' keeps no running statistics, so that what it gives for a sample depends on the "
                "samples beside it; set track_running_stats=True, or use GroupNorm"
            )
        if (
            isinstance(layer, nn.Embedding | nn.EmbeddingBag)
            and layer.sparse
            and layer.weight.requires_grad
        ):
            raise InputError(
                f"layer '{name}' has sparse gradients, which cannot be trained here; set sparse=False"
            )
