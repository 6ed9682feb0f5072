"""The native library, loaded with ctypes. Without it all computations use torch.

The environment variable MOONFL_KERNELS limits the instruction set: avx512 (the default: the best
that this CPU has), avx2, base, or torch (no native code).
"""

import ctypes
import functools
import os
import warnings
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from ..errors import unknown

SETS = {16: "avx512", 8: "avx2", 4: "base"}  # floats per register -> instruction set
VERSION = 5  # of the functions declared here; native.c has the same number
PTR = ctypes.c_void_p
I64 = ctypes.c_int64
INT = ctypes.c_int


@functools.cache
def library() -> ctypes.CDLL | None:
    """Load the native library and select the instruction set; None: use torch."""
    limit = os.environ.get("MOONFL_KERNELS", "avx512")
    if limit not in (*SETS.values(), "torch"):
        raise unknown("value of MOONFL_KERNELS", limit, [*SETS.values(), "torch"])
    path = _library_path()
    if limit == "torch" or path is None:
        return None
    try:
        native = ctypes.CDLL(str(path))
        version = native.moonfl_version()
    except (OSError, AttributeError):
        version = None
    if version != VERSION:
        warnings.warn(
            f"{path} was built for another version or machine, so training uses torch; "
            "reinstall moonfl",
            stacklevel=2,
        )
        return None
    _declare(native)
    native.moonfl_choose(limit.encode())
    return native


def _library_path() -> Path | None:
    """Return the path of the compiled library, or None if it was not built."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name("_native" + suffix)
        if path.exists():
            return path
    return None


def _declare(native: ctypes.CDLL) -> None:
    """Declare the types of the parameters and results of all functions."""
    native.moonfl_choose.argtypes = [ctypes.c_char_p]
    native.moonfl_chain_forward.argtypes = [PTR, I64, PTR, I64]
    native.moonfl_chain_backward.argtypes = [PTR, I64, PTR, I64, PTR, PTR, I64]
    native.moonfl_batch.argtypes = [PTR] * 6 + [I64, INT, INT]
    native.moonfl_batch.restype = None
    native.moonfl_rotate.argtypes = [PTR] * 7 + [I64, INT, INT]
    native.moonfl_rotate.restype = None
    native.moonfl_cosines.argtypes = [PTR, PTR, I64, I64, I64, PTR, PTR, PTR]
    native.moonfl_cosines.restype = None
    native.moonfl_cosines_backward.argtypes = [PTR, PTR, PTR, PTR, I64, I64, I64, PTR]
    native.moonfl_multiply_add.argtypes = [I64]
    native.moonfl_multiply_add.restype = ctypes.c_float


def in_use() -> str:
    """Return the instruction set in use: avx512, avx2, base or torch."""
    native = library()
    return "torch" if native is None else SETS[native.moonfl_lanes()]
