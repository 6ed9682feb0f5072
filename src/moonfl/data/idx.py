"""IDX files, the format of MNIST: a header with the shape, then bytes; plain or gzipped."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .compression import gunzip
from .locations import check_file, find_file

UNSIGNED_BYTE = 8  # the code of the type in the header
GZIP = b"\x1f\x8b"  # the first bytes of a gzipped file


def read_idx(folder: Path, name: str, dimensions: int) -> NDArray[np.uint8]:
    """Read the array in a file of this name, or of this name with .gz."""
    path = find_file(folder, name, ("", ".gz"))
    if path is None:
        raise InputError(f"{folder / name} is missing, and so is {name}.gz")
    content = _read(path)
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise InputError(
            f"{path} is not an IDX file of bytes with {dimensions} dimensions: its first bytes are "
            f"{content[:4].hex(' ') or 'missing'}"
        )
    shape = [int(size) for size in np.frombuffer(content, dtype=">u4", count=dimensions, offset=4)]
    if len(content) - header != math.prod(shape):
        raise InputError(
            f"{path} should have {math.prod(shape)} values of shape {shape}, but has "
            f"{len(content) - header}; download it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()


def _read(path: Path) -> bytes:
    """Read a file and decompress it if it is gzipped, whatever its name."""
    check_file(path)
    try:
        content = path.read_bytes()
        return gunzip(content) if content.startswith(GZIP) else content
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}); download it again") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
