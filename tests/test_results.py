"""The published results: the page is what the stored facts give, and the facts are those of whole runs."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKE = runpy.run_path(str(ROOT / "results" / "make.py"))
STORED, QUIET = MAKE["stored"](), MAKE["stored"]("quiet")


def test_the_page_is_made_of_the_facts() -> None:
    assert (ROOT / "docs" / "results.md").read_text() == MAKE["page"](STORED, QUIET)
    for _, picture in MAKE["pictures"](STORED):
        assert (ROOT / "docs" / "pictures" / f"{picture.name}.svg").read_text() == picture.svg


def test_the_tables_in_other_pages_are_made_of_the_facts() -> None:
    made = MAKE["blocks"](STORED)
    assert {path.name for path in made} == {"README.md", "comparison.md"}
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


def test_a_changed_fact_changes_the_page() -> None:
    name = next(iter(STORED))
    before = STORED[name].rounds[-1]["accuracy"]
    STORED[name].rounds[-1]["accuracy"] = before - 0.1
    try:
        assert MAKE["page"](STORED, QUIET) != (ROOT / "docs" / "results.md").read_text()
    finally:
        STORED[name].rounds[-1]["accuracy"] = before
