"""`moonfl bench` on few samples: it measures what it reports, whatever the speed."""

import json
import sys
from pathlib import Path

import pytest

from moonfl import bench
from moonfl.cli import main
from moonfl.engines.base import num_cores
from moonfl.errors import RunError

ROOT = Path(__file__).parents[1]


def test_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "SAMPLES", {True: 200})
    monkeypatch.setattr(bench, "REPEATS", {True: 1})
    out = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--data-dir", str(tmp_path), "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    measured = {row["what"]: row["value"] for row in result["measured"]}
    assert result["samples"] == 200
    assert all(value > 0 for value in measured.values())
    ours = measured[f"FedAvg step, ours ({result['kernels']})"]
    assert measured["FedAvg step: channels_last / ours"] == pytest.approx(
        measured["FedAvg step, torch, channels_last"] / ours
    )
    printed = capsys.readouterr().out
    assert "MOON round / FedAvg round" in printed
    assert "torch.compile was skipped" in printed


def test_phases_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "SAMPLES", {True: 200})
    monkeypatch.setattr(bench, "REPEATS", {True: 1})
    out = tmp_path / "bench.json"
    options = ["--quick", "--phases", "--data-dir", str(tmp_path), "--out", str(out)]
    assert main(["bench", *options]) == 0
    measured = {row["what"]: row["value"] for row in json.loads(out.read_text())["measured"]}
    total = measured.pop("sum")
    assert list(measured) == [
        "batch, augmented",
        "forward",
        "two frozen forwards",
        "contrastive loss",
        "cross-entropy",
        "backward of both losses",
        "backward of the network",
        "SGD",
    ]
    assert all(value > 0 for value in measured.values())
    assert total == pytest.approx(sum(measured.values()))
    assert "two frozen forwards" in capsys.readouterr().out


def test_multiply_adds_of_the_cnn() -> None:
    """28*28*6*75 + 10*10*16*150 + 400*120 + 120*84 + 84*84 + 84*256 + 256*10"""
    exp = bench.Experiment(dataset="cifar10", parties=1)
    task = bench.make_task(exp, bench.cifar10_or_noise(Path("nowhere"), 100))
    assert bench.multiply_adds(task) == 352_800 + 240_000 + 48_000 + 10_080 + 7_056 + 21_504 + 2_560


def test_torch_compile_is_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    exp = bench.Experiment(dataset="cifar10", parties=1)
    task = bench.make_task(exp, bench.cifar10_or_noise(Path("nowhere"), 100))
    monkeypatch.setenv("CXX", "no-such-compiler")
    rows, reason = bench.measure_compiled_step(exp, task, 1)
    assert rows == []
    assert "no C++ compiler no-such-compiler" in reason

    def fail(model: object) -> object:
        raise RuntimeError("the backend is broken\nand this is its log")

    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr(bench.torch, "compile", lambda model: fail)
    rows, reason = bench.measure_compiled_step(exp, task, 1)
    assert (rows, reason) == ([], "torch.compile was skipped: the backend is broken")


def test_torch_compile_is_compared_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the backend "eager", which compiles nothing and takes no minute."""
    exp = bench.Experiment(dataset="cifar10", parties=1)
    task = bench.make_task(exp, bench.cifar10_or_noise(Path("nowhere"), 100))
    compile = bench.torch.compile
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr(bench.torch, "compile", lambda model: compile(model, backend="eager"))
    rows, reason = bench.measure_compiled_step(exp, task, 1)
    assert reason == ""
    assert [name for name, _, _ in rows] == [
        "FedAvg step, torch.compile",
        "FedAvg step: torch.compile / ours",
    ]
    assert all(value > 0 for _, value, _ in rows)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert main(["bench", "--quick", "--out", str(tmp_path / "no" / "bench.json")]) == 2
    assert main(["bench", "--quick", "--out", str(tmp_path)]) == 2


def test_a_plain_loop_that_is_killed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killed.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setattr(bench, "PLAIN_LOOP", tmp_path / "killed.py")
    with pytest.raises(RunError, match="failed: status -9"):
        bench.plain_seconds(tmp_path, 10, ["--augment"])


@pytest.mark.parametrize(
    "options", [["--augment"], ["--party-size", "50", "--parties", "3", "--method", "fedavg"]]
)
def test_plain_loop(options: list[str], tmp_path: Path) -> None:
    assert bench.plain_seconds(tmp_path, 200, options) > 0


def test_the_plain_loop_on_many_small_parties(tmp_path: Path) -> None:
    workers = bench.workers_text(num_cores())
    rounds = [(f"many small parties, {m}, {workers}: round", 1e-3, "s") for m in ("FedAvg", "MOON")]
    rows = bench.measure_plain_small_parties(tmp_path, 200, rounds)
    assert [name for name, _, _ in rows] == [
        "many small parties, FedAvg, plain loop: round",
        "many small parties, FedAvg: plain loop / ours",
        "many small parties, MOON, plain loop: round",
        "many small parties, MOON: plain loop / ours",
    ]
    values = [value for _, value, _ in rows]
    assert values[1] == values[0] / 1e-3
