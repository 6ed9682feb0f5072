"""Durable file writes: after a crash or power failure a file is complete or absent.

`atomic` and `write_atomically` replace a file in one step; a `Log` grows line by line.
`BackgroundWriter` writes many files without making its caller wait for the disk.
"""

import contextlib
import hashlib
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from ..data.locations import check_file
from ..errors import FileError

WRITERS = 4  # threads of a BackgroundWriter; concurrent fsyncs share a commit of the file system
# Flushes a file without its times, which takes less time; macOS has only fsync.
FLUSH: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
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
            temporary.unlink(missing_ok=True)  # it may be a link that leads anywhere
            yield temporary
            sync(temporary, FLUSH)
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside this block, such as a full disk, into a FileError with the path."""
    try:
        yield
    except OSError as error:
        reason = f"cannot be written: {error.strerror or type(error).__name__}"
        raise FileError(f"{path} {reason}", f"a file {reason}") from None


def sync(path: Path, flush: Callable[[int], None] = os.fsync) -> None:
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def _overwriting(path: Path) -> BinaryIO:
    """Open a file for writing, without a buffer; its content stays until it is overwritten.

    A symbolic link is refused: in a run directory from somebody else it may lead anywhere.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
    return open(os.open(path, flags, 0o666), "wb", buffering=0)


def write_all(file: BinaryIO, content: bytes) -> None:
    """Write all bytes to an unbuffered file."""
    data = memoryview(content)
    while data:
        data = data[file.write(data) :]


class Log:
    """A file to which text is appended durably, and the hash of its content."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        """Continue a file after its first `size` bytes, by default after all of them.

        The first `append` replaces the file by a copy of these bytes: under another name, as in a
        backup made of hard links, the file keeps its content.
        """
        self.path = path
        content = b""
        if size != 0 and path.exists():
            check_file(path)
            content = path.read_bytes()[:size]
        self.size = len(content)
        self._hash = hashlib.sha256(content)
        self._start: bytes | None = content  # until the first `append`

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the content."""
        return self._hash.hexdigest()

    def append(self, text: str) -> None:
        """Append a text and sync it to disk; on an error the file stays as it was."""
        content = text.encode()
        if self._start is None:
            self._append(content)
        else:
            with atomic(self.path) as temporary:
                temporary.write_bytes(self._start + content)
            self._start = None
        self.size += len(content)
        self._hash.update(content)

    def _append(self, content: bytes) -> None:
        with writing(self.path), _overwriting(self.path) as file:
            try:
                file.truncate(self.size)
                file.seek(self.size)
                write_all(file, content)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(self.size)
                raise


class BackgroundWriter:
    """Writes files to a folder in threads, because fsync takes longer than training a small party.

    Each file appears complete under its name or not at all. After `sync` all of them are durable.
    A file that nobody needs may be passed for reuse: to overwrite it takes a fraction of the time
    in which the file system deletes a file and allocates another.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._threads: ThreadPoolExecutor | None = None  # started with the first file
        self._waiting: deque[tuple[Future[str], int]] = deque()  # oldest first, with their bytes
        self._bytes = 0

    def write(self, name: str, content: bytes, reuse: Path | None = None) -> "Future[str]":
        """Begin to write a file; the future returns its SHA-256 when it is written.

        The file `reuse` is overwritten and renamed. This waits for earlier files if many are
        waiting, and raises an error that one of them had.
        """
        while self._waiting and self._bytes + len(content) > MAX_WAITING:
            self._wait_for_oldest()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(WRITERS, "moonfl-writer")
        result = self._threads.submit(_write_complete, self.folder / name, content, reuse)
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


def _write_complete(path: Path, content: bytes, reuse: Path | None) -> str:
    """Write a file, complete or not at all, and return its SHA-256."""
    with complete(path) as temporary:
        if reuse is not None:
            _take_over(reuse, temporary)
        with _overwriting(temporary) as file:
            write_all(file, content)
            file.truncate()
    return hashlib.sha256(content).hexdigest()


def _take_over(path: Path, temporary: Path) -> None:
    """Rename a file that is to be overwritten, or remove it if its content is used elsewhere.

    It is if the file has several names, as in a backup made of hard links, or is a symbolic link.
    """
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            os.replace(path, temporary)
        else:
            path.unlink()
