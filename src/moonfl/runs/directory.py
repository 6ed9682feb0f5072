"""The run directory: experiment.toml, partition.json, rounds.jsonl with one line a round, checkpoint/, final.json,
and best.safetensors where a round is chosen."""

import contextlib
import fcntl
import itertools
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w

from ..errors import DivergenceError, InputError, quoted
from ..experiment import Experiment, check_resumable, read_toml, to_toml
from ..kernels import library
from ..task import Task
from ..types import Params
from . import checkpoint, stopping
from .files import sync, write_atomically, writing
from .tensor_files import save

SETTINGS, ROUNDS, PARTITION, FINAL = (
    "experiment.toml",
    "rounds.jsonl",
    "partition.json",
    "final.json",
)
CHECKPOINT, BEST, STAGED = "checkpoint", "best.safetensors", ".new"
DIVERGED = "diverged.txt"  # why a run ends before its last round, and would again
Fact = dict[str, Any]


def versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("moonfl", "torch", "numpy")}
    return packages | {
        "kernels": library.in_use(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def claim_directory(runs: Path, name: str) -> Path:
    """Make and return the first of `RUNS/NAME`, `RUNS/NAME-2`, ... that is not there yet."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder {runs} cannot be made: {error.strerror}; --out names another"
        ) from None
    for number in itertools.count(1):
        path = runs / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError("numbers do not end")


@contextlib.contextmanager
def new_directory(
    out: Path, force: bool, exp: Experiment, task: Task, choices: dict[str, str]
) -> Iterator[Path]:
    """A run directory, locked, in which nothing has happened; one that holds a run is overwritten only by force."""
    check_resumable(exp)
    try:
        out.mkdir(parents=True, exist_ok=True)
        sync(out.parent)
    except OSError as error:
        raise InputError(f"the run directory {out} cannot be made: {error.strerror}") from None
    noted = {"versions": versions(), "choices": choices}
    with locked(out):
        finish_replacement(out)
        if not force and holds_run(out):
            in_python, in_a_shell = (
                ("resume=True", "force=True", "out"),
                (f"`moonfl resume {quoted(out)}`", "--force", "--out"),
            )
            go_on, anew, other = in_python if exp.dataset == "given" else in_a_shell
            raise InputError(
                f"{out} already holds a run; {go_on} goes on with it, {anew} overwrites it, another {other} keeps it"
            )
        _stage(out, {PARTITION: json.dumps(task.partition_record()), SETTINGS: to_toml(exp, noted)})
        finish_replacement(out)
        yield out


def _stage(out: Path, files: dict[str, str]) -> None:
    """All that a new run begins with, the last file last: until it is there, what was in the directory is whole."""
    shutil.rmtree(out / STAGED, ignore_errors=True)
    with writing(out):
        (out / STAGED).mkdir()
        for name, text in files.items():
            write_atomically(out / STAGED / name, text)


def finish_replacement(out: Path) -> None:
    """Put the new run that is staged in the place of the old one; repeated after a kill, it comes to the same."""
    staged = out / STAGED
    with writing(out):
        if is_being_replaced(out):
            for name in (SETTINGS, FINAL, BEST, DIVERGED):
                (out / name).unlink(missing_ok=True)
            (out / CHECKPOINT).mkdir(exist_ok=True)
            for path in (
                out / CHECKPOINT
            ).iterdir():  # the folder itself may be a link to another disk
                if not path.is_dir():
                    path.unlink()
            write_atomically(out / ROUNDS, "")
            for name in (PARTITION, SETTINGS):
                if (staged / name).exists():
                    os.replace(staged / name, out / name)
            sync(out)
    shutil.rmtree(staged, ignore_errors=True)


def is_being_replaced(out: Path) -> bool:
    """Whether a run is about to take the place of another there, and was killed at it."""
    return (out / STAGED / SETTINGS).exists()


def holds_run(out: Path) -> bool:
    """Whether there is something to lose; a start that was cut off before its first round leaves nothing."""
    there = [
        path
        for path in (
            out / SETTINGS,
            out / FINAL,
            out / BEST,
            out / ROUNDS,
            *(out / CHECKPOINT).glob("*"),
        )
        if path.exists()
    ]
    return any(path != out / ROUNDS or path.stat().st_size > 0 for path in there)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """This run directory for us alone; the lock goes with the process that holds it, however that ends."""
    descriptor, owner = os.open(directory, os.O_RDONLY), os.getpid()
    try:
        for wait in (
            0.1,
            0.4,
            1.5,
            None,
        ):  # the workers of a run that was killed need a moment to end
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if wait is None:
                    raise InputError(f"{directory} is in use by another run") from None
                time.sleep(wait)
        yield
    finally:
        if os.getpid() == owner:
            fcntl.flock(
                descriptor, fcntl.LOCK_UN
            )  # closing alone would leave it to what was forked meanwhile
        os.close(descriptor)


@contextlib.contextmanager
def record_divergence(directory: Path | None) -> Iterator[None]:
    """A run that diverges leaves in its directory, if it has one, what it came to."""
    try:
        yield
    except DivergenceError as error:
        if directory is not None:
            write_atomically(directory / DIVERGED, f"{error}\n")
        raise


def read_rounds(directory: Path, rounds: int) -> list[Fact]:
    """The facts of the first `rounds` rounds, which the checkpoint has."""
    path = directory / ROUNDS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        facts = [json.loads(line) for line in lines[:rounds]]
        told = [(fact["round"], float(fact["accuracy"]) >= 0) for fact in facts]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(directory, path, error) from None
    if rounds == 0 and len(lines) > 1:
        raise InputError(
            f"{path} has rounds, but {directory / CHECKPOINT} holds no checkpoint: it was changed or lost"
        )
    if told != [(t + 1, True) for t in range(rounds)]:
        raise InputError(
            f"{path} has not the {rounds} rounds that the checkpoint has; it was changed or cut"
        )
    return facts


def check_data(directory: Path, exp: Experiment, task: Task) -> None:
    """They must be those that the run began with."""
    path = directory / PARTITION
    try:
        same = json.loads(path.read_bytes())["sha256"] == task.partition_record()["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(directory, path, error) from None
    if not same:
        raise InputError(
            f"{exp.dataset} is not as it was when {directory} began: other samples, or dealt otherwise"
        )


def _damaged(directory: Path, path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path} is missing or damaged ({error}); {checkpoint.start_again(directory)}"
    )


def finished(exp: Experiment, facts: list[Fact]) -> bool:
    return stopping.finished(exp.rounds, exp.patience, facts)


def roll_back(
    directory: Path, facts: list[Fact], exp: Experiment, chosen: dict[str, Params] | None
) -> None:
    """Make the directory that of the run after these facts, with the models chosen by then: later rounds are void."""
    checkpoint.forget_after(directory / CHECKPOINT, len(facts))
    if not finished(exp, facts):
        for name in (FINAL, DIVERGED):
            (directory / name).unlink(missing_ok=True)
        if chosen is not None:
            save(directory / BEST, chosen)
    text = "".join(json.dumps(fact) + "\n" for fact in facts)
    if (directory / ROUNDS).read_text(encoding="utf-8") != text:
        write_atomically(directory / ROUNDS, text)


def update_versions(directory: Path, next_round: int) -> list[str]:
    """What software changed since the run was last begun or resumed, now noted as that of its coming rounds."""
    path = directory / SETTINGS
    values = read_toml(path)
    noted = values.get("versions")
    noted = dict(noted) if isinstance(noted, dict) else {}
    last = {key.partition(" from round ")[0]: version for key, version in noted.items()}
    changed = {name: now for name, now in versions().items() if last.get(name, now) != now}
    if changed:
        noted |= {f"{name} from round {next_round}": now for name, now in changed.items()}
        write_atomically(path, tomli_w.dumps(values | {"versions": noted}))
    return [f"{name} {last[name]} is now {now}" for name, now in changed.items()]
