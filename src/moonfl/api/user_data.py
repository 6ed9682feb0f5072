"""Samples that the user passes to moonfl.federate.

Arrays, data frames and torch datasets are checked and joined to FederatedData.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from .. import seeds, tree
from ..data.arrays import check_labels, infer_names, make_examples, make_labels, with_common_dtype
from ..data.augment import default_preparation
from ..data.base import Array, Examples, check_names
from ..data.columns import (
    RawTable,
    Rules,
    column_names,
    frame_table,
    is_frame,
    read_columns,
    rules_of,
)
from ..data.encoding import Column
from ..errors import InputError, first_line
from ..experiment import Experiment
from ..models.base import probe, uses_fractions
from ..models.encoders import ModelSource, make_encoder
from ..task import FederatedData, shift_and_hold_out

# x [N, ...] (arrays or data frames) and y [N], or a dataset of pairs
Data = tuple[Any, Any] | TorchDataset[Any]
Parties = Sequence[Data] | Mapping[str, Data]
TRAIN, TEST = 0, 1  # random streams of datasets with random transforms


class Samples(NamedTuple):
    """The samples of one party, or a test set."""

    location: str  # for messages
    x: Array
    y: Array
    groups: Array | None = None  # of the samples
    table: RawTable | None = None  # the columns of a data frame
    targets: tuple[str, ...] = ()  # the columns of y, if it is a data frame with several
    index: Any = None  # of the rows of a pandas object


def read_parties(
    parties: Parties, description: str, stream: int
) -> tuple[tuple[str, ...], list[Samples]]:
    """Return the names of the parties and their data."""
    if not isinstance(parties, Mapping | Iterable):
        raise InputError(
            f"parties must be a list of (x, y), or a dict of them by name, got "
            f"{type(parties).__name__}"
        )
    items = parties.items() if isinstance(parties, Mapping) else enumerate(parties)
    sets_by_name = [(str(name), data) for name, data in items]
    if not sets_by_name:
        raise InputError("there are no parties: pass a list of (x, y), or a dict of them by name")
    names = tuple(name for name, _ in sets_by_name)
    check_names("a party", names)
    sets = []
    for i, (name, data) in enumerate(sets_by_name):
        sets.append(_read_samples(f"{description} {name}", data, stream, i))
    return names, sets


def _read_samples(location: str, data: object, stream: int, number: int = 0) -> Samples:
    """Return the arrays of one party or test set."""
    if isinstance(data, TorchDataset):
        data = _read_dataset(location, data, stream, number)
    if not isinstance(data, tuple) or len(data) != 2:
        raise InputError(f"{location} must be (x, y) or a torch dataset, got {type(data).__name__}")
    if all(isinstance(part, tuple) and len(part) == 2 for part in data):
        raise InputError(f"{location} is a pair of pairs; pass several sets as a list or a dict")
    x, y = (array_of(f"{location}: {name}", part) for name, part in zip("xy", data, strict=True))
    if x.ndim == 0 or len(x) == 0:
        raise InputError(f"{location} has no samples; pass at least one, or leave it out")
    index = common_index(location, data)
    table = frame_table(data[0], location) if is_frame(data[0]) else None
    targets = column_names(data[1]) if is_frame(data[1]) else ()
    if len(targets) == 1:  # like an array [N]
        return Samples(location, x, y.ravel(), table=table, index=index)
    return Samples(location, x, y, table=table, targets=targets, index=index)


def common_index(location: str, data: tuple[Any, Any]) -> Any:
    """Return the index of x or y, None if neither has one; they are not joined by it."""
    indexes = [part.index for part in data if hasattr(getattr(part, "index", None), "equals")]
    for index in indexes[1:]:
        check_same_index(f"{location}: x and y", indexes[0], index)
    return indexes[0] if indexes else None


def check_same_index(description: str, first: Any, second: Any) -> None:
    """Check that rows that are paired by position have the same index; it may be another order."""
    if len(first) == len(second) and not first.equals(second):
        raise InputError(
            f"{description} have different indexes, and are paired by position; sort one by the "
            "index of the other, or use reset_index(drop=True) if their order is the same"
        )


def _read_dataset(
    location: str, data: TorchDataset[Any], stream: int, number: int
) -> tuple[Tensor, list[Any]]:
    """Return the samples and labels of a torch dataset; random transforms are applied once."""
    if not hasattr(data, "__len__") or isinstance(data, IterableDataset):
        raise InputError(
            f"{location}: a dataset must have a length and return samples by index; "
            f"{type(data).__name__} does not"
        )
    with seeds.seeded(0, "augmentation", stream, number):  # the same samples in every run
        items = [data[i] for i in range(len(data))]
    if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise InputError(f"{location}: a dataset must return (x, y) for each sample")
    try:
        samples = torch.stack([torch.as_tensor(x) for x, _ in items]) if items else torch.empty(0)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{location}: its samples cannot be stacked ({error}); return tensors of one shape"
        ) from None
    labels = [y.tolist() if isinstance(y, Tensor) else y for _, y in items]
    return samples, labels


def array_of(location: str, values: object) -> Array:
    """Return values as an array; an array of objects becomes one of the type that it holds."""
    if np.ma.is_masked(values):
        raise InputError(
            f"{location}: some values are masked; fill them in, or leave their samples out"
        )
    if hasattr(values, "toarray"):
        raise InputError(f"{location} is a sparse matrix, which is not supported; use .toarray()")
    try:
        return _converted(values)
    except (TypeError, ValueError) as error:
        reason = str(error)
        if "inhomogeneous" in reason:
            reason = "its samples have different shapes; pad or crop them to one shape"
        raise InputError(f"{location}: {reason}") from None


def _converted(values: object) -> Array:
    """Return values as an array of one type, or of objects if they have several."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    array = np.asarray(values)
    if array.dtype.kind == "U" and isinstance(values, list | tuple):
        objects = np.array(values, dtype=object)  # numpy turns numbers next to strings into strings
        return array if all(isinstance(value, str) for value in objects.flat) else objects
    if array.dtype != object or array.size == 0:
        return array
    converted = np.array(array.tolist())
    if converted.dtype.kind == "U" and not all(isinstance(value, str) for value in array.flat):
        return array
    return converted


def with_groups(
    sets: list[Samples], groups: Sequence[Any] | Mapping[str, Any], names: tuple[str, ...]
) -> list[Samples]:
    """Return the sets of the parties with the groups of their samples."""
    if isinstance(groups, str) or not isinstance(groups, Mapping | Iterable):
        raise InputError(
            f"groups must be a list with the groups of each party's samples, or a dict of them by "
            f"name, got {type(groups).__name__}"
        )
    by_name = groups if isinstance(groups, Mapping) else dict(enumerate(groups))
    by_name = {str(name): values for name, values in by_name.items()}
    check_same_names("groups has entries", by_name, names)
    result = []
    for party, name in zip(sets, names, strict=True):
        values = array_of(f"the groups of {party.location}", by_name[name])
        if values.shape != (len(party.x),) or values.dtype.kind not in "biuUS":
            raise InputError(
                f"the groups of {party.location} must be {len(party.x)} integers or strings, one "
                f"per sample, got {values.dtype} {list(values.shape)}"
            )
        index = getattr(by_name[name], "index", None)
        if hasattr(index, "equals") and party.index is not None:
            check_same_index(f"the samples and groups of {party.location}", party.index, index)
        result.append(party._replace(groups=values.astype(np.str_)))
    return result


def check_same_names(description: str, names: Collection[str], parties: tuple[str, ...]) -> None:
    """Check that an argument has a value for every party; `description` is for the message."""
    if set(names) != set(parties):
        raise InputError(
            f"{description} for {', '.join(names)}, but the parties are {', '.join(parties)}; "
            "use the same names"
        )


def federated_data(
    model: ModelSource,
    names: tuple[str, ...],
    party_sets: list[Samples],
    test: Data | Parties | None,
    exp: Experiment,
) -> FederatedData:
    """Check the user's arrays and return them as federated data, with samples held out."""
    test_sets = _read_test(test, names)
    features = _column_names([*party_sets, *test_sets])
    sets, classes = with_common_targets([*party_sets, *test_sets], exp.reading.classes)
    for samples in sets:
        check_labels(f"{samples.location}: y", samples.y, exp.task)
    classes = infer_names([samples.y for samples in sets], exp.task, classes)
    table = None
    if rules_of(exp.reading).encodes:
        table, parts = _encoded_parts(sets, features, classes, exp)
    else:
        parts = _numeric_parts(sets, features, classes, model, exp.task)
    train = _concatenate(parts[: len(names)])
    data = FederatedData(
        train=train,
        parts=_consecutive_parts(party_sets),
        test=_concatenate(parts[len(names) :]) if test_sets else None,
        classes=classes,
        preparation=default_preparation(train.x.dtype, len(train.x.shape) - 1),
        test_party=_owners(test_sets) if _is_by_party(test) else None,
        names=names,
        features=features,
        table=table,
        groups=_group_numbers(party_sets),
    )
    return shift_and_hold_out(exp, data)


def _is_by_party(test: object) -> TypeGuard[Parties]:
    """Return True if test sets are passed per party."""
    return isinstance(test, Mapping | list)


def _read_test(test: Data | Parties | None, names: tuple[str, ...]) -> list[Samples]:
    """Return the test sets in the order of the parties; one or none if they are not per party."""
    if test is None:
        return []
    if not _is_by_party(test):
        return [_read_samples("the test set", test, TEST)]
    test_names, sets = read_parties(test, "the test set of party", TEST)
    check_same_names("test has sets", test_names, names)
    return [sets[test_names.index(name)] for name in names]


def _column_names(sets: list[Samples]) -> tuple[str, ...]:
    """Return the columns of data frames, in the order of the first; all must have the same.

    Return () if no samples are data frames.
    """
    tables = [samples.table for samples in sets if samples.table is not None]
    if not tables:
        return ()
    check_no_array("samples", sets, [samples.table is not None for samples in sets])
    features = tuple(tables[0].cells)
    check_names("a column", features)
    for table in tables[1:]:
        for name in (*features, *table.cells):
            if name not in table.cells or name not in features:
                owner = tables[0] if name in features else table
                other = table if name in features else tables[0]
                raise InputError(
                    f"{owner.location} has a column '{name}', which {other.location} lacks; all "
                    "data frames need the same columns"
                )
    return features


def check_no_array(what: str, sets: list[Samples], are_frames: list[bool]) -> None:
    """Refuse arrays next to data frames, whose columns may have another order."""
    if all(are_frames):
        return
    frame, array = sets[are_frames.index(True)], sets[are_frames.index(False)]
    raise InputError(
        f"{frame.location} has {what} as a data frame and {array.location} as an array; columns "
        "are identified by name: pass data frames for all, or arrays (frame.to_numpy()) for all"
    )


def with_common_targets(
    sets: list[Samples], names: tuple[str, ...]
) -> tuple[list[Samples], tuple[str, ...]]:
    """Return the sets with the columns of y in one order, and the names of the columns.

    Without data frames the sets and `names`, those that the user has set, stay as they are.
    """
    if not any(samples.targets for samples in sets):
        return sets, names
    check_no_array("y", sets, [bool(samples.targets) for samples in sets])
    order = names or sets[0].targets
    result = []
    for samples in sets:
        if sorted(samples.targets) != sorted(order):
            raise InputError(
                f"{samples.location} has y with the columns {', '.join(samples.targets)}; they "
                f"must be {', '.join(order)}"
            )
        columns = [samples.targets.index(name) for name in order]
        result.append(samples._replace(y=samples.y[:, columns]))
    return result, order


def _numeric_parts(
    sets: list[Samples],
    features: tuple[str, ...],
    classes: tuple[str, ...],
    model: ModelSource,
    task: str,
) -> list[Examples]:
    """Return the examples of sets whose samples are numbers."""
    sets = [_with_parsed_rows(samples, features) for samples in sets]
    for other in sets:
        check_same_kind(other, sets[0])
    token_ids = _takes_token_ids(model, sets, len(classes))
    parts = []
    for samples in sets:
        location = f"{samples.location}: "
        parts.append(
            make_examples(location, samples.x, samples.y, classes, integers=token_ids, task=task)
        )
    return with_common_dtype(parts)


def _with_parsed_rows(samples: Samples, features: tuple[str, ...]) -> Samples:
    """Return a set with the numbers in its data frame, in the order of these columns.

    Columns of strings may hold numbers, too; a cell that is not a number is an InputError.
    """
    if samples.table is None:
        return samples
    refuse = Rules(impute="refuse", encode="refuse", categorical=())
    _, (rows,) = read_columns([samples.table], features, refuse)
    dtype = samples.x.dtype if samples.x.dtype.kind in "biuf" else np.float64
    return samples._replace(x=rows.astype(dtype))


def check_same_kind(other: Samples, first: Samples) -> None:
    """Check that two sets have samples of the same shape and kind."""
    if other.x.shape[1:] != first.x.shape[1:]:
        raise InputError(
            f"{other.location} has samples of shape {list(other.x.shape[1:])}, "
            f"{first.location} of {list(first.x.shape[1:])}"
        )
    if other.x.ndim == 4 and (other.x.dtype == np.uint8) != (first.x.dtype == np.uint8):
        raise InputError(
            f"{other.location} has samples of type {other.x.dtype}, {first.location} of "
            f"{first.x.dtype}: uint8 means pixels; use one type for all"
        )


def _takes_token_ids(model: ModelSource, sets: list[Samples], classes: int) -> bool:
    """Return True if the samples are integers and the model uses them as token ids."""
    dtypes = [samples.x.dtype for samples in sets]
    are_integers = all(dtype.kind in "iu" and dtype != np.uint8 for dtype in dtypes)
    if isinstance(model, str) or not are_integers:
        return False
    shape = sets[0].x.shape[1:]
    encoder = tree.build_module(lambda: make_encoder(model, shape))
    try:
        probe(encoder, shape, torch.int64, classes)
    except InputError:
        return False
    if uses_fractions(encoder, shape):
        return False
    check_token_ids(encoder, sets)
    return True


@torch.no_grad()
def check_token_ids(encoder: nn.Module, sets: list[Samples]) -> None:
    """Check that a model accepts the smallest and the largest token id of each position."""
    low = np.min([samples.x.min(axis=0) for samples in sets], axis=0)
    high = np.max([samples.x.max(axis=0) for samples in sets], axis=0)
    try:
        encoder(torch.from_numpy(np.stack([low, high]).astype(np.int64)))
    except Exception as error:  # a custom module may raise anything
        raise InputError(
            f"the samples have token ids from {low.min()} to {high.max()}, which the model does "
            f"not accept: {first_line(error)}"
        ) from None


def _encoded_parts(
    sets: list[Samples], features: tuple[str, ...], classes: tuple[str, ...], exp: Experiment
) -> tuple[tuple[Column, ...], list[Examples]]:
    """Return the columns of data frames and the examples of all sets, as rows to be encoded."""
    tables = []
    for samples in sets:
        if samples.table is None:
            raise InputError(
                "impute and encode are for data frames, whose columns have names; "
                f"{samples.location} has an array: pass a pandas DataFrame as x, or remove impute "
                "and encode"
            )
        tables.append(samples.table)
    columns, rows = read_columns(tables, features, rules_of(exp.reading))
    parts = []
    for samples, x in zip(sets, rows, strict=True):
        if samples.y.shape[:1] != (len(x),):
            raise InputError(
                f"{samples.location} has {len(x)} rows, but y has shape {list(samples.y.shape)}"
            )
        labels = make_labels(f"{samples.location}: y", samples.y, classes, exp.task)
        parts.append(Examples(torch.from_numpy(x), labels))
    return columns, parts


def _concatenate(parts: list[Examples]) -> Examples:
    x = torch.cat([part.x for part in parts if isinstance(part.x, Tensor)])
    return Examples(x, torch.cat([part.y for part in parts]))


def _consecutive_parts(sets: list[Samples]) -> dict[int, NDArray[np.int64]]:
    """Return the indices of each party's samples after concatenation."""
    ends = np.cumsum([len(samples.y) for samples in sets])
    starts = [0, *ends[:-1]]
    return {i: np.arange(starts[i], ends[i]) for i in range(len(sets))}


def _owners(sets: list[Samples]) -> Tensor:
    """Return the party of each sample after concatenation."""
    sizes = [len(samples.y) for samples in sets]
    return torch.from_numpy(np.repeat(np.arange(len(sets)), sizes))


def _group_numbers(sets: list[Samples]) -> NDArray[np.int64] | None:
    """Return the number of each sample's group; a group may have samples at several parties."""
    groups = [party.groups for party in sets if party.groups is not None]
    if not groups:
        return None
    numbers: NDArray[np.int64] = np.unique(np.concatenate(groups), return_inverse=True)[1]
    return numbers
