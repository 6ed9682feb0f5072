"""`moonfl bench` on a little data: that it measures what it says, not how fast."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moonfl import bench
from moonfl.cli import main
from moonfl.errors import RunError

ROOT = Path(__file__).parents[1]


def test_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "SAMPLES", {True: 200})
    monkeypatch.setattr(bench, "REPEATS", {True: 1})
    out = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--data-dir", str(tmp_path), "--out", str(out)]) == 0
    told = json.loads(out.read_text())
    measured = {row["what"]: row["value"] for row in told["measured"]}
    assert told["samples"] == 200
    assert all(value > 0 for value in measured.values())
    ours = measured[f"FedAvg step, ours ({told['kernels']})"]
    assert measured["FedAvg step: channels_last / ours"] == pytest.approx(
        measured["FedAvg step, torch, channels_last"] / ours
    )
    assert "MOON round / FedAvg round" in capsys.readouterr().out


def test_multiply_adds_of_the_cnn() -> None:
    """28*28*6*75 + 10*10*16*150 + 400*120 + 120*84 + 84*84 + 84*256 + 256*10"""
    exp = bench.Experiment(dataset="cifar10", parties=1)
    task = bench.make_task(exp, bench.cifar10_or_made(Path("nowhere"), 100))
    assert bench.multiply_adds(task) == 352_800 + 240_000 + 48_000 + 10_080 + 7_056 + 21_504 + 2_560


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert main(["bench", "--quick", "--out", str(tmp_path / "no" / "bench.json")]) == 2
    assert main(["bench", "--quick", "--out", str(tmp_path)]) == 2


def test_a_plain_loop_that_dies_without_a_word_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killed.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setattr(bench, "PLAIN_LOOP", tmp_path / "killed.py")
    with pytest.raises(RunError, match="failed: status -9"):
        bench.plain_seconds(tmp_path, 10, "--augment")


def test_plain_loop(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "plain_loop.py"
    words = [
        sys.executable,
        str(script),
        "--data-dir",
        str(tmp_path),
        "--samples",
        "200",
        "--augment",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert float(done.stdout) > 0
