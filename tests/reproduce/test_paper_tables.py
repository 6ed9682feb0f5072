"""The tables and figures of `moonfl reproduce`, from made-up round records."""

from dataclasses import replace
from pathlib import Path

import pytest

from moonfl.report.runs import Run
from moonfl.reproduce import figures, tables, targets
from moonfl.reproduce.options import Options, apply_options
from moonfl.reproduce.targets import TARGETS, Entry
from moonfl.runs.schema import FinalRecord, RoundRecord


def make_run(accuracies: list[float], seconds: float = 1.0) -> Run:
    """Return a run with these accuracies."""
    records = [
        RoundRecord(round=t, accuracy=value, seconds=seconds, bytes_down=20, bytes_up=10)
        for t, value in enumerate(accuracies, 1)
    ]
    return Run(
        path=Path("run"),
        settings={"rounds": len(records)},
        versions={},
        code={},
        choices={},
        rounds=records,
        partition=None,
        final=FinalRecord(),
    )


def entries_and_runs() -> tuple[list[Entry], tables.Runs]:
    """Return FedAvg and MOON with two seeds of four rounds."""
    fedavg, moon = (replace(targets.preset("cifar10", m), rounds=4) for m in ("fedavg", "moon"))
    runs = {
        fedavg: {0: make_run([0.1, 0.3, 0.5, 0.5], 2.0), 1: make_run([0.1, 0.3, 0.5, 0.6], 2.0)},
        moon: {0: make_run([0.1, 0.5, 0.5, 0.6], 3.0), 1: make_run([0.1, 0.3, 0.5, 0.59], 3.0)},
    }
    return [Entry("FedAvg", {"": fedavg}, "100"), Entry("MOON", {"": moon}, "27")], runs


def test_differences_are_paired_by_seed() -> None:
    entries, runs = entries_and_runs()
    entries = [replace(entries[0], paper="66.3 ± 0.5"), replace(entries[1], paper="69.1")]
    table = tables.accuracies("x", "x", entries, runs, False)
    moon = dict(zip([column.name for column in table.columns], table.rows[1], strict=True))
    assert moon["minus FedAvg"].mean == pytest.approx((0.1 - 0.01) / 2)
    assert moon["ours, %"].mean == pytest.approx(0.595)
    assert moon["difference"] == pytest.approx(0.595 - 0.691)
    assert moon["seeds"] == 2
    equal = [entries[0], replace(entries[0], row="FedProx")]
    columns = [column.name for column in tables.accuracies("x", "x", equal, runs, False).columns]
    assert columns.count("minus FedAvg") == 1, "a difference of 0 is a difference"


def test_fedavg_of_a_column_has_as_many_parties_per_round() -> None:
    """Also at small scale and in few rounds, where other columns become alike."""
    options = Options(Path("nowhere"), seeds=1, rounds=20, small=True)
    entries = [apply_options(e, options) for e in TARGETS["scalability"].entries("cifar100")]
    fedavg = {20: 0.3, 4: 0.6}  # accuracy of FedAvg, by parties per round
    runs = {}
    for entry in entries:
        exp = entry.trials[""]
        accuracy = fedavg[exp.parties_per_round()]
        if entry.row != "FedAvg":
            accuracy += 0.1
        runs[exp] = {0: make_run([accuracy] * 20, 2.0)}
    federated = [entry for entry in entries if entry.row != "SOLO"]
    table = tables.accuracies("x", "x", federated, runs, True)
    leads = [row[-2] for row in table.rows if row[0] != "FedAvg"]
    assert all(lead.mean == pytest.approx(0.1) for lead in leads)


def test_rounds_to_fedavgs_accuracy_are_counted_per_seed() -> None:
    entries, runs = entries_and_runs()
    table = tables.rounds("x", "x", entries, runs, False)
    fedavg, moon = table.rows
    assert fedavg[2:4] == ("1.0", (4, 4))
    assert moon[2:4] == ("3.7", (2, "not reached"))  # 0.5 in round 2; 0.6 never
    assert moon[4].mean == pytest.approx(2)
    assert fedavg[5].mean == 1
    assert moon[5].mean == pytest.approx(3 / 2)  # FedAvg first has its 0.5 in round 3
    assert (fedavg[6], moon[6]) == ((120, 120), (60, "not reached"))
    assert table.note.endswith("its last accuracy (3, 4)")
    (scaffold,) = (e for e in TARGETS["rounds"].entries("cifar10") if e.row == "SCAFFOLD")
    assert tables.one_decimal(100 / int(scaffold.paper)) == "1.3", "as the paper prints it"


def test_seconds_are_compared_as_ratios() -> None:
    entries, runs = entries_and_runs()
    entries = [replace(entries[0], paper="330"), replace(entries[1], paper="337")]
    _, moon = tables.seconds("x", "x", entries, runs, False).rows
    assert moon[3:5] == (pytest.approx(337 / 330), pytest.approx(1.5))


def test_every_tried_setting_is_shown_and_the_best_is_marked() -> None:
    _, runs = entries_and_runs()
    a, b = runs
    tuned = Entry("FedProx", {"mu 1": a, "mu 2": b}, "66.9")
    table = tables.accuracies("x", "x", [tuned], runs, False)
    assert "mu 2 (selected on test data, as in the paper)" in table.rows[0]
    single = replace(tuned, trials={"mu 1": a})
    (row,) = tables.accuracies("x", "x", [single], runs, False).rows
    assert "mu 1" in row, "the only setting that was run is named too"
    grid = tables.grid("x", "x", [tuned], runs)
    assert [row[1] for row in grid.rows] == ["mu 1", "mu 2"]
    assert grid.rows[1][3] == "selected on test data, as in the paper"


def test_setting_with_a_diverged_seed_is_not_the_best() -> None:
    accuracies = {"one": {0: 0.9}, "two": {0: 0.5, 1: 0.4}, "three": {0: 0.4, 1: 0.4}}
    trials = {
        label: replace(targets.preset("cifar10", "moon"), epochs=epochs)
        for epochs, label in enumerate(accuracies, 1)
    }
    runs: tables.Runs = {}
    for label, values in accuracies.items():
        runs[trials[label]] = {seed: make_run([value]) for seed, value in values.items()}
    assert tables.best(Entry("tried", trials), runs) == "two"


def test_entries_that_the_paper_shows_only_in_a_figure() -> None:
    entries, runs = entries_and_runs()
    entries = [replace(e, paper="", best=e.row == "MOON") for e in entries]
    table = tables.accuracies("x", "x", entries, runs, False)
    assert [row[1] for row in table.rows] == ["figure only", "its best, figure only"]


def test_figure_by_value_shows_the_numbers_of_the_table() -> None:
    entries, runs = entries_and_runs()
    rows = [replace(e, row=f"tau {k}", paper="66.3", best=k == 1) for k, e in enumerate(entries)]
    target = replace(TARGETS["temperature"], figure="tau")
    (drawn,) = figures.pictures(target, "x", "CIFAR-10", rows, runs, small=False)
    assert "In %: ours: 55.0 ± 7.1 at 0, 59.5 ± 0.7 at 1; paper: 66.3 at 0, 66.3 at 1." in drawn.alt
    assert "the paper's best" in drawn.svg
    columns = []
    for row in ("MOON", "FedAvg"):
        columns += [replace(e, column=f"E = {k}", row=row) for k, e in enumerate(entries)]
    (drawn,) = figures.pictures(target, "x", "CIFAR-10", columns[:3], runs, small=True)
    gap = "MOON: 55.0 ± 7.1 at 0, 59.5 ± 0.7 at 1; FedAvg: 55.0 ± 7.1 at 0."
    assert gap in drawn.alt, "there is a gap where there is no run"
    assert "the paper's best" not in drawn.svg
    none = figures.pictures(target, "x", "CIFAR-10", rows, {}, small=False)
    assert not list(none), "all diverged"
