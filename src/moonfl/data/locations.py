"""Paths of datasets as the user writes them, and a check of files. Does not import torch."""

import stat
from pathlib import Path

from ..errors import InputError


def directory(text: str) -> Path:
    """Return the data directory as a path, with `~` expanded."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError(
            f"the data directory {text} names a user that does not exist on this machine"
        ) from None


def check_file(path: Path) -> None:
    """Check that a path is a regular file; a pipe or device may never end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a null character in the path
        raise InputError(f"{path} cannot be read: {error}") from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise InputError(f"{path} cannot be read: it is {kind}, not a file")
