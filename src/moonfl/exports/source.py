"""A model of a run directory, and all that makes a module of it."""

import json
from pathlib import Path

import torch

from ..data.augment import default_preparation
from ..data.base import Dataset
from ..data.datasets import load, source
from ..data.locations import directory
from ..errors import InputError, notify, quoted
from ..experiment import CUSTOM_MODEL, Experiment
from ..runs import checkpoint
from ..runs.directory import CHECKPOINT, PARTITION, read_experiment, read_rounds
from ..runs.recorder import GLOBAL, Result
from ..runs.schema import RoundRecord
from ..runs.stopping import selected_round
from ..task import make_builder
from ..trained_model import Blueprint
from ..types import Params, State
from .weights import Artifact, sample


def of_directory(run: Path, party: int | None, best: bool, data_dir: str | None) -> Artifact:
    """A model of the newest checkpoint."""
    exp = read_experiment(run, device="cpu")
    if exp.model == CUSTOM_MODEL:
        raise InputError(
            f"{run} is a run of a model that was given in Python and is not in the directory; "
            "moonfl.export(result, out) exports the result that moonfl.federate returned"
        )
    found = checkpoint.read(run / CHECKPOINT, exp)
    if found is None:
        raise InputError(
            f"{run} has no checkpoint: no round of it is done; `moonfl resume {quoted(run)}` goes on with it"
        )
    facts = read_rounds(run, found.rounds)
    chosen = exp.algorithm.deployed(found.selected) if found.selected is not None else None
    models, fact = (
        best_of(facts, chosen) if best else (exp.algorithm.deployed(found.server), facts[-1])
    )
    name, params = named(models, party)
    return Artifact(exp, blueprint(run, exp, data_dir), params, name, fact, best)


def of_result(result: Result, party: int | None, best: bool) -> Artifact:
    models, fact = (
        best_of(result.rounds, result.chosen_models) if best else (result.models, result.rounds[-1])
    )
    name, params = named(models, party)
    return Artifact(result.experiment, result.blueprint, params, name, fact, best)


def best_of(facts: list[RoundRecord], models: State | None) -> tuple[State, RoundRecord]:
    """The models of the round that is best on the validation samples, and what is recorded of it."""
    fact = selected_round(facts)
    if fact is None or models is None:
        raise InputError(
            "this run has chosen no round: one with validation=SHARE keeps its best; without --best (best=True) the "
            "last round's model is exported"
        )
    return models, fact


def named(models: State, party: int | None) -> tuple[str, Params]:
    """The name of the model that is asked for, and the model."""
    if GLOBAL in models and party is not None:
        raise InputError(f"party {party} is asked for, and this run has a global model only")
    name = GLOBAL if party is None else f"party{party}"
    if name not in models:
        whose = ", ".join(
            sorted(
                (name.removeprefix("party") for name in models), key=lambda name: (len(name), name)
            )
        )
        given = "none is chosen" if party is None else f"there is no party {party}"
        raise InputError(
            f"each party of this run has a model of its own, and {given}: --party (party=) is one of {whose}"
        )
    return name, models[name]


def blueprint(run: Path, exp: Experiment, data_dir: str | None) -> Blueprint:
    """By what the run noted of its samples when it began, and by the data where they can be read."""
    path = run / PARTITION
    try:
        told = json.loads(path.read_bytes())
        told |= told["sites"][0] if "sites" in told else {}
        classes = tuple(str(name) for name in told["classes"])
        noted = sample(told) if "shape" in told else None
        features = tuple(str(name) for name in told.get("features", ()))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"{path} is missing or damaged ({error}); it says what samples and classes there are"
        ) from None
    data = _data(exp, data_dir)
    shape, dtype = noted or _of_data(data, path)
    if data and (_of_data(data, path) != (shape, dtype) or data.classes != classes):
        notify(
            f"moonfl: {exp.dataset} is not as it was when {run} began, so random inputs stand in for it"
        )
        data = None
    build = make_builder(exp, shape, dtype, len(classes)).build
    preparation = (
        data.preparation
        if data
        else source(exp.dataset).preparation or default_preparation(dtype, len(shape))
    )
    held = (data.test or data.train) if data else None
    return Blueprint(build, shape, dtype, classes, preparation, held and held.x, features)


def _data(exp: Experiment, data_dir: str | None) -> Dataset | None:
    try:
        return load(exp.dataset, directory(data_dir or exp.data_dir), exp.reading)
    except (InputError, OSError) as error:
        notify(
            f"moonfl: the run's data cannot be read here, so random inputs stand in for them: {error}"
        )
        return None


def _of_data(data: Dataset | None, path: Path) -> tuple[tuple[int, ...], torch.dtype]:
    if data is None:
        raise InputError(
            f"{path} is of a version that did not note the shape of a sample, and the data, which have it, cannot be "
            "read here; --data-dir DIR says where they are"
        )
    return tuple(data.train.x.shape[1:]), data.train.x.dtype
