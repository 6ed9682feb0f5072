"""The published results: the page is what the stored facts give, and the facts are those of whole runs."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moonfl.experiment import from_toml
from moonfl.reproduce import name_of
from moonfl.targets import TARGETS, preset

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


def percent(words: str, number: int = -1) -> str:
    """The accuracy of the run that `moonfl run WORDS` gives, after its last or another round."""
    (run,) = (run for run in STORED.values() if MAKE["command"](from_toml(run.path / "experiment.toml")) == words)
    return f"{100 * run.rounds[number if number < 0 else number - 1]['accuracy']:.1f}"


def curves(method: str) -> np.ndarray:
    """Its accuracies on the paper's partition, [seed, round]."""
    exp = preset("cifar10", method)
    runs = [STORED[name_of(replace(exp, seed=seed))] for seed in MAKE["SEEDS"]]
    return np.array([[fact["accuracy"] for fact in run.rounds] for run in runs])


def test_the_notes_say_what_the_runs_say() -> None:
    """Figures in results/notes.md that stand in no table; those of trials that are not stored are not here."""
    notes = " ".join((ROOT / "results" / "notes.md").read_text().split())
    moon, fedavg, fedprox = curves("moon"), curves("fedavg"), curves("fedprox")
    level = {name: (of >= 0.663).argmax(axis=1) + 1 for name, of in (("moon", moon), ("fedavg", fedavg))}
    from_here = np.flatnonzero(~(moon > fedavg).all(axis=0)).max() + 2  # the round after the last that is not
    solo = "moonfl run cifar10-solo"
    gain = float(percent(solo)) - float(percent(f"{solo} head=false"))
    for said in (
        f"passes the paper's final 66.3 % in round {level['fedavg'].max()} at the latest",
        f"({level['moon'].min()} to {level['moon'].max()}, the paper 27)",
        f"(seed 0: {100 * moon[0, 2]:.1f} against {100 * fedavg[0, 2]:.1f} % after the third round)",
        f"in every round from the {from_here}th on, in all three seeds",
        f"seed 1 has {100 * fedavg[1, 97]:.1f} % in round 98 and {100 * fedavg[1, 99]:.1f} % in round 100",
        f"Without the head we find {percent(f'{solo} head=false')} ±",
        f"and the same seed here {gain:.1f}",
        f"(seed 0: {percent(f'{solo} epochs=100')} % after 100, {percent(solo)} % after 300)",
        f"30 epochs has {percent(f'{solo} epochs=30 augment=false')} % in place of {percent(f'{solo} epochs=30')})",
        f"0.03 have {percent(f'{solo} epochs=30 lr=0.003')} and {percent(f'{solo} epochs=30 lr=0.03')} %",
        "seeds 1, 2 and 3 have {}, {} and {} %".format(
            *(percent(f"{solo} partition_seed={p} epochs=30") for p in (1, 2, 3))
        ),
        "runs of 30 epochs have {} and {} %".format(*(percent(f"{solo} epochs=30 seed={s}") for s in (1, 2))),
    ):
        assert said in notes
    assert (moon[:, -1] > fedavg[:, -1]).all()
    assert (moon[:, -1] > fedprox[:, -1]).sum() == 2
