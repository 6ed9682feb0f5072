"""Party states: what each party remembers between rounds, such as MOON's previous model.

Where they are written: a run with a directory writes the state of a party after each of its rounds
to RUN/checkpoint/party-I-round-T.safetensors (`States.save`). A run without a directory keeps
states in memory up to a budget and the rest in a temporary folder. A Flower site stores its own
states (site_states.py).

Why a crash loses nothing:

1. `files.BackgroundWriter` writes under a temporary name, syncs, and renames: a file is complete or
   absent. It does so in threads, while other parties train.
2. The round is part of the file name, so a new state never replaces one that a checkpoint uses.
3. `checkpoint.write` runs after all parties of a round are stored. It waits until all files and
   their names are on disk (`States.sync`) and writes the server's file. Then, as the last step, it
   writes an index with the name and hash of every file that the round needs.

A run resumes from the newest index. States written after it belong to an unfinished round; they are
ignored, and removed with the next checkpoint. The store keeps the two newest states of a party,
each with its round, so that a repeated round starts from the same state as before.
"""

import contextlib
import itertools
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from .. import tree
from ..types import State, Update
from .files import BackgroundWriter
from .tensor_files import StoredParams, load, to_bytes, write


class StateFile(NamedTuple):
    """The newest state of a party."""

    round: int  # the last round that the party took part in, from 0
    path: Path | None  # None if the state is empty, or stored at a Flower site
    sha256: str | None = None  # of the file, if it is known


@dataclass(frozen=True)
class Generation:
    """A state in memory, on disk, or both; if it is in neither, it is empty."""

    round: int
    state: State | None
    path: Path | None
    sha256: "Future[str] | str | None" = None  # of the file; a future while it is written

    def read(self) -> State:
        """Return the state, from memory if it is there."""
        if self.state is not None:
            return self.state
        if self.path is None:
            return {}
        self.file()
        return load(self.path)

    def file(self) -> StateFile:
        """Return the file of the state when it is written."""
        sha256 = self.sha256.result() if isinstance(self.sha256, Future) else self.sha256
        return StateFile(self.round, self.path, sha256)


class States:
    """The states of all parties, and the updates of the current round."""

    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        """Create an empty store.

        `budget` is the number of bytes that it may use in memory, by default a quarter of the free
        memory. `folder` is where every state is written; the store removes nothing there.
        """
        self.budget = free_memory() // 4 if budget is None else budget
        self.folder = folder
        self.used = 0  # bytes of states in memory
        self._generations: dict[int, list[Generation]] = {}  # party -> newest first
        self._update_files: list[Path] = []
        self._update_bytes = 0  # of this round's updates in memory
        self._update_numbers = itertools.count(1)  # so that no file name is used twice
        self._writer = None if folder is None else BackgroundWriter(folder)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def load(self, party: int, before: int) -> State | None:
        """Return the newest state from a round before `before`, or None if there is none."""
        for generation in self._generations.get(party, []):
            if generation.round < before:
                return generation.read()
        return None

    def save(self, party: int, round: int, state: State) -> None:
        """Store the state of a party after `round`, and drop those of that round and later.

        In the folder of a run it is durable after `sync`.
        """
        generations = self._generations.get(party, [])
        older = [generation for generation in generations if generation.round < round][:1]
        for generation in generations:
            if generation not in older:
                self._drop(generation)
        size = num_bytes(state)
        fits = self.used + size <= self.budget
        path = None
        sha256 = None
        if state and (self._writer is not None or not fits):
            name = file_name(party, round)
            path = self._path(name)
            if self._writer is not None:
                for generation in generations:
                    if generation.path == path:
                        generation.file()  # the repeated round may not overtake the first one
                sha256 = self._writer.write(name, to_bytes(path, state))
            else:
                write(path, state)  # a temporary file, which need not survive a crash
        if fits:
            self.used += size
        in_memory = state if fits or size == 0 else None
        self._generations[party] = [Generation(round, in_memory, path, sha256), *older]

    def sync(self) -> None:
        """Wait until all states in the folder of the run are durable."""
        if self._writer is not None:
            self._writer.sync()

    def newest(self) -> dict[int, StateFile]:
        """Return the newest state of every party, for a checkpoint to refer to."""
        return {
            party: generations[0].file() for party, generations in sorted(self._generations.items())
        }

    def restore(self, newest: Mapping[int, StateFile]) -> None:
        """Replace all states by those that `newest` returned when a checkpoint was written."""
        self._generations = {}
        for party, (round, path, sha256) in newest.items():
            self._generations[party] = [Generation(round, None, path, sha256)]

    def register(self, party: int, round: int, path: Path | None) -> None:
        """Record that a party stored its state after `round` itself, at `path` if it is known."""
        self._generations[party] = [Generation(round, None, path)]

    def store_update(self, update: Update) -> Update:
        """Return an update of this round; its tensors are on disk if the budget is used up."""
        tensors = {
            "params": update.params,
            "buffers": update.buffers,
            **tree.add_prefix("extra", update.extra),
        }
        size = num_bytes(tensors)
        if self.used + self._update_bytes + size <= self.budget:
            self._update_bytes += size
            return update
        path = self._path(f"update-{next(self._update_numbers)}.safetensors")
        self._update_files.append(path)
        write(path, tensors)  # only this round uses it, so it need not survive a crash
        stored = {label: StoredParams(path, label) for label in tensors}
        return replace(
            update,
            params=stored["params"],
            buffers=stored["buffers"],
            extra=tree.select_prefix("extra", stored),
        )

    def clear_updates(self) -> None:
        """Forget the updates of the last round."""
        for path in self._update_files:
            path.unlink(missing_ok=True)
        self._update_files = []
        self._update_bytes = 0

    def close(self) -> None:
        """Remove updates and temporary files. States in the folder of a run stay."""
        self.clear_updates()
        if self._writer is not None:
            self._writer.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _drop(self, generation: Generation) -> None:
        if generation.state is not None:
            self.used -= num_bytes(generation.state)
        if generation.path is not None and self.folder is None:
            generation.path.unlink()

    def _path(self, name: str) -> Path:
        if self.folder is not None:
            return self.folder / name
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="moonfl-")
        return Path(self._temporary.name) / name


def file_name(party: int, round: int) -> str:
    """Return the name of the file with the state of a party after a round."""
    return f"party-{party}-round-{round}.safetensors"


def num_bytes(state: State) -> int:
    """Return the size of all tensors of a State in bytes."""
    return sum(map(tree.num_bytes, state.values()))


def free_memory() -> int:
    """Return the bytes of memory that are free without swapping, within a container's limit."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable"))
        free = 1024 * int(line.split()[1])
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with contextlib.suppress(OSError, ValueError):  # ValueError: "max" means no limit
        free = min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return free
