"""From a dataset to the samples of each party: read, partition, shift, hold out, encode."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import seeds
from ..data.augment import Preparation
from ..data.base import Dataset, Examples, check_names
from ..data.datasets import load
from ..data.encoding import Column, Encoding, columns_of, learn_encoding, recode, summarise
from ..data.images import Images
from ..data.locations import directory
from ..data.moments import compute_moments
from ..data.partition import (
    Index,
    Partition,
    PartitionRequest,
    choose_groups,
    partition_samples,
    split_off,
)
from ..data.shift import Shift, shift_features, shift_unit
from ..errors import InputError, unknown
from ..experiment import HOLDOUT, Experiment
from ..numerics import standard_settings
from ..objectives import make_objective
from ..personal import share_test_set
from ..runs.schema import EncodingRecord
from ..runs.schema import encode as encode_record

USER_FILES = {  # datasets of the user, and how their location is set
    "csv": "data_dir=FILE.csv",
    "npz": "data_dir=FILE.npz",
    "folder": "data_dir=FOLDER",
    "hub": "data_dir=FOLDER, or the NAME of a dataset on the Hugging Face hub",
}


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


def read(exp: Experiment) -> Dataset:
    """Read the dataset of an experiment."""
    path = directory(exp.data_dir)
    if exp.dataset in USER_FILES and exp.data_dir == Experiment.data_dir and not path.exists():
        raise InputError(
            f"dataset={exp.dataset} needs the location of the data; set {USER_FILES[exp.dataset]}"
        )
    return load(exp.dataset, path, exp.reading)


class DatasetCache:
    """Reads datasets and keeps the last one, for runs that follow each other with the same data.

    It stays in memory while they train.
    """

    def __init__(self) -> None:
        self._last: tuple[object, Dataset] | None = None

    @standard_settings()
    def read(self, exp: Experiment) -> Dataset:
        """Return the dataset of an experiment."""
        key = (exp.dataset, exp.data_dir, exp.reading)
        if self._last is None or self._last[0] != key:
            self._last = None  # its memory may be needed for the next one
            self._last = (key, read(exp))
        return self._last[1]


def make_partition(exp: Experiment, data: Dataset) -> Partition:
    """Split the training samples of a dataset among the parties, whose names are checked."""
    samples = len(data.train.y)
    if exp.min_samples > samples and exp.partition not in ("iid", "column"):
        raise InputError(
            f"min_samples={exp.min_samples} is more than the {samples} training samples of all "
            f"parties; set min_samples to {max(1, samples // exp.parties)} or less"
        )
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
    return shift_and_hold_out(exp, federated)


def shift_and_hold_out(exp: Experiment, data: FederatedData) -> FederatedData:
    """Shift the features of the parties and hold samples out, as the experiment sets it."""
    if data.test is not None and exp.holdout is not None:
        raise InputError("holdout=SHARE is for data without a test set; these data have one")
    if data.test is not None and data.groups is not None and exp.validation is None:
        raise InputError(
            "holdout_by is for samples that are held out; these data have a test set, and "
            "validation=SHARE is not set"
        )
    shifted = shift_parties(exp, with_test_owners(exp, data))
    return hold_out(shifted, test=exp.holdout or HOLDOUT, validation=exp.validation)


def needs_test_owners(exp: Experiment) -> bool:
    """Return True if the samples of a common test set need owners."""
    # SOLO is compared with such models, unless their samples are shifted.
    is_compared = not exp.algorithm.federated and exp.shift is None
    return exp.has_party_models or is_compared


def with_test_owners(exp: Experiment, data: FederatedData) -> FederatedData:
    """Share a common test set among the parties if each of them has its own model."""
    if not needs_test_owners(exp):
        return data
    if data.test is None or data.test_party is not None:
        return data
    if not data.parts:  # at a Flower server
        return data
    strata = make_objective(exp.task).strata
    train = {i: strata(data.train.y[torch.from_numpy(part)]) for i, part in data.parts.items()}
    test_party = share_test_set(strata(data.test.y), train, exp.partition_seed)
    if (test_party < 0).all():
        raise InputError(
            "personal models are evaluated on test samples of the classes that their party has, "
            "but no party has a class of the test set; correct its labels"
        )
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
        f"no party has enough {kind} to hold out a share of {share:g}; increase {key}, or use "
        "fewer and larger parties"
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
