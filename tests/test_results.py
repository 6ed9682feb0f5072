"""The published results: the page is what the stored facts give, and the facts are those of whole runs."""

import runpy
from pathlib import Path

import pytest

from moonfl.reproduce import name_of
from moonfl.targets import TARGETS

ROOT = Path(__file__).parents[1]
MAKE = runpy.run_path(str(ROOT / "results" / "make.py"))
STORED, QUIET = MAKE["stored"](), MAKE["stored"]("quiet")


def test_every_page_and_picture_is_made_of_the_facts() -> None:
    made = MAKE["pages"](STORED, QUIET)
    assert {"results.md", "README.md", "comparison.md", "results-curves.svg"} <= {path.name for path in made}
    for path, text in made.items():
        assert path.read_text() == text


@pytest.mark.parametrize("name", [*STORED, *QUIET])
def test_a_stored_run_is_whole_and_small(name: str) -> None:
    run = (STORED | QUIET)[name]
    assert run.path.name == name
    assert run.finished
    assert sum(path.stat().st_size for path in run.path.iterdir()) < 40_000
    for fact in run.rounds if "accuracy_std" not in run.rounds[-1] else ():
        assert round(10_000 * fact["accuracy"]) == pytest.approx(10_000 * fact["accuracy"], abs=1e-6)


@pytest.mark.parametrize("name", MAKE["VARIANTS"])
def test_one_more_run_of_a_variant_has_its_table(name: str) -> None:
    """Beside what Table 1 has of it, with the setting that was run."""
    first = [exp for e in TARGETS["table1"].entries("cifar10") for exp in e.trials.values()]
    some = STORED[name_of(first[0])]
    there = {name_of(exp): some for exp in first}
    entry, label = next(
        (e, label) for e in TARGETS[name].entries("cifar10") for label, exp in e.trials.items() if exp not in first
    )
    there[name_of(entry.trials[label])] = some
    (table,) = (table for table in MAKE["tables"](there)[1:] if table.name == name)
    (row,) = (row for row in table.rows if row[0] == entry.row and (entry.column in row or entry.column == "accuracy"))
    assert any(label in str(cell) for cell in row)
    assert row[-1].startswith("`moonfl run cifar10-")


def test_a_changed_fact_changes_the_page() -> None:
    name = next(iter(STORED))
    before = STORED[name].rounds[-1]["accuracy"]
    STORED[name].rounds[-1]["accuracy"] = before - 0.1
    try:
        made = MAKE["pages"](STORED, QUIET)
        assert any(path.read_text() != text for path, text in made.items())
    finally:
        STORED[name].rounds[-1]["accuracy"] = before
