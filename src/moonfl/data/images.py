"""Images in files, decoded when they are needed: there may be more of them than memory holds."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError

KEPT = 256 * 2**20  # bytes of decoded pixels that a process keeps
Pixels = NDArray[np.uint8]


class Images:
    """uint8 [N, 3, H, W] whose rows are read from files; what fits into `KEPT` bytes is decoded once."""

    dtype = torch.uint8

    def __init__(
        self,
        paths: Sequence[Path],
        size: tuple[int, int],
        resize: bool = False,
        device: str | torch.device = "cpu",
        kept: dict[Path, Pixels] | None = None,
    ) -> None:
        """`size`: height and width; `resize`: images of another size are brought to it, else refused."""
        self.paths, self.size, self.resize, self.device = paths, size, resize, device
        self.shape = torch.Size((len(paths), 3, *size))
        self._kept = (
            {} if kept is None else kept
        )  # shared by all that were taken from the same files

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Tensor) -> Tensor:
        pixels = np.empty((len(rows), *self.shape[1:]), dtype=np.uint8)
        for place, row in enumerate(rows.tolist()):
            pixels[place] = self._read(self.paths[row])
        return torch.from_numpy(pixels).to(self.device)

    def take(self, rows: Tensor) -> "Images":
        return Images(
            [self.paths[row] for row in rows.tolist()],
            self.size,
            self.resize,
            self.device,
            self._kept,
        )

    def to(self, device: str | torch.device) -> "Images":
        return Images(self.paths, self.size, self.resize, device, self._kept)

    def contents(self) -> Iterator[bytes]:
        """Of the files, one by one."""
        for path in self.paths:
            yield path.read_bytes()

    def _read(self, path: Path) -> Pixels:
        found = self._kept.get(path)
        if found is None:
            found = read_image(path, self.size, self.resize)
            if (len(self._kept) + 1) * found.nbytes <= KEPT:
                self._kept[path] = found
        return found


def size_of(path: Path) -> tuple[int, int]:
    """Height and width, by the file's head alone; pixels of more than a byte are refused, for they would be cut off."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            height, width, mode = image.height, image.width, image.mode
    except Exception as error:  # a damaged image raises nearly anything
        raise InputError(f"{path} is not a readable image: {error}") from None
    if mode.startswith(("I", "F")):
        raise InputError(
            f"{path} has pixels of more than 8 bits (mode {mode}); scale them to 0 ... 255, or use an .npz"
        )
    return height, width


def read_image(path: Path, size: tuple[int, int], resize: bool = False) -> Pixels:
    """[3, H, W]; a grey image gets three equal channels."""
    from PIL import Image

    height, width = size
    try:
        with Image.open(path) as image:
            coloured = image.convert("RGB")
            if resize and coloured.size != (width, height):
                coloured = coloured.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(coloured)
    except Exception as error:  # likewise
        raise InputError(f"{path} is not a readable image: {error}") from None
    if pixels.shape != (height, width, 3):
        raise wrong_size(path, pixels.shape[:2], size)
    return pixels.transpose(2, 0, 1)


def wrong_size(path: Path, found: tuple[int, ...], size: tuple[int, ...]) -> InputError:
    return InputError(f"{path} has {found[1]}x{found[0]} pixels, not {size[1]}x{size[0]}")
