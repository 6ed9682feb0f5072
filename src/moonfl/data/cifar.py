"""CIFAR-10 and CIFAR-100 as their publisher lays them out: Python pickles of uint8 rows.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. https://www.cs.toronto.edu/~kriz/cifar.html
"""

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ..errors import InputError
from .augment import Preparation
from .base import Dataset, Examples

# Preparation as in the authors' runs.
CIFAR10 = Preparation(
    mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
    std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
    crop="reflect",
    flip=True,
)
CIFAR100 = Preparation(
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    crop="zero",
    flip=True,
    rotation=15.0,
)
CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
CIFAR10_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))


def latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in the old protocol."""
    return text.encode("latin1")


class PlainUnpickler(pickle.Unpickler):
    """Admits arrays and plain containers only, so that a file cannot run code."""

    ADMITTED: ClassVar = {
        ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
        ("_codecs", "encode"): latin1,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def read_pickle(path: Path) -> dict[str, Any]:
    try:
        content = PlainUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        return {
            key.decode() if isinstance(key, bytes) else str(key): value
            for key, value in content.items()
        }
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise InputError(
            f"{path} is not a CIFAR file ({error}); fetch it again with `moonfl data get`"
        ) from None


def read_examples(
    paths: list[Path], label: str, classes: int
) -> tuple[Examples, list[dict[str, Any]]]:
    """The images [N, 3, 32, 32] and the labels of the given kind, of all files together."""
    files = [read_pickle(path) for path in paths]
    for path, file in zip(paths, files, strict=True):
        data, labels = file.get("data"), file.get(label)
        pixels = (
            isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (3072,)
        )
        if not pixels or not isinstance(labels, list) or len(labels) != len(file["data"]):
            raise InputError(
                f"{path} does not hold uint8 rows of 3072 pixels under 'data' and as many '{label}'"
            )
        if not all(isinstance(y, int) and 0 <= y < classes for y in labels):
            raise InputError(
                f"{path} has '{label}' that are not whole numbers from 0 to {classes - 1}"
            )
    x = torch.from_numpy(np.concatenate([file["data"] for file in files])).view(-1, 3, 32, 32)
    return Examples(x, torch.tensor([y for file in files for y in file[label]])), files


def read_cifar10(folder: Path) -> Dataset:
    train, _ = read_examples([folder / name for name in CIFAR10_TRAIN], "labels", 10)
    test, _ = read_examples([folder / "test_batch"], "labels", 10)
    return Dataset(train, test, CIFAR10_CLASSES, CIFAR10)


def read_cifar100(folder: Path) -> Dataset:
    train, files = read_examples([folder / "train"], "fine_labels", 100)
    test, _ = read_examples([folder / "test"], "fine_labels", 100)
    names = read_pickle(folder / "meta").get("fine_label_names")
    if not isinstance(names, list) or len(names) != 100:
        raise InputError(f"{folder / 'meta'} does not hold 100 'fine_label_names'")
    classes = tuple(
        name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names
    )
    coarse = files[0].get("coarse_labels")
    if (
        not isinstance(coarse, list)
        or len(coarse) != len(train.y)
        or not all(isinstance(y, int) for y in coarse)
    ):
        raise InputError(
            f"{folder / 'train'} does not hold a whole number for each image under 'coarse_labels'"
        )
    return Dataset(train, test, classes, CIFAR100, {"coarse_label": np.array(coarse)})
