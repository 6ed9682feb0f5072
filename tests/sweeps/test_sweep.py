"""`moonfl sweep`: grids and trials in ordinary run directories."""

import contextlib
import csv
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from scipy import stats

import moonfl
from helpers.processes import start
from moonfl.api.experiments import Execution
from moonfl.api.named_runs import run_name
from moonfl.cli import main
from moonfl.cli.experiments import select_experiment
from moonfl.data.base import Dataset, Reading
from moonfl.data.datasets import load
from moonfl.experiment import Experiment
from moonfl.runs.directory import locked
from moonfl.runs.schema import RoundRecord
from moonfl.sweeps.execution import Job, execute
from moonfl.sweeps.results import Outcome, as_json, score_table, summarise
from moonfl.sweeps.space import Setting
from moonfl.task import make_task

COMMON = ["digits-fedavg", "rounds=3", "epochs=1", "parties=3", "batch_size=16"]
SHORT = ["digits-fedavg", "rounds=1", "epochs=1", "parties=2"]
GRID = ["lr=0.003,0.03", "momentum=0,0.9"]
WORDS = ["sweep", *COMMON, *GRID, "--seeds", "2", "--out", "sweep"]
SETTINGS = [("0.003", "0"), ("0.003", "0.9"), ("0.03", "0"), ("0.03", "0.9")]
TRIALS = ["sweep", *COMMON, "lr=log:0.001..0.3", "momentum=0,0.5,0.9", "--trials", "8"]
TRIALS += ["--workers", "1"]
RESULTS = ("sweep.md", "sweep.csv", "sweep.svg", "sweep.png")
SCORE = "validation accuracy, %"
pytestmark = pytest.mark.usefixtures("temporary_folder")


def experiment(*changes: str, seed: int = 0) -> Experiment:
    exp = select_experiment([*COMMON, "validation=0.1", *changes], trust=False)[1]
    return replace(exp, seed=seed)


def files(folder: str = "sweep") -> dict[str, bytes]:
    return {name: (Path(folder) / name).read_bytes() for name in RESULTS}


def read_table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "sweep.csv") as file:
        return list(csv.DictReader(file))


def interrupt(record: RoundRecord) -> None:
    raise KeyboardInterrupt


def kill_when(pid: int | None, is_reached: Callable[[], bool]) -> None:
    """Kill a process when a condition holds, within a minute."""
    assert pid is not None
    end = time.monotonic() + 60
    while time.monotonic() < end and not is_reached():
        time.sleep(0.01)
    assert is_reached()
    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished sweep, executed one run at a time."""
    folder = tmp_path_factory.mktemp("finished") / "sweep"
    assert main([*WORDS[:-1], str(folder), "--jobs", "1", "--workers", "1"]) == 0
    return folder


def test_the_table_has_the_scores_of_ordinary_runs(finished: Path) -> None:
    """The setting with the highest mean validation accuracy is selected, and its test shown."""
    rows = read_table(finished)
    means, tests = [], []
    for row, (lr, momentum) in zip(rows, SETTINGS, strict=True):
        changes = [f"lr={lr}", f"momentum={momentum}"]
        runs = [moonfl.run(experiment(*changes, seed=seed), workers=1) for seed in (0, 1)]
        means.append(np.mean([run.rounds[-1].validation_accuracy for run in runs]))
        tests.append([run.accuracy for run in runs])
        assert (row["lr"], row["momentum"]) == (lr, momentum)
        assert float(row[SCORE]) == pytest.approx(100 * means[-1], abs=1e-10)
    selected = int(np.argmax(means))
    assert [row["status"] for row in rows].index("selected") == selected
    shown = [row["test accuracy, %"] != "" for row in rows]
    assert shown == [k == selected for k in range(4)]
    scores = tests[selected]
    low, high = stats.t.interval(0.95, 1, np.mean(scores), stats.sem(scores))
    text = (finished / "sweep.md").read_text()
    assert f"{100 * np.mean(scores):.1f} ± {100 * np.std(scores, ddof=1):.1f}" in text
    assert f"{100 * low:.1f} to {100 * high:.1f}" in text
    assert float(rows[selected]["test accuracy, %"]) == pytest.approx(100 * np.mean(scores))
    ends = [float(end) for end in rows[selected]["95 % interval of the mean"].split(";")]
    assert ends == pytest.approx([100 * low, 100 * high])


def test_runs_side_by_side_give_the_same_results(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, "--jobs", "2"]) == 0
    assert "2 runs at a time" in capsys.readouterr().err
    assert files() == files(str(finished))
    for run in Path("sweep").glob("digits-*"):
        ours = (run / "rounds.jsonl").read_text().splitlines()
        theirs = (finished / run.name / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(line)["loss"] for line in ours] == [
            json.loads(line)["loss"] for line in theirs
        ]


def test_finished_runs_are_kept_and_unfinished_ones_resumed(finished: Path) -> None:
    shutil.copytree(finished, "sweep")
    exp = experiment("lr=0.03", "momentum=0.9", seed=1)
    out = Path("sweep") / run_name(exp)
    shutil.rmtree(out)
    with pytest.raises(KeyboardInterrupt):
        moonfl.run(exp, out, workers=1, watch=interrupt)
    others = [path for path in Path("sweep").glob("digits-*/rounds.jsonl") if path.parent != out]
    times = {path: path.stat().st_mtime_ns for path in others}
    assert len(times) == 7
    first_line = (out / "rounds.jsonl").read_text()
    for name in RESULTS:
        (Path("sweep") / name).unlink()
    assert main([*WORDS, "--jobs", "1", "--workers", "1"]) == 0
    assert files() == files(str(finished))
    assert (out / "rounds.jsonl").read_text().startswith(first_line)
    for path, modified in times.items():
        assert path.stat().st_mtime_ns == modified


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_killed_sweep_produces_the_same_table(jobs: str, finished: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle; the processes of the runs end with it."""
    process = start(tmp_path, *WORDS, "--jobs", jobs)
    kill_when(process.pid, lambda: len(list(Path("sweep").glob("*/final.json"))) >= 3)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert not Path("sweep/sweep.md").exists()
    assert main([*WORDS, "--jobs", jobs]) == 0
    assert files() == files(str(finished))


def test_a_sweep_reads_its_dataset_once(monkeypatch: pytest.MonkeyPatch) -> None:
    locations = []

    def load_counted(name: str, location: Path, reading: Reading) -> Dataset:
        locations.append(location)
        return load(name, location, reading)

    monkeypatch.setattr("moonfl.task.federated_data.load", load_counted)
    words = ["sweep", *SHORT, "lr=0.003,0.03", "--out", "sweep", "--jobs", "1", "--workers", "1"]
    assert main(words) == 0
    assert len(locations) == 1


@pytest.mark.parametrize(("memory", "expected"), [(None, "200"), (5000, "5000")])
def test_runs_side_by_side_share_the_memory_of_party_states(
    memory: int | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run alone may use a quarter of the free memory."""

    def write_memory(job: Job, options: Execution) -> None:
        job.out.write_text(str(options.state_memory))

    monkeypatch.setattr("moonfl.sweeps.execution.free_memory", lambda: 1600)
    monkeypatch.setattr("moonfl.sweeps.execution.train", write_memory)
    exp = experiment()
    jobs = [Job(name, exp, make_task(exp), Path(name)) for name in ("a", "b")]
    options = Execution(state_memory=memory)
    execute(jobs, 2, lambda exp, is_alone: contextlib.nullcontext(options))
    assert [job.out.read_text() for job in jobs] == [expected] * 2


def test_an_error_of_a_run_is_not_blamed_on_memory(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise NameError("name 'z' is not defined")

    monkeypatch.setattr("moonfl.sweeps.execution.train", fail)
    assert main(["sweep", *SHORT, "lr=0.01,0.1", "--jobs", "2"]) == 1
    err = capfd.readouterr().err
    assert "NameError: name 'z' is not defined" in err
    assert "the run failed; its error is printed above" in err


def test_a_diverged_run_is_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", *SHORT, "lr=0.01,1e6", "momentum=0,0.5", "--jobs", "2"]
    for _ in range(2):
        assert main(words) == 0
        out, err = capsys.readouterr()
        assert out.count("diverged with seed 0") == 2
        assert "selected lr=0.01" in out
    assert "the loss of party" not in err  # it is not repeated
    assert Path("sweep/sweep.svg").read_text().count(">diverged<") == 2
    words[words.index("lr=0.01,1e6")] = "lr=1e6,1e7"
    assert main(words) == 1
    assert "none of 4 settings has a score: lr=1e6 momentum=0 diverged" in capsys.readouterr().err


def test_selection_on_test_data_is_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", *SHORT, "lr=0.01,0.1", "--select", "test", "--jobs=1", "--workers=1"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "warning: the setting is selected on test data: its test score is too good" in err
    assert "warning: the setting is selected on test data" in out
    assert "Warning: the setting is selected on test data" in Path("sweep/sweep.md").read_text()
    path = next(Path("sweep").glob("digits-*"))
    assert "validation" not in (path / "experiment.toml").read_text()
    assert "Test accuracy by lr" in Path("sweep/sweep.svg").read_text()  # one key: a line chart


def test_three_keys_have_a_table_only(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SHORT, "validation=0.2", "lr=0.01,0.1", "momentum=0,0.5", "batch_size=32,64"]
    assert main(["sweep", *words, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert len(results["settings"]) == 8
    assert results["interval"] is None
    assert set(results["selected"]) == {"lr", "momentum", "batch_size"}
    assert not Path("sweep/sweep.svg").exists()
    run = next(Path("sweep").glob("digits-*"))
    assert "validation = 0.2" in (run / "experiment.toml").read_text()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_damaged_run_ends_the_sweep_with_a_hint(
    jobs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exp = experiment("lr=0.03", "momentum=0")
    out = Path("sweep") / run_name(exp)
    with pytest.raises(KeyboardInterrupt):
        moonfl.run(exp, out, workers=1, watch=interrupt)
    (server,) = (out / "checkpoint").glob("server-*")
    server.write_bytes(b"damaged")
    assert main([*WORDS, "--jobs", jobs]) == 2
    err = capsys.readouterr().err
    assert "is damaged" in err
    assert "repeat the command to start the run again" in err


def test_runs_of_a_sweep_are_tracked() -> None:
    assert main(["sweep", *SHORT, "lr=0.01,0.1", "--track", "tensorboard", "--jobs", "2"]) == 0
    runs = list(Path("sweep").glob("digits-*"))
    assert len(runs) == 2
    for run in runs:
        assert list((run / "tensorboard").glob("events*"))


def test_wrong_use(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    moonfl.run(experiment(), "run", workers=1)
    assert main(["sweep", "lr=0.01,0.1", "--out", "run"]) == 2
    assert "run holds a run; --out of a sweep is the folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["sweep", "lr=0.01,0.1", "--select", "train"])
    assert "validation" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "optuna", None)  # as if it were not installed
    assert main(TRIALS) == 2
    assert "pip install 'moonfl[tune]'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of finished trials."""
    folder = tmp_path_factory.mktemp("trials") / "sweep"
    assert main([*TRIALS, "--out", str(folder)]) == 0
    return folder


def test_trials_stop_early_and_are_ordinary_runs(trials: Path) -> None:
    rows = read_table(trials)
    assert len(rows) == 8
    statuses = [row["status"] for row in rows]
    assert statuses.count("selected") == 1
    assert any(status.startswith("stopped after round") for status in statuses)
    scores = [float(row[SCORE] or 0) for row in rows]
    assert statuses.index("selected") == int(np.argmax(scores))
    for row in rows:
        assert 0.001 <= float(row["lr"]) <= 0.3
        exp = experiment(f"lr={row['lr']}", f"momentum={row['momentum']}")
        lines = (trials / run_name(exp) / "rounds.jsonl").read_text().splitlines()
        stopped = row["status"].startswith("stopped")
        assert len(lines) == (int(row["status"].split()[-1]) if stopped else 3)


def test_a_finished_run_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pruner would stop every trial after its first round."""
    monkeypatch.setattr("optuna.trial.Trial.should_prune", lambda trial: True)
    exp = experiment("lr=0.03")
    finished = moonfl.run(exp, Path("sweep") / run_name(exp), workers=1)
    words = ["sweep", *COMMON, "lr=0.003,0.03", "--trials", "30", "--workers", "1"]
    assert main(words) == 0
    statuses = {(row["lr"], row["status"]) for row in read_table(Path("sweep"))}
    assert statuses - {("0.03", "")} == {("0.003", "stopped after round 1"), ("0.03", "selected")}
    (summary,) = optuna.get_all_study_summaries("sqlite:///sweep/optuna.db")
    study = optuna.load_study(study_name=summary.study_name, storage="sqlite:///sweep/optuna.db")
    stored = next(trial for trial in study.trials if trial.params["lr"] == "0.03")
    scores = [record.validation_accuracy for record in finished.rounds]
    assert stored.intermediate_values == dict(enumerate(scores, 1))
    assert stored.value == scores[-1]


def test_a_run_is_not_stopped_after_its_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another seed to train it is: that saves time."""
    monkeypatch.setattr("optuna.trial.Trial.should_prune", lambda trial: True)
    words = ["sweep", *SHORT, "lr=0.003..0.03", "--trials", "1", "--workers", "1"]
    assert main(words) == 0
    assert [row["status"] for row in read_table(Path("sweep"))] == ["selected"]
    assert main([*words, "--seeds", "2", "--out", "seeds"]) == 1
    assert len(list(Path("seeds").glob("digits-*"))) == 1


def test_trials_end_when_all_settings_are_tried(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", *SHORT, "lr=1e-9,1e-8", "--trials", "30", "--workers", "1"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    rows = read_table(Path("sweep"))
    assert {row["lr"] for row in rows[:-1]} != {row["lr"] for row in rows} == {"1e-9", "1e-8"}
    assert f"all 2 combinations have been tried in {len(rows)} of 30 trials" in err
    assert "of 2 settings" in out
    assert "1 other setting has the same score" in out
    table = Path("sweep/sweep.csv").read_text()
    assert main(words) == 0
    assert Path("sweep/sweep.csv").read_text() == table
    assert "combinations have been tried" in capsys.readouterr().err


def test_killed_trials_produce_the_same_table(trials: Path, tmp_path: Path) -> None:
    process = start(tmp_path, *TRIALS)
    kill_when(process.pid, lambda: len(list(Path("sweep").glob("*/rounds.jsonl"))) >= 4)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert main(TRIALS) == 0
    for name in ("sweep.md", "sweep.csv"):
        assert (Path("sweep") / name).read_text() == (trials / name).read_text()


def test_a_second_sweep_over_trials_in_the_same_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    out.mkdir()
    with locked(out):
        assert main([*TRIALS, "--out", str(out)]) == 2
    assert "is in use by another process" in capsys.readouterr().err


def test_the_database_of_trials_is_in_their_folder(tmp_path: Path) -> None:
    out = tmp_path / "a?b #1 %20"
    words = [*COMMON, "lr=0.01..0.1", "--trials", "1", "--out", str(out)]
    assert main(["sweep", *words]) == 0
    assert (out / "optuna.db").exists()
    assert os.listdir(tmp_path) == [out.name]


@pytest.fixture
def prices() -> list[str]:
    """Return the words of a small regression over a table."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    y = x @ [3.0, -2.0, 1.0] + 10
    np.savetxt("prices.csv", np.c_[x, y], delimiter=",", header="a,b,c,price", comments="")
    words = ["dataset=csv", "data_dir=prices.csv", "label=price", "task=regression"]
    return [*words, "partition=iid", "parties=3", "algorithm=fedavg", "rounds=2", "epochs=1"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_regression_selects_the_lowest_rmse(
    workers: str, prices: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", *prices, "lr=0.001,0.05", "batch_size=8,16", "--seeds=2", "--jobs=1"]
    assert main([*words, "--json", "--workers", workers]) == 0
    results = json.loads(capsys.readouterr().out)
    entries = {json.dumps(entry["setting"]): entry["score"] for entry in results["settings"]}
    assert len(entries) == 4
    assert json.dumps(results["selected"]) == min(entries, key=lambda key: entries[key])
    for setting, score in entries.items():
        changes = [f"{key}={value}" for key, value in json.loads(setting).items()]
        exp = select_experiment([*prices, "validation=0.1", *changes], trust=False)[1]
        runs = [moonfl.run(replace(exp, seed=seed), workers=1) for seed in (0, 1)]
        assert score == np.mean([run.rounds[-1].validation_score for run in runs])
    table = Path("sweep/sweep.md").read_text()
    assert "lowest mean validation RMSE" in table
    assert "accuracy" not in table


def test_trials_of_a_regression_select_the_lowest_rmse(
    prices: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", *prices, "lr=log:0.001..0.1", "--trials=3", "--workers=1"]
    assert main([*words, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    scores = [entry["score"] for entry in results["settings"] if entry["score"] is not None]
    (selected,) = (e for e in results["settings"] if e["setting"] == results["selected"])
    assert selected["score"] == min(scores) < max(scores)


def test_trials_skip_rounds_without_evaluation() -> None:
    words = ["sweep", *COMMON, "lr=0.003,0.03", "evaluate_every=2", "--select", "test"]
    assert main([*words, "--trials", "2", "--workers", "1"]) == 0
    assert [row["status"] for row in read_table(Path("sweep"))].count("selected") == 1


def test_equal_test_scores_have_no_interval() -> None:
    setting = Setting({"lr": "0.1"}, experiment())
    selected = Outcome(setting, scores=(0.9, 0.8), test=(0.972, 0.972))
    text = summarise([selected], selected, "validation")
    assert "97.2 ± 0.0 % over 2 seeds: there is no interval; the same accuracy with every" in text
    assert json.loads(as_json([selected], selected, "validation"))["interval"] is None
    (row,) = score_table([selected], selected, "validation").rows
    assert row[-2] is None


def test_ties_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Learning rates that change nothing visible."""
    assert main(["sweep", *SHORT, "lr=1e-9,1e-8,1e-7", "--jobs=1", "--workers=1"]) == 0
    out = capsys.readouterr().out
    assert "selected lr=1e-9: " in out
    assert "2 other settings have the same score: the first one is selected" in out
