"""Reports, comparisons and exports of regression and multi-label runs."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import moonfl
from moonfl.errors import InputError
from moonfl.report.build import compare, write
from moonfl.report.conclusions import Pairing, Verdict, conclude


def write_table(path: Path, task: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    values = 1000 * x[:, 0] + 5000 if task == "regression" else (x[:, 0] > 0).astype(int)
    other = x[:, 1] if task == "regression" else (x[:, 1] > 0.5).astype(int)
    rows = np.c_[x, np.arange(120) % 3, values, other]
    lines = [",".join(f"{value:.6g}" for value in row) for row in rows]
    path.write_text("\n".join(["a,b,c,site,first,second", *lines]))


def run(folder: Path, task: str, **settings: object) -> moonfl.Result:
    table = folder / f"{task}.csv"
    if not table.exists():
        write_table(table, task)
    exp = moonfl.Experiment(
        dataset="csv",
        data_dir=str(table),
        label="first,second",
        task=task,
        partition="column",
        column="site",
        rounds=2,
        epochs=1,
        batch_size=8,
        lr=0.05,
        **settings,
    )
    name = f"{task}-{exp.algorithm.label}-{exp.seed}"
    return moonfl.run(exp, folder / "runs" / task / name, workers=1)


@pytest.mark.parametrize(
    ("task", "texts"),
    [
        ("regression", ("Test RMSE", "R2", "final RMSE minus FedAvg", "A negative difference is")),
        ("multilabel", ("Test mAP", "macro-F1, %", "final mAP minus FedAvg")),
    ],
)
def test_a_report_names_the_metrics_of_the_task(
    task: str, texts: tuple[str, ...], tmp_path: Path
) -> None:
    for seed in (0, 1):
        for algorithm in (moonfl.FedAvg(), moonfl.FedProx(mu=0.1)):
            run(tmp_path, task, seed=seed, algorithm=algorithm)
    page = write([tmp_path / "runs" / task], tmp_path / "out").read_text()
    for text in texts:
        assert text in page
    visible = re.sub(r"<[^>]*>", " ", page.partition("<main>")[2])
    assert "ccuracy" not in visible
    assert texts[0] in compare([tmp_path / "runs" / task])


def test_runs_of_different_tasks_are_not_compared(tmp_path: Path) -> None:
    run(tmp_path, "regression")
    run(tmp_path, "multilabel")
    with pytest.raises(InputError, match="runs of different tasks cannot be compared"):
        compare([tmp_path / "runs"])


def test_a_lower_error_is_better() -> None:
    lower = (-3.0, -3.1, -2.9, -3.05)
    verdicts = [
        conclude([Pairing(lower, higher_is_better=higher)])[0].verdict for higher in (False, True)
    ]
    assert verdicts == [Verdict.BETTER, Verdict.WORSE]


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_an_export_returns_the_predictions_of_the_run(task: str, tmp_path: Path) -> None:
    result = run(tmp_path, task)
    exported = moonfl.export(result, tmp_path / "export")
    assert result.measure.name in exported.model
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 3)))
    with torch.no_grad():
        expected = result.model(x).logits
        loaded = moonfl.load_model(tmp_path / "export" / "model.safetensors")(x).logits
        program = torch.export.load(tmp_path / "export" / "model.pt2").module()(x)[1]
    assert torch.allclose(loaded, expected, rtol=1e-4)
    assert torch.allclose(program, expected, rtol=1e-4, atol=1e-4)
    text = (tmp_path / "export" / "README.md").read_text()
    assert "first, second" in text
    assert ("argmax" in text) is False
    if task == "regression":
        assert 3000 < float(expected[:, 0].mean()) < 7000  # the units of the data
