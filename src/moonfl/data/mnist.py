"""MNIST, Fashion-MNIST and EMNIST: grey images of 28x28 pixels in IDX files.

- LeCun, Bottou, Bengio, Haffner, Gradient-Based Learning Applied to Document Recognition, 1998.
- Xiao, Rasul, Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
  Algorithms, 2017. https://arxiv.org/abs/1708.07747
- Cohen, Afshar, Tapson, van Schaik, EMNIST: an Extension of MNIST to Handwritten Letters, 2017.
  https://arxiv.org/abs/1702.05373
"""

import string
from pathlib import Path

import numpy as np
import torch

from ..errors import InputError
from .augment import Preparation
from .base import Dataset, Examples
from .idx import read_idx

MNIST = Preparation(mean=(0.1307,), std=(0.3081,))  # mean and std of the training pixels
FASHION_MNIST = Preparation(mean=(0.2860,), std=(0.3530,))
EMNIST = MNIST  # its characters were converted to the format of MNIST
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
DIGITS = tuple(string.digits)
FASHION_CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
MERGED = (*DIGITS, *string.ascii_uppercase, *"abdefghnqrt")  # the other letters look like capitals
EMNIST_CLASSES = {
    "balanced": MERGED,
    "bymerge": MERGED,
    "byclass": (*DIGITS, *string.ascii_uppercase, *string.ascii_lowercase),
    "digits": DIGITS,
    "letters": tuple(string.ascii_uppercase),
    "mnist": DIGITS,
}
EMNIST_SPLIT = "balanced"  # the default


def read_mnist(folder: Path) -> Dataset:
    """Read MNIST from its four files."""
    return _read(folder, IDX_FILES, DIGITS, MNIST)


def read_fashion_mnist(folder: Path) -> Dataset:
    """Read Fashion-MNIST from its four files, which have the names of MNIST's."""
    return _read(folder, IDX_FILES, FASHION_CLASSES, FASHION_MNIST)


def read_emnist(folder: Path, split: str | None) -> Dataset:
    """Read a split of EMNIST.

    Its files hold transposed images. The labels of the letters start at 1.
    """
    split = split or EMNIST_SPLIT
    files = emnist_files(split)
    first = 1 if split == "letters" else 0
    data = _read(folder, files, EMNIST_CLASSES[split], EMNIST, first_label=first)
    return Dataset(
        train=_transpose(data.train),
        test=None if data.test is None else _transpose(data.test),
        classes=data.classes,
        preparation=data.preparation,
    )


def emnist_files(split: str) -> tuple[str, ...]:
    """Return the names of the files of a split: training and test images and labels."""
    return tuple(
        f"emnist-{split}-{part}-{content}-ubyte"
        for part in ("train", "test")
        for content in ("images-idx3", "labels-idx1")
    )


def _transpose(examples: Examples) -> Examples:
    x = examples.x
    assert isinstance(x, torch.Tensor)
    return Examples(x.transpose(2, 3).contiguous(), examples.y)


def _read(
    folder: Path,
    files: tuple[str, ...],
    classes: tuple[str, ...],
    preparation: Preparation,
    *,
    first_label: int = 0,
) -> Dataset:
    """Read training images and labels, then test images and labels, from four files."""
    train = _read_examples(folder, files[0], files[1], len(classes), first_label)
    test = _read_examples(folder, files[2], files[3], len(classes), first_label)
    return Dataset(train=train, test=test, classes=classes, preparation=preparation)


def _read_examples(
    folder: Path, images: str, labels: str, classes: int, first_label: int
) -> Examples:
    """Return images [N, 1, H, W] and labels from 0."""
    x = read_idx(folder, images, 3)
    y = read_idx(folder, labels, 1).astype(np.int64) - first_label
    if len(x) != len(y):
        raise InputError(
            f"{folder} has {len(x)} images in {images}, but {len(y)} labels in {labels}"
        )
    if len(y) > 0 and not 0 <= y.min() <= y.max() < classes:
        raise InputError(
            f"{folder / labels} must hold labels from {first_label} to "
            f"{classes - 1 + first_label}, it has {y.min() + first_label} to "
            f"{y.max() + first_label}"
        )
    return Examples(torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y))
