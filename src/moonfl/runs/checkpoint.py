"""Checkpoints: what a run needs to resume bit-identically after any interruption.

Why a crash loses nothing: the files of a checkpoint are written first (the server's by this module,
the party states by states.py), each atomically. The index `round-N.json`, which names them with
their hashes, is written last. A checkpoint therefore exists completely or not at all. The newest
two are kept. All randomness derives from (seed, purpose, round, party), so there is no generator
to save.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import safetensors

from .. import tree
from ..errors import DamagedRunError, InputError
from ..experiment import Experiment, fingerprint
from ..types import Server, State
from .files import write_atomically
from .schema import CheckpointIndex, FileEntry, StateEntry, Versioned, decode, encode
from .states import States
from .tensor_files import load, save

T = TypeVar("T")
FORMAT = 1
PREFIXES = {"shared": "shared", "memory": "memory", "optimizer_state": "step"}  # field -> prefix


@dataclass(frozen=True)
class Checkpoint:
    """The end of a round: number of finished rounds, the server, and the files of party states."""

    rounds: int
    server: Server
    parties: dict[int, tuple[int, Path | None]]  # party -> its last round, its state file
    selected: Server | None  # the server after the selected round, if rounds are validated


def write(
    folder: Path,
    exp: Experiment,
    rounds: int,
    server: Server,
    *,
    states: States,
    selected: int | None,
) -> None:
    """Write the checkpoint after `rounds` rounds; `selected` is the best on validation data.

    Files that neither this nor the previous checkpoint names are removed.
    """
    save(folder / server_file(rounds), to_state(server))
    known = {name: sha256 for path in indexes(folder)[:1] for name, sha256 in _files(path).items()}

    def entry(path: Path) -> FileEntry:
        return FileEntry(file=path.name, sha256=known.get(path.name) or _hash(path))

    known[server_file(rounds)] = _hash(folder / server_file(rounds))
    parties = {}
    for party, (t, path) in states.newest().items():
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
    )
    write_atomically(folder / f"round-{rounds}.json", encode(index))
    _remove_unnamed(folder)


def read(folder: Path, exp: Experiment, previous: bool = False) -> Checkpoint | None:
    """Read the newest checkpoint, or the one before it; None if there is none yet.

    A damaged checkpoint is refused.
    """
    paths = indexes(folder)
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
    parties = {}
    for party, entry in index.parties.items():
        parties[_party_number(party, path)] = (entry.round, _state_path(folder, entry))
    return Checkpoint(
        rounds=index.rounds,
        server=_read_server(folder, index.server),
        parties=parties,
        selected=None if index.chosen is None else _read_server(folder, index.chosen),
    )


def discard_after(folder: Path, rounds: int) -> None:
    """Remove the checkpoints of later rounds."""
    for path in indexes(folder):
        if _round_number(path) > rounds:
            path.unlink()


def indexes(folder: Path) -> list[Path]:
    """Return the index files, newest first."""
    paths = [path for path in folder.glob("round-*.json") if _round_text(path).isdecimal()]
    return sorted(paths, key=_round_number, reverse=True)


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


def _round_text(path: Path) -> str:
    return path.stem.removeprefix("round-")


def _round_number(path: Path) -> int:
    return int(_round_text(path))


def _party_number(text: str, path: Path) -> int:
    if not text.isdecimal():
        raise InputError(f"{path} is damaged: '{text}' is not the number of a party")
    return int(text)


def _index(path: Path, exp: Experiment) -> CheckpointIndex:
    """Read an index and check that it belongs to this format and experiment."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    file_format = _decode(content, Versioned, path).format
    if file_format != FORMAT:
        raise InputError(
            f"{path} has format {file_format}; this version of moonfl reads format {FORMAT}"
        )
    index = _decode(content, CheckpointIndex, path)
    if index.experiment != fingerprint(exp):
        raise InputError(
            f"{path} belongs to another experiment than the experiment.toml of its run"
        )
    return index


def _decode(content: bytes, kind: type[T], path: Path) -> T:
    """Decode the content of an index."""
    try:
        return decode(content, kind, path.name)
    except InputError as error:
        raise InputError(f"{path} is damaged ({error})") from None


def _is_usable(path: Path, exp: Experiment) -> bool:
    """Return True if an index can be read."""
    try:
        _index(path, exp)
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


def _state_path(folder: Path, entry: StateEntry) -> Path | None:
    """Return the file of a party state after checking it; None for an empty state."""
    if entry.file is None or entry.sha256 is None:
        return None
    return _checked(folder, FileEntry(file=entry.file, sha256=entry.sha256))


def _checked(folder: Path, entry: FileEntry) -> Path:
    """Return the file that an index names if its content is what the run wrote."""
    path = folder / Path(entry.file).name
    try:
        sha256 = _hash(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if sha256 != entry.sha256:
        raise InputError(f"{path} is damaged: its content is not what the run wrote")
    return path


def _read_server(folder: Path, entry: FileEntry) -> Server:
    """Read the server from a file of a checkpoint."""
    path = _checked(folder, entry)
    try:
        return from_state(load(path))
    except (KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is damaged: {error}") from None


def _hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_unnamed(folder: Path) -> None:
    """Remove all but the two newest checkpoints and the files that they name."""
    newest = indexes(folder)[:2]
    names = {path.name for path in newest}
    for path in newest:
        names |= _files(path).keys()
    for path in folder.iterdir():
        if path.name not in names and not path.is_dir():
            path.unlink()
