"""Trackers with the real libraries, offline: what they wrote is read back."""

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wandb
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import moonfl
from helpers.interruption import StopError, results_of, stop_after
from helpers.problems import TINY, gaussians
from moonfl import InputError, Result
from moonfl.cli import main
from moonfl.experiment import Experiment, fingerprint
from moonfl.runs.schema import RoundRecord
from moonfl.task import Task
from moonfl.trackers import table
from moonfl.trackers.base import Tracker
from moonfl.trackers.metrics import round_metrics
from moonfl.trackers.wandb import offline_files, offline_records

NAMES = tuple(table.TRACKERS)
ROUNDS = 5
EXP = replace(TINY, rounds=ROUNDS)
Steps = dict[str, list[tuple[int, float]]]  # by metric, (round, value) as they were logged


@pytest.fixture(scope="module")
def task() -> Task:
    return gaussians()


@pytest.fixture(scope="module")
def untracked(task: Task) -> Result:
    return moonfl.run(EXP, task=task, workers=1)


def tensorboard_events(run: Path) -> EventAccumulator:
    events = EventAccumulator(str(run / "tensorboard"), size_guidance=dict.fromkeys(KINDS, 0))
    return events.Reload()


KINDS = ("scalars", "histograms", "images", "tensors")


def tensorboard_steps(run: Path) -> Steps:
    events = tensorboard_events(run)
    return {
        key: [(event.step, event.value) for event in events.Scalars(key)]
        for key in events.Tags()["scalars"]
        if not key.startswith("final/")
    }


def tracker_id(run: Path, name: str) -> str:
    return json.loads((run / "trackers.json").read_text())["trackers"][name]["id"]


def mlflow_steps(run: Path) -> Steps:
    client = MlflowClient()
    run_id = tracker_id(run, "mlflow")
    return {
        key: [(m.step, m.value) for m in client.get_metric_history(run_id, key)]
        for key in client.get_run(run_id).data.metrics
        if not key.startswith(("final/", "parties/"))
    }


def wandb_records(run: Path, kind: str) -> list[Any]:
    wandb.teardown()  # the service process writes the file in the background
    run_id = tracker_id(run, "wandb")
    records = [r for path in offline_files(run, run_id) for r in offline_records(path)]
    return [getattr(r, kind) for r in records if r.WhichOneof("record_type") == kind]


def wandb_steps(run: Path) -> Steps:
    steps: Steps = {}
    for history in wandb_records(run, "history"):
        for item in history.item:
            key = item.key or "/".join(item.nested_key)
            value = json.loads(item.value_json)
            if not key.startswith(("_", "parties/")):
                steps.setdefault(key, []).append((history.step.num, value))
    return steps


READERS: dict[str, Callable[[Path], Steps]] = {
    "tensorboard": tensorboard_steps,
    "mlflow": mlflow_steps,
    "wandb": wandb_steps,
}


def check_steps(steps: Steps, records: list[RoundRecord]) -> None:
    """Check that every numeric field of every round was logged exactly once, in order."""
    expected: Steps = {}
    for record in records:
        for key, value in record.items():
            if isinstance(value, int | float) and key != "round":
                expected.setdefault(key, []).append((record.round, value))
    assert steps.keys() == expected.keys()
    assert {"accuracy", "loss", "seconds", "bytes_up"} <= steps.keys()
    for key, values in expected.items():
        assert [step for step, _ in steps[key]] == [step for step, _ in values], key
        logged = [value for _, value in steps[key]]
        np.testing.assert_allclose(logged, [value for _, value in values], rtol=1e-6, err_msg=key)


def test_every_round_is_logged_and_the_run_is_the_same(task: Task, untracked: Result) -> None:
    result = moonfl.run(EXP, "run", task=task, workers=1, track=NAMES)
    assert_same(result, untracked)
    for read in READERS.values():
        check_steps(read(Path("run")), result.rounds)
    assert fingerprint(EXP) == fingerprint(result.experiment)
    assert "track" not in Path("run/experiment.toml").read_text()


def assert_same(result: Result, other: Result) -> None:
    """Check that two results are bit-identical."""
    ours, theirs = results_of(result), results_of(other)
    assert ours["records"] == theirs["records"]
    for name, params in theirs["models"].items():
        for key, tensor in params.items():
            assert ours["models"][name][key].equal(tensor), key


def test_two_workers_and_trackers_give_the_same_bits(task: Task, untracked: Result) -> None:
    assert_same(moonfl.run(EXP, "run", task=task, workers=2, track=NAMES), untracked)


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_continues_the_tracker(name: str, task: Task, untracked: Result) -> None:
    with pytest.raises(StopError):
        moonfl.run(EXP, "run", task=task, workers=1, track=name, watch=stop_after(2))
    before = tracker_id(Path("run"), name)
    with pytest.raises(StopError):  # a round without its tracker is logged later
        moonfl.resume("run", task=task, workers=1, watch=stop_after(3))
    result = moonfl.resume("run", task=task, workers=1, track=name)
    assert tracker_id(Path("run"), name) == before
    check_steps(READERS[name](Path("run")), result.rounds)
    assert_same(result, untracked)
    files = sorted(Path("run").rglob("*"))
    moonfl.resume("run", task=task, track=name)  # finished: there is nothing to log
    assert sorted(Path("run").rglob("*")) == files


@pytest.mark.parametrize("name", NAMES)
def test_repeated_rounds_are_not_logged_again(name: str, task: Task) -> None:
    """`previous` discards a round that the tracker already has."""
    with pytest.raises(StopError):
        moonfl.run(EXP, "run", task=task, workers=1, track=name, watch=stop_after(3))
    result = moonfl.resume("run", previous=True, task=task, workers=1, track=name)
    steps = READERS[name](Path("run"))
    assert [step for step, _ in steps["accuracy"]] == [1, 2, 3, 4, 5]
    assert [value for _, value in steps["accuracy"]] == pytest.approx(
        [record.accuracy for record in result.rounds]
    )


def killed_after(round: int) -> Callable[[RoundRecord], None]:
    def watch(record: RoundRecord) -> None:
        if record.round == round:
            os.kill(os.getpid(), signal.SIGKILL)

    return watch


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_loses_no_round_and_repeats_none(name: str, task: Task) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=lambda: moonfl.run(
            EXP, "run", task=task, workers=1, track=name, watch=killed_after(3)
        )
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    result = moonfl.resume("run", task=task, workers=1, track=name)
    check_steps(READERS[name](Path("run")), result.rounds)


def test_a_crash_between_tracker_and_file_does_not_repeat_a_round(task: Task) -> None:
    """TensorBoard has round 3, but trackers.json does not say so."""
    with pytest.raises(StopError):
        moonfl.run(EXP, "run", task=task, workers=1, track="tensorboard", watch=stop_after(3))
    path = Path("run/trackers.json")
    content = json.loads(path.read_text())
    content["trackers"]["tensorboard"]["rounds"] = 2
    path.write_text(json.dumps(content))
    result = moonfl.resume("run", task=task, workers=1, track="tensorboard")
    check_steps(tensorboard_steps(Path("run")), result.rounds)


def test_what_tensorboard_has(task: Task) -> None:
    result = moonfl.run(EXP, "run", task=task, workers=1, track="tensorboard")
    events = tensorboard_events(Path("run"))
    for key in ("loss", "drift", "samples"):
        histograms = events.Histograms(f"parties/{key}")
        assert [event.step for event in histograms] == [1, 2, 3, 4, 5]
        values = [party[key] for party in result.rounds[-1].parties or []]
        last = histograms[-1].histogram_value
        assert (last.num, last.min, last.max) == (len(values), min(values), max(values))
    assert "report/accuracy/text_summary" in events.Tags()["tensors"]
    assert "report/accuracy" in events.Tags()["images"]
    assert events.Scalars("final/accuracy")[0].value == pytest.approx(result.accuracy)
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_what_mlflow_has(task: Task) -> None:
    result = moonfl.run(EXP, "run", task=task, workers=1, track="mlflow")
    client = MlflowClient()
    stored = client.get_run(tracker_id(Path("run"), "mlflow"))
    assert stored.info.run_name == "run"
    assert stored.info.status == "FINISHED"
    assert stored.data.params["algorithm.name"] == "moon"
    assert stored.data.params["rounds"] == "5"
    assert stored.data.metrics["final/accuracy"] == result.accuracy
    drifts = [party["drift"] for party in result.rounds[-1].parties or []]
    assert stored.data.metrics["parties/drift/max"] == max(drifts)
    names = [entry.path for entry in client.list_artifacts(stored.info.run_id, "report")]
    assert "report/report.html" in names


def test_what_wandb_has(task: Task) -> None:
    result = moonfl.run(EXP, "run", task=task, workers=1, track="wandb")
    (run,) = wandb_records(Path("run"), "run")
    assert (run.project, run.display_name) == ("moonfl", "run")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["algorithm.name"] == "moon"
    assert config["rounds"] == 5
    last = wandb_records(Path("run"), "history")[-1]
    keys = ["/".join(item.nested_key) for item in last.item]
    assert {"parties/loss/bins", "parties/drift/bins", "parties/samples/values"} <= set(keys)
    summary = {
        item.key: json.loads(item.value_json)
        for update in wandb_records(Path("run"), "summary")
        for item in update.update
    }
    assert summary["final/accuracy"] == result.accuracy
    (artifact,) = wandb_records(Path("run"), "artifact")
    assert artifact.type == "report"
    assert "report.html" in [entry.path for entry in artifact.manifest.contents]


@pytest.mark.parametrize("name", NAMES)
def test_accuracies_of_parties(name: str, task: Task) -> None:
    """Under SOLO every party has its own model and accuracy."""
    exp = replace(EXP, rounds=1, algorithm=moonfl.Solo())
    (record,) = moonfl.run(exp, "run", task=task, workers=1, track=name).rounds
    accuracies = list((record.accuracies or {}).values())
    assert round_metrics(record).parties["accuracy"] == accuracies
    if name == "tensorboard":
        (event,) = tensorboard_events(Path("run")).Histograms("parties/accuracy")
        assert event.histogram_value.max == pytest.approx(max(accuracies))


def test_any_numeric_field_is_a_metric() -> None:
    record = RoundRecord(round=3, accuracy=0.5, sites={"0": (1, 2), "1": (3, 4)}, absent={"2": "x"})
    metrics = round_metrics(record)
    assert metrics.values == {"accuracy": 0.5}
    assert metrics.parties == {"accuracy": [0.5, 0.75]}


class Unreliable(Tracker):
    """A tracker that fails at one of its steps."""

    step = ""

    def _fail(self, step: str) -> None:
        if step == self.step:
            raise OSError("no space left on device")

    def start(self, run: Any, stored: Any) -> Any:
        self._fail("start")
        return table_record()

    def log(self, round: int, metrics: Any) -> None:
        self._fail("log")

    def finish(self, summary: Any, report: Path) -> None:
        self._fail("finish")

    def close(self, status: Any) -> None:
        self._fail("close")


def table_record() -> Any:
    from moonfl.runs.schema import TrackerRecord

    return TrackerRecord(id="x", rounds=0)


@pytest.mark.parametrize("step", ["start", "log", "finish", "close"])
def test_a_failing_tracker_is_reported_once_and_changes_nothing(
    step: str,
    task: Task,
    untracked: Result,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Unreliable, "step", step)
    real = table.make_tracker
    monkeypatch.setattr(
        "moonfl.trackers.tracking.make_tracker",
        lambda name: Unreliable() if name == "wandb" else real(name),
    )
    result = moonfl.run(EXP, "run", task=task, workers=1, track=["wandb", "tensorboard"])
    assert_same(result, untracked)
    check_steps(tensorboard_steps(Path("run")), result.rounds)  # the others continue
    assert capsys.readouterr().err.count("tracking with wandb failed (no space left") == 1


def test_a_store_that_cannot_be_written_is_reported_once(
    task: Task,
    untracked: Result,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The real libraries: a file is where TensorBoard's folder should be, MLflow has no server."""
    Path("run").mkdir()
    Path("run/tensorboard").write_text("")
    Path("occupied").write_text("")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///occupied/mlflow.db")
    result = moonfl.run(EXP, "run", task=task, workers=1, track=["tensorboard", "mlflow"])
    assert_same(result, untracked)
    err = capsys.readouterr().err
    assert err.count("moonfl: tracking with tensorboard failed") == 1
    assert err.count("moonfl: tracking with mlflow failed") == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_does_not_stop_a_run(
    task: Task,
    untracked: Result,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """TensorBoard's event file is on a device that is always full."""
    from tensorboard.summary.writer import event_file_writer

    with open("/dev/full", "wb", buffering=0) as full:
        gfile = event_file_writer.tf.io.gfile
        monkeypatch.setattr(gfile, "GFile", lambda *args: full)
        result = moonfl.run(EXP, "run", task=task, workers=1, track="tensorboard")
    assert_same(result, untracked)
    err = capsys.readouterr().err
    assert err.count("moonfl: tracking with tensorboard failed ([Errno 28] No space left") == 1


def test_divergence_and_interruption_are_states_of_the_tracker(task: Task) -> None:
    with pytest.raises(moonfl.RunError):
        moonfl.run(replace(EXP, lr=1e9), "diverged", task=task, workers=1, track="mlflow")
    with pytest.raises(KeyboardInterrupt):
        moonfl.run(EXP, "stopped", task=task, workers=1, track="mlflow", watch=interrupt)
    client = MlflowClient()
    for name, status in (("diverged", "FAILED"), ("stopped", "KILLED")):
        assert client.get_run(tracker_id(Path(name), "mlflow")).info.status == status


def interrupt(record: RoundRecord) -> None:
    raise KeyboardInterrupt


def test_a_replaced_run_starts_a_new_tracker_run(task: Task) -> None:
    exp: Experiment = replace(EXP, rounds=3)
    moonfl.run(exp, "run", task=task, workers=1, track=NAMES)
    before = {name: tracker_id(Path("run"), name) for name in ("wandb", "mlflow")}
    result = moonfl.run(
        replace(exp, rounds=2), "run", force=True, task=task, workers=1, track=NAMES
    )
    for name, run_id in before.items():
        assert tracker_id(Path("run"), name) != run_id
    for read in READERS.values():
        check_steps(read(Path("run")), result.rounds)


def test_a_tracker_run_that_was_deleted_is_started_anew(task: Task) -> None:
    with pytest.raises(StopError):
        moonfl.run(EXP, "run", task=task, workers=1, track="mlflow", watch=stop_after(3))
    path = Path("run/trackers.json")
    content = json.loads(path.read_text())
    content["trackers"]["mlflow"]["id"] = "0" * 32
    path.write_text(json.dumps(content))
    result = moonfl.resume("run", task=task, workers=1, track="mlflow")
    check_steps(mlflow_steps(Path("run")), result.rounds)


def test_a_damaged_file_of_trackers_is_reported(
    task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StopError):
        moonfl.run(EXP, "run", task=task, workers=1, track="tensorboard", watch=stop_after(3))
    Path("run/trackers.json").write_text('{"trackers": 3}')
    result = moonfl.resume("run", task=task, workers=1, track="tensorboard")
    assert "run/trackers.json is damaged" in capsys.readouterr().err
    check_steps(tensorboard_steps(Path("run")), result.rounds)


def test_wrong_use(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="unknown tracker 'wandbb'; did you mean wandb"):
        moonfl.run(EXP, "run", task=task, track="wandbb")
    with pytest.raises(InputError, match="track needs a run directory; pass out=DIR"):
        moonfl.run(EXP, task=task, track="mlflow")
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with pytest.raises(InputError, match=r"pip install 'moonfl\[wandb\]'"):
        moonfl.run(EXP, "run", task=task, track="wandb")
    assert not Path("run").exists()


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["digits-fedavg", "rounds=2", "epochs=1", "parties=3", "--workers=1", "--out", "run"]
    assert main(["run", *words, "--track", "tensorboard", "--track", "mlflow"]) == 0
    for name in ("tensorboard", "mlflow"):
        assert [step for step, _ in READERS[name](Path("run"))["accuracy"]] == [1, 2]
    capsys.readouterr()
    assert main(["resume", "run", "--track", "wandb"]) == 0  # copies a finished run
    assert [step for step, _ in wandb_steps(Path("run"))["accuracy"]] == [1, 2]
    with pytest.raises(SystemExit):
        main(["run", "--track", "tensorbord"])
    assert "did you mean tensorboard" in capsys.readouterr().err


def test_federate() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    moonfl.federate(
        "mlp",
        [(x[:20], y[:20]), (x[20:], y[20:])],
        rounds=2,
        epochs=1,
        batch_size=4,
        out="run",
        workers=1,
        track="tensorboard",
    )
    assert [step for step, _ in tensorboard_steps(Path("run"))["accuracy"]] == [1, 2]
