"""Checkpoints: what a run needs to resume bit-identically after any interruption.

Why a crash loses nothing: the files of a checkpoint are written first (the server's by this module,
the party states and the log that lists them by state_files.py), each complete or not at all, and
synced together with their folder. The index `round-N.json`, which names them with their hashes, is
written last. A checkpoint therefore exists completely or not at all. The newest two are kept. All
randomness derives from (seed, purpose, round, party), so there is no generator to save.

Writing a checkpoint takes time for the parties of its round, not for all parties: nothing here
lists the folder or all states, except when a run is resumed.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors

from .. import tree
from ..errors import DamagedRunError, InputError
from ..experiment import Experiment, fingerprint
from ..types import Server, State
from .files import write_atomically
from .index import (
    FORMAT,
    PARTITION,
    ROUNDS,
    SETTINGS,
    STATES,
    check_files,
    damaged,
    index_paths,
    read_index,
    round_number,
    sha256,
)
from .schema import CheckpointIndex, FileEntry, encode
from .state_files import StateFile, read_log
from .states import States
from .tensor_files import load, save

READ = (SETTINGS, PARTITION, ROUNDS)  # files of the run directory that are read with a checkpoint
WRITTEN = re.compile(  # files that moonfl writes into the folder of checkpoints
    r"(round-\d+\.json|server-\d+\.safetensors|party-\d+-round-\d+\.safetensors"
    r"|update-\d+\.safetensors|states\.jsonl)(\.part)?"
)
PREFIXES = {"shared": "shared", "memory": "memory", "optimizer_state": "step"}  # field -> prefix


@dataclass(frozen=True)
class Checkpoint:
    """The end of a round: number of finished rounds, the server, and the files of party states."""

    rounds: int
    server: Server
    parties: dict[int, StateFile]  # the newest state of each party
    log_size: int | None  # of the part of the log that lists them; None in old formats
    selected: Server | None  # the server after the selected round, if rounds are validated


def write(
    folder: Path,
    exp: Experiment,
    rounds: int,
    server: Server,
    *,
    states: States,
    selected: int | None,
    files: Mapping[str, str],
) -> None:
    """Write the checkpoint after `rounds` rounds; `selected` is the best on validation data.

    `files` are the hashes of files in the run directory. The checkpoint before the previous one is
    removed.
    """
    save(folder / server_file(rounds), to_state(server))
    log = states.commit()
    previous = _index_if_readable(folder / index_file(rounds - 1))
    chosen = None
    if selected is not None:
        chosen = _server_entry(folder, server_file(selected), previous)
    index = CheckpointIndex(
        format=FORMAT,
        experiment=fingerprint(exp),
        rounds=rounds,
        server=_server_entry(folder, server_file(rounds), None),
        states=log,
        chosen=chosen,
        files=dict(files),
    )
    write_atomically(folder / index_file(rounds), encode(index))
    _remove_outdated(folder, folder / index_file(rounds - 2), [index, previous])
    states.release()


def read(folder: Path, exp: Experiment, previous: bool = False) -> Checkpoint | None:
    """Read the newest checkpoint, or the one before it; None if there is none yet.

    A damaged checkpoint is refused, and so are damaged files of its run.
    """
    paths = index_paths(folder)
    if previous and len(paths) < 2:
        raise InputError(f"{folder} holds no checkpoint before the newest one")
    if not paths:
        return None
    try:
        return _read(folder, paths[previous], exp)
    except InputError as error:
        has_previous = not previous and len(paths) > 1 and _is_usable(paths[1], exp)
        raise DamagedRunError(str(error), has_previous) from None


def _read(folder: Path, path: Path, exp: Experiment) -> Checkpoint:
    """Read the checkpoint of an index; every file must have the hash that the index names."""
    index = _index(path, exp)
    check_files(folder.parent, index, READ)
    parties = _states(folder, path, index)
    for state in parties.values():
        if state.path is not None:
            _check(state.path, state.sha256)
    return Checkpoint(
        rounds=index.rounds,
        server=_read_server(folder, index.server),
        parties=parties,
        log_size=None if index.states is None else index.states.size,
        selected=None if index.chosen is None else _read_server(folder, index.chosen),
    )


def _states(folder: Path, path: Path, index: CheckpointIndex) -> dict[int, StateFile]:
    """Return the newest state of each party in a checkpoint; the files are not read."""
    if index.states is not None:
        return read_log(folder, index.states)
    parties = {}
    for party, entry in (index.parties or {}).items():
        file = None if entry.file is None else folder / Path(entry.file).name
        parties[_party_number(party, path)] = StateFile(entry.round, file, entry.sha256)
    return parties


def discard_after(folder: Path, rounds: int) -> None:
    """Remove the checkpoints of later rounds."""
    for path in index_paths(folder):
        if round_number(path) > rounds:
            path.unlink()


def clean(folder: Path) -> list[Path]:
    """Remove what interrupted rounds left behind: all files that no checkpoint names.

    Return the party states that only the previous checkpoint names.
    """
    paths = index_paths(folder)
    newest = _names(folder, paths[0]) if paths else set()
    previous = _names(folder, paths[1]) if len(paths) > 1 else set()
    _remove(folder, newest | previous)
    outdated = sorted(previous - newest)
    return [folder / name for name in outdated if name.startswith("party-")]


def index_file(rounds: int) -> str:
    """Return the name of the index of the checkpoint after so many rounds."""
    return f"round-{rounds}.json"


def server_file(rounds: int) -> str:
    """Return the name of the file with the server after so many rounds."""
    return f"server-{rounds}.safetensors"


def to_state(server: Server) -> State:
    """Return a server as one State: params, buffers, and shared/c, memory/h, step/v."""
    state = {"params": server.params, "buffers": server.buffers}
    for field, prefix in PREFIXES.items():
        state |= tree.add_prefix(prefix, getattr(server, field))
    return state


def from_state(state: State) -> Server:
    """Return the server that `to_state` stored."""
    parts = {field: tree.select_prefix(prefix, state) for field, prefix in PREFIXES.items()}
    return Server(params=state["params"], buffers=state["buffers"], **parts)


def _party_number(text: str, path: Path) -> int:
    if not text.isdecimal():
        raise InputError(f"{path} is damaged: '{text}' is not the number of a party")
    return int(text)


def _index(path: Path, exp: Experiment) -> CheckpointIndex:
    """Read an index and check that it belongs to this experiment."""
    index = read_index(path)
    if index.experiment != fingerprint(exp):
        raise InputError(
            f"{path} belongs to another experiment than the experiment.toml of its run"
        )
    return index


def _is_usable(path: Path, exp: Experiment) -> bool:
    """Return True if an index can be read and describes the files of its run."""
    try:
        index = _index(path, exp)
        check_files(path.parent.parent, index, READ)
        _states(path.parent, path, index)
    except InputError:
        return False
    return True


def _index_if_readable(path: Path) -> CheckpointIndex | None:
    """Return an index, or None if it is missing or damaged."""
    try:
        return read_index(path)
    except InputError:
        return None


def _names(folder: Path, path: Path) -> set[str]:
    """Return the names of all files of a checkpoint."""
    index = _index_if_readable(path)
    if index is None:
        return set()
    names = {path.name, *_server_files([index])}
    if index.states is not None:
        names.add(STATES)
    with contextlib.suppress(InputError):
        states = _states(folder, path, index).values()
        names |= {state.path.name for state in states if state.path is not None}
    return names


def _server_files(indices: Iterable[CheckpointIndex | None]) -> set[str]:
    """Return the files of servers that some checkpoints name."""
    names = set()
    for index in indices:
        if index is not None:
            names.add(index.server.file)
            if index.chosen is not None:
                names.add(index.chosen.file)
    return names


def _server_entry(folder: Path, name: str, previous: CheckpointIndex | None) -> FileEntry:
    """Return the entry of a server's file; the previous checkpoint may have its hash."""
    if previous is not None:
        for entry in (previous.server, previous.chosen):
            if entry is not None and entry.file == name:
                return entry
    return FileEntry(file=name, sha256=sha256(folder / name))


def _check(path: Path, expected: str | None) -> None:
    """Check that the content of a file is what the run wrote."""
    if sha256(path) != expected:
        raise damaged(path)


def _read_server(folder: Path, entry: FileEntry) -> Server:
    """Read the server from a file of a checkpoint."""
    path = folder / Path(entry.file).name
    _check(path, entry.sha256)
    try:
        return from_state(load(path))
    except (KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is damaged: {error}") from None


def remove_all(folder: Path) -> None:
    """Remove all checkpoints."""
    _remove(folder, set())


def _remove_outdated(folder: Path, path: Path, newer: Iterable[CheckpointIndex | None]) -> None:
    """Remove an index and its servers that no newer checkpoint names."""
    index = _index_if_readable(path)
    path.unlink(missing_ok=True)
    for name in _server_files([index]) - _server_files(newer):
        if WRITTEN.fullmatch(name):
            (folder / name).unlink(missing_ok=True)


def _remove(folder: Path, kept: set[str]) -> None:
    """Remove checkpoint files that are not in `kept`.

    Other files stay: the folder may be a link, and in a run directory from somebody else it may
    lead anywhere.
    """
    for path in folder.iterdir():
        if WRITTEN.fullmatch(path.name) and path.name not in kept and not path.is_dir():
            path.unlink()
