"""Small files in the formats of MNIST, Fashion-MNIST, EMNIST and SVHN."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.io import savemat

from moonfl.data.mnist import IDX_FILES


def idx(values: np.ndarray) -> bytes:
    """Return the content of an IDX file."""
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    return header + values.astype(np.uint8).tobytes()


def plain(content: bytes) -> bytes:
    return content


def write_idx(
    folder: Path,
    files: tuple[str, ...] = IDX_FILES,
    *,
    labels: range = range(10),
    pack: Callable[[bytes], bytes] = plain,
    suffix: str = "",
) -> np.ndarray:
    """Write 60 training and 20 test images of 28x28, and return the training images."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    train, test = (rng.integers(0, 256, (n, 28, 28), dtype=np.uint8) for n in (60, 20))
    contents = []
    for images in (train, test):
        y = np.array(labels)[np.arange(len(images)) % len(labels)]
        contents += [idx(images), idx(y)]
    for name, content in zip(files, contents, strict=True):
        (folder / f"{name}{suffix}").write_bytes(pack(content))
    return train


def write_svhn(folder: Path) -> np.ndarray:
    """Write files in the layout of SVHN, and return the training images."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, n in (("test", 20), ("train", 60)):
        images = rng.integers(0, 256, (32, 32, 3, n), dtype=np.uint8)
        labels = (np.arange(n) % 10 + 1).astype(np.uint8).reshape(n, 1)
        savemat(folder / f"{name}_32x32.mat", {"X": images, "y": labels}, do_compression=True)
    return images
