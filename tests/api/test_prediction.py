"""moonfl.predict and moonfl predict: predictions on raw rows agree, wherever they come from."""

import csv
import io
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import moonfl
from helpers.problems import write_images, write_patients
from moonfl import Experiment, InputError
from moonfl.cli import main
from moonfl.experiment import override
from moonfl.runs.result import Result

KEYS = ["label=outcome", "column=hospital", "ignore=patient", "impute=mean", "encode=onehot"]
SHORT = ["rounds=1", "epochs=1", "batch_size=16", "out_dim=8"]


def test_predictions_agree_for_run_federate_export_and_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pandas = pytest.importorskip("pandas")
    path = write_patients(tmp_path / "patients.csv")
    keys = ["dataset=csv", f"data_dir={path}", *KEYS, *SHORT]
    result = moonfl.run(override(Experiment(), keys), tmp_path / "run", workers=1)
    frame = pandas.read_csv(path)
    moonfl.export(result, tmp_path / "model")
    expected = moonfl.predict(result, path)
    assert expected.kind == "line"
    assert expected.rows[0] == "2"
    assert "does not use: patient, hospital, outcome" in capsys.readouterr().err
    assert np.allclose(expected.probabilities.sum(axis=1), 1, atol=1e-6)
    for model in (result.model, tmp_path / "run", tmp_path / "model"):
        for data in (path, frame, frame[frame.columns[::-1]]):
            assert np.array_equal(moonfl.predict(model, data).probabilities, expected.probabilities)
    assert (
        main(["predict", str(tmp_path / "run"), str(path), "--out", str(tmp_path / "p.csv")]) == 0
    )
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "line,class,probability"
    assert len(lines) == 1 + len(frame)
    assert lines[1].split(",")[1] == expected.labels[0]
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "model"), str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == lines


def write_targets(path: Path, task: str) -> Path:
    """Write a table with missing values and categories, and two columns to predict."""
    rng = random.Random(0)
    lines = ["clinic,size,kind,first,second"]
    for k in range(150):
        missing = k % 9 == 4  # a missing size is replaced by the mean, about 0
        size, kind = 0 if missing else rng.gauss(0, 1), rng.choice(["Old", "old ", "new"])
        first, second = 5000 + 1000 * size, 0.01 * (kind == "new") + 0.001 * size
        if task == "multilabel":
            first, second = int(size > 0), int(kind == "new")
        lines.append(f"{'NES'[k % 3]},{'NA' if missing else size},{kind},{first},{second}")
    path.write_text("\n".join([*lines, ""]))
    return path


def run_targets(tmp_path: Path, task: str, *changes: str) -> tuple[Path, moonfl.Result]:
    path = write_targets(tmp_path / "table.csv", task)
    words = ["dataset=csv", f"data_dir={path}", f"task={task}", "label=first,second"]
    words += ["column=clinic", "impute=mean", "encode=onehot", "rounds=4", "epochs=5", "lr=0.1"]
    exp = override(Experiment(), [*words, "batch_size=8", *changes])
    return path, moonfl.run(exp, tmp_path / "run", workers=1)


def read_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_other_tasks_agree_for_run_federate_export_and_file(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pandas = pytest.importorskip("pandas")
    path, result = run_targets(tmp_path, task)
    frame = pandas.read_csv(path)
    moonfl.export(result, tmp_path / "model")
    expected = moonfl.predict(result, path)
    assert (expected.task, expected.classes) == (task, ("first", "second"))
    assert expected.values.shape == (len(frame), 2)
    for model in (result.model, tmp_path / "run", tmp_path / "model"):
        for data in (path, frame, frame[frame.columns[::-1]]):
            assert np.array_equal(moonfl.predict(model, data).values, expected.values)
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), str(path)]) == 0
    assert capsys.readouterr().out == expected.to_csv()


def test_a_regression_predicts_in_the_units_of_the_data(tmp_path: Path) -> None:
    path, result = run_targets(tmp_path, "regression")
    predictions = moonfl.predict(result, path)
    rows = read_rows(path.read_text())
    actual = np.array([[float(row["first"]), float(row["second"])] for row in rows])
    errors = np.abs(predictions.values - actual).mean(axis=0)
    assert errors[0] < 500  # half the standard deviation of the targets, 1000 and 0.005
    assert errors[1] < 0.0025
    written = read_rows(predictions.to_csv())
    assert list(written[0]) == ["line", "first", "second"]
    cells = np.array([[float(row["first"]), float(row["second"])] for row in written])
    assert np.array_equal(cells, predictions.values)  # no digit is lost
    for name in ("labels", "probabilities", "flags"):
        with pytest.raises(InputError, match="regression"):
            getattr(predictions, name)


def test_labels_are_predicted_with_their_probabilities(tmp_path: Path) -> None:
    path, result = run_targets(tmp_path, "multilabel")
    predictions = moonfl.predict(result, path)
    assert bool(((predictions.probabilities >= 0) & (predictions.probabilities <= 1)).all())
    assert np.array_equal(predictions.flags, predictions.probabilities > 0.5)
    rows = read_rows(path.read_text())
    actual = np.array([[row["first"] == "1", row["second"] == "1"] for row in rows])
    present = np.array([row["size"] != "NA" for row in rows])
    assert (predictions.flags == actual)[present].mean() > 0.95
    written = read_rows(predictions.to_csv())
    header = ["line", "first", "first probability", "second", "second probability"]
    assert list(written[0]) == header
    for row, flags, values in zip(written, predictions.flags, predictions.values, strict=True):
        assert [row["first"], row["second"]] == [str(int(flag)) for flag in flags]
        assert float(row["second probability"]) == pytest.approx(float(values[1]), abs=1e-6)
    with pytest.raises(InputError, match="any number of labels; use `flags`"):
        _ = predictions.labels


def test_wrong_data_are_refused(tmp_path: Path) -> None:
    path = write_patients(tmp_path / "patients.csv")
    keys = ["dataset=csv", f"data_dir={path}", *KEYS, *SHORT]
    result = moonfl.run(override(Experiment(), keys), workers=1)
    (tmp_path / "new.csv").write_text("age,sex\n1,male\n")
    with pytest.raises(InputError, match="lacks the columns crp, stage, smoker, blood; the model"):
        moonfl.predict(result, tmp_path / "new.csv")
    (tmp_path / "new.csv").write_text("age,sex,crp,stage,smoker,blood\nold,male,1,1,true,A\n")
    with pytest.raises(InputError, match="line 2: column 'age' is 'old', not a finite decimal"):
        moonfl.predict(result, tmp_path / "new.csv")
    with pytest.raises(InputError, match=r"samples of shape \[6\], got an array \[3, 5\]"):
        moonfl.predict(result, torch.zeros(3, 5))
    with pytest.raises(InputError, match="this model does not take images"):
        moonfl.predict(result, tmp_path)
    with pytest.raises(InputError, match="only a global model, got party 1"):
        moonfl.predict(result, path, party=1)
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 6)))
    assert len(moonfl.predict(result, tmp_path / "x.npz").labels) == 3
    missing = np.zeros((3, 6))
    missing[1, 0] = np.nan
    expected = moonfl.predict(result, missing).probabilities
    assert np.isfinite(expected).all()
    np.savez(tmp_path / "x.npz", x=missing)
    assert np.array_equal(moonfl.predict(result, tmp_path / "x.npz").probabilities, expected)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.array([[1.0, np.nan], [1.0, 2.0]]), "sample 0 of the array has NaN or infinite values"),
        (np.array([[1.0, 2.0], [1e300, 2.0]]), "sample 1 of the array has values that are too"),
        (np.array([[1j, 2]]), "must hold integers or floats, got complex128"),
        (np.array([["1", "2"]]), "must hold integers or floats"),
        ([[1.0, 2.0], [1.0]], "the samples: its samples have different shapes; pad"),
        (3.0, r"a path, a data frame or an array \[N, ...\], got float"),
        (None, r"a path, a data frame or an array \[N, ...\], got NoneType"),
        (torch.zeros(0, 2), "must hold integers or floats"),
    ],
)
def test_arrays_are_checked_like_files(vectors: Result, data: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        moonfl.predict(vectors, data)


@pytest.mark.parametrize("in_a_file", [False, True])
def test_token_ids_are_integers(tmp_path: Path, in_a_file: bool) -> None:
    def data(rows: list[list[float]]) -> object:
        if not in_a_file:
            return rows
        np.savez(tmp_path / "x.npz", x=np.array(rows))
        return tmp_path / "x.npz"

    rng = np.random.default_rng(0)
    parties = [(rng.integers(5, size=(20, 3)), np.arange(20) % 2) for _ in range(2)]
    encoder = torch.nn.Sequential(torch.nn.Embedding(5, 2), torch.nn.Flatten())
    result = moonfl.federate(encoder, parties, rounds=1, epochs=1, batch_size=8, workers=1)
    expected = moonfl.predict(result, np.array([[0, 1, 4]])).probabilities
    assert np.array_equal(moonfl.predict(result, data([[0.0, 1.0, 4.0]])).probabilities, expected)
    with pytest.raises(InputError, match="the model takes integers, got floats with a fraction"):
        moonfl.predict(result, data([[0.5, 1.2, 4.0]]))


@pytest.mark.parametrize("in_a_file", [False, True])
def test_token_ids_in_a_table_are_integers(tmp_path: Path, in_a_file: bool) -> None:
    pandas = pytest.importorskip("pandas")

    def data(rows: list[list[float]]) -> object:
        frame = pandas.DataFrame(rows, columns=["u", "v"])
        if not in_a_file:
            return frame
        frame.to_csv(tmp_path / "x.csv", index=False)
        return tmp_path / "x.csv"

    rng = np.random.default_rng(0)
    columns = ["u", "v"]
    parties = [
        (pandas.DataFrame(rng.integers(5, size=(20, 2)), columns=columns), np.arange(20) % 2)
        for _ in range(2)
    ]
    encoder = torch.nn.Sequential(torch.nn.Embedding(5, 2), torch.nn.Flatten())
    result = moonfl.federate(encoder, parties, rounds=1, epochs=1, batch_size=8, workers=1)
    assert len(moonfl.predict(result, data([[1.0, 4.0]])).labels) == 1
    with pytest.raises(InputError, match="the model takes integers, got floats with a fraction"):
        moonfl.predict(result, data([[1.9, 0.2]]))


@pytest.mark.parametrize("model", [5, None])
def test_a_model_of_another_type_is_refused(model: object) -> None:
    with pytest.raises(InputError, match=r"the model must be a result, .* got"):
        moonfl.predict(model, np.zeros((1, 2)))
    with pytest.raises(InputError, match="run must be a result or a run directory, got"):
        moonfl.export(model, "out")
    with pytest.raises(InputError, match="path must be the folder of an export"):
        moonfl.load_model(model)


def test_predicting_leaves_a_model_as_it_is(vectors: Result) -> None:
    model = vectors.model.train()
    rows = [[1, 2], [3, 4]]
    expected = moonfl.predict(vectors, torch.tensor(rows, dtype=torch.float32))
    assert np.array_equal(moonfl.predict(model, rows).probabilities, expected.probabilities)
    assert model.training


@pytest.fixture(scope="module")
def vectors() -> Result:
    """Return a short run on samples of two numbers."""
    rng = np.random.default_rng(0)
    parties = [(rng.normal(size=(20, 2)), np.arange(20) % 2) for _ in range(2)]
    return moonfl.federate("mlp", parties, rounds=1, epochs=1, batch_size=8, workers=1)


def test_images_and_personal_models(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    words = ["dataset=folder", f"data_dir={tmp_path / 'images'}", "parties=2", "image_size=8"]
    exp = override(Experiment(), [*words, *SHORT, "model=mlp", "personal=output", "min_samples=1"])
    result = moonfl.run(exp, tmp_path / "run", workers=1)
    predictions = moonfl.predict(tmp_path / "run", tmp_path / "images", party=1)
    assert predictions.kind == "file"
    assert np.array_equal(
        predictions.probabilities,
        moonfl.predict(result, tmp_path / "images", party=1).probabilities,
    )
    with pytest.raises(InputError, match="every party of this run has its own model"):
        moonfl.predict(tmp_path / "run", tmp_path / "images")
