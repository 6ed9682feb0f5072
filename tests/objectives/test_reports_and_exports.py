"""Reports, comparisons and exports of regression and multi-label runs."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import moonfl
from moonfl.cli import main
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


def partition(folder: Path, task: str, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return the words of the lines that `moonfl partition` prints."""
    table = folder / f"{task}.csv"
    write_table(table, task)
    data = ["dataset=csv", f"data_dir={table}", "label=first,second", "column=site"]
    assert main(["partition", *data, f"task={task}", "--out", str(folder / "heat.png")]) == 0
    assert (folder / "heat.png").read_bytes().startswith(b"\x89PNG")
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_the_partition_of_a_regression_shows_the_targets_of_each_party(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *rows = partition(tmp_path, "regression", capsys)
    assert " ".join(header) == "samples first, mean std second, mean std"
    y = np.genfromtxt(tmp_path / "regression.csv", delimiter=",", skip_header=1)[:, 4:]
    for k, row in enumerate(rows[:3]):
        part = y[k::3]
        means_and_stds = np.c_[part.mean(axis=0), part.std(axis=0)].ravel()
        assert row[:2] == [str(k), "40"]
        assert [float(cell) for cell in row[2:]] == pytest.approx(means_and_stds, rel=0.06)
    assert "non-IID:" not in [row[0] for row in rows]


def test_the_partition_of_several_labels_counts_samples_and_not_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *rows = partition(tmp_path, "multilabel", capsys)
    assert header == ["first", "second", "samples"]
    y = np.genfromtxt(tmp_path / "multilabel.csv", delimiter=",", skip_header=1)[:, 4:]
    for k, row in enumerate(rows[:3]):
        expected = [k, *y[k::3].sum(axis=0).astype(int), 40]
        assert [int(cell) for cell in row] == expected


def test_the_target_is_a_value_of_the_metric(tmp_path: Path) -> None:
    result = run(tmp_path, "regression", algorithm=moonfl.FedAvg())
    first, last = (record.rmse for record in result.rounds)
    assert last < first
    runs = [tmp_path / "runs"]
    reached = re.compile(r"FedAvg .* (\d|not reached) +[\d.]+$", flags=re.MULTILINE)
    for target, text in ((first + 1, "1"), (last, "2"), (last - 1, "not reached")):
        match = reached.search(compare(runs, target))
        assert match is not None
        assert match[1] == text
    for target in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="the target RMSE must be above 0 and finite, got"):
            compare(runs, target)
    (tmp_path / "other").mkdir()
    run(tmp_path / "other", "multilabel")
    with pytest.raises(InputError, match="the target mAP must be above 0 and at most 1"):
        write([tmp_path / "other" / "runs"], tmp_path / "report", target=1200)
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("task", "text"), [("regression", "RMSE may be too low"), ("multilabel", "mAP may be too high")]
)
def test_duplicates_are_reported_with_the_metric_of_the_task(
    task: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path / f"{task}.csv", task)
    lines = (tmp_path / f"{task}.csv").read_text().splitlines()
    (tmp_path / f"{task}.csv").write_text("\n".join([*lines, *lines[1:]]))
    run(tmp_path, task)
    assert text in capsys.readouterr().err


def test_the_start_of_a_run_counts_targets_and_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path / "t.csv", "regression")
    data = ["dataset=csv", f"data_dir={tmp_path / 't.csv'}", "column=site", "task=regression"]
    for label, text in (("first", "1 target,"), ("first,second", "2 targets,")):
        words = [*data, f"label={label}", "rounds=1", "epochs=1"]
        assert main(["run", *words, "--workers", "1", "--out", str(tmp_path / label)]) == 0
        assert text in capsys.readouterr().err


def test_labels_of_close_values_are_complete_numbers() -> None:
    from moonfl.report.dot_charts import separate_ticks
    from moonfl.report.style import figure_style, new_figure

    with figure_style():
        figure, axes = new_figure("title", "subtitle", 3.0)
        axes.plot([72961.6, 72961.8], [0, 1])
        separate_ticks(axes)
        figure.canvas.draw()
        assert axes.xaxis.get_offset_text().get_text() == ""
        labels = [label for label in axes.get_xticklabels() if label.get_text()]
        boxes = sorted(label.get_window_extent().intervalx.tolist() for label in labels)
    assert len(boxes) >= 2
    assert all(left[1] < right[0] for left, right in itertools.pairwise(boxes))
