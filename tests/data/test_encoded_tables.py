"""Tables with missing values and categories: run, resume, workers, export and federate."""

from pathlib import Path

import numpy as np
import pytest
import torch

import moonfl
from helpers.problems import TABLE, write_patients
from moonfl import Experiment, InputError
from moonfl.cli import main
from moonfl.experiment import fingerprint, override
from moonfl.runs.directory import read_partition
from moonfl.task import make_task

SHORT = ["rounds=2", "epochs=1", "batch_size=16", "out_dim=8"]
KEYS = ["label=outcome", "column=hospital", "ignore=patient", "categorical=stage", *SHORT]
ENCODED = [*KEYS, "impute=indicator", "encode=onehot"]


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_patients(tmp_path_factory.mktemp("data") / "patients.csv")


def experiment(path: Path, *changes: str) -> Experiment:
    return override(Experiment(), ["dataset=csv", f"data_dir={path}", *changes])


def test_the_encoding_is_learned_from_training_rows_only(patients: Path) -> None:
    task = make_task(experiment(patients, *ENCODED, "validation=0.2"))
    encoding = task.preparation.encoding
    assert encoding is not None
    assert encoding.features == (
        *("age", "age is missing", "sex=female", "sex=male", "sex is missing"),
        *("crp", "crp is missing", "stage=1", "stage=2", "stage=3"),
        *("smoker", "smoker is missing", "blood=a", "blood=ab", "blood=b", "blood=zero"),
    )
    rows = torch.cat([party.x for party in task.parties])
    age = rows[:, 0][~rows[:, 0].isnan()]
    assert encoding.columns[0].mean == pytest.approx(float(age.mean()), rel=1e-12)
    assert encoding.columns[0].std == pytest.approx(float(age.std(correction=0)), rel=1e-12)
    blood = rows[:, 5]
    assert encoding.columns[5].shares == tuple(
        int((blood == k).sum()) / len(blood) for k in range(4)
    )
    batch = task.preparation.batch(task.test.x, torch.arange(len(task.test.y)))
    assert batch.isfinite().all()
    assert task.validation is not None
    standardised = task.build()
    params, buffers = task.init_model(0)
    standardised.load_state_dict({**params, **buffers})
    features = standardised.standardise(task.preparation.batch(rows, torch.arange(len(rows))))
    numeric = [encoding.features.index(name) for name in ("age", "crp", "smoker")]
    assert features[rows[:, 0].isnan()][:, 0].abs().max() == 0  # imputed by the mean
    others = [k for k in range(len(encoding.features)) if k not in numeric]
    assert bool(((features[:, others] >= 0) & (features[:, others] <= 1)).all())


@pytest.mark.parametrize("changes", [["impute=indicator"], ["impute=mean", "min_category=20"]])
def test_workers_and_interruptions_do_not_change_the_result(
    patients: Path, tmp_path: Path, changes: list[str]
) -> None:
    exp = experiment(patients, *KEYS, "encode=onehot", *changes)
    one = moonfl.run(exp, tmp_path / "one", workers=1)
    assert one.model.encoding is not None
    assert ("blood=zero" in one.model.encoding.features) == (exp.min_category < 20)
    two = moonfl.run(exp, tmp_path / "two", workers=2)
    for name, tensor in one.models["global"].items():
        assert torch.equal(tensor, two.models["global"][name]), name

    class StopError(Exception):
        pass

    def stop(record: object) -> None:
        raise StopError

    with pytest.raises(StopError):
        moonfl.run(exp, tmp_path / "stopped", workers=1, watch=stop)
    resumed = moonfl.resume(tmp_path / "stopped")
    for name, tensor in one.models["global"].items():
        assert torch.equal(tensor, resumed.models["global"][name]), name


def test_a_changed_category_is_changed_data(patients: Path, tmp_path: Path) -> None:
    """Renamed categories have the same numbers, so the hash must include their names."""
    path = tmp_path / "patients.csv"
    path.write_text(patients.read_text())
    moonfl.run(experiment(path, *ENCODED), tmp_path / "run", workers=1)
    path.write_text(path.read_text().replace("zero", "zulu"))
    with pytest.raises(InputError, match="have changed since"):
        moonfl.resume(tmp_path / "run")


def test_a_complete_numeric_table_is_trained_as_before(tmp_path: Path) -> None:
    """Imputation that nothing needs changes neither the samples nor the network."""
    (tmp_path / "t.csv").write_text(TABLE)
    keys = ["label=outcome", "column=site", *SHORT]
    plain = make_task(experiment(tmp_path / "t.csv", *keys))
    task = make_task(experiment(tmp_path / "t.csv", *keys, "impute=mean", "encode=onehot"))
    assert plain.preparation.encoding is None
    for a, b in zip(plain.parties, task.parties, strict=True):
        rows = torch.arange(len(a.y))
        assert torch.equal(plain.preparation.batch(a.x, rows), task.preparation.batch(b.x, rows))
    for a, b in zip(plain.scales, task.scales, strict=True):
        assert torch.allclose(a, b, rtol=1e-12)


def test_defaults_do_not_change_fingerprints() -> None:
    defaults = Experiment(dataset="csv", impute="refuse", encode="refuse", min_category=5)
    assert fingerprint(defaults) == fingerprint(Experiment(dataset="csv"))
    changed = Experiment(dataset="csv", impute="mean")
    assert fingerprint(changed) != fingerprint(defaults)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["impute=median"], "impute must be refuse or mean or indicator"),
        (["encode=ordinal"], "encode must be refuse or onehot"),
        (["categorical=stage"], "categorical belongs to encode=onehot"),
        (["min_category=9"], "min_category belongs to encode=onehot"),
        (["encode=onehot", "min_category=0"], "min_category must be an integer >= 1"),
        (["encode=onehot", "categorical=x", "impute=mean"], "categorical=x: there is no feature"),
        (["impute=mean", "encode=onehot"], "'patient' has 180 distinct values .*ignore=patient"),
        (["impute=mean", "ignore=patient"], "column 'sex' is 'MALE', not .*add encode=onehot"),
        (["ignore=patient", "encode=onehot"], "column 'age' is empty; add impute=mean"),
        (["shift=noise", "impute=mean", "encode=onehot", "ignore=patient"], "shift=noise requires"),
        (["ignore=patient,age,sex,crp,smoker"], "'blood' is .*add encode=onehot if the column has"),
        (["ignore=patient,sex,smoker,blood"], "line 5: column 'age' is empty; .*add impute=mean"),
    ],
)
def test_wrong_settings_and_tables(patients: Path, changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_task(experiment(patients, "label=outcome", "column=hospital", *SHORT, *changes))


def test_the_keys_belong_to_tables() -> None:
    message = "impute belongs to dataset=csv or hub, not to dataset=digits"
    with pytest.raises(InputError, match=message):
        Experiment(impute="mean")
    assert Experiment(dataset="sites", impute="mean").impute == "mean"


def test_a_test_table_is_encoded_like_the_training_table(patients: Path, tmp_path: Path) -> None:
    header, *lines = patients.read_text().splitlines()
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "train.csv").write_text("\n".join([header, *lines[:150], ""]))
    new = "p1,North,,male,3.0,7,true,new,ill"
    (folder / "test.csv").write_text("\n".join([header, *lines[150:], new, ""]))
    task = make_task(experiment(folder, *ENCODED))
    assert task.preparation.encoding is not None
    features = task.preparation.encoding.features
    assert "blood=new" not in features
    last = task.preparation.batch(task.test.x, torch.tensor([len(task.test.y) - 1]))[0]
    named = dict(zip(features, last.tolist(), strict=True))
    known = [named[name] for name in features if name.startswith(("blood=", "stage="))]
    assert known == [0.0] * 7
    assert named["age is missing"] == 1


def test_run_federate_and_export_agree_on_raw_rows(patients: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    result = moonfl.run(experiment(patients, *ENCODED), tmp_path / "run", workers=1)
    frame = pandas.read_csv(patients)
    parties = {
        name: (rows.drop(columns=["patient", "hospital", "outcome"]), rows["outcome"])
        for name, rows in frame.groupby("hospital")
    }
    federated = moonfl.federate(
        "mlp",
        parties,
        rounds=2,
        epochs=1,
        batch_size=16,
        out_dim=8,
        impute="indicator",
        encode="onehot",
        categorical="stage",
        workers=1,
    )
    for name, tensor in result.models["global"].items():
        assert torch.equal(tensor, federated.models["global"][name]), name
    assert main(["export", str(tmp_path / "run")]) == 0
    loaded = moonfl.load_model(tmp_path / "run" / "export")
    program = torch.export.load(tmp_path / "run" / "export" / "model.pt2").module()
    x = torch.tensor([[61.5, 0, 3.2, 2, 1, 0], [np.nan, np.nan, np.nan, -1, np.nan, -1]])
    x = x.double()
    expected = result.model(x).logits
    assert torch.equal(loaded(x).logits, expected)
    assert torch.allclose(program(x)[1], expected, rtol=1e-5, atol=1e-6)
    assert loaded.encoding == result.model.encoding
    text = (tmp_path / "run" / "export" / "README.md").read_text()
    assert "- blood: 0 a, 1 ab, 2 b, 3 zero" in text
    partition = read_partition(tmp_path / "run")
    assert partition.encoding is not None
    assert partition.features == ["age", "sex", "crp", "stage", "smoker", "blood"]


def test_frames_of_polars_are_read_like_those_of_pandas(patients: Path) -> None:
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    dropped = ["patient", "hospital", "outcome"]
    options = {"rounds": 1, "epochs": 1, "out_dim": 8, "workers": 1}
    encode = {"impute": "indicator", "encode": "onehot", "categorical": "stage"}
    frame, other = pandas.read_csv(patients), polars.read_csv(patients, null_values=["NaN"])
    parties = {}
    others = {}
    for name in ("East", "North", "South"):
        rows = frame[frame["hospital"] == name]
        parties[name] = (rows.drop(columns=dropped), rows["outcome"])
        rows = other.filter(polars.col("hospital") == name)
        others[name] = (rows.drop(dropped), rows["outcome"])
    expected = moonfl.federate("mlp", parties, **options, **encode)
    result = moonfl.federate("mlp", others, **options, **encode)
    values = moonfl.predict(expected, patients).values
    for model in (expected, result):
        for data in (frame, other):
            assert np.array_equal(moonfl.predict(model, data).values, values)


def test_data_frames_may_have_their_columns_in_any_order() -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frames = [pandas.DataFrame(rng.normal(size=(20, 2)), columns=["a", "b"]) for _ in range(2)]
    y = np.arange(20) % 2
    options = {"rounds": 1, "epochs": 1, "out_dim": 8, "workers": 1}
    plain = moonfl.federate("mlp", [(frame, y) for frame in frames], **options)
    frames[1] = frames[1][["b", "a"]]
    turned = moonfl.federate("mlp", [(frame, y) for frame in frames], **options)
    for name, tensor in plain.models["global"].items():
        assert torch.equal(tensor, turned.models["global"][name]), name
    frames[1] = frames[1].rename(columns={"a": "c"})
    with pytest.raises(InputError, match="party 0 has a column 'a', which party 1 lacks"):
        moonfl.federate("mlp", [(frame, y) for frame in frames], **options)
    with pytest.raises(InputError, match="party 0 has an array: pass a pandas DataFrame"):
        moonfl.federate("mlp", [(rng.normal(size=(20, 2)), y)], impute="mean", **options)
    frames[0].loc[3, "a"] = np.nan
    with pytest.raises(InputError, match=r"party 0, row 3: column 'a' is 'NaN'.*impute=mean"):
        moonfl.federate("mlp", [(frames[0], y)], **options)
