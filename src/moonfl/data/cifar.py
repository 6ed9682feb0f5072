"""CIFAR-10 and CIFAR-100 in their publisher's layout: Python pickles of uint8 rows.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. https://www.cs.toronto.edu/~kriz/cifar.html
"""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InputError, first_line
from .augment import Preparation
from .base import Dataset, Examples
from .locations import check_file

# Normalisation and augmentation as in the authors' code.
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
    """Stand in for _codecs.encode, with which Python 3 writes bytes in protocol 2."""
    return text.encode("latin1")


def empty_array(kind: object, shape: object, dtype: object) -> NDArray[np.generic]:
    """Stand in for numpy's _reconstruct; the state that follows has shape, dtype and values."""
    return np.empty(0, dtype=np.uint8)


class PlainUnpickler(pickle.Unpickler):
    """An unpickler for arrays and plain containers only, so that a file cannot run code."""

    ALLOWED: ClassVar = {
        ("numpy.core.multiarray", "_reconstruct"): empty_array,
        ("numpy._core.multiarray", "_reconstruct"): empty_array,
        ("_codecs", "encode"): latin1,
        ("numpy", "ndarray"): "ndarray",  # an argument only: calling it could fill the memory
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class or function."""
        try:
            return self.ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it contains {module}.{name}, which is not allowed"
            ) from None


def read_pickle(path: Path) -> dict[str, Any]:
    """Read the dictionary in a pickle file; keys become strings."""
    if not path.exists():
        raise InputError(f"{path} is missing; download it with `moonfl data get`")
    check_file(path)
    try:
        data = path.read_bytes()
        _check_memo(data)
        content = PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
        return {_text(key): value for key, value in content.items()}
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise InputError(
            f"{path} is not a CIFAR file ({first_line(error)}); download it again with "
            "`moonfl data get`"
        ) from None


def _check_memo(data: bytes) -> None:
    """Refuse a pickle that stores an object under a huge number, for which memory is reserved."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name.endswith("PUT") and int(argument or 0) > len(data):
            raise pickle.UnpicklingError(f"it stores an object under the number {argument}")


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def read_examples(
    paths: list[Path], label: str, classes: int
) -> tuple[Examples, list[dict[str, Any]]]:
    """Return the images [N, 3, 32, 32] and labels of all files, and the content of each file.

    `label` is the key of the labels.
    """
    files = [read_pickle(path) for path in paths]
    for path, file in zip(paths, files, strict=True):
        _check_file(path, file, label, classes)
    x = torch.from_numpy(np.concatenate([file["data"] for file in files])).view(-1, 3, 32, 32)
    labels: list[int] = []
    for file in files:
        labels += file[label]
    return Examples(x, torch.tensor(labels)), files


def _check_file(path: Path, file: dict[str, Any], label: str, classes: int) -> None:
    """Check that a file holds images and as many valid labels."""
    data = file.get("data")
    labels = file.get(label)
    has_images = (
        isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (3072,)
    )
    if not has_images or not isinstance(labels, list) or len(labels) != len(file["data"]):
        raise InputError(
            f"{path} does not hold uint8 rows of 3072 pixels under 'data' and as many '{label}'"
        )
    if not all(isinstance(y, int) and 0 <= y < classes for y in labels):
        raise InputError(f"{path} has '{label}' that are not integers from 0 to {classes - 1}")


def read_cifar10(folder: Path) -> Dataset:
    """Read CIFAR-10 from its six files."""
    train, _ = read_examples([folder / name for name in CIFAR10_TRAIN], "labels", 10)
    test, _ = read_examples([folder / "test_batch"], "labels", 10)
    return Dataset(train=train, test=test, classes=CIFAR10_CLASSES, preparation=CIFAR10)


def read_cifar100(folder: Path) -> Dataset:
    """Read CIFAR-100 with its fine labels; the coarse labels are a column."""
    train, files = read_examples([folder / "train"], "fine_labels", 100)
    test, _ = read_examples([folder / "test"], "fine_labels", 100)
    names = read_pickle(folder / "meta").get("fine_label_names")
    if not isinstance(names, list) or len(names) != 100:
        raise InputError(f"{folder / 'meta'} does not hold 100 'fine_label_names'")
    coarse = files[0].get("coarse_labels")
    if (
        not isinstance(coarse, list)
        or len(coarse) != len(train.y)
        or not all(isinstance(y, int) for y in coarse)
    ):
        raise InputError(
            f"{folder / 'train'} does not hold one integer per image under 'coarse_labels'"
        )
    return Dataset(
        train=train,
        test=test,
        classes=tuple(_text(name) for name in names),
        preparation=CIFAR100,
        columns={"coarse_label": np.array(coarse)},
    )
