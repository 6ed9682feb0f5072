"""moonfl.federate: train a custom model over custom data in a few lines of Python."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from .. import seeds, settings, tree
from ..algorithms import MOON, Algorithm
from ..components import COMPONENTS, build_component
from ..data.arrays import infer_names, make_examples, make_labels, with_common_dtype
from ..data.augment import default_preparation
from ..data.base import Examples, check_names
from ..data.columns import RawTable, Rules, frame_table, is_frame, read_columns, rules_of
from ..data.encoding import Column
from ..data.targets import REGRESSION
from ..errors import InputError, notify, unknown
from ..experiment import (
    CUSTOM_DATA,
    CUSTOM_MODEL,
    HOLDOUT,
    Experiment,
    code_names,
    fingerprint,
    rename_keys,
)
from ..models.base import Model, probe, uses_fractions
from ..models.encoders import ModelSource, make_encoder
from ..numerics import standard_settings
from ..runs.directory import holds_run, is_being_replaced, read_experiment
from ..runs.progress import in_notebook
from ..runs.recorder import Result, Watch, ignore
from ..settings import RENAMED
from ..task import FederatedData, Task, build_task, hold_out, shift_parties, with_derived_settings
from .experiments import Options, resume_run, start_run
from .recovery import Hints, recovery_hints

# x [N, ...] (arrays or data frames) and y [N], or a dataset of pairs
Data = tuple[Any, Any] | TorchDataset[Any]
Parties = Sequence[Data] | Mapping[str, Data]
DATA_SETTINGS = (  # settings that the data determine
    "dataset",
    "data_dir",
    "label",
    "ignore",
    "holdout_by",
    "image_size",
    "partition",
    "parties",
    "beta",
    "min_samples",
    "classes_per_party",
    "shards_per_party",
    "partition_seed",
    "column",
    "scale",
)
COLUMN = "party"  # stored as the column of the partition
GROUP = "group"  # stored as the column whose groups are held out
DEFAULT = MOON(mu=1.0)
TRAIN, TEST = 0, 1  # random streams of datasets with random transforms
HINTS = Hints(
    exists="resume=True resumes it, force=True replaces it, another out keeps it",
    previous=(
        "moonfl.federate with out='{run}', resume=True and previous=True resumes from the "
        "previous checkpoint"
    ),
    restart=(
        "moonfl.federate with out='{run}' and force=True instead of resume=True starts the run "
        "again"
    ),
)


@standard_settings()
def federate(
    model: ModelSource,
    parties: Parties,
    test: Data | Parties | None = None,
    algorithm: Algorithm | str = DEFAULT,
    rounds: int = 20,
    *,
    groups: Sequence[Any] | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    previous: bool = False,
    force: bool = False,
    workers: int | None = None,
    state_memory: int | None = None,
    watch: Watch = ignore,
    track: str | Sequence[str] = (),
    progress: bool | None = None,
    **experiment: Any,
) -> Result:
    """Train one model over parties that each have their own data.

    - `model`: a module, a function that builds one (called without arguments, or with the shape of
      a sample), or a name such as "mlp". A module that returns features [B, F] is an encoder and
      gets the projection head and the output layer; one that returns (z, logits) is used unchanged.
    - `parties`: a list or a dict by name; each party's (x, y) as arrays, its torch dataset, or a
      data frame as x.
    - `test`: one test set, or a list or dict with one per party; None: a share of each party's
      samples (`holdout`) is held out.
    - `algorithm`: a value such as moonfl.FedProx(mu=0.1), or a name; by default MOON with mu=1.
    - `rounds`: the number of communication rounds.
    - `groups`: a list or a dict by name with the group of each sample of a party, such as its
      patient. Samples of a group are held out together, for test and validation.
    - `out`: the run directory; None: the run is not stored.
    - `resume`: resume an existing run in `out`.
    - `previous`: resume it from the checkpoint before the newest.
    - `force`: replace an existing run in `out`.
    - `workers`: the number of processes that train parties, by default one per core.
    - `state_memory`: the number of bytes above which party states are stored on disk, by default
      a quarter of the free memory.
    - `watch`: a function that is called with the record of each round.
    - `track`: "tensorboard", "wandb" or "mlflow", or several of them: metrics are copied there. It
      needs `out`.
    - `progress`: show a progress bar, or one line per round if stderr is no terminal; None: in
      notebooks only.
    - All other arguments are settings of Experiment, such as epochs=5, lr=0.1,
      server=moonfl.Momentum().
    """
    _check_flags(out, resume=resume, previous=previous, force=force)
    names, party_sets = _read_parties(parties, "party", TRAIN)
    exp = _experiment(model, len(names), algorithm, rounds, experiment)
    if groups is not None:
        exp = replace(exp, holdout_by=GROUP)
        party_sets = _with_groups(party_sets, groups, names)
    data = _federated_data(model, names, party_sets, test, exp)
    task = build_task(exp, data, model=model)
    exp = with_derived_settings(exp, task)
    _notify_if_classifier(model, task)
    trusted = code_names(exp)  # the caller passed them
    options = Options(
        workers=workers,
        state_memory=state_memory,
        watch=watch,
        trust=trusted,
        track=track,
        progress=in_notebook() if progress is None else progress,
    )
    with recovery_hints(HINTS, out):
        if resume and out is not None and _holds_run(Path(out)):
            return _resume(Path(out), exp, task, options, previous=previous)
        return start_run(exp, out, force=force, task=task, options=options)


def _check_flags(out: str | Path | None, *, resume: bool, previous: bool, force: bool) -> None:
    """Refuse arguments that contradict each other."""
    if resume and out is None:
        raise InputError("resume=True needs out, the directory of the run to resume")
    if previous and not resume:
        raise InputError("previous=True needs resume=True")
    if force and resume:
        raise InputError("resume=True resumes a run and force=True replaces it; use one of them")


def _holds_run(out: Path) -> bool:
    return holds_run(out) or is_being_replaced(out)


def _resume(out: Path, exp: Experiment, task: Task, options: Options, *, previous: bool) -> Result:
    """Resume the run in `out` if it has the same settings."""
    if fingerprint(read_experiment(out, trust=options.trust)) != fingerprint(exp):
        raise InputError(
            f"{out} holds a run with other settings; choose another out, or pass force=True "
            "instead of resume=True to replace it"
        )
    return resume_run(out, previous=previous, task=task, options=options)


def _experiment(
    model: ModelSource,
    parties: int,
    algorithm: Algorithm | str,
    rounds: int,
    values: dict[str, Any],
) -> Experiment:
    """Return the experiment with these settings; `values` are the remaining arguments."""
    for old, new in RENAMED.items():
        if old in values:
            notify(f"moonfl: the argument {old} is deprecated; use {new}")
    values = rename_keys(values)
    valid = [name for name in settings.names(Experiment) if name not in DATA_SETTINGS]
    for key in values:
        if key in DATA_SETTINGS:
            raise InputError(
                f"{key} cannot be passed to moonfl.federate, because the parties' data determine "
                "it; remove it"
            )
        if key not in valid:
            also = "and the settings of a method inside algorithm=, as in moonfl.MOON(mu=1)"
            raise unknown("setting", key, valid, also)
    components: dict[str, Any] = {"algorithm": algorithm}
    components |= {kind: values[kind] for kind in COMPONENTS if kind in values}
    for kind, value in components.items():
        if isinstance(value, str):
            components[kind] = build_component(kind, {"name": value})
    determined = {
        "dataset": CUSTOM_DATA,
        "model": model if isinstance(model, str) else CUSTOM_MODEL,
        "partition": "column",
        "column": COLUMN,
        "parties": parties,
        "rounds": rounds,
    }
    return Experiment(**{**values, **determined, **components})


class _Set(NamedTuple):
    """The samples of one party, or a test set."""

    location: str  # for messages
    x: NDArray[np.generic]
    y: NDArray[np.generic]
    groups: NDArray[np.generic] | None = None  # of the samples
    table: RawTable | None = None  # the columns of a data frame


def _federated_data(
    model: ModelSource,
    names: tuple[str, ...],
    party_sets: list[_Set],
    test: Data | Parties | None,
    exp: Experiment,
) -> FederatedData:
    """Check the user's arrays and return them as federated data, with samples held out."""
    test_sets = _read_test(test, names)
    sets = [*party_sets, *test_sets]
    features = _column_names(sets)
    classes = infer_names([s.y for s in sets], exp.task, exp.reading.classes)
    table = None
    if rules_of(exp.reading).encodes:
        table, parts = _encoded_parts(sets, features, classes, exp)
    else:
        parts = _numeric_parts(sets, features, classes, model, exp.task)
    train = _concatenate(parts[: len(names)])
    if test_sets and exp.holdout is not None:
        raise InputError("holdout=SHARE is for data without a test set; these data have one")
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
    data = shift_parties(exp, data)
    return hold_out(data, test=exp.holdout or HOLDOUT, validation=exp.validation)


def _numeric_parts(
    sets: list[_Set],
    features: tuple[str, ...],
    classes: tuple[str, ...],
    model: ModelSource,
    task: str,
) -> list[Examples]:
    """Return the examples of sets whose samples are numbers."""
    refuse = Rules(impute="refuse", encode="refuse", categorical=())
    tables = [s.table for s in sets if s.table is not None]
    if tables:
        read_columns(tables, features, refuse)  # names the cell that is not a number
    for other in sets:
        _check_like(other, sets[0])
    sets = [_in_order(s, features) for s in sets]
    token_ids = _takes_token_ids(model, sets, len(classes))
    parts = [
        make_examples(f"{s.location}: ", s.x, s.y, classes, integers=token_ids, task=task)
        for s in sets
    ]
    return with_common_dtype(parts)


def _encoded_parts(
    sets: list[_Set], features: tuple[str, ...], classes: tuple[str, ...], exp: Experiment
) -> tuple[tuple[Column, ...], list[Examples]]:
    """Return the columns of data frames and the examples of all sets, as rows to be encoded."""
    tables = []
    for s in sets:
        if s.table is None:
            raise InputError(
                f"impute and encode are for data frames, whose columns have names; {s.location} "
                "has an array: pass a pandas DataFrame as x, or remove impute and encode"
            )
        tables.append(s.table)
    columns, rows = read_columns(tables, features, rules_of(exp.reading))
    parts = []
    for s, x in zip(sets, rows, strict=True):
        if s.y.shape[:1] != (len(x),):
            raise InputError(f"{s.location} has {len(x)} rows, but y has shape {list(s.y.shape)}")
        labels = make_labels(f"{s.location}: y", s.y, classes, exp.task)
        parts.append(Examples(torch.from_numpy(x), labels))
    return columns, parts


def _column_names(sets: list[_Set]) -> tuple[str, ...]:
    """Return the columns of data frames, in the order of the first; all must have the same.

    Return () if some samples are not data frames.
    """
    tables = [s.table for s in sets if s.table is not None]
    if len(tables) < len(sets):
        return ()
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


def _in_order(s: _Set, features: tuple[str, ...]) -> _Set:
    """Return a set with the columns of its data frame in this order."""
    if s.table is None or not features or tuple(s.table.cells) == features:
        return s
    positions = list(s.table.cells)
    return s._replace(x=s.x[:, [positions.index(name) for name in features]])


def _with_groups(
    sets: list[_Set], groups: Sequence[Any] | Mapping[str, Any], names: tuple[str, ...]
) -> list[_Set]:
    """Return the sets of the parties with the groups of their samples."""
    by_name = groups if isinstance(groups, Mapping) else dict(enumerate(groups))
    by_name = {str(name): values for name, values in by_name.items()}
    if set(by_name) != set(names):
        raise InputError(
            f"groups has entries for {', '.join(by_name)}, but the parties are {', '.join(names)}; "
            "use the same names"
        )
    result = []
    for party, name in zip(sets, names, strict=True):
        try:
            values = _as_array(by_name[name])
        except (TypeError, ValueError) as error:
            raise InputError(f"the groups of {party.location}: {error}") from None
        if values.shape != (len(party.x),) or values.dtype.kind not in "biuUS":
            raise InputError(
                f"the groups of {party.location} must be {len(party.x)} integers or strings, one "
                f"per sample, got {values.dtype} {list(values.shape)}"
            )
        result.append(party._replace(groups=values.astype(np.str_)))
    return result


def _group_numbers(sets: list[_Set]) -> NDArray[np.int64] | None:
    """Return the number of each sample's group; a group may have samples at several parties."""
    groups = [party.groups for party in sets if party.groups is not None]
    if not groups:
        return None
    numbers: NDArray[np.int64] = np.unique(np.concatenate(groups), return_inverse=True)[1]
    return numbers


def _is_by_party(test: object) -> bool:
    """Return True if test sets are passed per party."""
    return isinstance(test, Mapping | list)


def _read_test(test: Data | Parties | None, names: tuple[str, ...]) -> list[_Set]:
    """Return the test sets in the order of the parties; one or none if they are not per party."""
    if test is None:
        return []
    if not isinstance(test, Mapping | list):
        return [_read_set("the test set", test, TEST)]
    test_names, sets = _read_parties(test, "the test set of party", TEST)
    if set(test_names) != set(names):
        raise InputError(
            f"test has sets for {', '.join(test_names)}, but the parties are {', '.join(names)}; "
            "use the same names"
        )
    return [sets[test_names.index(name)] for name in names]


def _check_like(other: _Set, first: _Set) -> None:
    """Check that two sets have samples of the same shape and kind."""
    if other.x.shape[1:] != first.x.shape[1:]:
        raise InputError(
            f"{other.location} has samples of shape {list(other.x.shape[1:])}, "
            f"{first.location} of {list(first.x.shape[1:])}"
        )
    if (other.x.dtype == np.uint8) != (first.x.dtype == np.uint8):
        raise InputError(
            f"{other.location} has samples of type {other.x.dtype}, {first.location} of "
            f"{first.x.dtype}: uint8 means pixels; use one type for all"
        )


def _consecutive_parts(sets: list[_Set]) -> dict[int, NDArray[np.int64]]:
    """Return the indices of each party's samples after concatenation."""
    ends = np.cumsum([len(s.y) for s in sets])
    starts = [0, *ends[:-1]]
    return {i: np.arange(starts[i], ends[i]) for i in range(len(sets))}


def _owners(sets: list[_Set]) -> Tensor:
    """Return the party of each sample after concatenation."""
    sizes = [len(s.y) for s in sets]
    return torch.from_numpy(np.repeat(np.arange(len(sets)), sizes))


def _read_parties(
    parties: Parties, description: str, stream: int
) -> tuple[tuple[str, ...], list[_Set]]:
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
        sets.append(_read_set(f"{description} {name}", data, stream, i))
    return names, sets


def _read_set(location: str, data: object, stream: int, number: int = 0) -> _Set:
    """Return the arrays of one party or test set."""
    if isinstance(data, TorchDataset):
        data = _read_dataset(location, data, stream, number)
    if not isinstance(data, tuple) or len(data) != 2:
        raise InputError(f"{location} must be (x, y) or a torch dataset, got {type(data).__name__}")
    try:
        x, y = (_as_array(values) for values in data)
    except (TypeError, ValueError) as error:
        raise InputError(f"{location}: {error}") from None
    if x.ndim == 0 or len(x) == 0:
        raise InputError(f"{location} has no samples; pass at least one, or leave it out")
    table = frame_table(data[0], location) if is_frame(data[0]) else None
    return _Set(location, x, y, table=table)


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


def _as_array(values: object) -> NDArray[np.generic]:
    """Return values as an array; an array of objects becomes one of the type that it holds."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if np.ma.is_masked(values):
        raise ValueError("some values are masked; fill them in, or leave their samples out")
    array = np.asarray(values)
    if array.dtype != object or array.size == 0:
        return array
    converted = np.array(array.tolist())
    if converted.dtype.kind == "U" and not all(isinstance(value, str) for value in array.flat):
        return array
    return converted


def _takes_token_ids(model: ModelSource, sets: list[_Set], classes: int) -> bool:
    """Return True if the samples are integers and the model uses them as token ids."""
    are_integers = all(s.x.dtype.kind in "iu" and s.x.dtype != np.uint8 for s in sets)
    if isinstance(model, str) or not are_integers:
        return False
    shape = sets[0].x.shape[1:]
    encoder = tree.build_module(lambda: make_encoder(model, shape))
    try:
        probe(encoder, shape, torch.int64, classes)
    except InputError:
        return False
    return not uses_fractions(encoder, shape)


def _notify_if_classifier(model: ModelSource, task: Task) -> None:
    """Notify the user if a model with one output per class is used as an encoder."""
    if isinstance(model, str):
        return
    network = tree.build_module(task.build)
    if isinstance(network, Model) and network.num_features == len(task.classes):
        kind, outputs = ("target", "predictions")
        if task.objective.name != REGRESSION:
            kind, outputs = ("class", "logits")
        notify(
            f"moonfl: the model returns {network.num_features} values per sample, one per {kind}; "
            "it is used as an encoder, with a projection head and an output layer after it. "
            f"A complete model should return (z, {outputs}), or be passed without its last layer"
        )


def _concatenate(parts: list[Examples]) -> Examples:
    x = torch.cat([part.x for part in parts if isinstance(part.x, Tensor)])
    return Examples(x, torch.cat([part.y for part in parts]))
