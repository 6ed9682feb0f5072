"""Party states: what each party remembers between rounds, such as MOON's previous model.

Where they are written: a run with a directory writes the state of a party after each of its rounds
to RUN/checkpoint/party-I-round-T.safetensors (`States.save`). A run without a directory keeps
states in memory up to a budget and the rest in a temporary folder. A Flower site stores its own
states (site_states.py).

Why a crash loses nothing:

1. `files.BackgroundWriter` writes under a temporary name, syncs, and renames: a file is complete or
   absent. It does so in threads, while other parties train.
2. The round is part of the file name, so a new state never replaces one that a checkpoint uses.
3. `checkpoint.write` runs after all parties of a round are stored. It waits until all files are on
   disk and listed with their hashes in a log (`States.commit`), and writes the server's file. Then,
   as the last step, it writes an index that names the part of the log that exists so far.

A run resumes from the newest index. States written after it belong to an unfinished round; they are
removed before the run continues. The store keeps the two newest states of a party, each with its
round, so that a repeated round starts from the same state as before.
"""

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from .. import tree
from ..exchange import extra_from, update_state
from ..types import State, Update
from .schema import LogEntry
from .state_files import StateFile, StateFiles, file_name
from .tensor_files import StoredParams, load, stored_state, write

CGROUP = Path("/sys/fs/cgroup")  # the limits of a container


class Generation(NamedTuple):
    """A state in memory, on disk, or both; if it is in neither, it is empty."""

    round: int
    state: State | None
    is_stored: bool  # in a file


class States:
    """The states of all parties, and the updates of the current round."""

    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        """Create an empty store.

        `budget` is the number of bytes that it may use in memory, by default a quarter of the free
        memory. `folder` is where every state is written; see `release` for what is removed there.
        """
        self.budget = free_memory() // 4 if budget is None else budget
        self.folder = folder
        self.used = 0  # bytes of states in memory
        self._generations: dict[int, list[Generation]] = {}  # party -> newest first
        self._update_files: list[Path] = []
        self._update_bytes = 0  # of this round's updates in memory
        self._update_numbers = itertools.count(1)  # so that no file name is used twice
        self._files = None if folder is None else StateFiles(folder)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def load(self, party: int, before: int) -> State | None:
        """Return the newest state from a round before `before`, or None if there is none."""
        for generation in self._generations.get(party, []):
            if generation.round < before:
                return self._read(party, generation)
        return None

    def newest(self, party: int) -> State:
        """Return the newest state; one that is only in a file of the run is read at each access."""
        generation = self._generations[party][0]
        if self._files is None or generation.state is not None or not generation.is_stored:
            return self._read(party, generation)
        self._files.wait_for(party)
        return stored_state(self._path(file_name(party, generation.round)))

    def has_room(self, size: int) -> bool:
        """Return True if so many bytes fit into memory beside the states and updates in it."""
        return self.used + self._update_bytes + size <= self.budget

    def save(self, party: int, round: int, state: State) -> None:
        """Store the state of a party after `round`, and drop those of that round and later.

        In the folder of a run it is durable after `commit`.
        """
        generations = self._generations.get(party, [])
        older = [generation for generation in generations if generation.round < round][:1]
        for generation in generations:
            if generation.round not in [kept.round for kept in older]:
                self._drop(party, generation)
        if self._files is not None:  # older states are read from disk in the rare case of need
            older = [self._without_memory(generation) for generation in older]
        size = num_bytes(state)
        fits = self.has_room(size)
        is_stored = bool(state) and (self._files is not None or not fits)
        if self._files is not None:
            self._files.write(party, round, state)
            self._replace(party, older)
        elif is_stored:
            write(self._path(file_name(party, round)), state)  # need not survive a crash
        if fits:
            self.used += size
        in_memory = state if fits or size == 0 else None
        self._generations[party] = [Generation(round, in_memory, is_stored), *older]

    def commit(self) -> LogEntry | None:
        """Wait until all states are durable, and return what a checkpoint stores of them.

        Return None if the store has no folder.
        """
        return None if self._files is None else self._files.commit()

    def release(self) -> None:
        """Overwrite or remove the files that neither of the two newest checkpoints needs."""
        if self._files is not None:
            self._files.release()

    def parties(self) -> list[int]:
        """Return the parties that have taken part."""
        return sorted(self._generations)

    def last_round(self, party: int) -> int | None:
        """Return the last round that a party took part in, None before its first."""
        generations = self._generations.get(party)
        return generations[0].round if generations else None

    def restore(
        self,
        newest: Mapping[int, StateFile],
        log_size: int | None = 0,
        outdated: Iterable[Path] = (),
    ) -> None:
        """Replace all states by those of a checkpoint; see `StateFiles.restore`."""
        self._generations = {}
        for party, state in newest.items():
            self._generations[party] = [Generation(state.round, None, state.path is not None)]
        if self._files is not None:
            self._files.restore(newest, log_size, outdated)

    def register(self, party: int, round: int, is_stored: bool) -> None:
        """Record that a party stored its state after `round` itself, here or at a Flower site."""
        if self._files is not None:
            generations = self._generations.get(party, [])
            older = [generation for generation in generations if generation.round < round]
            self._files.register(party, round, is_stored)
            self._replace(party, older)
        self._generations[party] = [Generation(round, None, is_stored)]

    def store_update(self, update: Update) -> Update:
        """Return an update of this round; its tensors are on disk if the budget is used up."""
        tensors = update_state(update)
        size = num_bytes(tensors)
        if self.has_room(size):
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
            extra=extra_from(stored),
        )

    def clear_updates(self) -> None:
        """Forget the updates of the last round."""
        for path in self._update_files:
            path.unlink(missing_ok=True)
        self._update_files = []
        self._update_bytes = 0

    def close(self) -> None:
        """Remove updates and temporary files. States that a checkpoint needs stay."""
        self.clear_updates()
        if self._files is not None:
            self._files.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _read(self, party: int, generation: Generation) -> State:
        """Return a state, from memory if it is there."""
        if generation.state is not None:
            return generation.state
        if not generation.is_stored:
            return {}
        if self._files is not None:
            self._files.wait_for(party)
        return load(self._path(file_name(party, generation.round)))

    def _replace(self, party: int, older: list[Generation]) -> None:
        """Report the file of an older state, which only checkpoints need from now on."""
        assert self._files is not None
        for generation in older:
            if generation.is_stored:
                self._files.replace(party, generation.round)

    def _drop(self, party: int, generation: Generation) -> None:
        if generation.state is not None:
            self.used -= num_bytes(generation.state)
        if generation.is_stored and self._files is None:
            self._path(file_name(party, generation.round)).unlink()

    def _without_memory(self, generation: Generation) -> Generation:
        """Return a generation that is stored in a file only."""
        if not generation.is_stored or generation.state is None:
            return generation
        self.used -= num_bytes(generation.state)
        return generation._replace(state=None)

    def _path(self, name: str) -> Path:
        if self.folder is not None:
            return self.folder / name
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="moonfl-")
        return Path(self._temporary.name) / name


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
        limit = int((CGROUP / "memory.max").read_text())
        free = min(free, max(0, limit - memory_in_use()))
    return free


def memory_in_use() -> int:
    """Return the bytes that the container of this process uses, without cached files."""
    used = int((CGROUP / "memory.current").read_text())
    for line in (CGROUP / "memory.stat").read_text().splitlines():
        key, number = line.split()
        if key in ("active_file", "inactive_file"):
            used -= int(number)
    return used
