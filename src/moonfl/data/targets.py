"""Targets of other tasks than classification: numbers of a regression, labels that are 0 or 1."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from .base import Array
from .cells import FLOAT32_MAX

CLASSIFICATION = "classification"
REGRESSION = "regression"
MULTILABEL = "multilabel"


def target_names(arrays: list[Array], task: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the targets or labels; without `names` they are numbered."""
    shape = next((array.shape for array in arrays if array.ndim > 0), (0,))
    width = 1 if len(shape) == 1 else int(shape[-1])
    if names:
        return names
    if task == REGRESSION and width == 1:
        return ("target",)
    return tuple(str(k) for k in range(width))


def make_targets(location: str, y: Array, task: str, names: tuple[str, ...]) -> Tensor:
    """Check targets and convert them to a tensor [N, targets]; `location` is for messages."""
    if y.ndim == 1 and task == REGRESSION:
        y = y.reshape(-1, 1)
    if y.ndim != 2 or y.shape[1] != len(names) or y.shape[1] == 0:
        shape = "[N] or [N, targets]" if task == REGRESSION else "[N, labels]"
        raise InputError(
            f"{location} must be {shape} with task={task} and {len(names)} names "
            f"({', '.join(names[:5])}), got {list(y.shape)}"
        )
    if y.dtype.kind not in "biuf":
        raise InputError(
            f"{location} holds {y.dtype}; task={task} needs numbers: convert the targets, or "
            "remove task for classes"
        )
    values = y.astype(np.float64)
    if task == MULTILABEL:
        return _labels(location, values)
    valid = np.isfinite(values) & (np.abs(values) <= FLOAT32_MAX)
    if not valid.all():
        row, column = np.argwhere(~valid)[0].tolist()
        raise InputError(
            f"sample {row} of {location} has the target {values[row, column]:g}; targets must be "
            "finite and fit float32: correct or remove it"
        )
    return torch.from_numpy(values)


def _labels(location: str, values: NDArray[np.float64]) -> Tensor:
    """Check that all labels are 0 or 1, and return them as float32."""
    valid = (values == 0) | (values == 1)
    if not valid.all():
        row, column = np.argwhere(~valid)[0].tolist()
        raise InputError(
            f"sample {row} of {location} has the label {values[row, column]:g}; labels of "
            "task=multilabel must be 0 or 1"
        )
    return torch.from_numpy(values.astype(np.float32))
