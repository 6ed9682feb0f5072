"""moonfl.predict: classes, numbers or labels of new samples, from raw data."""

import copy
import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ..data.arrays import make_samples
from ..data.augment import is_pixels
from ..data.base import Reading
from ..data.columns import (
    MAX_LISTED,
    RawTable,
    encode_cells,
    frame_table,
    is_frame,
    read_columns,
    rules_of,
)
from ..data.folder import find_images
from ..data.images import Images
from ..data.npz import read_samples
from ..data.tables import read_cells
from ..data.targets import MULTILABEL, REGRESSION
from ..errors import InputError, first_names, notify
from ..exports.source import from_directory, from_result
from ..exports.weights import load_model
from ..numerics import standard_settings
from ..objectives.table import make_objective
from ..runs.index import SETTINGS
from ..runs.recovery import IN_PYTHON, recovery_hints
from ..runs.result import Result
from ..seeds import one_thread
from ..trained_model import TrainedModel
from .user_data import array_of

BATCH = 500  # samples that are predicted at a time
THRESHOLD = 0.5  # a label with a larger probability is predicted


@dataclass(frozen=True)
class Predictions:
    """Predictions for samples: a class, numbers, or labels that are 0 or 1."""

    task: str  # "classification", "regression" or "multilabel"
    classes: tuple[str, ...]  # names of the columns of `values`: classes, targets or labels
    values: NDArray[np.floating]  # [samples, classes]: probabilities; of a regression numbers
    kind: str  # what `rows` are: "line" of a table, "row" of a data frame, "file", or "sample"
    rows: tuple[str, ...]

    @property
    def probabilities(self) -> NDArray[np.floating]:
        """Return the probability of each class or label, [samples, classes]."""
        if self.task == REGRESSION:
            raise InputError("a regression has no probabilities; use `values`")
        return self.values

    @property
    def labels(self) -> list[str]:
        """Return the most probable class of each sample."""
        if self.task == REGRESSION:
            raise InputError("a regression has no classes; use `values`")
        if self.task == MULTILABEL:
            raise InputError("with task=multilabel a sample has any number of labels; use `flags`")
        return [self.classes[k] for k in self.values.argmax(axis=1)]

    @property
    def flags(self) -> NDArray[np.bool_]:
        """Return which labels each sample has, with task=multilabel: a probability above 0.5."""
        if self.task != MULTILABEL:
            raise InputError(f"`flags` belongs to task=multilabel; this model has task={self.task}")
        return self.values > THRESHOLD

    def to_csv(self) -> str:
        """Return a table with one line per sample.

        It has the class and its probability; or each target; or each label, 0 or 1, and its
        probability.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        header, lines = self._cells()
        writer.writerow([self.kind, *header])
        for row, cells in zip(self.rows, lines, strict=True):
            writer.writerow([row, *cells])
        return text.getvalue()

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and the cells of each sample."""
        if self.task == REGRESSION:  # the shortest text that is read as the same number
            return list(self.classes), [[str(value) for value in row] for row in self.values]
        if self.task == MULTILABEL:
            header = [text for name in self.classes for text in (name, f"{name} probability")]
            return header, [_label_cells(*row) for row in zip(self.flags, self.values, strict=True)]
        highest = [f"{probability:.6f}" for probability in self.values.max(axis=1)]
        cells = [list(pair) for pair in zip(self.labels, highest, strict=True)]
        return ["class", "probability"], cells


def _label_cells(flags: NDArray[np.bool_], probabilities: NDArray[np.floating]) -> list[str]:
    """Return 0 or 1 and the probability of each label of a sample."""
    cells = []
    for flag, probability in zip(flags, probabilities, strict=True):
        cells += [str(int(flag)), f"{probability:.6f}"]
    return cells


@standard_settings()
def predict(
    model: TrainedModel | Result | str | Path,
    data: Any,
    *,
    party: int | str | None = None,
    best: bool = False,
    trust: bool = False,
) -> Predictions:
    """Return predictions for new samples.

    - `model`: a result, a trained model, a run directory, or the folder of an export.
    - `data`: a .csv or .npz file, a folder of images, a data frame, or an array of samples.
    - `party`: the number or name of the party whose model is used, if every party has its own.
    - `best`: use the round with the best result on the validation samples instead of the last.
    - `trust`: execute the method or model that a run directory names, if it is not part of moonfl.

    Columns of a table are found by name; columns that the model does not use are ignored.
    """
    trained = find_model(model, party=party, best=best, trust=trust)
    kind, rows, samples = read_input(trained, data)
    objective = make_objective(trained.task)
    parts = []
    with torch.no_grad(), one_thread():
        for numbers in torch.arange(len(rows)).split(BATCH):
            parts.append(objective.predict(trained(samples[numbers]).logits))
    return Predictions(
        task=trained.task,
        classes=trained.classes,
        values=torch.cat(parts).numpy(),
        kind=kind,
        rows=tuple(rows),
    )


def find_model(
    model: TrainedModel | Result | str | Path, *, party: int | str | None, best: bool, trust: bool
) -> TrainedModel:
    """Return the trained model on the CPU."""
    if isinstance(model, TrainedModel):
        return copy.deepcopy(model).cpu().eval()  # the caller's model stays as it is
    if isinstance(model, Result):
        artifact = from_result(model, party, best)
    elif not isinstance(model, str | os.PathLike):
        raise InputError(
            "the model must be a result, a trained model, a run directory or the folder of an "
            f"export, got {model!r}"
        )
    elif (Path(model) / SETTINGS).exists():
        with recovery_hints(IN_PYTHON, model):
            artifact = from_directory(
                Path(model), party, best, None, trust=trust, with_samples=False
            )
    else:
        if not Path(model).exists():
            raise InputError(
                f"{model} does not exist; pass a run directory, the folder of an export, or its "
                "model.safetensors"
            )
        if party is not None or best:
            raise InputError(f"{model} is not a run directory; omit --party and --best")
        return load_model(model)
    return artifact.blueprint.deployed(artifact.params).cpu()


def read_input(model: TrainedModel, data: Any) -> tuple[str, list[str], Tensor | Images]:
    """Return what rows are called, their names, and the samples as the model takes them."""
    if isinstance(data, str | Path):
        return _read_path(model, Path(data))
    if is_frame(data):
        if not model.features:
            raise InputError(
                "this model was trained on arrays, got a data frame; pass frame.to_numpy(), with "
                "the columns in the order of the training samples"
            )
        table = frame_table(data, "the data frame")
        return "row", [str(k) for k in range(table.rows)], _rows_of_table(model, table)
    samples = _as_stored(model, _array_of(data), "the array")
    return "sample", [str(k) for k in range(len(samples))], samples


def _array_of(data: Any) -> NDArray[Any]:
    """Return samples that are a tensor, an array, or nested lists of numbers, as an array."""
    if isinstance(data, Dataset) or (isinstance(data, tuple) and len(data) == 2):
        raise InputError(
            f"the samples are predicted without labels, got {type(data).__name__}; pass x alone"
        )
    values = array_of("the samples", data)
    if values.ndim < 2:
        raise InputError(
            f"the samples must be a path, a data frame or an array [N, ...], got "
            f"{type(data).__name__} {list(values.shape)}"
        )
    return values


def _read_path(model: TrainedModel, path: Path) -> tuple[str, list[str], Tensor | Images]:
    """Read a table, a file of arrays, or a folder of images."""
    if path.is_dir():
        return _read_images(model, path)
    if path.suffix.lower() == ".npz":
        samples = _as_stored(model, read_samples(path), f"{path}: x")
        return "sample", [str(k) for k in range(len(samples))], samples
    if not model.features:
        raise InputError(
            f"{path}: this model was not trained on a table; it takes an .npz file or a folder of "
            "images"
        )
    cells = read_cells(path)
    table = cells.features(list(cells.header))
    return "line", [str(line) for line in cells.lines], _rows_of_table(model, table)


def _rows_of_table(model: TrainedModel, table: RawTable) -> Tensor:
    """Return the rows of a table as the model takes them; other columns are ignored."""
    missing = [name for name in model.features if name not in table.cells]
    if missing:
        raise InputError(
            f"{table.location} lacks the column{'s' if len(missing) > 1 else ''} "
            f"{', '.join(missing)}; the model was trained on {', '.join(model.features)}"
        )
    _notify_ignored(table, [name for name in table.cells if name not in model.features])
    if model.encoding is not None:
        rows = encode_cells(table, model.encoding)
    else:
        _, (rows,) = read_columns([table], model.features, rules_of(Reading()))
    return _with_dtype(model, torch.from_numpy(rows))


def _notify_ignored(table: RawTable, names: Sequence[str]) -> None:
    """Notify the user of columns that the model does not use."""
    if names:
        ignored = first_names([name or "one without a name" for name in names], MAX_LISTED)
        notify(f"moonfl: {table.location}: columns that the model does not use: {ignored}")


def _read_images(model: TrainedModel, folder: Path) -> tuple[str, list[str], Images]:
    """Return the images of a folder and of the folders in it."""
    if not is_pixels(model.dtype, len(model.shape)):
        raise InputError(f"{folder} is a folder; this model does not take images")
    paths = find_images(folder)
    size = (model.shape[1], model.shape[2])
    images = Images(paths, size, resize=True)
    images.check()
    if tuple(images.shape[1:]) != model.shape:
        raise InputError(f"this model takes samples of shape {list(model.shape)}, not RGB images")
    return "file", [str(path.relative_to(folder)) for path in paths], images


def _checked(model: TrainedModel, values: NDArray[Any], location: str) -> Tensor:
    """Return an array as a tensor after checking it; NaN is missing if the model imputes values."""
    if model.encoding is not None and values.dtype.kind == "f":
        make_samples(location, np.where(np.isnan(values), 0, values), integers=False)
        return torch.from_numpy(values.astype(np.float64))
    takes_integers = model.dtype == torch.int64
    return make_samples(location, values, integers=takes_integers and values.dtype.kind != "f")


def _as_stored(model: TrainedModel, array: NDArray[Any], location: str) -> Tensor:
    """Return an array with the type of the model's samples; other shapes are refused."""
    values = _checked(model, array, location)
    if tuple(values.shape[1:]) != model.shape or len(values) == 0:
        raise InputError(
            f"the model takes samples of shape {list(model.shape)}, got an array "
            f"{list(values.shape)}"
        )
    if values.dtype != model.dtype and model.dtype == torch.uint8:
        raise InputError(f"the model takes pixels of type uint8, got {values.dtype}")
    if values.dtype == torch.uint8 and model.dtype != torch.uint8:
        raise InputError(
            f"the model was trained on {str(model.dtype).removeprefix('torch.')} samples, got "
            "pixels of type uint8; convert them like the training samples"
        )
    return _with_dtype(model, values)


def _with_dtype(model: TrainedModel, values: Tensor) -> Tensor:
    """Return values with the dtype of the model's samples; token ids must not be fractions."""
    if model.dtype == torch.int64 and not torch.equal(values, values.round()):
        raise InputError("the model takes integers, got floats with a fraction")
    return values.to(model.dtype)
