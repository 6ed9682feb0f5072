"""The suite notices defects: readers with a planted defect are reported, and correct ones not."""

import os
import pickle
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from moonfl import InputError

from .harness import CANARY, MAX_FINDINGS, MEMORY, Case, Outcome, Reader, findings, run_cases
from .mutations import COMMAND, PAYLOADS

pytestmark = pytest.mark.hostile


def write_number(folder: Path) -> None:
    (folder / "number").write_text("1")


def damage(folder: Path) -> str:
    (folder / "number").write_text("x")
    return "damaged"


def keep(folder: Path) -> str:
    return "unchanged"


def run_defect(
    defect: Callable[[Path], object],
    folder: Path,
    *,
    check: Callable = lambda value, expected: None,
) -> Outcome:
    """Read a damaged input with a reader that has a defect; it reads valid inputs correctly."""

    def read(inputs: Path) -> object:
        text = (inputs / "number").read_text()
        return int(text) if text.isdecimal() else defect(inputs)

    reader = Reader(write=write_number, read=read, check=check)
    cases = [Case("valid-input", keep), Case("damaged-input", damage), Case("last", keep)]
    first, outcome, last = run_cases(reader, cases, folder / "inputs", seconds=5)
    assert (first.problem, last.problem) == ("", ""), "only the damaged input has a problem"
    return outcome


def refuse(inputs: Path) -> None:
    raise InputError(f"{inputs} holds 'x'; allowed are integers")


def leak_error(inputs: Path) -> None:
    int("x")


def leak_memory_error(inputs: Path) -> object:
    return np.ones(MEMORY, dtype=np.float64)


def hide_memory_error(inputs: Path) -> object:
    try:
        return bytes(2 * MEMORY)
    except MemoryError as error:
        raise InputError(f"{inputs} is damaged: {error}") from None


def spin(inputs: Path) -> None:
    while True:
        pass


def wait(inputs: Path) -> None:
    time.sleep(60)


def die(inputs: Path) -> None:
    os.abort()


def unpickle(inputs: Path) -> object:
    return pickle.loads(PAYLOADS[1])


def swallow_unpickling(inputs: Path) -> None:
    """Execute a payload, and hide that as the refusal of a damaged file."""
    try:
        pickle.loads(PAYLOADS[1])
    except Exception as error:
        raise InputError(f"{inputs} is damaged: {error}") from None


def start_program(inputs: Path) -> None:
    subprocess.run(["touch", CANARY], check=False)


def use_shell(inputs: Path) -> None:
    os.system(COMMAND)


def execute_text(inputs: Path) -> None:
    exec("1 + 1")


def import_canary(inputs: Path) -> None:
    (inputs / f"{CANARY}.py").write_text("x = 1\n")
    sys.path.insert(0, str(inputs))
    __import__(CANARY)


def write_elsewhere(inputs: Path) -> None:
    (inputs.parent / "elsewhere").write_text("x")


def remove_elsewhere(inputs: Path) -> None:
    (inputs.parent / "valid" / "number").unlink()


def connect(inputs: Path) -> None:
    socket.create_connection(("127.0.0.1", 9), timeout=1)


def raise_empty_message(inputs: Path) -> None:
    raise InputError("")


def raise_traceback(inputs: Path) -> None:
    raise InputError("Traceback (most recent call last): ...")


def exit_silently(inputs: Path) -> None:
    sys.exit(0)


DEFECTS = [
    (leak_error, "raw ValueError: invalid literal"),
    (leak_memory_error, "raw .*MemoryError"),
    (hide_memory_error, "bytes requested for a small input"),
    (spin, "hang: no result after 5 seconds"),
    (wait, "hang: no result after 5 seconds"),
    (die, "the process died: -6"),
    (unpickle, "forbidden while reading: pickle.find_class"),
    (swallow_unpickling, "forbidden while reading: pickle.find_class"),
    (start_program, "forbidden while reading: subprocess.Popen"),
    (use_shell, "forbidden while reading: os.system"),
    (execute_text, "forbidden while reading: exec <string>"),
    (import_canary, "forbidden while reading: import 'hostile_canary'"),
    (write_elsewhere, "forbidden while reading: open .*elsewhere"),
    (remove_elsewhere, "forbidden while reading: os.remove .*number"),
    (connect, "forbidden while reading: socket"),
    (raise_empty_message, "an error without a message"),
    (raise_traceback, "a traceback in a message"),
    (exit_silently, "raw SystemExit"),
]


@pytest.mark.parametrize(
    ("defect", "problem"), DEFECTS, ids=[defect.__name__ for defect, _ in DEFECTS]
)
def test_a_planted_defect_is_reported(
    defect: Callable[[Path], object], problem: str, tmp_path: Path
) -> None:
    outcome = run_defect(defect, tmp_path)
    assert outcome.case == "damaged-input"
    assert outcome.change == "damaged"
    assert re.search(problem, outcome.problem), outcome
    assert (tmp_path / "inputs" / "damaged-input").is_dir(), "the input stays"


def test_one_clear_message_is_no_problem(tmp_path: Path) -> None:
    outcome = run_defect(refuse, tmp_path)
    assert not outcome.problem
    assert outcome.result.endswith("holds 'x'; allowed are integers")


def test_a_wrong_result_is_reported(tmp_path: Path) -> None:
    def check(value: int, expected: int) -> None:
        assert value == expected, f"{value} is not {expected}"

    outcome = run_defect(lambda inputs: 2, tmp_path, check=check)
    assert outcome.problem.startswith("accepted with a wrong result: 2 is not 1")


def test_a_reader_that_always_fails_stops_early(tmp_path: Path) -> None:
    def read(inputs: Path) -> int:
        return int((inputs / "number").read_text())

    cases = [Case(f"case-{k}", damage) for k in range(100)]
    outcomes = run_cases(Reader(write=write_number, read=read), cases, tmp_path / "inputs")
    assert len(findings(outcomes)) == len(outcomes) == MAX_FINDINGS
