"""Run the scripts of examples/ at reduced length."""

import importlib
import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from helpers.documents import commands
from helpers.problems import TINY, gaussians, train, write_hapt
from moonfl import FedAvg
from moonfl.cli import main

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an example in an empty folder, with the arguments that docs/examples.md shows."""
    monkeypatch.chdir(folder)
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    (words,) = (words for words in commands(page) if words[:2] == ["python", f"examples/{name}"])
    monkeypatch.setattr(sys, "argv", words[1:])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_every_example_is_tested_and_described() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    tests = Path(__file__).read_text()
    for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]:
        assert f"`{path.name}`" in readme
        assert f'"{path.name}"' in tests or f"{path.stem}:" in tests


def test_hapt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_hapt(tmp_path / "hapt.npz")
    run("hapt.py", tmp_path, monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "10 people train; the test set has 48 windows of 2 others"
    assert [line.split()[0] for line in lines[1:]] == ["SOLO", "FedAvg", "MOON", "FedAvgM"]


def test_hapt_from_the_publishers_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tmp_path / "RawData"
    raw.mkdir()
    signal = np.arange(400 * 3).reshape(400, 3)
    np.savetxt(raw / "acc_exp01_user05.txt", signal)
    np.savetxt(raw / "gyro_exp01_user05.txt", -signal)
    (raw / "labels.txt").write_text("1 5 5 1 256\n1 5 7 257 300\n1 5 2 301 400\n")
    read = runpy.run_path(str(EXAMPLES / "hapt.py"))["read"]
    x, y, subject = read(tmp_path)
    assert (y.tolist(), subject.tolist()) == ([4, 4, 4], [5, 5, 5])
    assert x.shape == (3, 128, 6)
    assert x[1, 0].tolist() == [192, 193, 194, -192, -193, -194]


def test_clinics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("clinics.py", tmp_path, monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("benign rows of all rows: 112/114, 106/114, 92/114, 46/114, 1/113")
    assert [line.split()[0] for line in lines[1:4]] == ["FedAvg", "SCAFFOLD", "MOON"]
    assert (tmp_path / "model" / "model.pt2").exists()


def test_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("text.py", tmp_path, monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    sizes = [int(size) for size in re.findall(r"\d+(?=[,;])", lines[0])]
    assert len(sizes) == 4
    assert min(sizes) > 100
    assert [line.split()[0] for line in lines[1:]] == ["SOLO", "FedAvg"]
    x, y, party = runpy.run_path(str(EXAMPLES / "text.py"))["read"]()
    assert x.dtype == np.int64
    assert len(np.unique(x, axis=0)) == len(x) == len(y) == len(party)
    assert (x.min(), x.max()) == (0, 999)


def test_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    demo = importlib.import_module("demo")
    monkeypatch.setattr(demo, "SEEDS", (0, 1))
    monkeypatch.setattr(demo, "ROUNDS", 2)
    monkeypatch.setattr(demo, "EPOCHS", 1)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--out", str(tmp_path / "demo")])
    demo.main()
    printed = capsys.readouterr().out
    page = tmp_path / "demo" / "report" / "report.html"
    assert f"partition: {page}" in printed
    assert page.exists()
    assert "means over 2 seeds" in printed
    (verdict,) = re.findall(r"MOON minus FedAvg is .* points: (.*)\.", printed)
    assert f"MOON mu=1 compared with FedAvg: {verdict}\n" in printed
    partitions = {path.read_text() for path in (tmp_path / "demo").glob("*/partition.json")}
    assert len(partitions) == 1, "every method has the same parties"


@pytest.mark.parametrize(
    ("moon", "verdict"),
    [
        ([82.0, 92.01], "MOON minus FedAvg is +2.0, +2.0 points: better."),
        ([78.0, 87.99], "MOON minus FedAvg is -2.0, -2.0 points: worse."),
        ([79.0, 92.0], "MOON minus FedAvg is -1.0, +2.0 points: not distinguishable with 2 seeds;"),
        ([82.0, 91.0], "MOON minus FedAvg is +2.0, +1.0 points: not distinguishable with 2 seeds;"),
    ],
)
def test_demo_says_what_the_numbers_show(
    moon: list[float], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    demo = importlib.import_module("demo")
    text = demo.summarise({"MOON": moon, "FedAvg": [80.0, 90.0], "SOLO": [30.0, 32.0]})
    assert verdict in text
    assert "reaches 31 %" in text


def test_a_custom_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    words = [
        "digits-fedavg",
        "algorithm=proximal_z:ProximalZ",
        "lam=0.5",
        "rounds=1",
        "parties=3",
        "epochs=1",
    ]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 0
    method, task = runpy.run_path(str(EXAMPLES / "proximal_z.py"))["ProximalZ"], gaussians()
    drifts = []
    for algorithm in (FedAvg(), method(lam=0.0), method(lam=20.0)):
        server = train(replace(TINY, algorithm=algorithm), task)
        drifts.append(server.params["head.2.weight"].norm().item())
    assert drifts[0] == drifts[1] != drifts[2]


def test_the_notebook_runs(tmp_path: Path) -> None:
    """Execute "tour.ipynb" at reduced length in a kernel; the stored file has no outputs."""
    notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        cell.source = cell.source.replace(
            "rounds, epochs, seeds = 5, 5, (0, 1, 2)", "rounds, epochs, seeds = 2, 1, (0, 1)"
        )
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    data = {kind: text for output in outputs for kind, text in output.get("data", {}).items()}
    assert "image/png" in data
    results = [
        output for output in outputs if "<svg" in output.get("data", {}).get("text/html", "")
    ]
    assert len(results) == 1
    text = "".join(output.get("text", "") for output in outputs)
    assert "compared with FedAvg: " in text
    assert "Warning" not in text
    assert (tmp_path / "report" / "report.html").exists()
