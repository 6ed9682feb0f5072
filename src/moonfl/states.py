"""The one store of party states, in memory up to a budget and on disk above it.

Each party has two generations, tagged with the round that made them, so that a repeated round starts from the
state that round started from.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors
from safetensors.torch import save_file
from torch import Tensor

from . import tree
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
    """All of it or nothing: written beside, then renamed. The format has no order, so that is written, too."""
    tensors = {f"{label}/{name}": tensor for label, params in state.items() for name, tensor in params.items()}
    temporary = path.with_name(path.name + ".part")
    save_file(tensors, temporary, {"order": json.dumps(list(tensors))})
    os.replace(temporary, path)


def load(path: Path) -> State:
    state: dict[str, dict[str, Tensor]] = {}
    with safetensors.safe_open(path, "pt") as file:
        for key in json.loads(file.metadata()["order"]):
            label, name = key.split("/", 1)
            state.setdefault(label, {})[name] = file.get_tensor(key).clone()  # into storage aligned as torch aligns it
    return dict(state)


class OnDisk(Mapping[str, Tensor]):
    """Params that stay in a file; each tensor is read when it is asked for, and not kept."""

    def __init__(self, path: Path, label: str, names: list[str]) -> None:
        self.path, self.label, self.names = path, label, names

    def __getitem__(self, name: str) -> Tensor:
        with safetensors.safe_open(self.path, "pt") as file:
            tensor: Tensor = file.get_tensor(f"{self.label}/{name}")
        return tensor.clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Kept:
    round: int
    state: State | Path  # in memory, or where it is on disk


class States:
    def __init__(self, budget: int | None = None) -> None:
        self.budget = free_memory() // 4 if budget is None else budget  # bytes that may be held in memory
        self.used = 0
        self._kept: dict[int, list[Kept]] = {}  # party -> newest first
        self._parked = 0
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

    def park(self, update: Update, others: Iterable[Update]) -> Update:
        """The update; its tensors on disk once it, the others of its round and the states fill the budget."""
        parts = {"params": update.params, "buffers": update.buffers}
        tensors = {**parts, **{f"extra:{label}": params for label, params in update.extra.items()}}
        held = sum(tree.num_bytes(other.params) for other in others if not isinstance(other.params, OnDisk))
        if self.used + held + num_bytes(tensors) <= self.budget:
            return update
        self._parked += 1
        path = self._path(f"update-{self._parked}")
        save(path, tensors)
        lazy = {label: OnDisk(path, label, list(params)) for label, params in tensors.items()}
        extra = {label: lazy[f"extra:{label}"] for label in update.extra}
        return replace(update, params=lazy["params"], buffers=lazy["buffers"], extra=extra)

    def clear_parked(self) -> None:
        """The updates of the last round are not needed any more."""
        for number in range(1, self._parked + 1):
            self._path(f"update-{number}").unlink(missing_ok=True)
        self._parked = 0

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
