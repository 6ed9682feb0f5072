"""Durable file writes: after a crash or power failure a file is complete or absent.

`atomic` and `write_atomically` replace a file in one step; `append_line` adds a line to a log.
`BackgroundWriter` writes many files without making its caller wait for the disk.
"""

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ..errors import RunError

WRITERS = 4  # threads of a BackgroundWriter; concurrent fsyncs share a commit of the file system
MAX_WAITING = 2**25  # bytes that a BackgroundWriter holds in memory, unless one file is larger


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Replace the file at `path` in one step.

    The block writes to the temporary path that it receives. At its end that file is synced to disk
    and renamed to `path`.
    """
    with complete(path) as temporary:
        yield temporary
    with writing(path):
        sync(path.parent)


@contextlib.contextmanager
def complete(path: Path) -> Iterator[Path]:
    """Replace the file at `path` like `atomic`; its name is durable once its folder is synced."""
    temporary = path.with_name(path.name + ".part")
    try:
        with writing(path):
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
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


class BackgroundWriter:
    """Writes files to a folder in threads, because fsync takes longer than training a small party.

    Each file appears complete under its name or not at all. After `sync` all of them are durable.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._threads: ThreadPoolExecutor | None = None  # started with the first file
        self._waiting: deque[tuple[Future[str], int]] = deque()  # oldest first, with their bytes
        self._bytes = 0

    def write(self, name: str, content: bytes) -> "Future[str]":
        """Begin to write a file; the future returns its SHA-256 when it is written.

        This waits for earlier files if many are waiting, and raises an error that one of them had.
        """
        while self._waiting and self._bytes + len(content) > MAX_WAITING:
            self._wait_for_oldest()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(WRITERS, "moonfl-writer")
        result = self._threads.submit(_write_complete, self.folder / name, content)
        self._waiting.append((result, len(content)))
        self._bytes += len(content)
        return result

    def sync(self) -> None:
        """Wait until all files are durable; their folder is synced once for all of them."""
        if not self._waiting:
            return
        while self._waiting:
            self._wait_for_oldest()
        with writing(self.folder):
            sync(self.folder)

    def close(self) -> None:
        """Finish what has begun and end the threads."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _wait_for_oldest(self) -> None:
        result, size = self._waiting.popleft()
        self._bytes -= size
        result.result()


def _write_complete(path: Path, content: bytes) -> str:
    """Write a file, complete or not at all, and return its SHA-256."""
    with complete(path) as temporary:
        temporary.write_bytes(content)
    return hashlib.sha256(content).hexdigest()
