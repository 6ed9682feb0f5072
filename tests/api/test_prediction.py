"""moonfl.predict and moonfl predict: predictions on raw rows agree, wherever they come from."""

from pathlib import Path

import numpy as np
import pytest
import torch

import moonfl
from helpers.problems import write_images, write_patients
from moonfl import Experiment, InputError
from moonfl.cli import main
from moonfl.experiment import override

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
