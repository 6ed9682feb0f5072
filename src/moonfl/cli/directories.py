"""Directories of new runs whose name the user did not choose."""

import contextlib
import itertools
from pathlib import Path

from ..errors import InputError


def claim_directory(runs: Path, name: str) -> Path:
    """Create and return the first of `RUNS/NAME`, `RUNS/NAME-2`, ... that does not exist."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder {runs} cannot be created: {error.strerror}; choose another with --out"
        ) from None
    for number in itertools.count(1):
        path = runs / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError("itertools.count does not end")
