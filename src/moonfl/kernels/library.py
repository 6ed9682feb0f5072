"""Native CPU code where it was built, torch everywhere else. Nothing outside this folder assumes a CPU.

The environment variable MOONFL_KERNELS says what to use at most: avx512 (the default, so the best this processor has),
avx2, base, or torch.
"""

import ctypes
import functools
import os
import warnings
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from ..errors import unknown

SETS = {16: "avx512", 8: "avx2", 4: "base"}  # instruction sets by the floats in a register
VERSION = 3  # of the functions declared here; native.c has the same number
PTR, I64, INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


@functools.cache
def library() -> ctypes.CDLL | None:
    """The native library with its functions declared; None where there is none or torch is asked for."""
    most = os.environ.get("MOONFL_KERNELS", "avx512")
    if most not in (*SETS.values(), "torch"):
        raise unknown("value of MOONFL_KERNELS", most, [*SETS.values(), "torch"])
    paths = [Path(__file__).with_name("_native" + suffix) for suffix in EXTENSION_SUFFIXES]
    found = next((path for path in paths if path.exists()), None)
    if most == "torch" or found is None:
        return None
    try:
        native = ctypes.CDLL(str(found))
        version = native.moonfl_version()
    except (OSError, AttributeError):
        version = None
    if version != VERSION:
        warnings.warn(
            f"{found} is of another version or machine and is not used; install moonfl again",
            stacklevel=2,
        )
        return None
    native.moonfl_choose.argtypes = [ctypes.c_char_p]
    native.moonfl_chain_forward.argtypes = [PTR, I64, PTR, I64]
    native.moonfl_chain_backward.argtypes = [PTR, I64, PTR, I64, PTR, PTR, I64]
    native.moonfl_batch.argtypes = [PTR] * 6 + [I64, INT, INT]
    native.moonfl_batch.restype = None
    native.moonfl_multiply_add.argtypes, native.moonfl_multiply_add.restype = [I64], ctypes.c_float
    native.moonfl_choose(most.encode())
    return native


def in_use() -> str:
    """What is used: avx512, avx2, base or torch."""
    native = library()
    return "torch" if native is None else SETS[native.moonfl_lanes()]
