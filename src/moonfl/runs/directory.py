"""The run directory: which files a run has, and how a run is started, replaced and rolled back.

experiment.toml (settings, versions, hashes of user-supplied code, implementation choices),
partition.json, rounds.jsonl with one line per round, checkpoint/, final.json (the analysis),
best.safetensors if a round is selected on validation data, trackers.json if the run is tracked, and
diverged.txt if training diverged. schema.py describes the JSON files.
"""

import contextlib
import fcntl
import functools
import itertools
import os
import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w

from ..components import COMPONENTS, check_resumable
from ..errors import (
    ChangedRunError,
    DamagedRunError,
    DivergenceError,
    InputError,
    RunExistsError,
)
from ..experiment import Experiment, Trust, code_hashes, from_toml, to_toml
from ..kernels import in_use
from ..task import Task
from ..types import Params
from . import checkpoint
from .files import sync, write_atomically, writing
from .index import (
    BEST,
    CHECKPOINT,
    DIVERGED,
    FINAL,
    PARTITION,
    ROUNDS,
    SETTINGS,
    first_round,
    read_file,
    read_toml,
)
from .schema import PartitionRecord, RoundRecord, decode, encode
from .stopping import is_finished
from .tensor_files import save

TRACKERS_FILE = "trackers.json"  # the ids of the trackers' runs
STAGED = ".new"  # files of a run that is about to replace another


@functools.cache
def package_version(name: str) -> str:
    """Return the version of an installed package."""
    return metadata.version(name)


def versions() -> dict[str, str]:
    """Return the versions of the software that affects the results."""
    packages = {name: package_version(name) for name in ("moonfl", "torch", "numpy")}
    return packages | {
        "kernels": in_use(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def read_experiment(directory: Path, device: str | None = None, trust: Trust = False) -> Experiment:
    """Read the experiment of a run directory; `device` replaces the one it was trained on.

    Code that only the directory names is executed if it is trusted.
    """
    if is_being_replaced(directory) and not (directory / SETTINGS).exists():
        with locked(directory):
            finish_replacement(directory)
    if not (directory / SETTINGS).exists():
        raise InputError(f"{directory} holds no run: it has no {SETTINGS}")
    return from_toml(directory / SETTINGS, {"device": device} if device else None, trust)


@contextlib.contextmanager
def new_directory(
    out: Path, force: bool, exp: Experiment, task: Task, choices: dict[str, str]
) -> Iterator[Path]:
    """Create and lock the directory of a new run; an existing run is only replaced by `force`."""
    for kind in COMPONENTS:
        check_resumable(kind, getattr(exp, kind))
    try:
        out.mkdir(parents=True, exist_ok=True)
        sync(out.parent)
    except OSError as error:
        raise InputError(f"the run directory {out} cannot be created: {error.strerror}") from None
    with locked(out):
        finish_replacement(out)
        if not force and holds_run(out):
            raise RunExistsError(f"{out} already holds a run")
        code = code_hashes(exp)
        notes = {"versions": versions()} | ({"code": code} if code else {}) | {"choices": choices}
        files = {PARTITION: encode(task.partition_record()), SETTINGS: to_toml(exp, notes)}
        _stage(out, files)
        finish_replacement(out)
        yield out


def _stage(out: Path, files: dict[str, str]) -> None:
    """Write the first files of a new run to a subfolder; until then the old run is complete."""
    shutil.rmtree(out / STAGED, ignore_errors=True)
    with writing(out):
        (out / STAGED).mkdir()
        for name, text in files.items():
            write_atomically(out / STAGED / name, text)


def finish_replacement(out: Path) -> None:
    """Replace the old run by the staged one. Repeated after a crash, it has the same result."""
    staged = out / STAGED
    with writing(out):
        if is_being_replaced(out):
            for name in (SETTINGS, FINAL, BEST, DIVERGED, TRACKERS_FILE):
                (out / name).unlink(missing_ok=True)
            (out / CHECKPOINT).mkdir(exist_ok=True)
            checkpoint.remove_all(out / CHECKPOINT)  # the folder may be a link to another disk
            write_atomically(out / ROUNDS, "")
            for name in (PARTITION, SETTINGS):
                if (staged / name).exists():
                    os.replace(staged / name, out / name)
            sync(out)
    shutil.rmtree(staged, ignore_errors=True)


def is_being_replaced(out: Path) -> bool:
    """Return True if the replacement of a run was interrupted in this directory."""
    return (out / STAGED / SETTINGS).exists()


def is_readable_run(out: Path) -> bool:
    """Return True if a run was started in this directory and is not being replaced."""
    return (out / SETTINGS).exists() and not is_being_replaced(out)


def holds_run(out: Path) -> bool:
    """Return True if a run has files to keep; an interrupted start leaves no rounds."""
    files = (out / SETTINGS, out / FINAL, out / BEST, *(out / CHECKPOINT).glob("*"))
    if any(path.exists() for path in files):
        return True
    rounds = out / ROUNDS
    return rounds.exists() and rounds.stat().st_size > 0


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a run directory; the lock ends with the process that holds it, however it ends."""
    descriptor = os.open(directory, os.O_RDONLY)
    owner = os.getpid()
    try:
        _lock(descriptor, directory)
        yield
    finally:
        if os.getpid() == owner:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing would leave it to forked processes
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    """Take the lock; wait a moment for the workers of a killed run to end."""
    for wait in (0.1, 0.4, 1.5, None):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if wait is None:
                raise InputError(
                    f"{directory} is in use by another process; wait until it ends, or use "
                    "another directory"
                ) from None
            time.sleep(wait)


@contextlib.contextmanager
def record_divergence(directory: Path | None) -> Iterator[None]:
    """Write the reason to diverged.txt if the run diverges inside this block."""
    try:
        yield
    except DivergenceError as error:
        if directory is not None:
            write_atomically(directory / DIVERGED, f"{error}\n")
        raise


def read_rounds(directory: Path, rounds: int) -> list[RoundRecord]:
    """Read the records of the first `rounds` rounds, those of the checkpoint."""
    path = directory / ROUNDS
    try:
        lines = read_file(path).decode().splitlines()
    except ValueError as error:
        raise DamagedRunError(f"{path} is missing or damaged ({error})") from None
    records = []
    for number, line in enumerate(lines[:rounds], start=1):
        try:
            records.append(decode(line, RoundRecord, f"line {number}"))
        except InputError as error:
            raise DamagedRunError(f"{path} is missing or damaged ({error})") from None
    if rounds == 0 and len(lines) > 1:
        raise InputError(
            f"{path} has rounds, but {directory / CHECKPOINT} holds no checkpoint: "
            "it was changed or lost"
        )
    if [record.round for record in records] != list(range(1, rounds + 1)):
        raise InputError(
            f"{path} does not have the {rounds} rounds of the checkpoint: it was changed or cut"
        )
    return records


def read_partition(directory: Path) -> PartitionRecord:
    """Read partition.json."""
    path = directory / PARTITION
    try:
        return decode(read_file(path), PartitionRecord, path.name)
    except InputError as error:
        raise DamagedRunError(f"{path} is missing or damaged ({error})") from None


def check_data(directory: Path, exp: Experiment, task: Task) -> None:
    """Check that the data are those that the run began with."""
    stored = read_partition(directory)
    if stored.sha256 is None:
        raise DamagedRunError(f"{directory / PARTITION} is damaged: it has no sha256")
    if stored.sha256 != task.sha256:
        raise ChangedRunError(
            f"the data of {exp.dataset} have changed since {directory} began: "
            "other samples, or another partition; restore the data"
        )
    check_names("class", stored.classes, task.classes, directory)
    check_names("column", stored.features, task.features, directory)
    check_names("party", stored.names, task.names, directory)


def check_names(
    kind: str, stored: list[str] | None, current: Sequence[str], directory: Path
) -> None:
    """Check that classes, columns or parties have the names that the run began with."""
    if stored is None:  # unknown in old runs
        return
    for number, (before, now) in enumerate(itertools.zip_longest(stored, current)):
        if before != now:
            raise ChangedRunError(
                f"{kind} {number} of the data was {before!r} when {directory} began, and is "
                f"{now!r} now; restore the names"
            )


def check_code(directory: Path, exp: Experiment) -> None:
    """Check that the files of user-supplied code are those that all rounds were trained with.

    Code whose file is unknown, as in runs of older versions, is accepted.
    """
    current = code_hashes(exp)
    stored: dict[str, set[str]] = {}
    for key, value in software(read_toml(directory / SETTINGS), "code").items():
        stored.setdefault(component_of(key), set()).add(value)
    for name, values in stored.items():
        if len(values) > 1:
            raise ChangedRunError(
                f"{directory} was resumed with another version of the file that defines {name}"
            )
        if not values >= {current.get(name, *values)}:
            raise ChangedRunError(
                f"the file that defines {name} has changed since {directory} was trained with it; "
                "restore the file"
            )


def is_run_over_sites(directory: Path) -> bool:
    """Return True if the parties of a run are the sites of a Flower deployment."""
    try:
        return read_partition(directory).sites is not None
    except InputError:
        return False


def roll_back(
    directory: Path,
    records: Sequence[RoundRecord],
    exp: Experiment,
    selected_models: dict[str, Params] | None,
) -> None:
    """Restore the directory to the end of the last of these rounds and discard later ones."""
    checkpoint.discard_after(directory / CHECKPOINT, len(records))
    if not is_finished(exp.rounds, exp.patience, records):
        for name in (FINAL, DIVERGED):
            (directory / name).unlink(missing_ok=True)
        if selected_models is not None:
            save(directory / BEST, selected_models)
    text = (directory / ROUNDS).read_text(encoding="utf-8")
    finished = "".join(f"{line}\n" for line in text.splitlines()[: len(records)])
    if text != finished:
        write_atomically(directory / ROUNDS, finished)


def software(values: dict[str, Any], table: str) -> dict[str, Any]:
    """Return a table of an experiment.toml to which a resume adds entries; empty without it."""
    stored = values.get(table)
    return dict(stored) if isinstance(stored, dict) else {}


def component_of(key: str) -> str:
    """Return the software that an entry is about, as torch in "torch from round 7"."""
    return key.partition(" from round ")[0]


def update_versions(directory: Path, next_round: int) -> list[str]:
    """Store changed software versions for the coming rounds; return a text for each change."""
    changes = _update_software(directory, "versions", versions(), next_round)
    return [f"{name} {before} is now {now}" for name, (before, now) in changes.items()]


def update_code(directory: Path, exp: Experiment, next_round: int) -> list[str]:
    """Store changed user-supplied code for the coming rounds; return the names that changed."""
    return list(_update_software(directory, "code", code_hashes(exp), next_round))


def _update_software(
    directory: Path, table: str, current: dict[str, str], next_round: int
) -> dict[str, tuple[str, str]]:
    """Store changes in a table; return the former and the new value of each."""
    path = directory / SETTINGS
    values = read_toml(path)
    entries = software(values, table)
    # An earlier resume may have stored values for rounds that it did not finish.
    stored = {key: value for key, value in entries.items() if first_round(key) <= next_round}
    last = {component_of(key): value for key, value in stored.items()}
    changed = {
        name: (last[name], value)
        for name, value in current.items()
        if last.get(name, value) != value
    }
    for name, (_, value) in changed.items():
        stored[f"{name} from round {next_round}"] = value
    if stored != entries:
        write_atomically(path, tomli_w.dumps(values | {table: stored}))
    return changed
