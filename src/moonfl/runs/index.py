"""The index of a checkpoint, and the hashes of the files of a run that are read later.

`checkpoint/round-N.json` names the files of a checkpoint and, as `files`, those of the run
directory, each with a SHA-256. Whoever reads a file checks it: resume and export in checkpoint.py,
reports with `check_run`. Two files change after an index is written, so the hash is of the part
that stays: the first N lines of rounds.jsonl, and experiment.toml without the data location, the
device, and the versions and code of later rounds.

A file without a recorded hash is read unchecked: that of a run of version 0.1, and that of a
published run without its checkpoints. The hashes detect damage and careless edits. They prove
nothing about a run from somebody else, who can write an index as well. This module does not import
torch: reports must start fast.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from ..data.locations import check_file
from ..errors import InputError
from .schema import CheckpointIndex, LogEntry, Versioned, decode

SETTINGS = "experiment.toml"
PARTITION = "partition.json"
ROUNDS = "rounds.jsonl"
CHECKPOINT = "checkpoint"
FINAL = "final.json"
BEST = "best.safetensors"
DIVERGED = "diverged.txt"  # why the run ended early, and would again
STATES = "states.jsonl"  # in the folder of checkpoints
FORMAT = 3  # 1: tensor files whose header has three keys; 1 and 2: states are listed in the index
FORMATS = (1, 2, 3)  # that can be read
SOFTWARE = ("versions", "code")  # tables of experiment.toml to which a resume adds entries
MACHINE_SETTINGS = ("data_dir", "device")  # do not change the result: may be edited, not exported
T = TypeVar("T")


def index_paths(folder: Path) -> list[Path]:
    """Return the index files in a folder of checkpoints, newest first."""
    paths = [path for path in folder.glob("round-*.json") if _round_text(path).isdecimal()]
    return sorted(paths, key=round_number, reverse=True)


def round_number(path: Path) -> int:
    """Return the number of rounds in the name of an index."""
    return int(_round_text(path))


def _round_text(path: Path) -> str:
    return path.stem.removeprefix("round-")


def read_index(path: Path) -> CheckpointIndex:
    """Read an index and check its format."""
    content = read_file(path)
    file_format = _decode(content, Versioned, path).format
    if file_format not in FORMATS:
        raise InputError(
            f"{path} has format {file_format}; "
            f"this version of moonfl reads formats {FORMATS[0]} to {FORMATS[-1]}"
        )
    return _decode(content, CheckpointIndex, path)


def _decode(content: bytes, kind: type[T], path: Path) -> T:
    try:
        return decode(content, kind, path.name)
    except InputError as error:
        raise InputError(f"{path} is damaged ({error})") from None


def check_run(run: Path, names: Iterable[str]) -> None:
    """Check files of a run against its newest readable index; without an index do nothing."""
    paths = index_paths(run / CHECKPOINT)
    problems = []
    for path in paths:
        try:
            index = read_index(path)
        except InputError as error:
            problems.append(error)
            continue
        check_files(run, index, names)
        return
    if problems:
        raise InputError(
            f"{problems[0]}; remove {run / CHECKPOINT} to read the run without checking its files"
        )


def check_files(run: Path, index: CheckpointIndex, names: Iterable[str]) -> None:
    """Check that files have the hashes that the index records; others are not checked."""
    hashes = index.files or {}
    for name in names:
        if name in hashes and hash_file(run / name, index.rounds) != hashes[name]:
            raise damaged(run / name)


def damaged(path: Path) -> InputError:
    """Return the error for a file whose hash is not that of the index."""
    return InputError(f"{path} is damaged: its content is not what the run wrote")


def hash_file(path: Path, rounds: int) -> str:
    """Return the SHA-256 of a file of a run, of the part that belongs to the first rounds."""
    if path.name == ROUNDS:
        lines = read_file(path).splitlines(keepends=True)
        return hashlib.sha256(b"".join(lines[:rounds])).hexdigest()
    if path.name == SETTINGS:
        return hashlib.sha256(_canonical_settings(path, rounds).encode()).hexdigest()
    return sha256(path)


def _canonical_settings(path: Path, rounds: int) -> str:
    """Return what the first rounds of a run determine in its experiment.toml."""
    values = read_toml(path)
    settled = {key: value for key, value in values.items() if key not in MACHINE_SETTINGS}
    for table in SOFTWARE:
        notes = settled.get(table)
        if isinstance(notes, dict):
            settled[table] = {
                key: value for key, value in notes.items() if first_round(key) <= rounds
            }
    return json.dumps(settled, sort_keys=True, default=str)


def first_round(key: Any) -> int:
    """Return the round from which an entry holds, as in "torch from round 7"."""
    match = re.search(r" from round (\d{1,9})$", key)
    return 0 if match is None else int(match[1])


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    check_file(path)
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def read_file(path: Path) -> bytes:
    """Return the content of a file."""
    check_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8."""
    content = read_file(path)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not text in UTF-8: {error.reason} at byte {error.start}"
        ) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the values of a TOML file."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, or too many digits or levels
        raise InputError(f"{path} is not valid TOML: {error}") from None


def read_start(path: Path, entry: LogEntry) -> bytes:
    """Return the part of a file that a checkpoint refers to, if it is what the run wrote."""
    content = read_file(path)[: entry.size]
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise damaged(path)
    return content
