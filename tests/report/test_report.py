"""Reports: numbers equal the recorded values, all files are written, errors are one sentence."""

import csv
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.run_files import comparison, make_run
from moonfl import report
from moonfl.errors import InputError
from moonfl.report import description_tables, result_tables, statistics
from moonfl.report.comparisons import baseline, figure_groups
from moonfl.report.dot_charts import party_chart
from moonfl.report.groups import SMALL_SCALE, Group, group_runs
from moonfl.report.runs import load_runs
from moonfl.report.tables import Table


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the runs and their report, written once for the module."""
    root = tmp_path_factory.mktemp("report")
    comparison(root / "runs")
    return root / "runs", report.write([root / "runs"], root / "out")


def groups_of(path: Path) -> list[Group]:
    return group_runs(load_runs([path])[0])[0]


def labels(path: Path) -> list[str]:
    return [g.label for g in groups_of(path)]


def accuracies(run: Path) -> list[float]:
    return [
        json.loads(line)["accuracy"] for line in (run / "rounds.jsonl").read_text().splitlines()
    ]


def rows(path: Path) -> dict[str, dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def test_the_accuracy_table_equals_the_records(written: tuple[Path, Path]) -> None:
    runs, page = written
    found = rows(page.with_name("accuracy.csv"))
    assert list(found) == ["MOON mu=5", "FedAvg", "SCAFFOLD", "SOLO"]
    curves = [accuracies(runs / f"moon-{seed}") for seed in range(3)]
    row = found["MOON mu=5"]
    assert float(row["final accuracy, %"]) == pytest.approx(100 * np.mean([c[-1] for c in curves]))
    assert float(row["final accuracy, %: std"]) == pytest.approx(
        100 * np.std([c[-1] for c in curves], ddof=1)
    )
    assert float(row["best accuracy, %"]) == pytest.approx(100 * np.mean([max(c) for c in curves]))
    assert row["best round, by seed"] == "; ".join(str(c.index(max(c)) + 1) for c in curves)
    assert found["SOLO"]["final accuracy, %: std"] == ""  # one seed has none


def test_macro_f1_and_balanced_accuracy_are_shown_for_runs_that_have_them(
    tmp_path: Path,
) -> None:
    runs = [make_run(tmp_path / f"moon-{seed}", "moon", seed, rounds=2) for seed in range(2)]
    old = make_run(tmp_path / "fedavg", "fedavg", rounds=2)
    (old / "rounds.jsonl").write_text(
        '{"round": 1, "accuracy": 0.1}\n{"round": 2, "accuracy": 0.1}\n'
    )
    last = [json.loads((run / "rounds.jsonl").read_text().splitlines()[-1]) for run in runs]
    groups = groups_of(tmp_path)
    for table, balanced in (
        (result_tables.accuracy_table(groups), "balanced accuracy, %"),
        (result_tables.overview_table(groups, None), "balanced, %"),
    ):
        names = [column.name for column in table.columns]
        for name, key in (("macro-F1, %", "macro_f1"), (balanced, "balanced_accuracy")):
            moon, fedavg = (row[names.index(name)] for row in table.rows)
            assert fedavg is None
            assert moon.mean == pytest.approx(np.mean([record[key] for record in last]))
            assert moon.std == pytest.approx(np.std([record[key] for record in last], ddof=1))


def add_validation(run: Path, *validation: float) -> list[dict[str, Any]]:
    """Add validation accuracies and held-out samples to a run, and return its records."""
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    added = [{"validation_accuracy": a, "sites": {"0": [9, 10], "2": [1, 4]}} for a in validation]
    records = [record | more for record, more in zip(records, added, strict=True)]
    (run / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return records


def first_row(table: Table) -> dict[str, Any]:
    return dict(zip([column.name for column in table.columns], table.rows[0], strict=True))


def test_runs_that_stopped_early_count_as_finished(tmp_path: Path) -> None:
    records = [
        add_validation(make_run(tmp_path / "a", seed=0, done=4, patience=2), 0.1, 0.5, 0.4, 0.5),
        add_validation(
            make_run(tmp_path / "b", seed=1, done=5, patience=2), 0.1, 0.2, 0.3, 0.2, 0.1
        ),
    ]
    groups, notes = group_runs(load_runs([tmp_path])[0])
    assert notes == [
        "MOON mu=5 stopped early, after round 4, 5 of 30: "
        "its validation accuracy no longer improved."
    ]
    row = first_row(result_tables.accuracy_table(groups))
    assert row["final accuracy, %"].mean == pytest.approx(
        np.mean([run[-1]["accuracy"] for run in records])
    )
    assert row["best accuracy, %"].mean == pytest.approx(
        np.mean([max(f["accuracy"] for f in run) for run in records])
    )
    assert row["selected round, %"].mean == pytest.approx(
        np.mean([records[0][1]["accuracy"], records[1][2]["accuracy"]])
    )
    assert row["rounds"] == "4 to 5"
    assert first_row(result_tables.cost_table(groups))["sent in total"] == np.mean(
        [sum(f["bytes_up"] + f["bytes_down"] for f in run) for run in records]
    )
    assert [row[2] for row in description_tables.runs_table(groups).rows] == [
        "4 of 30, stopped early",
        "5 of 30, stopped early",
    ]
    add_validation(make_run(tmp_path / "c", seed=2, done=3, patience=2), 0.1, 0.2, 0.1)
    assert "is unfinished and is left out" in group_runs(load_runs([tmp_path])[0])[1][0]


def test_diverged_and_unfinished_runs_are_told_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "a", seed=0, done=4)
    make_run(tmp_path / "b", "fedavg", seed=0, done=4)
    (tmp_path / "b" / "diverged.txt").write_text("the loss became nan\n")
    groups, notes = group_runs(load_runs([tmp_path])[0])
    assert notes == [
        "MOON mu=5 is unfinished: round 4 of 30.",
        "FedAvg diverged after round 4 of 30.",
    ]
    assert [row[-1] for row in result_tables.accuracy_table(groups).rows] == [
        "4 of 30",
        "4 of 30, diverged",
    ]
    assert [row[2] for row in description_tables.runs_table(groups).rows] == [
        "4 of 30",
        "4 of 30, diverged",
    ]
    make_run(tmp_path / "c", "fedavg", seed=1)
    (note, *_) = group_runs(load_runs([tmp_path])[0])[1]
    assert note.endswith(
        "b diverged after round 4 and is left out: other seeds of it are finished."
    )
    (tmp_path / "b" / "rounds.jsonl").write_text("")
    assert load_runs([tmp_path])[1] == [
        f"{tmp_path / 'b'} diverged in its first round and is left out."
    ]


def test_parties_have_names_and_held_out_accuracies(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=1, parties=3)
    add_validation(run, 0.5)
    partition = json.loads((run / "partition.json").read_text())
    (run / "partition.json").write_text(json.dumps(partition | {"names": ["Bonn", "Lyon", "Pisa"]}))
    (g,) = groups_of(tmp_path)
    table = description_tables.party_table([g])
    assert table is not None
    held = {
        row[1]: row[[c.name for c in table.columns].index("held-out accuracy, %")]
        for row in table.rows
    }
    assert held == {"Bonn": 0.9, "Lyon": None, "Pisa": 0.25}
    drawn = party_chart("party-held-out", [g], "held-out")
    assert drawn is not None
    assert "Bonn" in drawn.svg
    assert "party 0" not in drawn.svg


def test_differences_are_paired_by_common_seeds(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        make_run(tmp_path / f"moon-{seed}", "moon", seed)
    for seed in (1, 2, 3):
        make_run(tmp_path / f"fedavg-{seed}", "fedavg", seed)
    gains = [
        accuracies(tmp_path / f"moon-{s}")[-1] - accuracies(tmp_path / f"fedavg-{s}")[-1]
        for s in (1, 2)
    ]
    table = result_tables.difference_table(groups_of(tmp_path))
    assert table is not None
    ((method, base, seeds, gain, each, interval, verdict),) = table.rows
    assert (method, base, seeds) == ("MOON mu=5", "FedAvg", 2)
    assert (interval.low + interval.high) / 2 == pytest.approx(gain.mean)
    assert (verdict == "better") == (interval.low > 0)
    assert each == pytest.approx(gains)
    assert (gain.mean, gain.std) == pytest.approx((np.mean(gains), np.std(gains, ddof=1)))


def test_rounds_and_bytes_to_the_target(written: tuple[Path, Path]) -> None:
    runs, page = written
    row = rows(page.with_name("target.csv"))["MOON mu=5"]
    target = float(np.mean([accuracies(runs / f"fedavg-{seed}")[-1] for seed in range(3)]))
    assert float(row["target, %"]) == pytest.approx(100 * target)
    expected = [
        next(t for t, a in enumerate(accuracies(runs / f"moon-{s}"), 1) if a >= target)
        for s in range(3)
    ]
    assert row["rounds, by seed"] == "; ".join(map(str, expected))
    a_round = 2 * 10 * 1_360_000
    assert [float(v) for v in row["sent both ways, by seed"].split("; ")] == [
        t * a_round for t in expected
    ]
    high = result_tables.target_table(groups_of(runs), 0.99)
    assert high is not None
    assert high.cells()[1] == [
        "FedAvg",
        "99.0",
        "0 of 3",
        *["not reached, not reached, not reached"] * 2,
    ]
    assert "SOLO" not in {row[0] for row in high.rows}  # has no rounds to count


def test_compare_prints_one_line_per_group(written: tuple[Path, Path]) -> None:
    text = report.compare([written[0]])
    body = text.splitlines()[2:7]
    assert [line.split("  ")[0] for line in body] == [
        "method",
        "MOON mu=5",
        "FedAvg",
        "SCAFFOLD",
        "SOLO",
    ]
    final = np.mean([accuracies(written[0] / f"fedavg-{seed}")[-1] for seed in range(3)])
    assert f"{100 * final:.1f} ±" in body[2]
    assert max(map(len, text.splitlines())) <= 120


def test_cost_against_fedavg(written: tuple[Path, Path]) -> None:
    found = rows(written[1].with_name("cost.csv"))
    assert float(found["MOON mu=5"]["CPU time / FedAvg's"]) == pytest.approx(1.9)
    assert found["FedAvg"]["CPU time / FedAvg's"] == ""


def test_every_figure_and_table_is_a_file_too(written: tuple[Path, Path]) -> None:
    page = written[1]
    text = page.read_text()
    linked = set(re.findall(r'href="([^"#]+)" download', text))
    assert linked | {"report.html"} == {path.name for path in page.parent.iterdir()}
    figures = set(re.findall(r'<figure id="figure-([a-z0-9-]+)"', text))
    kinds = {
        "accuracy",
        "final",
        "target",
        "partition-1",
        "classes",
        "confusion-1",
        "drift",
        "party-accuracy",
    }
    assert kinds | {"party-distance", "party-similarity", "tsne-1", "cost"} <= figures
    for name in figures:
        ET.parse(page.with_name(f"{name}.svg"))
        assert page.with_name(f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert page.stat().st_size < 5_000_000


def test_the_page_needs_no_other_resources(written: tuple[Path, Path]) -> None:
    text = written[1].read_text()
    assert not re.search(r'(?:src|href)="(?:https?:)?//', re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))
    assert "url(http" not in text
    assert "@import" not in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)), "an id is used twice"
    assert len(re.findall(r'<svg role="img" aria-label="[^"]{20,}"', text)) == text.count("<figure")
    assert len(re.findall(r"<figcaption>[A-Z][^<]{20,}\. ", text)) == text.count("<figure")
    assert SMALL_SCALE not in text


def test_small_runs_are_marked_everywhere(tmp_path: Path) -> None:
    make_run(tmp_path / "runs/a", "moon", scale="small")
    make_run(tmp_path / "runs/b", "fedavg", scale="small")
    page = report.write([tmp_path / "runs"], tmp_path / "out")
    text = page.read_text()
    assert SMALL_SCALE in re.findall(r"<title>(.*?)</title>", text)[0].replace("&#x27;", "'")
    assert f"{SMALL_SCALE[1:]}</p>" in text.replace("&#x27;", "'")
    for path in [*page.parent.glob("*.svg"), *page.parent.glob("*.md")]:
        assert SMALL_SCALE in path.read_text(), path.name
    assert SMALL_SCALE in report.compare([tmp_path / "runs"])
    make_run(tmp_path / "runs/c", "moon", rounds=40)
    assert "MOON mu=5 rounds=30 (small scale)" in labels(tmp_path / "runs")


def test_labels_name_the_settings_that_differ(tmp_path: Path) -> None:
    for mu in (10.0, 1.0, 5.0):
        make_run(tmp_path / f"mu/{mu}", "moon", mu=mu)
    make_run(tmp_path / "mu/tau", "moon", tau=1.0)
    expected = ["MOON mu=1 tau=0.5", "MOON mu=5 tau=0.5", "MOON mu=5 tau=1", "MOON mu=10 tau=0.5"]
    assert labels(tmp_path / "mu") == expected
    for beta in (5.0, 0.1):
        make_run(tmp_path / f"beta/moon-{beta}", "moon", beta=beta)
        make_run(tmp_path / f"beta/fedavg-{beta}", "fedavg", beta=beta)
    make_run(tmp_path / "beta/all", "fedavg", parties=1, beta=0.1, rounds=50)
    expected = [
        "MOON mu=5 beta=0.1",
        "FedAvg beta=0.1",
        "MOON mu=5 beta=5",
        "FedAvg beta=5",
        "centralised beta=0.1",
    ]
    assert labels(tmp_path / "beta") == expected


def test_fedavg_of_the_same_setting_is_the_baseline(tmp_path: Path) -> None:
    for beta in (0.1, 0.5):
        make_run(tmp_path / f"moon-{beta}", "moon", beta=beta)
        make_run(tmp_path / f"fedavg-{beta}", "fedavg", beta=beta)
        make_run(tmp_path / f"solo-{beta}", "solo", beta=beta)
    make_run(tmp_path / "moon-5", "moon", beta=5.0)
    found = groups_of(tmp_path)
    against = {g.label: base.label for g in found if (base := baseline(g, found))}
    assert against == {
        "MOON mu=5 beta=0.1": "FedAvg beta=0.1",
        "SOLO beta=0.1": "FedAvg beta=0.1",
        "MOON mu=5 beta=0.5": "FedAvg beta=0.5",
        "SOLO beta=0.5": "FedAvg beta=0.5",
    }
    shown = [[g.label for g in panel] for panel in figure_groups(found)]
    assert shown[0] == ["MOON mu=5 beta=0.1", "FedAvg beta=0.1", "SOLO beta=0.1"]
    assert len(shown) == 3


def test_a_custom_method_without_federation_is_recognised_by_its_records(tmp_path: Path) -> None:
    make_run(tmp_path / "fedavg", "fedavg")
    toml = make_run(tmp_path / "alone", "solo") / "experiment.toml"
    toml.write_text(toml.read_text().replace('name = "solo"', 'name = "alone"'))
    assert [(g.label, g.federated) for g in groups_of(tmp_path)] == [
        ("FedAvg", True),
        ("alone", False),
    ]


def test_many_groups_are_split_into_figures_with_different_colours(tmp_path: Path) -> None:
    make_run(tmp_path / "fedavg", "fedavg", rounds=3)
    for mu in range(1, 21):
        make_run(tmp_path / f"moon-{mu}", "moon", rounds=3, mu=float(mu))
    parts = figure_groups(groups_of(tmp_path))
    assert {g.label for part in parts for g in part} == set(labels(tmp_path))
    for part in parts:
        assert len(part) <= 7
        assert part[0].label == "FedAvg"
        assert len({g.style % 7 for g in part}) == len(part), "two lines of one colour"


def test_an_unfinished_run_counts_only_if_its_group_has_no_finished_one(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "moon", 0, rounds=10)
    cut = make_run(tmp_path / "b", "moon", 1, rounds=10, done=4)
    with open(cut / "rounds.jsonl", "a") as file:
        file.write('{"round": 5, "accur')
    (only,) = groups_of(tmp_path)
    assert (only.seeds, only.length) == ([0], 10)
    (alone,) = groups_of(cut)
    assert (alone.seeds, alone.length, alone.finished) == ([1], 4, False)
    text = report.compare([cut])
    assert "4 of 10" in text
    assert report.write([cut], tmp_path / "out").exists()


def test_a_repeated_run_counts_once(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "moon", 0)
    make_run(tmp_path / "b", "moon", 0)
    (only,), notes = group_runs(load_runs([tmp_path, tmp_path / "a"])[0])
    assert only.seeds == [0]
    assert (
        f"b repeats {tmp_path}/a (same settings and seed) with identical results, and" in notes[0]
    )


def change_records(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the records of a run without checkpoint, whose files have no hashes."""
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for record in records:
        change(record)
    (run / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_round_without_parties_is_a_gap_in_the_drift(tmp_path: Path) -> None:
    """Sampling for differential privacy may choose no party."""

    def remove_parties(record: dict[str, Any]) -> None:
        if record["round"] in (2, 5):
            record["parties"] = []

    for seed in range(2):
        change_records(
            make_run(tmp_path / f"runs/{seed}", "fedavg", seed, rounds=5), remove_parties
        )
    (group,) = groups_of(tmp_path / "runs")
    curves = statistics.drift_curves(group)
    assert curves is not None
    drifts = [
        [party.drift for run in group.runs for party in run.rounds[t].parties or []]
        for t in range(5)
    ]
    expected = [np.mean(values) if values else np.nan for values in drifts]
    np.testing.assert_allclose(curves[0], expected)
    assert np.isnan(curves[1]).tolist() == [False, True, False, False, True]
    page = report.write([tmp_path / "runs"], tmp_path / "out")
    assert f"At the end: FedAvg {expected[3]:.3g}." in page.read_text()
    assert "nan" not in page.with_name("drift.svg").read_text().lower()


def test_a_repeated_run_is_compared_with_the_first(tmp_path: Path) -> None:
    """Times differ in every repetition; older versions did not record the learning rate."""

    def slow_down(record: dict[str, Any]) -> None:
        record |= {"seconds": record["seconds"] + 1, "cpu_seconds": 99.0, "lr": 0.01}
        record["parties"][0] |= {"seconds": 99.0}

    def change_drift(record: dict[str, Any]) -> None:
        if record["round"] >= 3:
            record["parties"][1]["drift"] += 1e-9

    make_run(tmp_path / "a", "moon", 0)
    make_run(tmp_path / "slower", "moon", 0)
    make_run(tmp_path / "shorter", "moon", 0, done=4)
    make_run(tmp_path / "different", "moon", 0)
    change_records(tmp_path / "slower", slow_down)
    change_records(tmp_path / "different", change_drift)
    notes = " ".join(group_runs(load_runs([tmp_path])[0])[1])
    for name, results in {
        "slower": "identical results, and",
        "shorter": "identical results up to its last round, 4, and",
        "different": "other results from round 3, and",
    }.items():
        assert f"{name} repeats {tmp_path}/a (same settings and seed) with {results}" in notes


def test_old_runs_without_the_newer_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "final.json").unlink()
    (run / "partition.json").unlink()
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    lines = [
        json.dumps({k: record[k] for k in ("round", "accuracy", "loss")}) for record in records
    ]
    (run / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    page = report.write([run], tmp_path / "out")
    assert set(re.findall(r'<figure id="figure-([a-z0-9-]+)"', page.read_text())) == {
        "accuracy",
        "final",
        "target",
    }


def test_a_hundred_classes_and_parties(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", parties=100, rounds=2)
    names = [f"class {k}" for k in range(100)]
    counts = np.ones((100, 100), dtype=int).tolist()
    (run / "partition.json").write_text(json.dumps({"classes": names, "counts": counts}))
    final = json.loads((run / "final.json").read_text())
    final |= {
        "confusion": counts,
        "tsne": {"points": np.eye(100)[:, :2].tolist(), "labels": list(range(100))},
    }
    (run / "final.json").write_text(json.dumps(final))
    page = report.write([run], tmp_path / "out")
    assert "sorted" in page.read_text()
    assert page.stat().st_size < 1_000_000


def test_a_class_without_test_samples_has_no_accuracy(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=2)
    final = json.loads((run / "final.json").read_text())
    confusion = np.full((10, 10), 2)
    confusion[3] = 0
    final["confusion"] = confusion.tolist()
    (run / "final.json").write_text(json.dumps(final))
    page = report.write([run], tmp_path / "out")
    with (tmp_path / "out/classes.csv").open(newline="") as file:
        _, *rows = csv.reader(file)
    assert [row[1] for row in rows] == ["10.0"] * 3 + [""] + ["10.0"] * 6
    assert "mean of the diagonal 10.0 %" in page.read_text()
    assert "nan" not in (tmp_path / "out/confusion.svg").read_text()


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=2, dataset='<script>alert("$x$")</script>')
    text = report.write([run], tmp_path / "out").read_text()
    assert "<script" not in text


def test_an_existing_report_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs/a", rounds=2)
    make_run(tmp_path / "runs/b", "fedavg", rounds=2)
    out = tmp_path / "out"
    report.write([tmp_path / "runs"], out)
    (out / "mine.svg").write_text("mine")
    assert (out / "confusion-2.svg").exists()
    page = report.write([run], out)
    assert not (out / "confusion-2.svg").exists()
    assert (out / "mine.svg").read_text() == "mine"
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert report.write([run], out) == page
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first, (
        "a report of the same runs differs"
    )
    assert not list(out.glob("*.part"))


def break_file(run: Path, name: str, old: str, new: str) -> None:
    text = (run / name).read_text()
    assert old in text
    (run / name).write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "experiment.toml",
            "beta = 0.5",
            "beta = ",
            r"experiment\.toml is not valid TOML: .*line 6",
        ),
        ("experiment.toml", 'dataset = "cifar10"', "", r"experiment\.toml has no setting dataset"),
        (
            "rounds.jsonl",
            '{"round": 2,',
            '{"round" 2,',
            r"rounds\.jsonl, line 2 is not valid JSON: .*character 9",
        ),
        (
            "rounds.jsonl",
            '{"round": 2,',
            '{"round": 7,',
            r"rounds\.jsonl, line 2: round must be 2, got 7",
        ),
        (
            "rounds.jsonl",
            '"accuracy": ',
            '"accuracy": NaN, "a": ',
            r"rounds\.jsonl, line 1: .*accuracy",
        ),
        (
            "final.json",
            '"confusion": [[',
            '"confusion": [[1], [',
            r"final\.json: confusion must be a table of counts",
        ),
        (
            "final.json",
            '"points": [[',
            '"points": [[0, 0], [',
            r"final\.json: tsne\.points must have 1000 points",
        ),
        ("final.json", '"parties"', 'parties"', r"final\.json is not valid JSON"),
        ("partition.json", '"airplane", ', "", r"partition\.json: classes must be 10 names"),
    ],
)
def test_a_broken_file_is_named(
    tmp_path: Path, name: str, old: str, new: str, message: str
) -> None:
    run = make_run(tmp_path / "run", rounds=3)
    break_file(run, name, old, new)
    for use in (
        lambda: report.compare([tmp_path]),
        lambda: report.write([tmp_path], tmp_path / "out"),
    ):
        with pytest.raises(InputError, match=message):
            use()
    assert not (tmp_path / "out").exists()


def test_wrong_input(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=2)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    cases: list[tuple[list[Path], Any, str]] = [
        ([tmp_path / "empty"], None, "no run in .*empty"),
        ([tmp_path / "nowhere"], None, "nowhere is not a folder"),
        ([run], 66.0, "above 0 and at most 1.*got 66"),
        ([run], float("nan"), "above 0"),
    ]
    for paths, target, message in cases:
        with pytest.raises(InputError, match=message):
            report.compare(paths, target)
    with pytest.raises(InputError, match=r"cannot be written to .*file"):
        report.write([run], tmp_path / "file")
    (run / "rounds.jsonl").write_text('{"round": 1')
    with pytest.raises(
        InputError, match=r"no finished round to show: .*run has no finished round yet"
    ):
        report.compare([run])


def test_fifty_runs_of_a_hundred_rounds_take_seconds(tmp_path: Path) -> None:
    for mu in range(1, 10):
        for seed in range(5):
            make_run(tmp_path / f"runs/moon-{mu}-{seed}", "moon", seed, rounds=100, mu=float(mu))
    for seed in range(5):
        make_run(tmp_path / f"runs/fedavg-{seed}", "fedavg", seed, rounds=100)
    start = time.process_time()  # of this process: other work on the machine does not count
    page = report.write([tmp_path / "runs"], tmp_path / "out")
    assert time.process_time() - start < 20
    assert page.stat().st_size < 5_000_000


def test_torch_is_not_needed(tmp_path: Path) -> None:
    """Check in a new process, as on the command line."""
    run = make_run(tmp_path / "run", rounds=2)
    code = (
        "import sys; from pathlib import Path; from moonfl import report\n"
        f"run = Path({str(run)!r}); report.compare([run]); assert 'matplotlib' not in sys.modules\n"
        f"report.write([run], Path({str(tmp_path / 'out')!r})); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_labels_of_solo_runs_name_the_settings_that_differ(tmp_path: Path) -> None:
    for number, changes in enumerate(({}, {"epochs": 30}, {"epochs": 30, "lr": 0.5})):
        make_run(tmp_path / f"solo-{number}", "solo", **changes)
    make_run(tmp_path / "fedavg", "fedavg")
    assert labels(tmp_path)[0] == "FedAvg"
    assert sorted(labels(tmp_path)[1:]) == [
        "SOLO epochs=10 lr=0.01",
        "SOLO epochs=30 lr=0.01",
        "SOLO epochs=30 lr=0.5",
    ]


def test_extreme_settings_are_readable(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "fedavg", 2**63 - 1, clip=1e300, beta=1e20)
    assert groups_of(tmp_path)[0].seeds == [2**63 - 1]


def test_the_target_is_the_accuracy_of_the_longest_fedavg_group(tmp_path: Path) -> None:
    for rounds in (2, 6, 4):
        make_run(tmp_path / f"fedavg-{rounds}", "fedavg", rounds=rounds)
    (target,) = statistics.target_scores(groups_of(tmp_path), None).values()
    assert target == accuracies(tmp_path / "fedavg-6")[-1]


def test_settings_of_matplotlib_in_the_current_folder_are_not_used(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    latex = tmp_path / "bin" / "latex"
    latex.parent.mkdir()
    latex.write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\nexit 1\n")
    latex.chmod(0o755)
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    program = f"from moonfl.cli import main; raise SystemExit(main(['report', {str(run)!r}]))"
    environment = os.environ | {"PATH": f"{latex.parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", program]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    assert not (tmp_path / "executed").exists()
