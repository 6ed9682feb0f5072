"""The one store of party states, in memory up to a budget and on disk above it.

Each party has two generations, tagged with the round that made them, so that a repeated round starts from the
state that round started from.
"""

import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from . import tree
from .errors import RunError
from .types import State, Update


def free_memory() -> int:
    """Bytes that processes can have without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def num_bytes(state: State) -> int:
    return sum(map(tree.num_bytes, state.values()))


def save(path: Path, state: State) -> None:
    """All of it or nothing: written beside, then renamed. Tensors are numbered; their names are in the head."""
    names = [(label, name) for label, params in state.items() for name in params]
    tensors = {
        str(k): state[label][name].clone(memory_format=torch.contiguous_format) for k, (label, name) in enumerate(names)
    }
    temporary = path.with_name(path.name + ".part")
    try:
        save_file(tensors, temporary, {"labels": json.dumps(list(state)), "names": json.dumps(names)})
        os.replace(temporary, path)
    except (safetensors.SafetensorError, OSError) as error:
        raise RunError(f"a party's state cannot be written to {path} ({error}); try a larger state memory") from None


def load(path: Path) -> State:
    with safetensors.safe_open(path, "pt") as file:
        head = file.metadata()
        state: dict[str, dict[str, Tensor]] = {label: {} for label in json.loads(head["labels"])}
        for k, (label, name) in enumerate(json.loads(head["names"])):
            state[label][name] = file.get_tensor(str(k)).clone()  # into storage aligned as torch aligns it
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
    round: int
    state: State | Path  # in memory, or where it is on disk


class States:
    def __init__(self, budget: int | None = None) -> None:
        self.budget = free_memory() // 4 if budget is None else budget  # bytes that may be held in memory
        self.used = 0
        self._kept: dict[int, list[Kept]] = {}  # party -> newest first
        self._parked: list[Path] = []
        self._held = 0  # bytes of this round's updates in memory
        self._numbers = itertools.count(1)  # of parked updates; none is used twice
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def before(self, party: int, round: int) -> State | None:
        """What the party kept when it last took part before `round`; None if it never did."""
        kept = next((kept for kept in self._kept.get(party, []) if kept.round < round), None)
        if kept is None:
            return None
        return load(kept.state) if isinstance(kept.state, Path) else kept.state

    def keep(self, party: int, round: int, state: State) -> None:
        """The state the party leaves `round` with; whatever it had of that round or later is void."""
        old = self._kept.get(party, [])
        older = [kept for kept in old if kept.round < round][:1]
        for kept in old:
            if kept not in older:
                self._forget(kept)
        where: State | Path = state
        if self.used + num_bytes(state) > self.budget and num_bytes(state) > 0:
            where = self._path(f"party-{party}-round-{round}")
            save(where, state)
        else:
            self.used += num_bytes(state)
        self._kept[party] = [Kept(round, where), *older]

    def park(self, update: Update) -> Update:
        """An update of this round; its tensors on disk once they, those before and the states fill the budget."""
        parts = {"params": update.params, "buffers": update.buffers}
        tensors = {**parts, **{f"extra:{label}": params for label, params in update.extra.items()}}
        if self.used + self._held + num_bytes(tensors) <= self.budget:
            self._held += num_bytes(tensors)
            return update
        path = self._path(f"update-{next(self._numbers)}")
        save(path, tensors)
        self._parked.append(path)
        lazy = {label: OnDisk(path, label) for label in tensors}
        extra = {label: lazy[f"extra:{label}"] for label in update.extra}
        return replace(update, params=lazy["params"], buffers=lazy["buffers"], extra=extra)

    def clear_parked(self) -> None:
        """The updates of the last round are not needed any more."""
        for path in self._parked:
            path.unlink(missing_ok=True)
        self._parked, self._held = [], 0

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _forget(self, kept: Kept) -> None:
        if isinstance(kept.state, Path):
            kept.state.unlink()
        else:
            self.used -= num_bytes(kept.state)

    def _path(self, name: str) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="moonfl-")
        return Path(self._folder.name) / f"{name}.safetensors"
