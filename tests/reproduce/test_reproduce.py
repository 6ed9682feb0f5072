"""`moonfl reproduce`: every target at small scale, and its real presets on tiny files in the publishers' layouts."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.problems import shorten, write_cifar10, write_cifar100, write_tiny_imagenet
from moonfl.algorithms import MOON
from moonfl.cli import main
from moonfl.data.base import Examples
from moonfl.data.datasets import DATASETS
from moonfl.data.digits import read_digits
from moonfl.experiment import Experiment
from moonfl.report.runs import Run
from moonfl.reproduce import estimates, figures, tables, targets
from moonfl.reproduce import runner as reproduce
from moonfl.reproduce.targets import TARGETS, Entry


@pytest.fixture(autouse=True)
def _little_of_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for the 20 parties of small scale."""
    whole = read_digits()
    train, test = (Examples(x[:n], y[:n]) for (x, y), n in ((whole.train, 300), (whole.test, 60)))
    source = replace(
        DATASETS["digits"], read=lambda folder, reading: replace(whole, train=train, test=test)
    )
    monkeypatch.setitem(DATASETS, "digits", source)


@pytest.fixture
def _short_solo(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, solo=3)


@pytest.fixture(scope="module")
def small_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the targets, as they share runs."""
    return tmp_path_factory.mktemp("small")


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_at_small_scale(
    name: str, small_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "reproduce",
        name,
        "--scale",
        "small",
        "--seeds",
        "1",
        "--rounds",
        "2",
        "--workers",
        "1",
    ]
    assert main([*words, "--out", str(small_runs)]) == 0, capsys.readouterr().err
    out = capsys.readouterr()
    kind, stem = TARGETS[name].kind, f"{name}-small-2rounds"
    if kind == "distributions":
        assert [
            len(list(small_runs.glob(f"{stem}-beta*.{suffix}"))) for suffix in ("png", "svg")
        ] == [3, 3]
        return
    scales = ["-20-of-20-parties", "-4-of-20-parties"] if name == "scalability" else [""]
    figures_made = [f"{stem}{scale}" for scale in scales if TARGETS[name].figure]
    assert sorted(path.stem for path in small_runs.glob(f"{stem}*.png")) == figures_made
    for path in figures_made:
        assert "small scale" in (small_runs / f"{path}.svg").read_text()
    assert (small_runs / stem / "report.html").exists() == (kind == "curves")
    if kind == "tsne":
        return
    text = (small_runs / f"{stem}.md").read_text()
    assert "small scale, not the paper's setting" in text
    assert (small_runs / f"{stem}.csv").exists()
    assert "small scale, not the paper's setting" in out.out
    if kind != "statistics":
        made = next((small_runs / "runs").iterdir()) / "experiment.toml"
        assert 'scale = "small"' in made.read_text()


def test_a_report_of_what_was_reproduced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--scale",
        "small",
        "--seeds",
        "1",
        "--rounds",
        "2",
        "--workers",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert main(["reproduce", "table1", *words]) == 0
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report")]) == 0
    assert "small scale" in (tmp_path / "report" / "report.html").read_text()
    capsys.readouterr()


def test_finished_runs_are_kept_and_unfinished_ones_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "reproduce",
        "temperature",
        "--scale",
        "small",
        "--seeds",
        "1",
        "--rounds",
        "3",
        "--workers",
        "1",
    ]
    assert main([*words, "--out", str(tmp_path)]) == 0
    first = capsys.readouterr()
    runs = sorted((tmp_path / "runs").iterdir())
    before = [(run / "rounds.jsonl").read_bytes() for run in runs]
    lines = (runs[0] / "rounds.jsonl").read_text().splitlines(keepends=True)
    (runs[0] / "rounds.jsonl").write_text("".join(lines[:2]))
    (runs[0] / "checkpoint" / "round-3.json").unlink()
    assert main([*words, "--out", str(tmp_path)]) == 0
    again = capsys.readouterr()
    assert again.out == first.out
    assert (
        again.err.count("run 1 of 3")
        + again.err.count("run 2 of 3")
        + again.err.count("run 3 of 3")
        == 1
    )
    assert [(run / "rounds.jsonl").read_bytes() for run in runs[1:]] == before[1:]


@pytest.mark.usefixtures("_short_solo")
@pytest.mark.parametrize(
    "name", [name for name, target in TARGETS.items() if "cifar10" in target.datasets]
)
def test_the_real_presets_of_cifar10(
    name: str, small_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The paper's network, parties and, but for SOLO, epochs, one round, on a few images in the publisher's layout."""
    if not (small_runs / "data").exists():
        write_cifar10(small_runs / "data", per_file=24)
    words = [
        "reproduce",
        name,
        "--dataset",
        "cifar10",
        "--seeds",
        "1",
        "--rounds",
        "1",
        "--workers",
        "1",
    ]
    out = small_runs / "real"
    assert main([*words, "--data-dir", str(small_runs / "data"), "--out", str(out)]) == 0, (
        capsys.readouterr().err
    )
    shown = capsys.readouterr().out
    if TARGETS[name].kind == "accuracy":
        assert "rounds 1, not the paper's 100" in shown
        assert "paper, %" in shown


OTHERS = [
    (name, dataset)
    for name in ("scalability", "heterogeneity", "loss", "statistics", "distributions")
    for dataset in ("cifar100", "tiny-imagenet")
    if dataset in TARGETS[name].datasets
]


@pytest.mark.parametrize(("name", "dataset"), OTHERS)
def test_the_other_data_sets(
    name: str,
    dataset: str,
    small_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the small network, as the table says, and few epochs; ResNet-50 itself runs in test_cli.py."""
    shorten(monkeypatch, solo=2, others=2)
    samples = 1010 if name == "scalability" else 200
    folder = small_runs / f"data-{dataset}-{samples}"
    if not folder.exists():
        write_cifar100(folder, samples) if dataset == "cifar100" else write_tiny_imagenet(
            folder, 12, 12
        )
    words = [
        "reproduce",
        name,
        "--dataset",
        dataset,
        "--model",
        "simple-cnn",
        "--seeds",
        "1",
        "--rounds",
        "1",
    ]
    code = main(
        [
            *words,
            "--workers",
            "1",
            "--data-dir",
            str(folder),
            "--out",
            str(small_runs / folder.name / "out"),
        ]
    )
    shown = capsys.readouterr()
    assert code == 0, shown.err
    if TARGETS[name].kind == "accuracy":
        assert "model simple-cnn, not the paper's resnet50" in shown.out


def test_a_run_that_diverges_is_said_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    wild = targets.small(replace(targets.preset("cifar10", "fedprox"), lr=1e4))
    calm = targets.small(targets.preset("cifar10", "fedavg"))
    entries = [Entry("FedAvg", {"": calm}, "66.3"), Entry("FedProx", {"": wild}, "66.9")]
    monkeypatch.setitem(
        TARGETS, "table1", replace(TARGETS["table1"], entries=lambda dataset: entries)
    )
    options = reproduce.Options(tmp_path, seeds=1, rounds=3, workers=1)
    for _ in range(2):
        reproduce.reproduce("table1", replace(options, dataset="cifar10"))
        assert "diverged" in capsys.readouterr().out
    monkeypatch.setitem(
        TARGETS, "curves", replace(TARGETS["curves"], entries=lambda dataset: entries[1:])
    )
    reproduce.reproduce(
        "curves", replace(options, dataset="cifar10")
    )  # of which nothing is left to draw
    assert "diverged" in capsys.readouterr().out


def test_a_seed_that_diverges_is_named_and_its_setting_is_not_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    """The facts of the others are real; what a run that led nowhere leaves is its note."""
    facts = {"one": {0: 0.9}, "two": {0: 0.5, 1: 0.4}, "three": {0: 0.4, 1: 0.4}}
    tried = {
        label: replace(targets.preset("cifar10", "moon"), epochs=e)
        for e, label in enumerate(facts, 1)
    }
    found: tables.Runs = {
        tried[label]: {
            s: Run(Path(), {}, {}, {}, [{"accuracy": a}], None, {}) for s, a in of.items()
        }
        for label, of in facts.items()
    }
    assert tables.best(Entry("tried", tried), found) == "two"
    calm = targets.small(targets.preset("cifar10", "fedavg"))
    trials = {f"epochs {e}": replace(calm, epochs=e) for e in (1, 2)}
    monkeypatch.setitem(
        TARGETS,
        "loss",
        replace(TARGETS["loss"], entries=lambda dataset: [Entry("tried", trials, "66.3")]),
    )
    options = reproduce.Options(tmp_path, dataset="cifar10", seeds=2, rounds=2, workers=1)
    paths = {
        (label, seed): tmp_path / "runs" / reproduce.name_of(replace(exp, rounds=2, seed=seed))
        for label, exp in trials.items()
        for seed in (0, 1)
    }
    paths["epochs 1", 0].mkdir(parents=True)
    (paths["epochs 1", 0] / "diverged.txt").write_text("it did")
    reproduce.reproduce("loss", options)
    table, grid = capsys.readouterr().out.split("every setting tried")
    for part in (table, grid):
        assert "diverged, and in no mean: tried epochs 1 (seed 0)" in part
    assert "epochs 2 (chosen" in table


def test_all_data_are_there_before_the_first_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cifar10(tmp_path / "data", per_file=24)
    words = [
        "reproduce",
        "rounds",
        "--data-dir",
        str(tmp_path / "data"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(words) == 2
    assert "cifar100 is not in" in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs").exists()


def test_what_the_paper_read_after_more_rounds_than_are_run_is_not_compared_with() -> None:
    options = reproduce.Options(Path("nowhere"), rounds=100)
    entries = reproduce.distinct(
        [reproduce.adapted(e, options) for e in TARGETS["scalability"].entries("cifar100")]
    )
    found = {e.column: e.paper for e in entries if e.row == "FedAvg"}
    assert found == {"50 parties, 100 rounds": "51.9", "100 parties, 20 a round, 100 rounds": ""}


def test_fedavg_is_the_one_with_as_many_parties_a_round() -> None:
    """Also at small scale and in few rounds, where other columns become alike."""
    options = reproduce.Options(Path("nowhere"), seeds=1, rounds=20, small=True)
    entries = [reproduce.adapted(e, options) for e in TARGETS["scalability"].entries("cifar100")]
    level = {20: 0.3, 4: 0.6}  # FedAvg's, by parties a round
    runs = {
        e.trials[""]: {
            0: made_run(
                [level[e.trials[""].parties_per_round()] + 0.1 * (e.row != "FedAvg")] * 20, 2.0
            )
        }
        for e in entries
    }
    table = tables.accuracies("x", "x", [e for e in entries if e.row != "SOLO"], runs, True)
    leads = [row[-2] for row in table.rows if row[0] != "FedAvg"]
    assert all(lead.mean == pytest.approx(0.1) for lead in leads)


def test_the_list_names_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", "--scale", "small"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name} " in out for name in TARGETS)
    assert "estimate" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce"], "name a target"),
        (["reproduce", "tabel1"], "did you mean table1"),
        (["reproduce", "iid", "--dataset", "cifar100"], "unknown data set of iid 'cifar100'"),
        (["reproduce", "all", "--dataset", "cifar11"], "did you mean cifar10"),
        (["reproduce", "table1", "--model", "resnet51"], "did you mean resnet50"),
        (
            ["reproduce", "table1", "--dataset", "cifar10", "--data-dir", "nowhere"],
            "moonfl data get cifar10",
        ),
    ],
)
def test_wrong_input(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_settings_of_the_paper() -> None:
    """What distinguishes the targets, read off the experiments themselves."""
    grid = {
        e.row: [exp.algorithm.mu for exp in e.trials.values()]
        for e in TARGETS["loss"].entries("cifar10")[1:2]
    }
    assert grid == {"l2 norm": [0.001, 0.01, 0.1, 1, 5, 10]}
    assert [e.at for e in TARGETS["scalability"].entries("cifar100")[:4]] == [100, 200, 250, 500]
    assert {
        e.trials[""].parties_per_round() for e in TARGETS["scalability"].entries("cifar100")[:4]
    } == {50, 20}
    slow = TARGETS["curves"].entries("cifar10")[-1]
    assert (slow.row, slow.trials[""].algorithm.mu) == ("FedProx, mu 1", 1)
    for e in TARGETS["negatives"].entries("cifar10"):
        assert [exp.algorithm.mu for exp in e.trials.values()] == [0.1, 1, 5, 10]
    momenta = [
        exp.server.momentum for exp in TARGETS["fedavgm"].entries("cifar10")[-1].trials.values()
    ]
    assert momenta == [0.1, 0.7, 0.9]
    solo = TARGETS["table1"].entries("cifar10")[-1].trials[""]
    assert (solo.rounds, solo.epochs) == (1, 300)
    assert all(not e.trials[""].head for e in TARGETS["head"].entries("cifar10")[:5])


def made_run(accuracies: list[float], seconds: float = 1.0) -> Run:
    cost = {"seconds": seconds, "bytes_down": 20, "bytes_up": 10}
    facts = [{"round": t + 1, "accuracy": a, **cost} for t, a in enumerate(accuracies)]
    return Run(Path("run"), {"rounds": len(facts)}, {}, {}, facts, None, {})


def entries_and_runs() -> tuple[list[Entry], tables.Runs]:
    fedavg, moon = (replace(targets.preset("cifar10", m), rounds=4) for m in ("fedavg", "moon"))
    runs = {
        fedavg: {0: made_run([0.1, 0.3, 0.5, 0.5], 2.0), 1: made_run([0.1, 0.3, 0.5, 0.6], 2.0)},
        moon: {0: made_run([0.1, 0.5, 0.5, 0.6], 3.0), 1: made_run([0.1, 0.3, 0.5, 0.59], 3.0)},
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
    equal = tables.accuracies(
        "x", "x", [entries[0], replace(entries[0], row="FedProx")], runs, False
    )
    assert [c.name for c in equal.columns].count(
        "minus FedAvg"
    ) == 1  # no difference is a difference of 0


def test_rounds_to_fedavgs_accuracy_are_per_seed() -> None:
    entries, runs = entries_and_runs()
    table = tables.rounds("x", "x", entries, runs, False)
    fedavg, moon = table.rows
    assert fedavg[2:4] == ("1.0", (4, 4))
    assert moon[2:4] == ("3.7", (2, "not reached"))  # 0.5 in round 2; 0.6 never
    assert moon[4].mean == pytest.approx(2)
    assert (fedavg[5].mean, moon[5].mean) == (
        1,
        pytest.approx(3 / 2),
    )  # FedAvg first has its 0.5 in round 3
    assert (fedavg[6], moon[6]) == ((120, 120), (60, "not reached"))
    assert table.note.endswith("its last accuracy (3, 4)")
    (scaffold,) = (e for e in TARGETS["rounds"].entries("cifar10") if e.row == "SCAFFOLD")
    assert tables.one_place(100 / int(scaffold.paper)) == "1.3", "as the paper prints it"


def test_seconds_are_compared_as_ratios() -> None:
    entries, runs = entries_and_runs()
    _, moon = tables.seconds(
        "x", "x", [replace(entries[0], paper="330"), replace(entries[1], paper="337")], runs, False
    ).rows
    assert moon[3:5] == (pytest.approx(337 / 330), pytest.approx(1.5))


def test_what_was_tuned_is_shown_whole_and_the_best_is_marked() -> None:
    _, runs = entries_and_runs()
    a, b = runs
    tuned = [Entry("FedProx", {"mu 1": a, "mu 2": b}, "66.9")]
    table = tables.accuracies("x", "x", tuned, runs, False)
    assert "mu 2 (chosen on test data, as in the paper)" in table.rows[0]
    (one,) = tables.accuracies("x", "x", [replace(tuned[0], trials={"mu 1": a})], runs, False).rows
    assert "mu 1" in one, "what was run is named even if it is all that was"
    grid = tables.grid("x", "x", tuned, runs)
    assert [row[1] for row in grid.rows] == ["mu 1", "mu 2"]
    assert grid.rows[1][3] == "chosen on test data, as in the paper"


def test_what_the_paper_says_of_its_figures() -> None:
    """Its best temperature and dimension are named though their accuracy is not printed."""
    best = {
        (name, dataset): [e.row for e in TARGETS[name].entries(dataset) if e.best]
        for name in ("temperature", "dimension")
        for dataset in targets.DATASETS
    }
    assert [*best.values()] == [["tau 0.5"], ["tau 1"], ["tau 0.5"], ["128"], ["256"], ["128"]]
    entries, runs = entries_and_runs()
    table = tables.accuracies(
        "x", "x", [replace(e, paper="", best=e.row == "MOON") for e in entries], runs, False
    )
    assert [row[1] for row in table.rows] == ["figure only", "its best, figure only"]


def test_a_figure_by_value_shows_the_tables_numbers() -> None:
    entries, runs = entries_and_runs()
    rows = [replace(e, row=f"tau {k}", paper="66.3", best=k == 1) for k, e in enumerate(entries)]
    target = replace(TARGETS["temperature"], figure="tau")
    (drawn,) = figures.pictures(target, "x", "CIFAR-10", rows, runs, small=False)
    assert "In %: ours: 55.0 ± 7.1 at 0, 59.5 ± 0.7 at 1; paper: 66.3 at 0, 66.3 at 1." in drawn.alt
    assert "the paper's best" in drawn.svg
    columns = [
        replace(e, column=f"E = {k}", row=row)
        for row in ("MOON", "FedAvg")
        for k, e in enumerate(entries)
    ]
    (drawn,) = figures.pictures(target, "x", "CIFAR-10", columns[:3], runs, small=True)
    assert "MOON: 55.0 ± 7.1 at 0, 59.5 ± 0.7 at 1; FedAvg: 55.0 ± 7.1 at 0." in drawn.alt, (
        "a gap where nothing is"
    )
    assert "the paper's best" not in drawn.svg
    assert not list(figures.pictures(target, "x", "CIFAR-10", rows, {}, small=False)), (
        "all diverged"
    )


def test_one_seed_is_enough_for_the_map_of_four_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.seeds_of(TARGETS["tsne"], reproduce.Options(Path("x"), seeds=3)) == 1
    assert main(["reproduce", "--list", "--scale", "small", "--seeds", "3"]) == 0
    assert "tsne               3 " in capsys.readouterr().out  # three networks


@pytest.mark.parametrize(
    ("negatives", "share", "rounds", "models"),
    [
        (1, 1.0, 100, 0.99 * 2),
        (100, 1.0, 100, 49.5 + 0.99),
        (5, 1.0, 100, (0 + 1 + 2 + 3 + 4 + 5 * 95) / 100 + 0.99),
    ],
)
def test_an_estimate_counts_the_negatives_there_are(
    negatives: int, share: float, rounds: int, models: float
) -> None:
    exp = replace(
        targets.preset("cifar10", "moon"), algorithm=MOON(negatives=negatives), rounds=rounds
    )
    assert estimates.frozen_models(exp, share) == pytest.approx(models)
    assert estimates.frozen_models(replace(exp, algorithm=MOON(contrast="l2")), share) == 1
    assert estimates.frozen_models(targets.preset("cifar10", "fedavg"), share) == 0
    cost = {("cifar10", "simple-cnn"): estimates.Cost(step=2e-6, frozen=1e-6)}
    assert estimates.estimate(exp, cost) == pytest.approx((2 + models) * 0.05 * 10 * rounds)


def test_the_papers_numbers_of_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "statistics", "--scale", "small", "--out", str(tmp_path)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "test samples" in line)
    assert line.split()[-2:] == ["10,000", "60"], (
        "the paper's, and those of the little of digits that is here"
    )


def test_a_run_has_one_name_wherever_its_data_are() -> None:
    exp = Experiment(seed=3)
    assert reproduce.name_of(exp) == reproduce.name_of(replace(exp, data_dir="elsewhere"))
    assert reproduce.name_of(exp) != reproduce.name_of(replace(exp, lr=0.02))
    assert reproduce.name_of(exp).endswith("-seed3")
