"""The published results: the page is what the stored facts give, and the facts are those of whole runs."""

import runpy
from pathlib import Path

import pytest

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


def test_a_changed_fact_changes_the_page() -> None:
    name = next(iter(STORED))
    before = STORED[name].rounds[-1]["accuracy"]
    STORED[name].rounds[-1]["accuracy"] = before - 0.1
    try:
        made = MAKE["pages"](STORED, QUIET)
        assert any(path.read_text() != text for path, text in made.items())
    finally:
        STORED[name].rounds[-1]["accuracy"] = before
