"""Tables with missing values and categories at three sites."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import moonfl
from helpers.equality import same
from helpers.flower_deployment import (
    Deployment,
    edit_description,
    run_simulated,
    table_experiment,
)
from helpers.problems import write_patients
from moonfl import Experiment, InputError, RunError
from moonfl.cli import main
from moonfl.data.encoding import unlearned_encoding
from moonfl.experiment import override
from moonfl.flower.client import with_columns
from moonfl.flower.protocol import ColumnOrder
from moonfl.flower.refusals import RefusedError
from moonfl.flower.site import load_site
from moonfl.runs.directory import read_partition

KEYS = ["label=outcome", "column=hospital", "ignore=patient", "categorical=stage", "parties=3"]
SHORT = ["rounds=2", "epochs=1", "batch_size=16", "out_dim=8"]


@pytest.fixture
def patients(tmp_path: Path) -> Experiment:
    path = write_patients(tmp_path / "patients.csv")
    encode = ["impute=indicator", "encode=onehot"]
    return override(Experiment(), ["dataset=csv", f"data_dir={path}", *KEYS, *SHORT, *encode])


def table_of(deployment: Deployment, site: int) -> Path:
    return deployment.folder / f"site-{site}" / "tables" / "train.csv"


def test_sites_train_the_model_of_a_run_in_one_place(patients: Experiment, tmp_path: Path) -> None:
    here = moonfl.run(patients, tmp_path / "here", workers=1)
    deployment = Deployment(tmp_path / "federation", patients)
    lines = table_of(deployment, 2).read_text().splitlines()
    turned = [",".join(line.split(",")[::-1]) for line in lines]
    table_of(deployment, 2).write_text("\n".join([*turned, ""]))  # columns in another order
    there = deployment.serve()
    for name, tensor in here.models["global"].items():
        assert torch.equal(tensor, there.models["global"][name]), name
    assert here.accuracy == there.accuracy
    assert here.model.encoding == there.model.encoding
    assert read_partition(deployment.out).encoding == read_partition(tmp_path / "here").encoding
    exported = moonfl.export(deployment.out, tmp_path / "model")
    x = torch.tensor([[61.5, 0, 3.2, 2, 1, 0], [float("nan")] * 6], dtype=torch.float64)
    logits = moonfl.load_model(exported.directory)(x).logits
    assert torch.equal(logits, here.model(x).logits)


@pytest.mark.parametrize("impute", ["mean", "indicator"])
def test_a_simulation_trains_the_model_of_a_run(
    patients: Experiment, tmp_path: Path, impute: str
) -> None:
    exp = override(patients, [f"impute={impute}"])
    here = moonfl.run(exp, tmp_path / "here", workers=1)
    simulated = run_simulated(exp, tmp_path / "simulated")
    assert same(simulated.models, here.models)
    assert [record.accuracy for record in simulated.rounds] == [
        record.accuracy for record in here.rounds
    ]


NEW_ROWS = """stage,blood,patient,sex,age,crp,smoker
2,AB,p1,FEMALE,61.5,3.2,true
,unseen,p2,,NA,,
9,zero ,p3,Male,40,12.25,False
"""


def test_predictions_on_raw_rows_agree_from_check_to_sites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One table, all ways to train and to predict: every prediction is bit-identical."""
    pandas = pytest.importorskip("pandas")
    table = write_patients(tmp_path / "patients.csv")
    words = [*KEYS[:2], "parties=3"]
    assert main(["check", str(table), *words]) == 1
    problems = capsys.readouterr().out
    for name in ("patient", "age", "sex", "crp", "smoker", "blood"):
        assert f"error: {table}" in problems
        assert f"column '{name}'" in problems
    encoded = [*KEYS, "impute=mean", "encode=onehot", "min_category=4"]
    assert main(["check", str(table), *encoded]) == 0
    assert (
        "column 'sex' has 'Female', 'female', which differ only in case" in capsys.readouterr().out
    )
    words = ["dataset=csv", f"data_dir={table}", *encoded, *SHORT]
    assert main(["run", *words, "--out", str(tmp_path / "run"), "--workers", "2"]) == 0
    frame = pandas.read_csv(table)
    parties = {
        name: (rows.drop(columns=["patient", "hospital", "outcome"]), rows["outcome"])
        for name, rows in frame.groupby("hospital")
    }
    settings = {"rounds": 2, "epochs": 1, "batch_size": 16, "out_dim": 8, "workers": 1}
    encode = {"impute": "mean", "encode": "onehot", "categorical": "stage", "min_category": 4}
    federated = moonfl.federate("mlp", parties, **settings, **encode)
    deployment = Deployment(tmp_path / "federation", override(Experiment(), words))
    served = deployment.serve()
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")]) == 0
    moonfl.export(deployment.out, tmp_path / "site-model")
    models = {
        "run": tmp_path / "run",
        "federate": federated,
        "federate, its module": federated.model,
        "Flower": served,
        "Flower, run directory": deployment.out,
        "export of the run": tmp_path / "model",
        "export of the Flower run": tmp_path / "site-model",
    }
    new = tmp_path / "new.csv"
    new.write_text(NEW_ROWS)
    for path in (table, new):
        expected = moonfl.predict(tmp_path / "run", path)
        assert len(set(expected.values[:, 0].tolist())) > 1
        for name, model in models.items():
            for data in (path, pandas.read_csv(path)):
                predictions = moonfl.predict(model, data)
                assert np.array_equal(predictions.values, expected.values), name
                assert predictions.labels == expected.labels
    capsys.readouterr()
    texts = []
    for model in (tmp_path / "run", deployment.out, tmp_path / "model", tmp_path / "site-model"):
        assert main(["predict", str(model), str(new)]) == 0
        texts.append(capsys.readouterr().out)
    assert set(texts) == {expected.to_csv()}


def test_a_run_over_tables_is_resumed(patients: Experiment, tmp_path: Path) -> None:
    whole = Deployment(tmp_path / "whole", patients).serve()
    deployment = Deployment(tmp_path / "federation", patients)

    def stop(request: Any, reply: Any) -> Any:
        if request.metadata.message_type == "train" and request.metadata.group_id == "1":
            raise KeyboardInterrupt
        return reply

    deployment.grid.intercept = stop
    with pytest.raises(KeyboardInterrupt):
        deployment.serve()
    deployment.grid.intercept = lambda request, reply: reply
    resumed = deployment.serve(resume=True)
    for name, tensor in whole.models["global"].items():
        assert torch.equal(tensor, resumed.models["global"][name]), name


def columns(**changes: Any) -> list[dict[str, Any]]:
    """Return plausible counts of six columns with 48 rows, of which the first is changed."""
    numeric = {"number": 48, "missing": 0, "mean": 1.0, "squares": 2.0}
    return [{**numeric, **changes}, *[numeric] * 5]


HOSTILE = {
    "too few columns": columns()[:5],
    "no columns": [],
    "more values than rows": columns(number=49),
    "a negative count": columns(number=-1),
    "an infinite mean": columns(mean=float("inf")),
    "undefined squares": columns(squares=float("nan")),
    "negative squares": columns(squares=-1.0),
    "counts that do not sum up": columns(counts={"a": 47}),
    "an empty category": columns(counts={"a": 48, "b": 0}),
    "a category without a name": columns(counts={"": 48}),
    "a long category": columns(counts={"x" * 101: 48}),
    "an escape sequence": columns(counts={"\x1b[2J": 48}),
    "a list of counts": columns(counts=[48]),
    "text": "columns",
}


@pytest.mark.parametrize("reported", HOSTILE.values(), ids=HOSTILE)
def test_hostile_counts_are_refused(patients: Experiment, tmp_path: Path, reported: object) -> None:
    deployment = Deployment(tmp_path / "federation", patients)
    deployment.grid.intercept = edit_description(2, columns=reported)
    with pytest.raises(RunError, match=r"must report for each|description is malformed"):
        deployment.serve()


def edit_table(site: int, change: Callable[[str], str]) -> Callable[[Deployment], None]:
    def edit(deployment: Deployment) -> None:
        for path in table_of(deployment, site).parent.iterdir():
            path.write_text(change(path.read_text()))

    return edit


def use_array(deployment: Deployment) -> None:
    path = deployment.folder / "site-1" / "site.toml"
    path.write_text(path.read_text().replace('"tables"', '"data.npz"'))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (edit_table(1, lambda text: text.replace(",a,", ",7,")), "site.toml, data or inst"),
        (edit_table(1, lambda text: text.replace("crp", "lactate")), "lacks the column 'crp'"),
        (use_array, "site.toml, data or installation is wrong"),
    ],
)
def test_a_site_whose_table_does_not_fit_is_refused(
    patients: Experiment, tmp_path: Path, edit: Callable[[Deployment], None], message: str
) -> None:
    deployment = Deployment(tmp_path / "federation", patients)
    edit(deployment)
    with pytest.raises(RunError, match=message):
        deployment.serve()


def test_a_column_of_numbers_at_one_site_only_is_named(
    patients: Experiment, tmp_path: Path
) -> None:
    deployment = Deployment(tmp_path / "federation", patients)
    for path in table_of(deployment, 3).parent.iterdir():
        header, *rows = path.read_text().splitlines()
        k = header.split(",").index("blood")
        cells = [row.split(",") for row in rows]
        changed = [",".join([*row[:k], "1", *row[k + 1 :]]) for row in cells]
        path.write_text("\n".join([header, *changed, ""]))
    with pytest.raises(
        InputError, match=r"'blood' has numbers at some parties .*categorical=blood"
    ):
        deployment.serve()


def test_a_test_set_at_the_server_is_refused(patients: Experiment, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "federation", patients)
    np.savez(tmp_path / "test.npz", x=np.zeros((4, 6)), y=np.arange(4) % 2)
    with pytest.raises(InputError, match="remove --test"):
        deployment.serve(test=str(tmp_path / "test.npz"))


def test_a_site_checks_the_encoding_of_the_server(patients: Experiment, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "federation", patients)
    site = load_site(deployment.folder / "site-1" / "site.toml", patients)[1]
    assert site.table is not None
    assert site.table.table is not None
    encoding = unlearned_encoding(site.table.table[:-1]).to_record()
    with pytest.raises(RefusedError, match=r"its columns differ: .* 'blood'"):
        with_columns(patients, site, ColumnOrder(encoding=encoding))
    encoding = unlearned_encoding(site.table.table).to_record()
    encoding.columns[0].std = 0.0
    with pytest.raises(InputError, match="column 'age' must have"):
        with_columns(patients, site, ColumnOrder(encoding=encoding))
    assert site.sha256() == with_columns(patients, site, ColumnOrder()).sha256()


def test_a_class_with_a_comma_is_refused(tmp_path: Path) -> None:
    """The experiment of the sites names the classes, separated by commas."""
    labels = ("well", '"ill, mild"')
    rows = "\n".join(f"c{k % 2},{k},{'fm'[k % 2]},{labels[k % 3 == 0]}" for k in range(20))
    table = f"site,age,sex,outcome\n{rows}"
    exp = table_experiment(tmp_path, table, 2, "encode=onehot")
    with pytest.raises(InputError, match="the class 'ill, mild' has a comma"):
        Deployment(tmp_path / "federation", exp)


def test_groups_cannot_be_held_out_of_written_samples(patients: Experiment, tmp_path: Path) -> None:
    """The sites' files lack the column of the groups."""
    complete = {"impute": "refuse", "encode": "refuse", "categorical": None}
    for changes in ({}, complete):
        exp = replace(patients, ignore=None, holdout_by="patient", **changes)
        with pytest.raises(InputError, match=r"--with-data .* holdout_by=patient: the files"):
            Deployment(tmp_path / "federation", exp)
        assert not (tmp_path / "federation").exists()
