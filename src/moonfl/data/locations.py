"""Paths of datasets as the user writes them. Does not import torch."""

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
