"""The global settings of torch and numpy that moonfl computes with.

A user may have changed them: the default dtype or device, gradients, inference mode, autocast and
so on. `standard_settings` sets what a run needs and restores the user's values afterwards, so that
results are bit-identical to those under the defaults. The number of threads is not among them:
`seeds.one_thread` sets it where it would change a result.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from . import seeds

NUMPY_ERRORS: Any = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


class _ProcessSettings:
    """Settings of the whole process: the first thread that needs them sets them.

    The last thread that leaves restores the user's values.
    """

    def __init__(self) -> None:
        self.users = 0
        self.stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def standard(self) -> Iterator[None]:
        with seeds.exclusive():
            if self.users == 0:
                self._set()
            self.users += 1
        try:
            yield
        finally:
            with seeds.exclusive():
                self.users -= 1
                if self.users == 0:
                    self.stack.close()

    def _set(self) -> None:
        restore = self.stack.callback
        restore(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        precision = torch.get_float32_matmul_precision()
        if precision != "highest":
            restore(torch.set_float32_matmul_precision, precision)
            torch.set_float32_matmul_precision("highest")
        is_deterministic = torch.are_deterministic_algorithms_enabled()
        if is_deterministic and not torch.cuda.is_available():  # on a GPU it repeats results
            warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
            restore(torch.use_deterministic_algorithms, True, warn_only=warn_only)
            torch.use_deterministic_algorithms(False)
        if torch.backends.mkldnn.is_available() and not torch.backends.mkldnn.enabled:
            restore(_enable_mkldnn, False)
            _enable_mkldnn(True)


def _enable_mkldnn(enabled: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this machine has no GPU of Intel
        torch.backends.mkldnn.set_flags(enabled)


_process = _ProcessSettings()


@contextlib.contextmanager
def standard_settings() -> Iterator[None]:
    """Compute with torch's and numpy's default settings inside this block or function."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_process.standard())
        if torch.get_default_device() != torch.device("cpu"):  # the context slows every call
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(np.errstate(**NUMPY_ERRORS))
        stack.enter_context(_denormals())
        yield


@contextlib.contextmanager
def _denormals() -> Iterator[None]:
    """Compute with denormal numbers, which torch.set_flush_denormal(True) replaces by 0."""
    is_flushed = float(torch.tensor(1e-310, dtype=torch.float64) * 1.0) == 0.0
    if is_flushed:
        torch.set_flush_denormal(False)
    try:
        yield
    finally:
        if is_flushed:
            torch.set_flush_denormal(True)
