"""The one store of party states, in memory up to a budget and on disk above it.

Each party has two generations (at a site three, for a server that goes back), tagged with the round that made them, so
that a repeated round starts from the state that round started from. A store with a folder of its own keeps all of them
there, for a checkpoint to name.
"""

import contextlib
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from .. import tree
from ..errors import RunError
from ..types import State, Update
from .files import atomic, sync

DAY = 86_400.0  # seconds


def free_memory() -> int:
    """Bytes that processes can have without swapping; in a container no more than it may have at all."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * next(
            int(line.split()[1]) for line in lines if line.startswith("MemAvailable")
        )
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with contextlib.suppress(OSError, ValueError):  # ValueError: "max", no limit
        free = min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return free


def state_name(party: int, round: int) -> str:
    return f"party-{party}-round-{round}"


def add_prefix(prefix: str, state: State) -> State:
    """As part of a State that holds several."""
    return {f"{prefix}/{label}": params for label, params in state.items()}


def select_prefix(prefix: str, tensors: State) -> State:
    """That part of it."""
    parts = ((label.partition("/"), params) for label, params in tensors.items())
    return {label: params for (of, _, label), params in parts if of == prefix and label}


def num_bytes(state: State) -> int:
    return sum(map(tree.num_bytes, state.values()))


def save(path: Path, state: State, note: str = "") -> None:
    """All of it or nothing, whenever the power goes."""
    with atomic(path) as temporary:
        write(temporary, state, note)


def write(path: Path, state: State, note: str = "") -> None:
    """Tensors are numbered; their names are in the head, as is the note."""
    names = [(label, name) for label, params in state.items() for name in params]
    tensors = {
        str(k): state[label][name].clone(memory_format=torch.contiguous_format)
        for k, (label, name) in enumerate(names)
    }
    try:
        save_file(
            tensors,
            path,
            {"labels": json.dumps(list(state)), "names": json.dumps(names), "note": note},
        )
    except (
        safetensors.SafetensorError,
        KeyError,
    ) as error:  # KeyError: a type of numbers that it does not know
        raise RunError(f"{path} cannot be written: {error}") from None


def load(path: Path) -> State:
    with safetensors.safe_open(path, "pt") as file:
        head = file.metadata()
        state: dict[str, dict[str, Tensor]] = {label: {} for label in json.loads(head["labels"])}
        for k, (label, name) in enumerate(json.loads(head["names"])):
            state[label][name] = file.get_tensor(
                str(k)
            ).clone()  # into storage aligned as torch aligns it
    return dict(state)


class OnDisk(Mapping[str, Tensor]):
    """Params that stay in a file; each tensor is read when it is asked for, and not kept."""

    def __init__(self, path: Path, label: str) -> None:
        self.path = path
        with safetensors.safe_open(path, "pt") as file:
            names = enumerate(json.loads(file.metadata()["names"]))
        self.keys_of = {name: str(k) for k, (of, name) in names if of == label}

    def __getitem__(self, name: str) -> Tensor:
        with safetensors.safe_open(self.path, "pt") as file:
            tensor: Tensor = file.get_tensor(self.keys_of[name])
        return tensor.clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_of)

    def __len__(self) -> int:
        return len(self.keys_of)


@dataclass(frozen=True)
class Kept:
    """One generation: in memory, on disk, or both. On neither: it is empty."""

    round: int
    state: State | None
    path: Path | None

    def read(self) -> State:
        return (
            self.state
            if self.state is not None
            else load(self.path)
            if self.path is not None
            else {}
        )


class SiteStates:
    """The store of a party that lives elsewhere than the server: its states are on its own disk, and nowhere else.

    The server says with each round which round of this party it accepted last. A newer state is of a round that was
    late, refused or is repeated: it does not count. The one before is there for a server that goes back by a round.
    """

    def __init__(self, folder: Path, tidy: bool = True) -> None:
        """`tidy`: remove states that cannot be asked for again."""
        self.folder, self.tidy = folder, tidy

    def after(self, party: int, accepted: int | None) -> State | None:
        """What the party kept after its last accepted round; None before its first."""
        if accepted is None:
            return None
        path = self.path(party, accepted)
        try:
            return load(path)
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            reason = "is missing" if not path.exists() else f"is damaged ({error})"
            raise RunError(
                f"the state that party {party} left round {accepted + 1} with {reason}: {path}"
            ) from None

    def keep(self, party: int, round: int, state: State, accepted: int | None) -> None:
        """A round that ends late must not take away what a newer one left: only older states are removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(party, round)
        with tempfile.TemporaryDirectory(
            dir=self.folder, prefix=".writing-"
        ) as own:  # two may be at the same round
            save(Path(own) / path.name, state, json.dumps(accepted))
            os.replace(Path(own) / path.name, path)
        sync(self.folder)
        for left in self.folder.glob(".writing-*"):  # by one that was killed
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > DAY:
                    shutil.rmtree(left)
        there = {
            path.stem.rpartition("-")[2]: path
            for path in self.folder.glob(f"{state_name(party, 0)[:-1]}*")
        }
        rounds = [int(number) for number in there if number.isdecimal() and self.tidy]
        wanted = (accepted, None if accepted is None else self._before(party, accepted))
        for t in rounds:
            if t < round and t not in wanted:
                there[str(t)].unlink(missing_ok=True)

    def _before(self, party: int, round: int) -> int | None:
        """The round that was the last accepted one when `round` began."""
        unread = contextlib.suppress(OSError, ValueError, KeyError, safetensors.SafetensorError)
        with unread, safetensors.safe_open(self.path(party, round), "pt") as file:
            number = json.loads(file.metadata()["note"])
            return None if number is None else int(number)
        return None

    def path(self, party: int, round: int) -> Path:
        return self.folder / f"{state_name(party, round)}.safetensors"


class States:
    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        """`budget`: bytes that may be held in memory. `folder`: where every state is kept; nothing there is removed."""
        self.budget = free_memory() // 4 if budget is None else budget
        self.folder = folder
        self.used = 0
        self._kept: dict[int, list[Kept]] = {}  # party -> newest first
        self._parked: list[Path] = []
        self._held = 0  # bytes of this round's updates in memory
        self._numbers = itertools.count(1)  # of parked updates; none is used twice
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def before(self, party: int, round: int) -> State | None:
        """What the party kept when it last took part before `round`; None if it never did."""
        kept = next((kept for kept in self._kept.get(party, []) if kept.round < round), None)
        return None if kept is None else kept.read()

    def keep(self, party: int, round: int, state: State) -> None:
        """The state the party leaves `round` with; whatever it had of that round or later is void."""
        old = self._kept.get(party, [])
        older = [kept for kept in old if kept.round < round][:1]
        for kept in old:
            if kept not in older:
                self._forget(kept)
        size, path = num_bytes(state), None
        fits = self.used + size <= self.budget
        if state and (self.folder is not None or not fits):
            path = self._path(state_name(party, round))
            save(path, state)
        self.used += size if fits else 0
        self._kept[party] = [Kept(round, state if fits or size == 0 else None, path), *older]

    def newest(self) -> dict[int, tuple[int, Path | None]]:
        """Of every party the round it last took part in, and where its state is (None: it is empty)."""
        return {party: (kept[0].round, kept[0].path) for party, kept in sorted(self._kept.items())}

    def restore(self, newest: dict[int, tuple[int, Path | None]]) -> None:
        """Take up what `newest` once told."""
        self._kept = {party: [Kept(round, None, path)] for party, (round, path) in newest.items()}

    def note(self, party: int, round: int, path: Path | None) -> None:
        """The party keeps the state it left `round` with itself, at `path` if that is a place we can name."""
        self._kept[party] = [Kept(round, None, path)]

    def park(self, update: Update) -> Update:
        """An update of this round; its tensors on disk once they, those before and the states fill the budget."""
        tensors = {
            "params": update.params,
            "buffers": update.buffers,
            **add_prefix("extra", update.extra),
        }
        if self.used + self._held + num_bytes(tensors) <= self.budget:
            self._held += num_bytes(tensors)
            return update
        path = self._path(f"update-{next(self._numbers)}")
        self._parked.append(path)
        write(path, tensors)  # of this round only, so it need not survive a crash
        lazy = {label: OnDisk(path, label) for label in tensors}
        return replace(
            update,
            params=lazy["params"],
            buffers=lazy["buffers"],
            extra=select_prefix("extra", lazy),
        )

    def clear_parked(self) -> None:
        """The updates of the last round are not needed any more."""
        for path in self._parked:
            path.unlink(missing_ok=True)
        self._parked, self._held = [], 0

    def close(self) -> None:
        self.clear_parked()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _forget(self, kept: Kept) -> None:
        self.used -= num_bytes(kept.state) if kept.state is not None else 0
        if kept.path is not None and self.folder is None:
            kept.path.unlink()

    def _path(self, name: str) -> Path:
        folder = self.folder
        if folder is None:
            self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="moonfl-")
            folder = Path(self._temporary.name)
        return folder / f"{name}.safetensors"
