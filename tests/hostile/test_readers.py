"""Mutations of valid inputs: every reader returns a correct value or one clear error."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from .harness import Case, Reader, findings, run_cases
from .messages import MESSAGES
from .mutations import mutate
from .readers import READERS

pytestmark = pytest.mark.hostile
PER_TEST = 200  # cases, so that the tests of a reader can run in parallel
ALL = {**READERS, **MESSAGES}
PARTS = [
    pytest.param(name, start, id=f"{name}-{start}")
    for name, reader in ALL.items()
    for start in range(0, reader.cases, PER_TEST)
]


def mutation(name: str, reader: Reader, number: int) -> Case:
    """Return a mutated input of a reader; its name and number determine it."""

    def change(folder: Path) -> str:
        rng = random.Random(f"{name}/{number}")
        description = mutate(folder, rng)
        if reader.finish is not None and rng.random() < 0.5:
            reader.finish(folder)
        return description

    return Case(f"case-{number}", change)


@pytest.mark.parametrize(("name", "start"), PARTS)
def test_mutated_inputs(
    name: str, start: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    reader = ALL[name]
    numbers = range(start, min(start + PER_TEST, reader.cases))
    cases = [mutation(name, reader, number) for number in numbers]
    outcomes = run_cases(reader, cases, tmp_path / "inputs")
    record_property("hostile", (name, len(outcomes)))
    problems = findings(outcomes)
    assert not problems, "\n".join(map(str, problems))
    kinds = Counter(outcome.result.partition(":")[0] for outcome in outcomes)
    assert kinds["accepted"] < len(outcomes), "no mutation was noticed"
