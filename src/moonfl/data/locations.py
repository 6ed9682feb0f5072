"""Paths of datasets as the user writes them, and their files. Does not import torch."""

import stat
from collections.abc import Iterable
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


def find_file(folder: Path, name: str, suffixes: Iterable[str]) -> Path | None:
    """Return the first file of this name with one of the suffixes, or None."""
    paths = [folder / f"{name}{suffix}" for suffix in suffixes]
    return next((path for path in paths if path.exists()), None)


def missing_files(folder: Path, files: Iterable[str], suffixes: Iterable[str]) -> list[Path]:
    """Return the files that a folder lacks; the folder itself if it does not exist."""
    if not folder.exists():
        return [folder]
    allowed = tuple(suffixes)
    return [folder / name for name in files if find_file(folder, name, allowed) is None]
