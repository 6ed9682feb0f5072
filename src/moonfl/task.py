"""Task: the data of the parties, the held-out samples, the model, and how a model is evaluated.

There is one path from data to a Task: read a dataset, partition it, hold samples out, build. `run`
takes all of it. `moonfl.federate`, a Flower site and the Flower server start with data that are
already split by party (FederatedData).
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from . import seeds, tree
from .data.augment import Preparation, is_pixels
from .data.base import Dataset, Examples, check_names
from .data.datasets import load
from .data.encoding import Column, Encoding, columns_of, learn_encoding, recode, summarise
from .data.images import Images
from .data.locations import directory
from .data.moments import Moments, compute_moments, mean_and_std, statistics_shape
from .data.partition import (
    Index,
    Partition,
    PartitionRequest,
    choose_groups,
    partition_samples,
    split_off,
)
from .data.shift import Shift, shift_features, shift_unit
from .data.targets import REGRESSION
from .errors import InputError, first_line, notify, unknown
from .experiment import HOLDOUT, Experiment
from .metrics import Counts, Score
from .models.base import (
    INPUT_STATISTICS,
    Model,
    Rescale,
    Standardise,
    has_batch_norm,
    is_batch_norm,
    standardises,
    with_autocast,
    with_dense_parameters,
    with_memory_format,
)
from .models.encoders import ENCODERS, ModelSource, build_model
from .numerics import standard_settings
from .objectives import Classification, Objective, make_objective
from .personal import LABEL, personal_names, share_test_set
from .runs.schema import EncodingRecord, PartitionRecord
from .runs.schema import encode as encode_record
from .trained_model import SAMPLES, Blueprint
from .types import Batch, Params, State

EVALUATION_BATCH = 500
CLASSIFICATION = Classification()
Chunk = tuple[str, Tensor]  # a held-out set, and some of its rows


@dataclass(frozen=True)
class FederatedData:
    """Data that are split by party."""

    train: Examples  # the samples of all parties
    parts: Mapping[int, Index]  # party -> indices of its samples in `train`
    test: Examples | None  # None: a share of each party's samples is to be held out
    classes: tuple[str, ...]
    preparation: Preparation
    test_party: Tensor | None = None  # owner of each test sample, if parties hold them
    validation: Examples | None = None  # held out to select a round
    validation_party: Tensor | None = None  # owner of each validation sample
    names: tuple[str, ...] = ()  # of the parties, if they have any
    features: tuple[str, ...] = ()  # column names of a table, in their order in x
    table: tuple[Column, ...] | None = None  # if samples are rows that are encoded
    note: str = ""  # about the partition, for the user
    groups: Index | None = None  # of each sample in `train`; a group is held out as a whole


@dataclass(frozen=True)
class Task:
    """What an engine needs to train and evaluate: parties, held-out samples and the model."""

    build: Callable[[], nn.Module]  # returns a model with arbitrary weights
    parties: Sequence[Examples] | Mapping[int, Examples]  # training samples; a site has one party
    test: Examples
    preparation: Preparation
    batch_norm: bool  # whether the model has BatchNorm, which cannot train on a single sample
    classes: tuple[str, ...] = ()
    partition_note: str = ""
    names: tuple[str, ...] = ()  # of the parties, if they have any
    test_party: Tensor | None = None  # owner of each test sample, if parties hold them
    validation: Examples | None = None  # held out to select a round
    scales: tuple[Tensor, Tensor] | None = None  # federation-wide mean and std, if standardised
    features: tuple[str, ...] = ()  # column names of a table, in their order in x
    validation_party: Tensor | None = None  # owner of each validation sample
    personal: tuple[str, ...] = ()  # names of the tensors that stay at the parties
    objective: Objective[Any] = CLASSIFICATION  # loss, counts and scores

    def init_model(self, seed: int) -> tuple[Params, Params]:
        """Return the initial weights w^0 and buffers: the same for every algorithm."""
        with seeds.seeded(seed, "weights"):
            model = self.build()
        buffers = dict(tree.copy(tree.buffers_of(model)))
        if self.scales is not None:
            for name, values in zip(INPUT_STATISTICS, self.scales, strict=True):
                buffers[name] = values.to(buffers[name])
        for name, values in self.objective.statistics.items():
            buffers[name] = values.to(buffers[name])
        return tree.copy(tree.params_of(model)), buffers

    def init_shared(self, seed: int) -> tuple[Params, Params]:
        """Return the initial weights and buffers without those that stay at the parties."""
        params, buffers = self.init_model(seed)
        shared_params = {name: params[name] for name in params if name not in self.personal}
        shared_buffers = {name: buffers[name] for name in buffers if name not in self.personal}
        return shared_params, shared_buffers

    def personal_part(self, state: State | None, seed: int) -> Params:
        """Return the personal tensors in a party's state; before its first round, those of w^0."""
        if not self.personal:
            return {}
        if state is not None:
            return state[LABEL]
        if seed not in self._initial_personal:
            params, buffers = self.init_model(seed)
            tensors = {**params, **buffers}
            self._initial_personal[seed] = tree.copy({k: tensors[k] for k in self.personal})
        return self._initial_personal[seed]

    @functools.cached_property
    def _initial_personal(self) -> dict[int, Params]:
        """Return the initial personal tensors that were computed so far, by seed."""
        return {}

    def supervised(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the supervised loss."""
        return self.objective.supervised(logits, batch.y)

    @property
    def held_out(self) -> dict[str, Examples]:
        """Return the sets that models are evaluated on, by name."""
        if self.validation is None:
            return {"test": self.test}
        return {"test": self.test, "validation": self.validation}

    def chunks(self, party: int | None = None) -> list[Chunk]:
        """Split the held-out sets into chunks of rows that processes can share.

        With `party`, only the samples that this party holds out.
        """
        owners = {"test": self.test_party, "validation": self.validation_party}
        chunks = []
        for name, examples in self.held_out.items():
            selected = torch.arange(len(examples.y))
            owner = owners[name]
            if party is not None and owner is not None:
                selected = selected[owner == party]
            for rows in selected.split(EVALUATION_BATCH):
                if len(rows) > 0:
                    chunks.append((name, rows))
        return chunks

    def evaluate_chunks(self, model: nn.Module, numbers: range) -> list[Counts]:
        """Count the model's predictions on each of these chunks."""
        return self._evaluate(model, self.chunks(), numbers)

    def evaluate_party(self, model: nn.Module, party: int) -> dict[str, Counts]:
        """Count the predictions of a party's model on each set of samples that it holds out."""
        chunks = self.chunks(party)
        tallies = self._evaluate(model, chunks, range(len(chunks)), party)
        return self._sum_by_set(chunks, tallies)

    @torch.no_grad()
    def _evaluate(
        self, model: nn.Module, chunks: list[Chunk], numbers: range, owner: int | None = None
    ) -> list[Counts]:
        """Count the model's predictions on the chunks with these numbers.

        With `owner`, all samples of the test set count as those of this party.
        """
        model.eval()
        hidden_state = tree.hidden_state_of(model)
        tallies = []
        for number in numbers:
            name, rows = chunks[number]
            owners = self.test_party if name == "test" else None
            party = None if owners is None else owners[rows]
            if owner is not None and name == "test":
                party = torch.full((len(rows),), owner)
            examples = self.held_out[name]
            rows = rows.to(self.test.y.device)
            batch = Batch(self.preparation.batch(examples.x, rows), examples.y[rows], rows)
            tree.restore_hidden_state(model, hidden_state)  # independent of earlier chunks
            with seeds.seeded(0, "evaluation", number):  # for models that use random numbers
                logits = model(batch.x).logits
            loss = float(self.supervised(logits, batch)) * len(rows)
            tallies.append(self.objective.tally(logits, batch.y, loss, party))
        return tallies

    def tallies(self, parts: list[Counts]) -> dict[str, Counts]:
        """Sum the counts of all chunks, by the set they belong to."""
        return self._sum_by_set(self.chunks(), parts)

    def score_parties(self, parties: Sequence[Mapping[str, Counts]]) -> Score:
        """Return the score of the parties' models from the counts of each, in party order."""
        sets = {name: [part[name] for part in parties if name in part] for name in self.held_out}
        totals = {name: self.objective.total(parts) for name, parts in sets.items() if parts}
        return self.objective.score(**totals)

    def score(self, parts: list[Counts]) -> Score:
        """Return the score of a model from the counts of all chunks."""
        return self.objective.score(**self.tallies(parts))

    def _sum_by_set(self, chunks: list[Chunk], parts: list[Counts]) -> dict[str, Counts]:
        """Sum the counts of chunks, by the set they belong to."""
        by_set: dict[str, list[Counts]] = {}
        for (name, _), part in zip(chunks, parts, strict=True):
            by_set.setdefault(name, []).append(part)
        return {name: self.objective.total(counts) for name, counts in by_set.items()}

    def check_images(self) -> None:
        """Decode every image file once, so that a damaged one is found before the first round."""
        for examples in (*self.all_parties(), *self.held_out.values()):
            if isinstance(examples.x, Images):
                examples.x.check()

    def all_parties(self) -> list[Examples]:
        """Return the training samples of each party that is here."""
        by_number = self.parties.values() if isinstance(self.parties, Mapping) else self.parties
        return list(by_number)

    @functools.cached_property
    def duplicates(self) -> dict[str, int]:
        """Return how many samples of each held-out set are identical to a training sample."""
        training: set[int] = set()
        for examples in self.all_parties():
            training.update(sample_hashes(examples))
        counts = {}
        for name, examples in self.held_out.items():
            counts[name] = sum(value in training for value in sample_hashes(examples))
        return counts

    def notify_duplicates(self) -> None:
        """Print how many held-out samples are identical to training samples, if there are any."""
        measure = self.objective.measure
        effect = "high" if measure.higher_is_better else "low"
        for name, count in self.duplicates.items():
            if count > 0:
                notify(
                    f"moonfl: {count} of {len(self.held_out[name].y)} {name} samples are identical "
                    f"to training samples, so {measure.name} may be too {effect}; remove them "
                    "from a test set of your own, or hold out whole groups with holdout_by=COLUMN "
                    "(groups= in moonfl.federate)"
                )

    def partition_record(self) -> PartitionRecord:
        """Return which party has which samples, and a hash that detects changed data."""
        parties = [self.parties[i] for i in range(len(self.parties))]
        first = parties[0].x
        return PartitionRecord(
            classes=list(self.classes),
            counts=[self.counts(party) for party in parties],
            samples=self.sample_counts(parties),
            names=list(self.names) or None,
            features=list(self.features) or None,
            shape=list(first.shape[1:]),
            dtype=str(first.dtype).removeprefix("torch."),
            encoding=self.encoding_record(),
            sha256=hash_examples(
                *parties, *self.held_out.values(), encoding=self.encoding_record()
            ),
            duplicates=self.duplicates,
        )

    def encoding_record(self) -> EncodingRecord | None:
        """Return the encoding of a table as plain values."""
        encoding = self.preparation.encoding
        return None if encoding is None else encoding.to_record()

    def blueprint(self) -> Blueprint:
        """Return what turns weights into a model after the run, with a few test samples."""
        rows = torch.arange(min(SAMPLES, len(self.test.y)))
        x = self.test.take(rows).x
        return Blueprint(
            build=in_float32(self.build),
            shape=tuple(x.shape[1:]),
            dtype=x.dtype,
            classes=self.classes,
            preparation=self.preparation,
            samples=x if len(x) > 0 else None,
            features=self.features,
            task=self.objective.name,
        )

    def sample_counts(self, parties: Sequence[Examples]) -> list[int] | None:
        """Return the samples of each party; None if every sample has one class."""
        if self.objective.name == CLASSIFICATION.name:
            return None
        return [len(party.y) for party in parties]

    def counts(self, examples: Examples) -> list[int]:
        """Return the number of samples of each class."""
        counts: list[int] = self.objective.counts(examples.y, len(self.classes)).tolist()
        return counts


def sample_hashes(examples: Examples) -> Iterator[int]:
    """Yield a hash of each sample, without its label. It differs between processes."""
    x = examples.x
    if isinstance(x, Images):
        yield from map(hash, x.contents())
        return
    for rows in x.cpu().flatten(1).split(EVALUATION_BATCH):
        for row in rows.numpy():
            yield hash(row.tobytes())


def hash_examples(*sets: Examples, encoding: EncodingRecord | None = None) -> str:
    """Return the SHA-256 of the samples and labels of these sets, and of their encoding."""
    digest = hashlib.sha256()
    for examples in sets:
        for values in examples:
            if isinstance(values, Images):
                for content in values.contents():
                    digest.update(content)
            else:
                digest.update(values.cpu().contiguous().numpy().data)
    if encoding is not None:
        digest.update(encode_record(encoding).encode())
    return digest.hexdigest()


def read(exp: Experiment) -> Dataset:
    """Read the dataset of an experiment."""
    return load(exp.dataset, directory(exp.data_dir), exp.reading)


def make_partition(exp: Experiment, data: Dataset) -> Partition:
    """Split the training samples of a dataset among the parties, whose names are checked."""
    request = PartitionRequest(
        labels=data.train.y.cpu().numpy(),
        parties=exp.parties,
        columns={key: data.columns[key] for key in data.columns if key != exp.holdout_by},
        beta=exp.beta,
        seed=exp.partition_seed,
        min_samples=exp.min_samples,
        column=exp.column,
        classes_per_party=exp.classes_per_party or PartitionRequest.classes_per_party,
        shards_per_party=exp.shards_per_party or PartitionRequest.shards_per_party,
        dataset=exp.dataset,
    )
    partition = partition_samples(exp.partition, request)
    check_names("a party", partition.names)
    return partition


def split(exp: Experiment, data: Dataset) -> FederatedData:
    """Partition a dataset among parties, shift their features and hold samples out."""
    partition = make_partition(exp, data)
    test_party = None
    if exp.column is not None and exp.column in data.test_columns:
        location = f"column '{exp.column}' of the test set"
        test_party = owners(data.test_columns[exp.column], partition.names, location)
    federated = FederatedData(
        train=data.train,
        parts=dict(enumerate(partition.parts)),
        test=data.test,
        classes=data.classes,
        preparation=data.preparation,
        test_party=test_party,
        names=partition.names,
        features=data.features,
        table=data.table,
        note=partition.note,
        groups=sample_groups(exp, data),
    )
    if data.test is not None and exp.holdout is not None:
        raise InputError("holdout=SHARE is for data without a test set; these data have one")
    shifted = shift_parties(exp, with_test_owners(exp, federated))
    return hold_out(shifted, test=exp.holdout or HOLDOUT, validation=exp.validation)


def with_test_owners(exp: Experiment, data: FederatedData) -> FederatedData:
    """Share a common test set among the parties if each of them has its own model."""
    # SOLO is compared with such models, unless their samples are shifted.
    is_compared = not exp.algorithm.federated and exp.shift is None
    if not (exp.has_party_models or is_compared):
        return data
    if data.test is None or data.test_party is not None:
        return data
    if not data.parts:  # at a Flower server
        return data
    strata = make_objective(exp.task).strata
    train = {i: strata(data.train.y[torch.from_numpy(part)]) for i, part in data.parts.items()}
    test_party = share_test_set(strata(data.test.y), train, exp.partition_seed)
    return replace(data, test_party=test_party)


def shift_parties(exp: Experiment, data: FederatedData) -> FederatedData:
    """Shift the features of each party's samples, before some of them are held out.

    Test samples that belong to parties are shifted like theirs; a common test set is not, unless
    it is shared among the parties' own models.
    """
    if exp.shift is None:
        return data
    if data.table is not None:
        raise InputError(
            f"shift={exp.shift} requires complete numeric features; it cannot be combined with "
            "impute or encode"
        )
    shift = Shift(
        kind=exp.shift,
        level=exp.shift_level,
        parties=len(data.parts),
        seed=exp.partition_seed,
        unit=shift_unit(data.train, data.preparation),
    )
    train = shift_features(shift, data.train, data.parts, "train")
    test = data.test
    if test is not None and data.test_party is not None:
        owner = data.test_party.numpy()
        parts = {i: np.flatnonzero(owner == i) for i in data.parts}
        test = shift_features(shift, test, parts, "test")
    return replace(data, train=train, test=test)


def sample_groups(exp: Experiment, data: Dataset) -> Index | None:
    """Return the group of each training sample, if holdout_by is set."""
    column = exp.holdout_by
    if column is None:
        return None
    if column not in data.columns:
        columns = data.columns or ["none: these data have no columns"]
        raise unknown("column for holdout_by", column, columns)
    groups: Index = np.unique(data.columns[column], return_inverse=True)[1]
    return groups


def owners(values: NDArray[np.generic], names: tuple[str, ...], location: str) -> Tensor:
    """Return the party of each sample; `values` are the names of the parties."""
    number = {name: i for i, name in enumerate(names)}
    for name in map(str, np.unique(values)):
        if name not in number:
            raise InputError(f"{location}: {unknown('party', name, names)}")
    return torch.tensor([number[str(value)] for value in values])


def hold_out(
    data: FederatedData, *, test: float, validation: float | None, required: bool = True
) -> FederatedData:
    """Hold out a share of each party's samples, for a test set if there is none and for validation.

    If the data have groups, these are held out as a whole: a share of each party's groups. If no
    sample can be held out, that is an error where it is `required`.
    """
    if data.groups is not None and data.test is not None and validation is None:
        raise InputError(
            "holdout_by is for samples that are held out; these data have a test set, and "
            "validation=SHARE is not set"
        )
    kind = "samples" if data.groups is None else "groups (holdout_by)"
    if data.test is None:
        parts, rows, party = _split_off(data, test, "holdout")
        if required and len(rows) == 0:
            raise too_few_samples(test, "holdout=SHARE", kind)
        data = replace(data, parts=parts, test=data.train.take(rows), test_party=party)
    if validation is not None:
        parts, rows, party = _split_off(data, validation, "validation")
        if required and len(rows) == 0:
            raise too_few_samples(validation, "validation=SHARE", kind)
        examples = data.train.take(rows) if len(rows) > 0 else None
        data = replace(data, parts=parts, validation=examples, validation_party=party)
    return data


def _split_off(
    data: FederatedData, share: float, purpose: seeds.Purpose
) -> tuple[dict[int, Index], Tensor, Tensor]:
    """Split off a share of every party's samples, or of its groups.

    Return the remaining indices per party, the held-out indices, and the owner of each of them.
    """
    remaining = {}
    held_out = []
    party = []
    is_chosen = None
    if data.groups is not None:
        groups = choose_groups(
            data.parts, data.groups, share, lambda i: seeds.rng(0, purpose, 0, i)
        )
        is_chosen = np.isin(data.groups, sorted(groups))
    for i, part in data.parts.items():
        if is_chosen is None:
            remaining[i], rows = split_off(part, share, seeds.rng(0, purpose, 0, i))
        else:
            remaining[i], rows = part[~is_chosen[part]], part[is_chosen[part]]
        held_out.append(rows)
        party.append(np.full(len(rows), i))
    return (
        remaining,
        torch.from_numpy(np.concatenate(held_out)),
        torch.from_numpy(np.concatenate(party)),
    )


def too_few_samples(share: float, key: str, kind: str) -> InputError:
    """Return the error for parties that are too small to hold samples or groups out."""
    return InputError(
        f"no party has enough {kind} to hold out a share of {share:g}; increase {key}"
    )


@standard_settings()
def build_task(
    exp: Experiment,
    data: FederatedData,
    *,
    model: ModelSource | None = None,
    party_moments: Iterable[Moments] | None = None,
    encoding: Encoding | None = None,
) -> Task:
    """Build the task of federated data; `model` replaces the experiment's.

    `party_moments` are the sums for standardisation where the parties' samples are elsewhere, and
    `encoding` is that of a table whose statistics come from elsewhere.
    """
    data = encode_table(exp, data, encoding)
    encoding = data.preparation.encoding
    if data.test is None:
        raise ValueError("hold_out comes before build_task")
    check_device(exp.device)
    check_names("a class", data.classes)
    check_names("a party", data.names)
    shape = data.preparation.input_shape(tuple(data.train.x.shape[1:]))
    network = make_builder(exp, shape, data.train.x.dtype, len(data.classes), model)
    is_factory = exp.model not in ENCODERS and not isinstance(model, nn.Module)
    check_model(network, is_factory=is_factory)
    if exp.precision != "float32":
        notify_if_not_native(network)
    test, validation = data.test, data.validation
    if not network.standardises and data.train.x.dtype == torch.float64:
        check_fits_float32(data)
        data = replace(data, train=data.train.with_dtype(torch.float32))
        test = test.with_dtype(torch.float32)
        validation = validation and validation.with_dtype(torch.float32)
    train = data.train.to(exp.device)
    by_number = {i: train.take(torch.from_numpy(part)) for i, part in data.parts.items()}
    is_complete = list(by_number) == list(range(len(by_number)))  # not so at a site
    parties = list(by_number.values()) if is_complete else by_number
    shared = None
    if network.standardises and encoding is not None:
        shared = encoding.scales()
    elif network.standardises:
        shared = mean_and_std(party_moments or map(compute_moments, by_number.values()), shape)
    return Task(
        build=network.build,
        parties=parties,
        test=test.to(exp.device),
        preparation=data.preparation,
        batch_norm=network.batch_norm,
        classes=data.classes,
        partition_note=data.note,
        names=data.names,
        test_party=with_test_owners(exp, data).test_party,
        validation=None if validation is None else validation.to(exp.device),
        validation_party=data.validation_party,
        personal=personal_names(exp.personal, network.model),
        scales=shared,
        features=data.features,
        objective=make_objective(exp.task).fit(examples.y for examples in by_number.values()),
    )


def encode_table(exp: Experiment, data: FederatedData, encoding: Encoding | None) -> FederatedData:
    """Store the rows of a table with the categories of its encoding, learned from all parties.

    `encoding` is passed where the parties are elsewhere.
    """
    if data.table is None or isinstance(data.train.x, Images):
        return data
    table = data.table
    if encoding is None:
        parts = [data.train.x[torch.from_numpy(part)] for part in data.parts.values()]
        summaries = [summarise(part, table) for part in parts]
        encoding = learn_encoding(data.features, summaries, exp.impute, exp.min_category)

    def encoded(examples: Examples) -> Examples:
        assert not isinstance(examples.x, Images)
        return examples._replace(x=recode(examples.x, table, encoding))

    return replace(
        data,
        train=encoded(data.train),
        test=None if data.test is None else encoded(data.test),
        validation=None if data.validation is None else encoded(data.validation),
        features=tuple(column.name for column in encoding.columns),
        table=columns_of(encoding),
        preparation=replace(data.preparation, encoding=encoding),
    )


def check_fits_float32(data: FederatedData) -> None:
    """Check that rounding to float32 changes no feature by more than 1 % of its variation."""
    names = data.features
    if len(data.train.y) == 0:
        return
    if data.preparation.encoding is not None:
        names = data.preparation.encoding.features
        mean, std = data.preparation.encoding.scales()
    else:
        number, mean, squared_deviations = compute_moments(data.train)
        std = (squared_deviations / number).sqrt()
    rounding = mean.abs() * torch.finfo(torch.float32).eps / 2
    for k in torch.nonzero((std > 0) & (rounding > 0.01 * std)).flatten().tolist():
        name = f"feature '{names[k]}'" if names else f"feature {k}"
        raise InputError(
            f"{name} has mean {mean[k]:g} and standard deviation {std[k]:g}, which float32 cannot "
            "hold, and the network does not standardise its input; subtract the mean in the data, "
            "or remove standardise=false"
        )


@standard_settings()
def make_task(
    exp: Experiment, data: Dataset | None = None, *, dtype: torch.dtype | None = None
) -> Task:
    """Build the task of an experiment: read (unless `data` is passed), split, build.

    `dtype` replaces the type of float samples, for a run that began with another one.
    """
    data = data or read(exp)
    if dtype is not None:
        data = data.with_dtype(dtype)
    return build_task(exp, split(exp, data))


def check_device(device: str) -> None:
    """Check that this machine has the device."""
    try:
        torch.ones(1, device=device).item()
    except Exception as error:  # each backend fails in its own way
        reason = first_line(error)
        raise InputError(f"device={device} is not available ({reason}); use device=cpu") from None


def with_party_count(exp: Experiment, task: Task) -> Experiment:
    """Set the number of parties if it was left to the data."""
    return exp if exp.parties else replace(exp, parties=len(task.parties))


class Network(NamedTuple):
    """The builder of a model, and what is known about the models it builds."""

    build: Callable[[], nn.Module]
    model: nn.Module  # one that it has built
    batch_norm: bool
    standardises: bool  # its inputs, by federation-wide mean and standard deviation


@dataclass(frozen=True)
class ModelBuilder:
    """A function that builds a model; it can be sent to a process that was not forked."""

    source: ModelSource
    shape: tuple[int, ...]
    classes: int
    head: bool
    out_dim: int
    dtype: torch.dtype
    statistics_shape: tuple[int, ...] | None  # None: inputs are not standardised
    stored_dtype: torch.dtype
    device: str
    rescales: bool  # predictions to the units of a regression's targets
    autocast: torch.dtype | None = None  # None: float32

    def __call__(self) -> nn.Module:
        """Return a model with arbitrary weights."""
        rescale = Rescale(self.classes) if self.rescales else None
        standardise = None
        if self.statistics_shape is not None:
            standardise = Standardise(self.statistics_shape, self.stored_dtype)
        network = build_model(
            self.source,
            self.shape,
            self.classes,
            self.head,
            self.out_dim,
            dtype=self.dtype,
            standardise=standardise,
            rescale=rescale,
        )
        # The layout decides which elements torch's SGD rounds once and which twice: published runs
        # depend on it.
        network = with_dense_parameters(network.to(self.device))
        if self.autocast is not None:
            network = with_autocast(network, self.autocast)
        return with_memory_format(network, torch.channels_last)


def in_float32(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return the builder of the same model without autocast, for use after the run."""
    return replace(build, autocast=None) if isinstance(build, ModelBuilder) else build


def notify_if_not_native(network: Network) -> None:
    """Print that native layers are not used, if only the precision prevents it."""
    float32 = tree.build_module(in_float32(network.build))
    if isinstance(float32, Model) and float32.native_chain is not None:
        notify(
            "moonfl: precision=bfloat16 is computed by torch: the native layers, which this model "
            "would use, compute in float32 only"
        )


def make_builder(
    exp: Experiment,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    classes: int,
    model: ModelSource | None = None,
) -> Network:
    """Return the builder of the model for samples of this shape and dtype, as they are stored."""
    if exp.standardise and not dtype.is_floating_point:
        raise InputError(
            "standardise=true requires floating-point features; "
            "images and token ids are not standardised"
        )
    standardise = dtype.is_floating_point if exp.standardise is None else exp.standardise
    becomes_float32 = is_pixels(dtype, len(shape)) or dtype == torch.float64
    input_dtype = torch.float32 if becomes_float32 else dtype

    build = ModelBuilder(
        source=str(exp.model) if model is None else model,
        shape=shape,
        classes=classes,
        head=exp.head,
        out_dim=exp.out_dim,
        dtype=input_dtype,
        statistics_shape=statistics_shape(shape) if standardise else None,
        stored_dtype=dtype,
        device=exp.device,
        rescales=exp.task == REGRESSION,
        autocast=torch.bfloat16 if exp.precision == "bfloat16" else None,
    )
    network = tree.build_module(build)
    if exp.standardise and not standardises(network):
        raise InputError(
            "standardise=true: a model that returns (z, logits) itself receives samples unchanged; "
            "standardise them inside the model"
        )
    batch_norm = has_batch_norm(network)
    if batch_norm and exp.batch_size == 1:
        raise InputError(
            f"batch_size=1 cannot train model={exp.model}: its BatchNorm needs at least 2 samples"
        )
    return Network(build, network, batch_norm, standardises(network))


def check_model(network: Network, *, is_factory: bool) -> None:
    """Refuse models that cannot be trained here; `is_factory`: a user's function builds them."""
    params = tree.params_of(network.model)
    if not params:
        raise InputError(
            "the model has no trainable parameter: it has none, or all of them are frozen"
        )
    if any(param.is_complex() for param in params.values()):
        raise InputError("the model has complex parameters, which are not supported; use real ones")
    if is_factory:
        check_independent(network)
    for name, layer in network.model.named_modules():
        check_layer(name, layer)


def check_independent(network: Network) -> None:
    """Check that two models of a user's function share no parameters."""
    shared = tree.find_shared(network.model, tree.build_module(network.build))
    if shared is not None:
        raise InputError(
            f"the function that builds the model returns the same '{shared}' every time, so that "
            "models would change each other; create what is trained anew (copy.deepcopy what was "
            "loaded once), or pass the module itself"
        )


def check_layer(name: str, layer: nn.Module) -> None:
    """Refuse layers that cannot be trained here."""
    if is_batch_norm(layer) and layer.running_mean is None:
        raise InputError(
            f"BatchNorm '{name}' has no running statistics, so its output for a sample depends on "
            "the other samples of the batch; set track_running_stats=True, or use GroupNorm"
        )
    is_embedding = isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    if is_embedding and layer.sparse and layer.weight.requires_grad:
        raise InputError(
            f"layer '{name}' has sparse gradients, which are not supported; set sparse=False"
        )
