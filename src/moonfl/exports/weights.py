"""model.safetensors: weights and buffers by name, and a header that can rebuild the network."""

import os
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save

from .. import tree
from ..data.augment import Preparation
from ..data.encoding import from_record
from ..data.locations import check_file
from ..errors import InputError, first_line
from ..experiment import CUSTOM_DATA, CUSTOM_MODEL, Experiment, to_dict
from ..models.encoders import ModelSource
from ..numerics import standard_settings
from ..runs.index import MACHINE_SETTINGS
from ..runs.schema import EncodingRecord, Record, decode, encode
from ..task import make_builder
from ..trained_model import Blueprint, TrainedModel
from ..types import Params
from .artifact import WEIGHTS, Artifact, is_custom

KEY = "moonfl"  # of the header; one key with one JSON text, so that equal models are equal files
NETWORK_SETTINGS = (
    "model",
    "head",
    "out_dim",
    "standardise",
    "task",
)  # settings that define the network


class PreparationRecord(Record):
    """How pixels are normalised: (x / scale - mean) / std, per channel."""

    mean: list[float]
    std: list[float]
    scale: float


class Header(Record):
    """The header of model.safetensors."""

    version: str  # of moonfl
    name: str  # "global", or "party0", "party1", ...
    round: int
    experiment: dict[str, Any]
    shape: list[int]  # of a stored sample
    dtype: str
    classes: list[str]
    preparation: PreparationRecord
    features: list[str] | None = None  # column names of a table
    encoding: EncodingRecord | None = None  # of a table with categories or missing values


def write_weights(path: Path, artifact: Artifact) -> None:
    """Write model.safetensors."""
    blueprint = artifact.blueprint
    preparation = blueprint.preparation
    settings = to_dict(artifact.experiment)
    for key in MACHINE_SETTINGS:
        settings.pop(key, None)
    header = Header(
        version=metadata.version("moonfl"),
        name=artifact.name,
        round=artifact.record.round,
        experiment=settings,
        shape=list(blueprint.shape),
        dtype=str(blueprint.dtype),
        classes=list(blueprint.classes),
        preparation=PreparationRecord(
            mean=list(preparation.mean), std=list(preparation.std), scale=preparation.scale
        ),
        features=list(blueprint.features) or None,
        encoding=None if preparation.encoding is None else preparation.encoding.to_record(),
    )
    content = save(dict(tree.copy(artifact.params)), {KEY: encode(header)})
    path.write_bytes(content)  # a file that safetensors creates is readable by its owner only


@standard_settings()
def load_model(path: str | Path, model: ModelSource | None = None) -> TrainedModel:
    """Load an exported model in eval mode. It takes samples as they are stored.

    `path` is the folder of an export or its model.safetensors. `model` is required if the network
    is user code: the module, a function that returns it, or its dotted path. Code that only the
    file names is never executed.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path must be the folder of an export or its {WEIGHTS}, got {path!r}")
    path = Path(path)
    if path.is_dir():
        path = path / WEIGHTS
    header, params = read(path)
    try:
        blueprint = _blueprint(header, model)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise damaged_file_error(path, repr(error)) from None
    _check_tensors(path, str(header.experiment.get("model")), blueprint, params)
    trained = blueprint.deployed(params)
    _check_shape(path, trained)
    return trained


def _check_shape(path: Path, model: TrainedModel) -> None:
    """Check that the network takes samples of the shape in the header."""
    try:
        with torch.no_grad():
            model(torch.zeros(1, *model.shape, dtype=model.dtype))
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise damaged_file_error(path, first_line(error)) from None


def read(path: Path) -> tuple[Header, Params]:
    """Read the header and the tensors of a file."""
    try:
        if path.exists():
            check_file(path)
        with safetensors.safe_open(path, "pt") as file:
            header = decode(file.metadata()[KEY], Header, "its header")
            names = file.keys()
            return header, {name: file.get_tensor(name).clone() for name in names}
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; pass the folder of an export, or its model.safetensors"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise damaged_file_error(path, str(error)) from None


def damaged_file_error(path: Path, reason: str) -> InputError:
    """Return the error for a file that cannot be read."""
    return InputError(f"{path} is not a model that `moonfl export` wrote, or is damaged: {reason}")


def is_export(path: Path) -> bool:
    """Return True if the file was written by an export."""
    try:
        check_file(path)
        with safetensors.safe_open(path, "pt") as file:
            return KEY in (file.metadata() or {})
    except (InputError, OSError, safetensors.SafetensorError):
        return False


def parse_dtype(name: str) -> torch.dtype:
    """Return the dtype with this name, with or without "torch."."""
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"{name} is not a dtype of torch")
    return dtype


def _blueprint(header: Header, model: ModelSource | None) -> Blueprint:
    """Return the network that a header describes; `model` replaces the one that it names."""
    settings = {key: header.experiment[key] for key in NETWORK_SETTINGS if key in header.experiment}
    if model is not None:
        settings["model"] = CUSTOM_MODEL
    elif is_custom(settings["model"]):
        raise InputError(
            f"its network ({settings['model']}) is user code, which is not in this file; "
            "pass it as load_model(path, model), or use the model.pt2 next to the file"
        )
    # Neither is part of the network, but some tasks are not possible with their defaults.
    settings |= {"dataset": CUSTOM_DATA, "partition": "iid"}
    shape = tuple(header.shape)
    dtype = parse_dtype(header.dtype)
    preparation = Preparation(
        mean=tuple(header.preparation.mean),
        std=tuple(header.preparation.std),
        scale=header.preparation.scale,
        encoding=None if header.encoding is None else from_record(header.encoding),
    )
    input_shape = preparation.input_shape(shape)
    exp = Experiment(**settings)
    network = make_builder(exp, input_shape, dtype, len(header.classes), model)
    return Blueprint(
        build=network.build,
        shape=shape,
        dtype=dtype,
        classes=tuple(header.classes),
        preparation=preparation,
        features=tuple(header.features or ()),
        task=exp.task,
    )


def _check_tensors(path: Path, model: str, blueprint: Blueprint, params: Params) -> None:
    """Check that a file has the tensors of the network."""
    network = tree.build_module(blueprint.build)
    expected = _types(tree.params_of(network) | tree.buffers_of(network))
    actual = _types(params)
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            raise InputError(f"{path} does not fit model={model}: {name} is different or missing")


def _types(params: Params) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in params.items()}
