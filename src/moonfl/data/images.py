"""Images that are decoded from files on demand, as there may be more than fit into memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError

CACHE_BYTES = 256 * 2**20  # decoded pixels that a process keeps
Pixels = NDArray[np.uint8]
Cache = dict[Path, Pixels]  # decoded images by file


class Images:
    """Images uint8 [N, 3, H, W] whose rows are read from files.

    Images that fit into a cache of `CACHE_BYTES` are decoded once.
    """

    dtype = torch.uint8

    def __init__(
        self,
        paths: Sequence[Path],
        size: tuple[int, int],
        resize: bool = False,
        device: str | torch.device = "cpu",
        cache: Cache | None = None,
    ) -> None:
        """Describe images of these files; `size` is height and width.

        With `resize` images of another size are resized, otherwise refused. `cache` may be shared.
        """
        self.paths = paths
        self.size = size
        self.resize = resize
        self.device = device
        self.shape = torch.Size((len(paths), 3, *size))
        self._cache: Cache = {} if cache is None else cache

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the decoded images with these indices."""
        pixels = np.empty((len(rows), *self.shape[1:]), dtype=np.uint8)
        for i, row in enumerate(rows.tolist()):
            pixels[i] = self._read(self.paths[row])
        return torch.from_numpy(pixels).to(self.device)

    def take(self, rows: Tensor) -> "Images":
        """Return a subset that shares the cache; nothing is decoded."""
        paths = [self.paths[row] for row in rows.tolist()]
        return Images(paths, self.size, self.resize, self.device, self._cache)

    def to(self, device: str | torch.device) -> "Images":
        """Return the same images, which will be decoded to a device."""
        return Images(self.paths, self.size, self.resize, device, self._cache)

    def contents(self) -> Iterator[bytes]:
        """Yield the bytes of each file."""
        for path in self.paths:
            yield path.read_bytes()

    def _read(self, path: Path) -> Pixels:
        """Return an image from the cache or the file."""
        pixels = self._cache.get(path)
        if pixels is None:
            pixels = read_image(path, self.size, self.resize)
            if (len(self._cache) + 1) * pixels.nbytes <= CACHE_BYTES:
                self._cache[path] = pixels
        return pixels


def size_of(path: Path) -> tuple[int, int]:
    """Read height and width from the header of an image file.

    Pixels of more than 8 bits are refused, because their values would be clipped.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            height = image.height
            width = image.width
            mode = image.mode
    except Exception as error:  # a damaged image raises nearly anything
        raise InputError(f"{path} is not a readable image: {error}") from None
    if mode.startswith(("I", "F")):
        raise InputError(
            f"{path} has pixels of more than 8 bits (mode {mode}); scale them to 0 ... 255, "
            "or use an .npz file"
        )
    return height, width


def read_image(path: Path, size: tuple[int, int], resize: bool = False) -> Pixels:
    """Read an image as [3, H, W]; a grey image gets three equal channels."""
    from PIL import Image

    height, width = size
    try:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
            if resize and rgb.size != (width, height):
                rgb = rgb.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(rgb)
    except Exception as error:  # a damaged image raises nearly anything
        raise InputError(f"{path} is not a readable image: {error}") from None
    if pixels.shape != (height, width, 3):
        raise wrong_size(path, pixels.shape[:2], size)
    return pixels.transpose(2, 0, 1)


def wrong_size(path: Path, actual: tuple[int, ...], expected: tuple[int, ...]) -> InputError:
    """Return the error for an image whose height and width are not the expected ones."""
    return InputError(f"{path} has {actual[1]}x{actual[0]} pixels, not {expected[1]}x{expected[0]}")
