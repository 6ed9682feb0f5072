"""The files of party states in the folder of a run, and the log that lists them.

A state is written to party-I-round-T.safetensors by background threads. Once per round, `commit`
waits until all files of the round are durable and appends a line for each to states.jsonl. A
checkpoint stores the size and the hash of this log, so its size and its time do not depend on the
number of all parties. The newest line of a party names its newest state.

Which files are needed: the newest checkpoint needs the newest state of each party, the one before
it also needs the states that were replaced since. After each checkpoint, `release` gives the files
that neither needs to the writer, which overwrites them with the states of the next round.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from ..types import State
from .files import BackgroundWriter, Log
from .index import STATES, read_start, sha256
from .schema import LogEntry, StateLine, decode, encode
from .tensor_files import to_bytes


class StateFile(NamedTuple):
    """A state of a party that a checkpoint refers to."""

    round: int  # the last round that the party took part in, from 0
    path: Path | None  # None if the state is empty, or stored at a Flower site
    sha256: str | None  # of the file


class StateFiles:
    """The files of party states in the folder of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer = BackgroundWriter(folder)
        self._log = Log(folder / STATES, 0)
        self._unlogged: dict[int, tuple[int, Future[str] | str | None]] = {}  # round and hash
        # Files that no longer hold the newest state of their party, in the order of insertion:
        self._replaced: dict[Path, None] = {}  # since the newest checkpoint, which needs them
        self._outdated: dict[Path, None] = {}  # before it; the previous checkpoint needs them
        self._unneeded: list[Path] = []

    def path(self, party: int, round: int) -> Path:
        """Return the file of the state of a party after a round."""
        return self.folder / file_name(party, round)

    def write(self, party: int, round: int, state: State) -> None:
        """Begin to write a state; an empty one has no file."""
        hash_value = None
        if state:
            path = self.path(party, round)
            self.wait_for(party)  # a repeated round may not overtake the first one
            reuse = self._unneeded.pop() if self._unneeded else None
            hash_value = self._writer.write(path.name, to_bytes(path, state), reuse)
        self._unlogged[party] = (round, hash_value)

    def wait_for(self, party: int) -> None:
        """Wait until the newest state of a party is written."""
        _, hash_value = self._unlogged.get(party, (0, None))
        if isinstance(hash_value, Future):
            hash_value.result()

    def register(self, party: int, round: int, is_stored: bool) -> None:
        """Record a state that somebody else stored, here as a file or at a Flower site."""
        self._unlogged[party] = (round, sha256(self.path(party, round)) if is_stored else None)

    def replace(self, party: int, round: int) -> None:
        """Record that the party has a newer state than that of `round`."""
        self._replaced[self.path(party, round)] = None

    def commit(self) -> LogEntry:
        """Wait until all states are durable and log them. Return the entry for a checkpoint."""
        self._writer.sync()
        lines = []
        for party, (round, hash_value) in sorted(self._unlogged.items()):
            if isinstance(hash_value, Future):
                hash_value = hash_value.result()
            lines.append(encode(StateLine(party=party, round=round, sha256=hash_value)))
        self._log.append("".join(f"{line}\n" for line in lines))
        self._unlogged.clear()
        return LogEntry(size=self._log.size, sha256=self._log.sha256)

    def release(self) -> None:
        """Reuse or remove the files that neither of the two newest checkpoints needs."""
        _remove(self._unneeded)  # more than the last round could use
        self._unneeded = list(self._outdated)
        self._outdated = self._replaced
        self._replaced = {}

    def restore(
        self, newest: Mapping[int, StateFile], size: int | None, outdated: Iterable[Path]
    ) -> None:
        """Continue after a checkpoint with these states.

        `size` is that of its part of the log; None if it has no log. Only the previous checkpoint
        needs the `outdated` files.
        """
        self._log = Log(self.folder / STATES, size or 0)
        self._outdated = dict.fromkeys(outdated)
        if size is None:
            for party, state in newest.items():
                self._unlogged[party] = (state.round, state.sha256)

    def close(self) -> None:
        """Finish what has begun. Files that a checkpoint needs stay."""
        self._writer.close()
        _remove(self._unneeded)
        self._unneeded = []


def file_name(party: int, round: int) -> str:
    """Return the name of the file with the state of a party after a round."""
    return f"party-{party}-round-{round}.safetensors"


def read_log(folder: Path, entry: LogEntry) -> dict[int, StateFile]:
    """Return the newest state of each party from the part of the log that a checkpoint names."""
    path = folder / STATES
    content = read_start(path, entry)
    newest = {}
    for line in _lines(path, content):
        file = None if line.sha256 is None else folder / file_name(line.party, line.round)
        newest[line.party] = StateFile(line.round, file, line.sha256)
    return newest


def _lines(path: Path, content: bytes) -> Iterator[StateLine]:
    for number, text in enumerate(content.splitlines(), start=1):
        yield decode(text, StateLine, f"line {number} of {path}")


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
