"""Cut a command short at its n-th write, go on as a user would, compare: for every n until it gets through. Started by
test_resume.py with faults.c loaded before the C library:

    cd tests && LD_PRELOAD=faults.so python -m helpers.fault_injection faults.so FOLDER kill|full

What is to be killed is a fork, so that torch is imported once. Prints how many places each command has.
"""

import ctypes
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
from moonfl.runs.recorder import Result
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
OTHER = replace(EXPERIMENT, seed=1)
DATA = gaussians((40, 30, 33, 20))  # larger ones write the same, only more of it
TASK = replace(DATA, parties=DATA.parties[:3], classes=("a", "b", "c"), validation=DATA.parties[3])


@dataclass(frozen=True)
class Command:
    before: str | None  # which of the made directories it finds
    do: Callable[[Path], Result]


COMMANDS = {
    "run": Command(None, lambda out: moonfl.run(EXPERIMENT, out, workers=1, task=TASK)),
    "run with the pool": Command(None, lambda out: moonfl.run(SHORT, out, workers=2, task=TASK)),
    "run --force": Command(
        "other", lambda out: moonfl.run(SHORT, out, force=True, workers=1, task=TASK)
    ),
    "resume": Command("cut off", lambda out: moonfl.resume(out, workers=1, task=TASK)),
    "resume --previous": Command(
        "damaged", lambda out: moonfl.resume(out, previous=True, workers=1, task=TASK)
    ),
}


class StopError(Exception):
    pass


def make_directories(folder: Path) -> None:
    """A finished run of another experiment; a run cut off in the third round's fact; one whose newest checkpoint, the
    second, is damaged."""

    def stop(fact: dict) -> None:
        if fact["round"] == 2:
            raise StopError

    moonfl.run(OTHER, folder / "other", workers=1, task=TASK)
    try:
        moonfl.run(EXPERIMENT, folder / "cut off", workers=1, task=TASK, watch=stop)
    except StopError:
        shutil.copytree(folder / "cut off", folder / "damaged")
    with open(folder / "cut off" / "rounds.jsonl", "a") as file:
        file.write('{"round": 3, "accu')
    server = folder / "damaged" / "checkpoint" / "server-2.safetensors"
    server.write_bytes(server.read_bytes()[:-1])


def go_on(command: Command, out: Path) -> Result:
    """As the messages say."""
    try:
        return moonfl.resume(out, workers=1, task=TASK)
    except moonfl.InputError as error:
        if "holds no run" in str(error):
            assert command.before != "other", "neither the old run nor one to resume"
            return command.do(out)
        if "--previous` goes on" in str(error):
            return moonfl.resume(out, previous=True, workers=1, task=TASK)
        raise


def results_of(result: Result) -> dict:
    losses = [fact["loss"] for fact in result.rounds]
    return {"models": result.models, "chosen": result.chosen_models, "losses": losses}


def check(command: Command, out: Path, expected: dict[Experiment, Result]) -> None:
    """The result is that of a run that was not cut short. What --force was to overwrite is whole, or gone."""
    result = go_on(command, out)
    assert result.experiment != OTHER or command.before == "other"
    assert same(results_of(result), results_of(expected[result.experiment]))
    assert [
        json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()
    ] == result.rounds
    assert json.loads((out / "final.json").read_text())["parties"]
    assert same(load(out / "best.safetensors"), result.chosen_models)
    assert not list(out.rglob("*.part"))


def killed(work: Callable[[], object]) -> bool:
    """Whether the work, in a process of its own, was killed; else it got to its end."""
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
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, -signal.SIGKILL), ended
    return ended != 0


def refused(work: Callable[[], object]) -> bool:
    """Whether the work was refused in clear words; else it got to its end."""
    try:
        work()
    except moonfl.RunError as error:
        if "cannot be written" not in str(error):
            raise
        return True
    return False


def places(
    name: str, folder: Path, library: ctypes.CDLL, full: bool, expected: dict[Experiment, Result]
) -> int:
    command, n, ends = COMMANDS[name], 0, True
    (folder / name).mkdir()

    def cut_short() -> None:
        library.faults_arm(str(out).encode(), ctypes.c_long(n), int(full))
        try:
            command.do(out)
        finally:
            library.faults_arm(b"", ctypes.c_long(0), 0)

    while ends:
        n += 1
        out = folder / name / str(n)
        if command.before:
            shutil.copytree(folder / command.before, out)
        try:
            ends = refused(cut_short) if full else killed(cut_short)
            check(command, out, expected)
        except BaseException as error:
            error.add_note(f"{name}, place {n}")
            raise
        shutil.rmtree(out)
    return n - 1


def main() -> None:
    library, folder, full = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "full"
    torch.set_num_threads(1)
    analysis.POINTS = 3  # too few for a t-SNE; the rest of a run as it is
    expected = {exp: moonfl.run(exp, workers=1, task=TASK) for exp in (EXPERIMENT, SHORT, OTHER)}
    make_directories(folder)
    print(json.dumps({name: places(name, folder, library, full, expected) for name in COMMANDS}))


if __name__ == "__main__":
    main()
