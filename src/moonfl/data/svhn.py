"""SVHN, Street View House Numbers: RGB images of 32x32 pixels in MATLAB files.

Netzer, Wang, Coates, Bissacco, Wu, Ng, Reading Digits in Natural Images with Unsupervised Feature
Learning, 2011. http://ufldl.stanford.edu/housenumbers
"""

import string
from pathlib import Path

import numpy as np
import torch

from ..errors import InputError
from .augment import Preparation
from .base import Dataset, Examples
from .locations import check_file
from .matlab import read_arrays

PREPARATION = Preparation(
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
)
SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")


def read_svhn(folder: Path) -> Dataset:
    """Read the cropped digits; the label 10 of the files is the digit 0."""
    train, test = (_read_examples(folder / name) for name in SVHN_FILES)
    classes = tuple(string.digits)
    return Dataset(train=train, test=test, classes=classes, preparation=PREPARATION)


def _read_examples(path: Path) -> Examples:
    """Read X [32, 32, 3, N] and y [N, 1] as images [N, 3, 32, 32] and labels from 0 to 9."""
    check_file(path)
    try:
        content = read_arrays(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{path} is not a MATLAB file ({error}); download it again") from None
    x = content.get("X")
    y = content.get("y")
    if x is None or y is None or x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3) or x.ndim != 4:
        raise InputError(f"{path} does not hold bytes X [32, 32, 3, N] and labels y")
    if y.size != x.shape[3] or y.dtype.kind not in "iuf" or not np.isin(y, np.arange(1, 11)).all():
        raise InputError(
            f"{path} has {x.shape[3]} images; it must have as many labels from 1 to 10"
        )
    pixels = np.ascontiguousarray(x.transpose(3, 2, 0, 1))
    labels = y.ravel().astype(np.int64) % 10
    return Examples(torch.from_numpy(pixels), torch.from_numpy(labels))
