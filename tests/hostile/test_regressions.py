"""Inputs that once failed, and known attacks: each is refused with its message."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .harness import Case, run_cases
from .readers import READERS
from .regressions import REGRESSIONS

pytestmark = pytest.mark.hostile


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_known_input_is_refused(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    regression = REGRESSIONS[name]

    def change(folder: Path) -> str:
        regression.change(folder)
        return name

    reader = READERS[regression.reader]
    (outcome,) = run_cases(reader, [Case("regression", change)], tmp_path / "inputs")
    record_property("hostile", ("regressions", 1))
    assert not outcome.problem, outcome
    assert re.search(regression.message, outcome.result), outcome
