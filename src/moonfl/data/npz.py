"""Anybody's arrays: an .npz file with x [N, ...] and y [N]; x_test, y_test and the names of classes if there are."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InputError
from .augment import Preparation
from .base import Examples

NAMES = ("x", "y", "x_test", "y_test", "classes")
PIXELS = Preparation(mean=(0.5,), std=(0.5,))  # uint8 images to -1 ... 1
AS_STORED = Preparation(mean=(0.0,), std=(1.0,), scale=1.0)


@dataclass(frozen=True)
class Arrays:
    train: Examples
    test: Examples | None
    classes: tuple[str, ...]

    @property
    def preparation(self) -> Preparation:
        """For data of which nothing else is known."""
        return PIXELS if self.train.x.dtype == torch.uint8 else AS_STORED


def read_npz(path: Path) -> Arrays:
    found = _load(path)
    for name in ("x", "y"):
        if name not in found:
            raise InputError(f"{path} has no array '{name}'")
    if not np.issubdtype(found["y"].dtype, np.integer):
        raise InputError(f"{path}: y holds {found['y'].dtype}, not whole numbers, one a class")
    names = found.get("classes")
    if names is not None and (names.ndim != 1 or len(set(names.tolist())) != len(names) or len(names) == 0):
        raise InputError(f"{path}: classes must be a list of names, each once")
    classes = tuple(str(name) for name in names) if names is not None else numbered(found["y"])
    train = _examples(path, found, "", len(classes))
    if ("x_test" in found) != ("y_test" in found):
        raise InputError(f"{path} has one of x_test and y_test; give both or neither")
    test = _examples(path, found, "_test", len(classes)) if "x_test" in found else None
    if test is not None and (test.x.shape[1:] != train.x.shape[1:] or test.x.dtype != train.x.dtype):
        raise InputError(f"{path}: x_test is {_like(test)}, x is {_like(train)}; they must be alike")
    return Arrays(train, test, classes)


def _load(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: np.asarray(file[name]) for name in NAMES if name in file.files}
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged or foreign file raises nearly anything
        raise InputError(f"{path} is not an .npz file of plain arrays ({error})") from None


def write_npz(path: Path, train: Examples, test: Examples, classes: tuple[str, ...]) -> None:
    x, y, x_test, y_test = (tensor.numpy() for tensor in (*train, *test))
    np.savez(path, x=x, y=y, x_test=x_test, y_test=y_test, classes=np.array(classes))


def numbered(y: NDArray[np.generic]) -> tuple[str, ...]:
    whole = np.issubdtype(y.dtype, np.integer) and y.size > 0
    return tuple(str(k) for k in range(int(y.max()) + 1 if whole and y.max() < 2**20 else 0))


def _examples(path: Path, found: dict[str, NDArray[np.generic]], part: str, classes: int) -> Examples:
    x, y = found[f"x{part}"], found[f"y{part}"]
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or len(y) == 0:
        raise InputError(f"{path}: x{part} {x.shape} and y{part} {y.shape} must be [N, ...] and [N], N at least 1")
    if not np.issubdtype(y.dtype, np.integer) or not 0 <= y.min() <= y.max() < max(classes, 1):
        raise InputError(f"{path}: y{part} must hold whole numbers from 0 to {max(classes, 1) - 1}, one a class")
    if x.dtype.kind not in "biuf" or x.size == 0:
        raise InputError(f"{path}: x{part} holds {x.dtype} {list(x.shape)}, not numbers for each sample")
    pixels = x.dtype == np.uint8 and x.ndim == 4
    values = torch.from_numpy(x.copy() if pixels else x.astype(np.float32))
    if not pixels and not bool(torch.isfinite(values).all()):
        raise InputError(f"{path}: x{part} has values that are not finite")
    return Examples(values, torch.from_numpy(y.astype(np.int64)))


def _like(examples: Examples) -> str:
    return f"{examples.x.dtype} {list(examples.x.shape[1:])}"
