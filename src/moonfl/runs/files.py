"""Files that are there whole or not at all, whenever the power goes."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import RunError


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Write to the path given; at the end of the block that file, safe on disk, takes the place of `path`."""
    temporary = path.with_name(path.name + ".part")
    try:
        with writing(path):
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, safe on disk; where that fails the file is as it was."""
    with writing(path), open(path, "ab", buffering=0) as file:
        before = file.tell()
        try:
            data = memoryview(f"{line}\n".encode())
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A disk that does not take what is written to `path` is told of in one line."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from None


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
