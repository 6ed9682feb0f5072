"""Checkpoints: what a run needs to resume bit-identically after any interruption.

Why a crash loses nothing: the files of a checkpoint are written first (the server's by this module,
the party states by states.py), each complete or not at all, and synced together with their folder.
The index `round-N.json`, which names them with their hashes, is written last. A checkpoint
therefore exists completely or not at all. The newest two are kept. All randomness derives from
(seed, purpose, round, party), so there is no generator to save.
"""

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
    check_files,
    damaged,
    index_paths,
    read_index,
    round_number,
    sha256,
)
from .schema import CheckpointIndex, FileEntry, StateEntry, decode, encode
from .states import StateFile, States
from .tensor_files import load, save

READ = (SETTINGS, PARTITION, ROUNDS)  # files of the run directory that are read with a checkpoint
WRITTEN = re.compile(  # files that moonfl writes into the folder of checkpoints
    r"(round-\d+\.json|server-\d+\.safetensors|party-\d+-round-\d+\.safetensors"
    r"|update-\d+\.safetensors)(\.part)?"
)
PREFIXES = {"shared": "shared", "memory": "memory", "optimizer_state": "step"}  # field -> prefix


@dataclass(frozen=True)
class Checkpoint:
    """The end of a round: number of finished rounds, the server, and the files of party states."""

    rounds: int
    server: Server
    parties: dict[int, StateFile]  # the newest state of each party
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

    `files` are the hashes of files in the run directory. Checkpoint files that neither this nor the
    previous checkpoint names are removed.
    """
    save(folder / server_file(rounds), to_state(server))
    states.sync()
    newest = states.newest()
    hashes = _known_hashes(folder, newest.values(), selected is not None)
    hashes[server_file(rounds)] = sha256(folder / server_file(rounds))

    def entry(path: Path) -> FileEntry:
        return FileEntry(file=path.name, sha256=hashes.get(path.name) or sha256(path))

    parties = {}
    for party, (t, path, _) in newest.items():
        state = StateEntry(round=t)
        if path is not None:
            file = entry(path)
            state = StateEntry(round=t, file=file.file, sha256=file.sha256)
        parties[str(party)] = state
    index = CheckpointIndex(
        format=FORMAT,
        experiment=fingerprint(exp),
        rounds=rounds,
        parties=parties,
        server=entry(folder / server_file(rounds)),
        chosen=None if selected is None else entry(folder / server_file(selected)),
        files=dict(files),
    )
    write_atomically(folder / f"round-{rounds}.json", encode(index))
    _remove_unnamed(folder)


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
    parties = {}
    for party, entry in index.parties.items():
        state = StateFile(entry.round, _state_path(folder, entry), entry.sha256)
        parties[_party_number(party, path)] = state
    return Checkpoint(
        rounds=index.rounds,
        server=_read_server(folder, index.server),
        parties=parties,
        selected=None if index.chosen is None else _read_server(folder, index.chosen),
    )


def discard_after(folder: Path, rounds: int) -> None:
    """Remove the checkpoints of later rounds."""
    for path in index_paths(folder):
        if round_number(path) > rounds:
            path.unlink()


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
        check_files(path.parent.parent, _index(path, exp), READ)
    except InputError:
        return False
    return True


def _files(path: Path) -> dict[str, str]:
    """Return the files that an index names, with their hashes; none if it is damaged."""
    try:
        index = decode(path.read_bytes(), CheckpointIndex, str(path))
    except InputError:
        return {}
    files = {}
    for entry in (index.server, index.chosen, *index.parties.values()):
        if entry is not None and entry.file is not None and entry.sha256 is not None:
            files[entry.file] = entry.sha256
    return files


def _known_hashes(folder: Path, states: Iterable[StateFile], has_selected: bool) -> dict[str, str]:
    """Return the hashes of files that need not be read again, by name."""
    files = [state for state in states if state.path is not None]
    hashes: dict[str, str] = {}
    # Sites write their states themselves, and the selected server may be an old one.
    if has_selected or any(state.sha256 is None for state in files):
        for path in index_paths(folder)[:1]:
            hashes |= _files(path)
    for state in files:
        if state.path is not None and state.sha256 is not None:
            hashes[state.path.name] = state.sha256
    return hashes


def _state_path(folder: Path, entry: StateEntry) -> Path | None:
    """Return the file of a party state after checking it; None for an empty state."""
    if entry.file is None or entry.sha256 is None:
        return None
    return _checked(folder, FileEntry(file=entry.file, sha256=entry.sha256))


def _checked(folder: Path, entry: FileEntry) -> Path:
    """Return the file that an index names if its content is what the run wrote."""
    path = folder / Path(entry.file).name
    if sha256(path) != entry.sha256:
        raise damaged(path)
    return path


def _read_server(folder: Path, entry: FileEntry) -> Server:
    """Read the server from a file of a checkpoint."""
    path = _checked(folder, entry)
    try:
        return from_state(load(path))
    except (KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is damaged: {error}") from None


def remove_all(folder: Path) -> None:
    """Remove all checkpoints."""
    _remove(folder, set())


def _remove_unnamed(folder: Path) -> None:
    """Remove all but the two newest checkpoints and the files that they name."""
    newest = index_paths(folder)[:2]
    names = {path.name for path in newest}
    for path in newest:
        names |= _files(path).keys()
    _remove(folder, names)


def _remove(folder: Path, kept: set[str]) -> None:
    """Remove checkpoint files that are not in `kept`.

    Other files stay: the folder may be a link, and in a run directory from somebody else it may
    lead anywhere.
    """
    for path in folder.iterdir():
        if WRITTEN.fullmatch(path.name) and path.name not in kept and not path.is_dir():
            path.unlink()
