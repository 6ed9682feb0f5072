"""Find the model to export: in a run directory, or in the result of a run."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..algorithms import has_own_model
from ..data.base import Dataset
from ..data.datasets import load, preparation_of
from ..data.encoding import Encoding, from_record, recode
from ..data.images import Images
from ..data.locations import directory
from ..errors import InputError, notify
from ..experiment import CUSTOM_MODEL, Experiment
from ..party_models import join, stored_tensors
from ..personal import SHARED, deployed
from ..runs import checkpoint
from ..runs.checkpoint import Checkpoint
from ..runs.directory import read_experiment, read_partition, read_rounds
from ..runs.index import BEST, CHECKPOINT, PARTITION, check_run
from ..runs.result import Result
from ..runs.schema import PartitionRecord, RoundRecord, SiteRecord
from ..runs.stopping import selected_round
from ..runs.tensor_files import stored_state
from ..settings import parse_int
from ..task import in_float32, make_builder
from ..trained_model import SAMPLES, Blueprint
from ..types import GLOBAL, State, party_model_name, party_of_model
from .artifact import Artifact, numbered_name
from .weights import parse_dtype

Party = int | str  # the number of a party, or its name
SampleType = tuple[tuple[int, ...], torch.dtype]  # shape and dtype of a stored sample


def from_directory(
    run: Path,
    party: Party | None,
    best: bool,
    data_dir: str | None,
    *,
    trust: bool,
    with_samples: bool = True,
) -> Artifact:
    """Return a model from the newest checkpoint of a run directory.

    `with_samples`: read the data of the run, for samples to check an export on.
    """
    exp = read_experiment(run, device="cpu", trust=trust)
    if exp.model == CUSTOM_MODEL:
        raise InputError(
            f"the model of {run} was passed as a Python object, which the directory does not "
            "contain; export the result of moonfl.federate instead: moonfl.export(result, out)"
        )
    saved = checkpoint.read(run / CHECKPOINT, exp)
    if saved is None:
        raise InputError(
            f"{run} has no checkpoint, which holds the model: no round is finished, or the folder "
            f"{CHECKPOINT} was removed"
        )
    records = read_rounds(run, saved.rounds)
    models: State
    if best:
        _check_best(exp)
        selected = None if saved.selected is None else deployed(exp, saved.selected)
        models, record = _best_models(records, selected)
        _notify_if_best_differs(run)
    else:
        models, record = _saved_models(exp, saved), records[-1]
    names = tuple(read_partition(run).names or ())
    name = _model_name(models, party, names)
    return Artifact(
        experiment=exp,
        blueprint=_blueprint(run, exp, data_dir, with_samples),
        params=models[name],
        name=name,
        record=record,
        best=best,
        parties=names,
    )


def from_result(result: Result, party: Party | None, best: bool) -> Artifact:
    """Return a model from the result of a run."""
    models: State
    if best:
        _check_best(result.experiment)
        models, record = _best_models(result.rounds, result.chosen_models)
    else:
        models, record = result.models, result.rounds[-1]
    name = _model_name(models, party, result.names)
    return Artifact(
        experiment=result.experiment,
        blueprint=result.blueprint,
        params=models[name],
        name=name,
        record=record,
        best=best,
        parties=result.names,
    )


def _saved_models(exp: Experiment, saved: Checkpoint) -> State:
    """Return the models of a checkpoint; tensors of the parties are read when they are needed."""
    models = deployed(exp, saved.server)
    if not exp.has_party_models:
        return models
    sent = saved.server.model
    complete = {}
    for i, file in saved.parties.items():
        if file.path is not None:  # otherwise it is at a Flower site
            state = stored_state(file.path)
            own = stored_tensors(exp, state)
            if own:
                complete[party_model_name(i)] = join(sent, own)
    if SHARED in models:
        return complete or models
    return {**models, **complete}


def _check_best(exp: Experiment) -> None:
    """Refuse the selected round of the parties' models: only the newest states are stored."""
    if exp.personal is not None:
        raise InputError(
            f"--best (best=True) is not available with personal={exp.personal}: of the personal "
            "tensors only those of the last round are stored; omit it"
        )
    if has_own_model(exp.algorithm):
        raise InputError(
            f"--best (best=True) is not available with {exp.algorithm.label}: the parties' own "
            "models select the round, and only those of the last round are stored; omit it"
        )


def _best_models(records: list[RoundRecord], models: State | None) -> tuple[State, RoundRecord]:
    """Return the models of the round that is best on the validation samples, and its record."""
    record = selected_round(records)
    if record is None or models is None:
        raise InputError(
            "this run selected no round, because it had no validation samples (validation=SHARE); "
            "omit --best (best=True) for the model of the last round"
        )
    return models, record


def _notify_if_best_differs(run: Path) -> None:
    """Notify the user if best.safetensors is not the selected model, which is in the checkpoint.

    It was changed, or the run was killed between writing the file and its checkpoint.
    """
    try:
        check_run(run, (BEST,))
    except InputError as error:
        notify(f"moonfl: {error}; the export is of the selected model in {run / CHECKPOINT}")


def _model_name(models: State, party: Party | None, names: tuple[str, ...]) -> str:
    """Return the name of the requested model; `names` are those of the parties, if any."""
    if SHARED in models:
        raise InputError(
            "the sites of this run keep a part of the model, which is not in the run directory; "
            "there is no complete model to export"
        )
    if GLOBAL in models and party is None:
        return GLOBAL
    if models.keys() == {GLOBAL}:
        raise InputError(
            f"this run has only a global model, got party {party}; omit --party (party=)"
        )
    number = _party_number(party, names)
    name = None if number is None else party_model_name(number)
    if name is None or name not in models:
        numbers = sorted(i for model in models if (i := party_of_model(model)) is not None)
        allowed = ", ".join(numbered_name(k, names) for k in numbers)
        requested = "none" if party is None else party
        raise InputError(
            f"every party of this run has its own model: "
            f"--party (party=) must be one of {allowed}, got {requested}"
        )
    return name


def _party_number(party: Party | None, names: tuple[str, ...]) -> int | None:
    """Return the number of a party that is given by its name or number, or None.

    A text is a name first: parties may be named by numbers of their own, such as "3" and "7".
    """
    if not isinstance(party, str):
        return party
    if party in names:
        return names.index(party)
    try:
        return parse_int(party)
    except ValueError:
        return None


def _blueprint(run: Path, exp: Experiment, data_dir: str | None, with_samples: bool) -> Blueprint:
    """Return the network of a run, from partition.json and, if they can be read, the data."""
    path = run / PARTITION
    partition = read_partition(run)
    # The samples of a run over Flower sites are described by each site.
    sample: PartitionRecord | SiteRecord = partition.sites[0] if partition.sites else partition
    classes = tuple(partition.classes)
    needs_data = with_samples or sample.shape is None
    data = _read_data(exp, data_dir) if needs_data else None
    if sample.shape is None or sample.dtype is None:
        sample_type = _sample_type(data, path)
    else:
        sample_type = (tuple(sample.shape), parse_dtype(sample.dtype))
        if data is not None and sample_type[1].is_floating_point:
            data = data.with_dtype(sample_type[1])
    if data is not None and (_sample_type(data, path), data.classes) != (sample_type, classes):
        notify(
            f"moonfl: {exp.dataset} has changed since {run} began, "
            "so the export is checked on random inputs"
        )
        data = None
    shape, dtype = sample_type
    if data is not None:
        preparation = data.preparation
    else:
        preparation = preparation_of(exp.dataset, dtype, len(shape))
    features = tuple(sample.features or ())
    if partition.encoding is not None:
        encoding = from_record(partition.encoding)
        preparation = replace(preparation, encoding=encoding)
        features = tuple(column.name for column in encoding.columns)
    input_shape = preparation.input_shape(shape)
    return Blueprint(
        build=in_float32(make_builder(exp, input_shape, dtype, len(classes)).build),
        shape=shape,
        dtype=dtype,
        classes=classes,
        preparation=preparation,
        samples=None if data is None else _samples(data, preparation.encoding),
        features=features,
        task=exp.task,
    )


def _samples(data: Dataset, encoding: Encoding | None) -> Tensor | Images:
    """Return samples of the data to check an export on, as the model takes them."""
    x = (data.test or data.train).x
    if encoding is None or data.table is None or isinstance(x, Images):
        return x
    return recode(x[:SAMPLES], data.table, encoding)


def _read_data(exp: Experiment, data_dir: str | None) -> Dataset | None:
    """Read the data of a run, or return None if they are not on this machine."""
    try:
        return load(exp.dataset, directory(data_dir or exp.data_dir), exp.reading)
    except (InputError, OSError) as error:
        notify(
            "moonfl: the data of the run cannot be read, "
            f"so the export is checked on random inputs: {error}"
        )
        return None


def _sample_type(data: Dataset | None, path: Path) -> SampleType:
    """Return shape and dtype of a sample of the data."""
    if data is None:
        raise InputError(
            f"{path} was written by a version that did not store the shape of a sample, and the "
            "data of the run cannot be read; --data-dir DIR sets their location"
        )
    return tuple(data.train.x.shape[1:]), data.train.x.dtype
