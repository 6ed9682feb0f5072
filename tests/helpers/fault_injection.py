"""Fault injection: interrupt a command at its n-th write, resume as a user would, and compare.

This is repeated for n = 1, 2, ... until the command finishes. test_resume.py starts it with
faults.c loaded before the C library:

    cd tests && LD_PRELOAD=faults.so python -m helpers.fault_injection faults.so FOLDER kill|full

A command that is killed runs in a fork, so that torch is imported only once. The program prints the
number of writes of each command.
"""

import contextlib
import ctypes
import functools
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import moonfl
from helpers.equality import same
from helpers.problems import gaussians
from moonfl.experiment import Experiment
from moonfl.runs import analysis
from moonfl.runs.result import Result
from moonfl.runs.schema import RoundRecord, encode
from moonfl.runs.tensor_files import load

EXPERIMENT = Experiment(
    parties=3,
    rounds=3,
    epochs=1,
    batch_size=64,
    algorithm=moonfl.MOON(mu=1),
    sample_fraction=0.7,
    validation=0.2,
)
SHORT = replace(EXPERIMENT, rounds=2)
LONG = replace(EXPERIMENT, rounds=6)  # overwrites files of outdated states in round 6
OTHER = replace(EXPERIMENT, seed=1)
DATA = gaussians((40, 30, 33, 20))  # larger data would not add other kinds of writes
TASK = replace(DATA, parties=DATA.parties[:3], classes=("a", "b", "c"), validation=DATA.parties[3])


@dataclass(frozen=True)
class Command:
    """A command that is interrupted."""

    before: str | None  # the directory that it starts from, one of `make_directories`
    run: Callable[[Path], Result]


COMMANDS = {
    "run": Command(None, lambda out: moonfl.run(EXPERIMENT, out, workers=1, task=TASK)),
    "run with the pool": Command(None, lambda out: moonfl.run(SHORT, out, workers=2, task=TASK)),
    "run --force": Command(
        "other", lambda out: moonfl.run(SHORT, out, force=True, workers=1, task=TASK)
    ),
    "resume": Command("incomplete", lambda out: moonfl.resume(out, workers=1, task=TASK)),
    "resume and reuse files": Command("long", lambda out: moonfl.resume(out, workers=1, task=TASK)),
    "resume --previous": Command(
        "damaged", lambda out: moonfl.resume(out, previous=True, workers=1, task=TASK)
    ),
}


class StopError(Exception):
    pass


def make_directories(folder: Path) -> None:
    """Write four run directories that commands start from.

    "other" is a finished run of another experiment. "incomplete" was killed while it wrote the
    record of round 3. The newest checkpoint of "damaged" is damaged. "long" ended after round 4.
    """

    def stop(rounds: int, record: RoundRecord) -> None:
        if record.round == rounds:
            raise StopError

    moonfl.run(OTHER, folder / "other", workers=1, task=TASK)
    for name, exp, rounds in (("incomplete", EXPERIMENT, 2), ("long", LONG, 4)):
        with contextlib.suppress(StopError):
            watch = functools.partial(stop, rounds)
            moonfl.run(exp, folder / name, workers=1, task=TASK, watch=watch)
    shutil.copytree(folder / "incomplete", folder / "damaged")
    with open(folder / "incomplete" / "rounds.jsonl", "a") as file:
        file.write('{"round": 3, "accu')
    server = folder / "damaged" / "checkpoint" / "server-2.safetensors"
    server.write_bytes(server.read_bytes()[:-1])


def resume(command: Command, out: Path) -> Result:
    """Resume a run, following the hints of the error messages."""
    try:
        return moonfl.resume(out, workers=1, task=TASK)
    except moonfl.InputError as error:
        if "holds no run" in str(error):
            assert command.before != "other", "neither the old run nor one to resume"
            return command.run(out)
        if "previous=True" in str(error):
            return moonfl.resume(out, previous=True, workers=1, task=TASK)
        raise


def results_of(result: Result) -> dict:
    """Return what must be bit-identical after a resume."""
    losses = [record.loss for record in result.rounds]
    return {"models": result.models, "chosen": result.chosen_models, "losses": losses}


def check(command: Command, out: Path, expected: dict[Experiment, Result]) -> None:
    """Check that a resumed run has the result of an uninterrupted one.

    A run that --force was to replace is either complete or gone.
    """
    result = resume(command, out)
    assert result.experiment != OTHER or command.before == "other"
    assert same(results_of(result), results_of(expected[result.experiment]))
    lines = (out / "rounds.jsonl").read_text().splitlines()
    assert lines == [encode(record) for record in result.rounds]
    assert json.loads((out / "final.json").read_text())["parties"]
    assert same(load(out / "best.safetensors"), result.chosen_models)
    assert not list(out.rglob("*.part"))


def is_killed(work: Callable[[], object]) -> bool:
    """Do some work in a new process. Return True if it was killed, False if it finished."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def is_refused(work: Callable[[], object]) -> bool:
    """Do some work. Return True if it failed with a clear message, False if it finished."""
    try:
        work()
    except moonfl.RunError as error:
        if "cannot be written" not in str(error):
            raise
        return True
    return False


def inject_faults(
    name: str, folder: Path, library: ctypes.CDLL, full: bool, expected: dict[Experiment, Result]
) -> int:
    """Interrupt a command at each of its writes. Return their number."""
    command = COMMANDS[name]
    n = 0
    interrupted = True
    (folder / name).mkdir()

    def run_with_fault() -> None:
        library.faults_arm(str(out).encode(), ctypes.c_long(n), int(full))
        try:
            command.run(out)
        finally:
            library.faults_arm(b"", ctypes.c_long(0), 0)

    while interrupted:
        n += 1
        out = folder / name / str(n)
        if command.before:
            shutil.copytree(folder / command.before, out)
        try:
            interrupted = is_refused(run_with_fault) if full else is_killed(run_with_fault)
            check(command, out, expected)
        except BaseException as error:
            error.add_note(f"{name}, write {n}")
            raise
        shutil.rmtree(out)
    return n - 1


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    folder = Path(sys.argv[2])
    full = sys.argv[3] == "full"
    torch.set_num_threads(1)
    analysis.POINTS = 3  # too few for a t-SNE, which is slow
    experiments = (EXPERIMENT, SHORT, LONG, OTHER)
    expected = {exp: moonfl.run(exp, workers=1, task=TASK) for exp in experiments}
    make_directories(folder)
    writes = {name: inject_faults(name, folder, library, full, expected) for name in COMMANDS}
    print(json.dumps(writes))


if __name__ == "__main__":
    main()
