"""`moonfl reproduce`: every target at small scale, and its real presets on tiny files."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.problems import shorten, write_cifar10, write_cifar100, write_tiny_imagenet
from moonfl.cli import main
from moonfl.experiment import Experiment, to_toml
from moonfl.reproduce import targets
from moonfl.reproduce.runner import Options, reproduce, run_name
from moonfl.reproduce.targets import TARGETS, Entry

ONE_RUN = ["--seeds", "1", "--workers", "1"]
SMALL = ["--scale", "small", *ONE_RUN]


@pytest.fixture
def _short_solo(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, solo=3)


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_at_small_scale(
    name: str, small_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", name, *SMALL, "--rounds", "2", "--out", str(small_runs)]
    assert main(words) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    kind, stem = TARGETS[name].kind, f"{name}-small-2rounds"
    if kind == "distributions":
        for suffix in ("png", "svg"):
            assert len(list(small_runs.glob(f"{stem}-beta*.{suffix}"))) == 3
        return
    scales = ["-20-of-20-parties", "-4-of-20-parties"] if name == "scalability" else [""]
    figures = [f"{stem}{scale}" for scale in scales if TARGETS[name].figure]
    assert sorted(path.stem for path in small_runs.glob(f"{stem}*.png")) == figures
    for figure in figures:
        assert "small scale" in (small_runs / f"{figure}.svg").read_text()
    assert (small_runs / stem / "report.html").exists() == (kind == "curves")
    if kind == "tsne":
        return
    text = (small_runs / f"{stem}.md").read_text()
    assert "small scale, not the paper's setting" in text
    assert (small_runs / f"{stem}.csv").exists()
    assert "small scale, not the paper's setting" in out
    if kind != "statistics":
        settings = next((small_runs / "runs").iterdir()) / "experiment.toml"
        assert 'scale = "small"' in settings.read_text()


def test_report_of_reproduced_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table1", *SMALL, "--rounds", "2", "--out", str(tmp_path)]) == 0
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report")]) == 0
    assert "small scale" in (tmp_path / "report" / "report.html").read_text()
    capsys.readouterr()


def test_finished_runs_are_kept_and_unfinished_ones_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "temperature", *SMALL, "--rounds", "3", "--out", str(tmp_path)]
    assert main(words) == 0
    first = capsys.readouterr()
    runs = sorted((tmp_path / "runs").iterdir())
    before = [(run / "rounds.jsonl").read_bytes() for run in runs]
    lines = (runs[0] / "rounds.jsonl").read_text().splitlines(keepends=True)
    (runs[0] / "rounds.jsonl").write_text("".join(lines[:2]))
    (runs[0] / "checkpoint" / "round-3.json").unlink()
    assert main(words) == 0
    again = capsys.readouterr()
    assert again.out == first.out
    assert sum(again.err.count(f"run {number} of 3") for number in (1, 2, 3)) == 1
    assert [(run / "rounds.jsonl").read_bytes() for run in runs[1:]] == before[1:]


@pytest.mark.usefixtures("_short_solo")
@pytest.mark.parametrize(
    "name", [name for name, target in TARGETS.items() if "cifar10" in target.datasets]
)
def test_real_presets_of_cifar10(
    name: str, small_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The paper's network, parties and (except SOLO) epochs: one round on a few images."""
    data = small_runs / "data"
    if not data.exists():
        write_cifar10(data, per_file=24)
    words = ["reproduce", name, "--dataset", "cifar10", *ONE_RUN, "--rounds", "1"]
    folders = ["--data-dir", str(data), "--out", str(small_runs / "real")]
    assert main([*words, *folders]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    if TARGETS[name].kind == "accuracy":
        assert "rounds 1, not the paper's 100" in out
        assert "paper, %" in out


OTHERS = [
    (name, dataset)
    for name in ("scalability", "heterogeneity", "loss", "statistics", "distributions")
    for dataset in ("cifar100", "tiny-imagenet")
    if dataset in TARGETS[name].datasets
]


@pytest.mark.parametrize(("name", "dataset"), OTHERS)
def test_other_datasets(
    name: str,
    dataset: str,
    small_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the small network, as the table says, and few epochs; test_cli.py runs ResNet-50."""
    shorten(monkeypatch, solo=2, others=2)
    samples = 1010 if name == "scalability" else 200
    data = small_runs / f"data-{dataset}-{samples}"
    if not data.exists() and dataset == "cifar100":
        write_cifar100(data, samples)
    elif not data.exists():
        write_tiny_imagenet(data, 12, 12)
    words = ["reproduce", name, "--dataset", dataset, "--model", "simple-cnn", *ONE_RUN]
    folders = ["--data-dir", str(data), "--out", str(small_runs / data.name / "out")]
    code = main([*words, "--rounds", "1", *folders])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    if TARGETS[name].kind == "accuracy":
        assert "model simple-cnn, not the paper's resnet50" in shown.out


def test_diverged_run_is_reported_and_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    diverging = targets.shrink(replace(targets.preset("cifar10", "fedprox"), lr=1e4))
    stable = targets.shrink(targets.preset("cifar10", "fedavg"))
    entries = [Entry("FedAvg", {"": stable}, "66.3"), Entry("FedProx", {"": diverging}, "66.9")]
    table1 = replace(TARGETS["table1"], entries=lambda dataset: entries)
    monkeypatch.setitem(TARGETS, "table1", table1)
    options = Options(tmp_path, dataset="cifar10", seeds=1, rounds=3, workers=1)
    for _ in range(2):
        reproduce("table1", options)
        assert "diverged" in capsys.readouterr().out
    curves = replace(TARGETS["curves"], entries=lambda dataset: entries[1:])
    monkeypatch.setitem(TARGETS, "curves", curves)
    reproduce("curves", options)  # nothing is left to draw
    assert "diverged" in capsys.readouterr().out


def test_diverged_seed_is_named_and_its_setting_is_not_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stable = targets.shrink(targets.preset("cifar10", "fedavg"))
    trials = {f"epochs {count}": replace(stable, epochs=count) for count in (1, 2)}
    entries = [Entry("tried", trials, "66.3")]
    monkeypatch.setitem(TARGETS, "loss", replace(TARGETS["loss"], entries=lambda dataset: entries))
    diverged = replace(trials["epochs 1"], rounds=2, seed=0)
    folder = tmp_path / "runs" / run_name(diverged)
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(to_toml(diverged))
    (folder / "rounds.jsonl").write_text("")
    (folder / "diverged.txt").write_text("it did")
    reproduce("loss", Options(tmp_path, dataset="cifar10", seeds=2, rounds=2, workers=1))
    table, grid = capsys.readouterr().out.split("every setting tried")
    for part in (table, grid):
        assert "diverged, and in no mean: tried epochs 1 (seed 0)" in part
    assert "epochs 2 (selected" in table


def test_all_data_must_exist_before_the_first_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cifar10(tmp_path / "data", per_file=24)
    folders = ["--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    assert main(["reproduce", "rounds", *folders]) == 2
    assert "cifar100 is not in" in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce"], "name a target"),
        (["reproduce", "tabel1"], "did you mean table1"),
        (["reproduce", "iid", "--dataset", "cifar100"], "unknown dataset of iid 'cifar100'"),
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


def test_statistics_compare_with_the_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "statistics", "--scale", "small", "--out", str(tmp_path)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "test samples" in line)
    assert line.split()[-2:] == ["10,000", "60"], "the paper's, and those of the few digits here"


def test_name_of_a_run_does_not_depend_on_the_location_of_its_data() -> None:
    exp = Experiment(seed=3)
    assert run_name(exp) == run_name(replace(exp, data_dir="elsewhere"))
    assert run_name(exp) != run_name(replace(exp, lr=0.02))
    assert run_name(exp).endswith("-seed3")
