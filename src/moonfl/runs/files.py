"""Durable file writes: after a crash or power failure a file is complete or absent.

`atomic` and `write_atomically` replace a file in one step; `append_line` adds a line to a log.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import RunError


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Replace the file at `path` in one step.

    The block writes to the temporary path that it receives. At its end that file is synced to disk
    and renamed to `path`.
    """
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
    """Write a text file in one step."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Append a line to a file and sync it to disk; on an error the file stays as it was."""
    with writing(path), open(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            data = memoryview(f"{line}\n".encode())
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside this block, such as a full disk, into a RunError with the path."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from None


def sync(path: Path) -> None:
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
