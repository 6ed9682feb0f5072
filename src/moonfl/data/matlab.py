"""Numeric arrays of MATLAB 5 files, the format of SVHN.

SciPy's reader ends the process with a segmentation fault for some damaged files. This one reads
only what SVHN needs, and every size is checked against the bytes that are there.

Format: https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf
"""

import math
import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .compression import inflate

HEADER = 128  # bytes; they end with the version and the byte order
LITTLE_ENDIAN = b"\x00\x01IM"
MATRIX = 14
COMPRESSED = 15
DTYPES = {
    1: "<i1",
    2: "<u1",
    3: "<i2",
    4: "<u2",
    5: "<i4",
    6: "<u4",
    7: "<f4",
    9: "<f8",
    12: "<i8",
    13: "<u8",
}  # type of an element -> dtype of its values
CLASSES = {
    6: "<f8",
    7: "<f4",
    8: "<i1",
    9: "<u1",
    10: "<i2",
    11: "<u2",
    12: "<i4",
    13: "<u4",
    14: "<i8",
    15: "<u8",
}  # class of a matrix -> its dtype; its values may be stored in a smaller one
COMPLEX = 0x0800  # flag of a matrix
Array = NDArray[np.generic]


def read_arrays(content: bytes) -> dict[str, Array]:
    """Return the numeric arrays of a file by name; a damaged file is a ValueError."""
    if content[HEADER - 4 : HEADER] != LITTLE_ENDIAN:
        raise ValueError("it has no header of MATLAB 5")
    arrays = {}
    for kind, data in _elements(content[HEADER:]):
        if kind == COMPRESSED:
            kind, data = next(_elements(inflate(data)), (0, b""))
        if kind == MATRIX:
            name, array = _matrix(data)
            arrays[name] = array
    return arrays


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of the elements, which begin at multiples of 8 bytes."""
    start = 0
    while start + 8 <= len(content):
        kind, size = struct.unpack_from("<II", content, start)
        begin = start + 8
        if kind >> 16:  # a small element: size, type and up to 4 bytes in 8 bytes
            kind, size = kind & 0xFFFF, kind >> 16
            begin = start + 4
            if size > 4:
                raise ValueError(f"an element of 4 bytes declares {size}")
        end = begin + size
        if end > len(content):
            raise ValueError(f"an element of {size} bytes has {len(content) - begin}")
        yield kind, content[begin:end]
        start = end if kind == COMPRESSED else end + -end % 8


def _matrix(content: bytes) -> tuple[str, Array]:
    """Return name and values of a matrix: its elements are flags, shape, name and values."""
    elements = list(_elements(content))
    if len(elements) != 4:
        raise ValueError(f"a matrix has {len(elements)} elements, not 4")
    flags = _values(*elements[0])
    shape = [int(size) for size in _values(*elements[1])]
    values = _values(*elements[3])
    dtype = CLASSES.get(int(flags[0]) & 0xFF) if flags.size == 2 else None
    if dtype is None or int(flags[0]) & COMPLEX:
        raise ValueError("a matrix is not numeric")
    if min(shape, default=-1) < 0 or math.prod(shape) != values.size:
        raise ValueError(f"a matrix of shape {shape[:8]} has {values.size} values")
    return elements[2][1].decode("latin1"), values.astype(dtype).reshape(shape, order="F")


def _values(kind: int, content: bytes) -> Array:
    dtype = DTYPES.get(kind)
    if dtype is None:
        raise ValueError(f"an element has the unknown type {kind}")
    return np.frombuffer(content, dtype)
