"""moonfl.federate: anybody's model over anybody's data, in a few lines of Python."""

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
from ..algorithms import MOON, FedAvg
from ..data.augment import default_preparation
from ..data.base import Dataset, Examples, check_names
from ..data.npz import infer_classes, make_examples
from ..errors import InputError, unknown
from ..experiment import CUSTOM_MODEL, PARTS, Experiment, find_part
from ..models.base import probe, uses_fractions
from ..models.encoders import ModelSource, make_encoder
from ..runs.checkpoint import fingerprint
from ..runs.directory import holds_run, is_being_replaced
from ..runs.recorder import Result
from ..task import make_task
from . import experiments as api

Data = (
    tuple[Any, Any] | TorchDataset[Any]
)  # x [N, ...] and y [N] as arrays, tensors or lists; or a data set of pairs
Parties = Sequence[Data] | Mapping[str, Data]
COLUMN = "party"
SETTLED = (
    "dataset",
    "data_dir",
    "label",
    "ignore",
    "image_size",
    "partition",
    "parties",
    "beta",
    "min_samples",
    "partition_seed",
    "column",
    "scale",
)  # by the data that are given
USUAL = MOON(mu=1.0)
TRAIN, TEST = 0, 1


def federate(
    model: ModelSource,
    parties: Parties,
    test: Data | Parties | None = None,
    algorithm: FedAvg | str = USUAL,
    rounds: int = 20,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    previous: bool = False,
    force: bool = False,
    workers: int | None = None,
    state_memory: int | None = None,
    watch: api.Watch = lambda fact: None,
    **experiment: Any,
) -> Result:
    """Train one model over parties that each have data of their own.

    `model`: a module, a function that makes one (of nothing, or of the shape of a sample), or a name such as "mlp". A
    module that gives features [B, F] is an encoder, and gets the projection head and the output layer; one that gives
    (z, logits) is taken as it is. `parties`: in a list, or by name, each party's (x, y) as arrays, or its torch data
    set. `test`: one test set, or a list or dict of one for each party; None: of each party's samples a share
    (`holdout`) is held out. `algorithm`: a value such as moonfl.FedProx(mu=0.1), or a name; else MOON with mu=1.
    `out`: the run directory; with `resume`, a run that is there goes on (with `previous` too, from its last checkpoint
    but one), with `force` it is overwritten. Everything else is a setting of an Experiment, such as epochs=5,
    lr=0.1, server=moonfl.Momentum().
    """
    names, own = _each(parties, "party")
    exp = _experiment(model, len(names), algorithm, rounds, experiment)
    task = replace(
        make_task(exp, _read(model, names, own, test, exp.reading.classes), model), names=names
    )
    engine: dict[str, Any] = {
        "workers": workers,
        "state_memory": state_memory,
        "task": task,
        "watch": watch,
    }
    if resume and out is None:
        raise InputError("resume=True goes on with the run that out names; name it")
    if previous and not resume:
        raise InputError("previous=True goes with resume=True: it says from where")
    if force and resume:
        raise InputError(
            "resume=True goes on with a run and force=True overwrites it: give one of them"
        )
    if out is not None and resume and (holds_run(Path(out)) or is_being_replaced(Path(out))):
        if fingerprint(api.experiment_of(Path(out))) != fingerprint(exp):
            raise InputError(
                f"{out} holds a run with other settings; name another out, or leave resume out"
            )
        return api.resume(out, previous=previous, **engine)
    return api.run(exp, out, force=force, **engine)


def _experiment(
    model: ModelSource, parties: int, algorithm: FedAvg | str, rounds: int, given: dict[str, Any]
) -> Experiment:
    for key in given:
        if key in SETTLED:
            raise InputError(f"{key} means nothing here: federate takes the parties as they are")
        if key not in settings.names(Experiment):
            also = "and the settings of a method in its value, as algorithm=moonfl.MOON(mu=1)"
            known = [name for name in settings.names(Experiment) if name not in SETTLED]
            raise unknown("setting", key, known, also)
    parts = {"algorithm": algorithm, **{part: given[part] for part in PARTS if part in given}}
    built = {
        part: settings.build(find_part(part, value), {}, f"{part}.")
        if isinstance(value, str)
        else value
        for part, value in parts.items()
    }
    name = model if isinstance(model, str) else CUSTOM_MODEL
    dealt = {
        "dataset": "given",
        "model": name,
        "partition": "column",
        "column": COLUMN,
        "parties": parties,
    }
    return Experiment(**{**given, **dealt, "rounds": rounds, **built})


class _Part(NamedTuple):
    """One party's data, or a test set."""

    where: str  # for messages
    x: NDArray[np.generic]
    y: NDArray[np.generic]


def _read(
    model: ModelSource,
    names: tuple[str, ...],
    own: list[_Part],
    test: Data | Parties | None,
    classes: tuple[str, ...],
) -> Dataset:
    """`classes`: where they are told; else those that occur."""
    held: list[_Part] = []
    test_columns: dict[str, NDArray[np.generic]] = {}
    if isinstance(test, Mapping | list):
        test_names, found = _each(test, "the test set of party", TEST)
        if set(test_names) != set(names):
            raise InputError(
                f"test has the parties {', '.join(test_names)}, parties are {', '.join(names)}"
            )
        held = [found[test_names.index(name)] for name in names]
        test_columns = {COLUMN: _whose(held)}
    elif test is not None:
        held = [_part("the test set", test, TEST)]
    parts = [*own, *held]
    for part in parts:
        if part.x.shape[1:] != own[0].x.shape[1:]:
            shapes = [list(p.x.shape[1:]) for p in (part, own[0])]
            raise InputError(
                f"{part.where} has samples of shape {shapes[0]}, {own[0].where} of {shapes[1]}"
            )
        if (part.x.dtype == np.uint8) != (own[0].x.dtype == np.uint8):
            kinds = f"{part.x.dtype}, {own[0].where} of {own[0].x.dtype}"
            raise InputError(
                f"{part.where} has samples of {kinds}: bytes are pixels, others are not; give one of them"
            )
    classes = classes or infer_classes([p.y for p in parts])
    whole = _takes_whole_numbers(model, parts, len(classes))
    made = [
        make_examples(f"{part.where}: ", part.x, part.y, classes, integers=whole) for part in parts
    ]
    train, kept = _together(made[: len(own)]), _together(made[len(own) :]) if held else None
    preparation = default_preparation(train.x.dtype, len(train.x.shape) - 1)
    return Dataset(train, kept, classes, preparation, {COLUMN: _whose(own)}, test_columns)


def _whose(parts: list[_Part]) -> NDArray[np.generic]:
    """The number of its party for each sample."""
    return np.repeat(np.arange(len(parts)), [len(part.y) for part in parts])


def _each(parties: Parties, what: str, kind: int = TRAIN) -> tuple[tuple[str, ...], list[_Part]]:
    if not isinstance(parties, Mapping | Iterable):
        raise InputError(
            f"parties is {type(parties).__name__}: give a list of (x, y), or a dict of them by name"
        )
    by_name = (
        parties
        if isinstance(parties, Mapping)
        else {str(i): data for i, data in enumerate(parties)}
    )
    if not by_name:
        raise InputError("there are no parties: give a list of (x, y), or a dict of them by name")
    names = tuple(str(name) for name in by_name)
    check_names("a party", names)
    return names, [
        _part(f"{what} {name}", data, kind, i) for i, (name, data) in enumerate(by_name.items())
    ]


def _part(where: str, data: object, kind: int, number: int = 0) -> _Part:
    if isinstance(data, TorchDataset):
        if not hasattr(data, "__len__") or isinstance(data, IterableDataset):
            raise InputError(
                f"{where}: a data set must have a length and give samples by number; "
                f"{type(data).__name__} does not"
            )
        with seeds.seeded(
            0, "augmentation", kind, number
        ):  # by transforms: once, the same in every run
            items = [data[i] for i in range(len(data))]
        if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
            raise InputError(f"{where}: a data set must give (x, y) for each sample")
        try:
            samples = (
                torch.stack([torch.as_tensor(x) for x, _ in items]) if items else torch.empty(0)
            )
        except (RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"{where}: its samples make no array ({error}); give tensors of one shape"
            ) from None
        data = samples, [y.tolist() if isinstance(y, Tensor) else y for _, y in items]
    if not isinstance(data, tuple) or len(data) != 2:
        raise InputError(f"{where} is {type(data).__name__}; give (x, y) or a torch data set")
    try:
        x, y = (
            part.detach().cpu().numpy() if isinstance(part, Tensor) else _plain(part)
            for part in data
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {error}") from None
    if x.ndim == 0 or len(x) == 0:
        raise InputError(f"{where} has no samples")
    return _Part(where, x, y)


def _plain(values: object) -> NDArray[np.generic]:
    """An array of objects, as pandas gives for words, is what it holds, if it holds one kind."""
    if np.ma.is_masked(values):
        raise ValueError("some of its values are masked; fill them in, or leave their samples out")
    found = np.asarray(values)
    if found.dtype != object or found.size == 0:
        return found
    made = np.array(found.tolist())
    return (
        made
        if made.dtype.kind != "U" or all(isinstance(value, str) for value in found.flat)
        else found
    )


def _takes_whole_numbers(model: ModelSource, parts: list[_Part], classes: int) -> bool:
    """Whether the samples are whole numbers and the model wants them so, as one that looks them up does."""
    if isinstance(model, str) or not all(
        part.x.dtype.kind in "iu" and part.x.dtype != np.uint8 for part in parts
    ):
        return False
    shape = parts[0].x.shape[1:]
    encoder = tree.build_module(lambda: make_encoder(model, shape))
    try:
        probe(encoder, shape, torch.int64, classes)
    except InputError:
        return False
    return not uses_fractions(encoder, shape)


def _together(parts: list[Examples]) -> Examples:
    return Examples(
        torch.cat([x for x, _ in parts if isinstance(x, Tensor)]), torch.cat([y for _, y in parts])
    )
