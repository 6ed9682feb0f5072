"""Regression and multi-label classification at three sites."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from flwr.app import Message

import moonfl
from helpers.equality import same
from helpers.flower_deployment import (
    MOON3,
    Deployment,
    drop_updates,
    edit_description,
    run_simulated,
)
from helpers.flower_grid import unpack
from helpers.interruption import results_of
from moonfl.errors import RunError
from moonfl.experiment import Experiment, override
from moonfl.flower.counts import FORMATS, pack_errors
from moonfl.flower.protocol import EvaluationHeader, pack, read_evaluation
from moonfl.flower.refusals import RefusedError
from moonfl.models.base import TARGET_STATISTICS
from moonfl.objectives.multilabel import CODES
from moonfl.objectives.regression import FRACTION
from moonfl.runs.directory import read_partition, versions
from moonfl.runs.schema import SiteRecord

ROWS = 90
SHORT = ["parties=0", "rounds=2", "epochs=1", "batch_size=8", "out_dim=8", "algorithm=moon"]
LABELS = {"regression": "cost,days", "multilabel": "flu,cold,cough"}
TASKS = tuple(LABELS)


def write_table(path: Path, *, gaps: bool = False) -> Path:
    """Write rows of three clinics with two numbers and three labels to predict."""
    generator = np.random.default_rng(0)
    age = generator.integers(20, 80, ROWS)
    crp = generator.normal(5, 2, ROWS).round(3)
    sex = generator.choice(["f", "m"], ROWS)
    lines = ["clinic,age,crp,sex,cost,days,flu,cold,cough"]
    for k in range(ROWS):
        labels = (generator.random(3) < 0.4).astype(int)
        cost = 1000 + 30 * age[k] + 200 * crp[k]
        cells = [f"c{k % 3}", age[k], "" if gaps and k % 7 == 0 else crp[k]]
        cells += [sex[k] if gaps else int(sex[k] == "f"), round(cost, 2), age[k] // 9, *labels]
        lines.append(",".join(map(str, cells)))
    path.write_text("\n".join(lines))
    return path


def experiment(folder: Path, task: str, *changes: str, gaps: bool = False) -> Experiment:
    """Return an experiment that predicts some columns of the table from the first three."""
    path = write_table(folder / "t.csv", gaps=gaps)
    others = ",".join(LABELS[other] for other in TASKS if other != task)
    words = ["dataset=csv", f"data_dir={path}", "column=clinic", f"task={task}"]
    words += [f"label={LABELS[task]}", f"ignore={others}"]
    exp = override(override(Experiment(), [*words, *SHORT]), list(changes))
    return replace(exp, parties=3)


@pytest.mark.parametrize("task", TASKS)
def test_runs_over_sites_are_bit_identical(task: str, tmp_path: Path) -> None:
    exp = experiment(tmp_path, task)
    here = moonfl.run(exp, workers=1)
    simulated = run_simulated(exp, tmp_path / "simulated")
    assert same(results_of(simulated)["models"], here.models)
    deployment = Deployment(tmp_path / "federation", exp)
    there = deployment.serve()
    assert same(there.models, here.models)
    measure = here.measure
    for ours, theirs in zip(here.rounds, there.rounds, strict=True):
        assert measure.value(ours) == measure.value(theirs)
        assert ours.loss == pytest.approx(theirs.loss)
        assert set(theirs.sites or {}) == {"0", "1", "2"}
    record = read_partition(deployment.out)
    assert record.samples == [24, 24, 24]
    assert record.classes == LABELS[task].split(",")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "changes", [["personal=output"], ["finetune=1"], ["validation=0.2"], ["algorithm=scaffold"]]
)
def test_other_settings_are_bit_identical(task: str, changes: list[str], tmp_path: Path) -> None:
    exp = experiment(tmp_path, task, *changes)
    here = moonfl.run(exp, workers=1)
    there = Deployment(tmp_path / "federation", exp).serve()
    assert here.measure.value(here.rounds[-1]) == here.measure.value(there.rounds[-1])
    if not exp.has_party_models:
        assert same(there.models, here.models)
    key = here.measure.validation
    assert [record.get(key) for record in here.rounds] == [r.get(key) for r in there.rounds]


@pytest.mark.parametrize("task", TASKS)
def test_encoded_tables(task: str, tmp_path: Path) -> None:
    exp = experiment(tmp_path, task, "impute=mean", "encode=onehot", gaps=True)
    here = moonfl.run(exp, workers=1)
    deployment = Deployment(tmp_path / "federation", exp)
    assert (deployment.folder / "site-1" / "tables" / "train.csv").exists()
    assert same(deployment.serve().models, here.models)


@pytest.mark.parametrize("task", TASKS)
def test_a_run_is_resumed(task: str, tmp_path: Path) -> None:
    exp = experiment(tmp_path, task)
    deployment = Deployment(tmp_path / "federation", exp)
    drop_updates(deployment, 1, {1})
    with pytest.raises(RunError, match="round 2 needs 3 parties"):
        deployment.serve(min_parties=3)
    deployment.grid.intercept = lambda request, reply: reply
    assert same(deployment.serve(resume=True).models, moonfl.run(exp, workers=1).models)


@pytest.mark.parametrize("task", TASKS)
def test_a_test_set_at_the_server(task: str, tmp_path: Path) -> None:
    exp = experiment(tmp_path, task)
    deployment = Deployment(tmp_path / "federation", exp)
    site = dict(np.load(deployment.folder / "site-1" / "data.npz"))
    path = tmp_path / "test.npz"
    np.savez(path, x=site["x"], y=site["y"], classes=site["classes"])
    result = deployment.serve(test=str(path))
    assert result.rounds[-1].sites is None
    assert result.measure.value(result.rounds[-1]) > 0


@pytest.mark.parametrize("task", TASKS)
def test_sites_with_one_sample_and_arrays(task: str, tmp_path: Path) -> None:
    """The second party has one sample and holds none out; names have commas."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(51, 4))
    y = generator.normal(size=(51, 2)) * [1e3, 1e-3] + [5e4, 0]
    if task == "multilabel":
        y = (y > y.mean(axis=0)).astype(int)
    path = tmp_path / "data.npz"
    clinic = np.repeat(["a", "b", "c"], [30, 1, 20])
    np.savez(path, x=x, y=y, classes=np.array(["a,b", "c; d"]), clinic=clinic)
    words = ["dataset=npz", f"data_dir={path}", "column=clinic", f"task={task}", "model=mlp"]
    exp = replace(override(Experiment(), [*words, *SHORT]), parties=3)
    here = moonfl.run(exp, workers=1)
    there = Deployment(tmp_path / "federation", exp).serve()
    assert same(there.models, here.models)
    assert [record.sites for record in here.rounds] == [record.sites for record in there.rounds]
    assert set(there.rounds[-1].sites or {}) == {"0", "2"}


# sites with their own data


def own_data(folder: Path, task: str, label: str, tables: list[str]) -> Deployment:
    """Return a deployment whose sites have these tables."""
    words = ["dataset=sites", f"task={task}", f"label={label}", "model=mlp"]
    exp = replace(override(Experiment(), [*words, *SHORT]), parties=len(tables))
    deployment = Deployment(folder, exp, with_data=False)
    for k, text in enumerate(tables, 1):
        site = folder / f"site-{k}"
        (site / "t.csv").write_text(text)
        config = (site / "site.toml").read_text()
        (site / "site.toml").write_text(config.replace("data.npz", "t.csv"))
    return deployment


def rows(header: str, cells: Callable[[int], str]) -> str:
    """Return a table of 20 rows."""
    return "\n".join([header, *(cells(k) for k in range(20))])


TABLE = rows("age,crp,cost,flu", lambda k: f"{k},{k * k % 7},{100 + 3 * k},{k % 2}")
REORDERED = rows("flu,cost,crp,age", lambda k: f"{k % 2},{200 + k},{k % 5},{k + 30}")


def test_sites_with_their_own_tables(tmp_path: Path) -> None:
    deployment = own_data(tmp_path / "f", "regression", "cost,crp", [TABLE, REORDERED])
    config = (deployment.folder / "site-1" / "site.toml").read_text()
    assert "The targets are the columns cost, crp;" in config
    result = deployment.serve()
    assert set(result.rounds[-1].sites or {}) == {"0", "1"}
    predictions = moonfl.predict(deployment.out, np.array([[20.0, 1.0]]))
    assert list(predictions.classes) == ["cost", "crp"]
    assert 100 < predictions.values[0, 0] < 220


@pytest.mark.parametrize(
    ("label", "table", "message"),
    [
        ("cost", TABLE.replace("cost", "price"), "unknown column of .* 'cost'"),
        ("cost", TABLE.replace("106", "high"), "line 4: column 'cost' is 'high'"),
        ("flu", TABLE.replace(",1\n", ",2\n"), "labels .* must be 0 or 1"),
    ],
)
def test_wrong_targets_are_explained_at_the_site_only(
    label: str,
    table: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = "regression" if label == "cost" else "multilabel"
    deployment = own_data(tmp_path / "f", task, label, [TABLE, TABLE, table])
    with pytest.raises(RunError, match=r"node 3 was refused: its site\.toml, data or installation"):
        deployment.serve()
    assert re.search(f"moonfl: .*{message}", capsys.readouterr().err)


def test_folders_of_images_have_no_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = own_data(tmp_path / "f", "regression", "cost", [TABLE, TABLE])
    (deployment.folder / "site-2" / "t.csv").unlink()
    config = deployment.folder / "site-2" / "site.toml"
    config.write_text(config.read_text().replace("t.csv", "images"))
    (deployment.folder / "site-2" / "images" / "ill").mkdir(parents=True)
    with pytest.raises(RunError, match="node 2 was refused"):
        deployment.serve()
    assert "is a folder without train.csv; with task=regression" in capsys.readouterr().err


# hostile sites


def edit_evaluation(**fields: Any) -> Callable[[Message, Message], Message]:
    """Return an interception that replaces counts of node 2's evaluation."""

    def intercept(request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "evaluate" or request.metadata.dst_node_id != 2:
            return reply
        header = unpack(reply.content)[0]
        return Message(pack(header | {"test": header["test"] | fields}), reply_to=request)

    return intercept


HUGE = 10**4000


@pytest.mark.parametrize(
    ("task", "fields", "message"),
    [
        ("regression", {"squared_errors": [-1, 0]}, "squared_errors must be a sum over 6"),
        ("regression", {"squared_errors": [HUGE, 0]}, "squared_errors must be a sum over 6"),
        ("regression", {"y_squared": [1]}, "y_squared must be a sum over 6"),
        ("regression", {"y": [10 << 2 * FRACTION, 0]}, "y must be the sum of 6 numbers"),
        ("regression", {"y": []}, "y must be the sum of 6 numbers"),
        ("regression", {"loss": -1.0}, "sum of its losses"),
        ("regression", {"y": "x"}, "Expected `array`, got `str`"),
        ("multilabel", {"hits": [7, 0, 0]}, "hits must be an integer from 0 to 6"),
        ("multilabel", {"scores": [5, 4], "numbers": [1, 1]}, "scores must be different integers"),
        ("multilabel", {"scores": [6 * CODES], "numbers": [1]}, "scores must be different"),
        ("multilabel", {"scores": [0], "numbers": [1, 1]}, "scores must be different"),
        ("multilabel", {"scores": [0], "numbers": [0]}, "must be at least 1"),
        ("multilabel", {"scores": [0], "numbers": [HUGE]}, "not those of 6 samples"),
        ("multilabel", {"scores": [], "numbers": []}, "not those of 6 samples"),
    ],
)
def test_impossible_counts_are_refused(
    task: str,
    fields: dict[str, Any],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    deployment = Deployment(tmp_path / "federation", experiment(tmp_path, task, "rounds=1"))
    deployment.grid.intercept = edit_evaluation(**fields)
    assert list(deployment.serve().rounds[0].sites or {}) == ["0", "2"]
    assert re.search(f"site-2 does not evaluate the model: .*{message}", capsys.readouterr().err)


@pytest.mark.parametrize("task", FORMATS)
def test_honest_counts_return_as_they_were(task: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 3, generator=generator)
    y: torch.Tensor = torch.arange(20) % 3
    if task != "classification":
        y = (torch.rand(20, 3, generator=generator) < 0.5).float()
    objective = moonfl.objectives.make_objective(task)
    if task == "regression":
        y = y.double()
        objective = objective.with_statistics(
            {"rescale.mean": torch.zeros(3).double(), "rescale.std": torch.ones(3).double()}
        )
    counts = objective.tally(logits, y, 1.5, torch.full((20,), 4))
    counts_format = FORMATS[task]
    assert counts_format.unpack(counts_format.pack(counts), 4, 20, 3) == counts
    if task != "regression":  # sums over 20 samples may be those of 19
        with pytest.raises(RefusedError):
            counts_format.unpack(counts_format.pack(counts), 4, 19, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": None}, "party 1 must report number, mean and squares"),
        ({"classes": [], "counts": []}, "one sample count for each of its 0 classes"),
        ({"samples": 2}, "not less than the samples"),
        ({"samples": 2**41}, "not less than the samples"),
        ({"targets": None}, "another task"),
        ({"targets": {"number": 24, "mean": [1e300, 0.0], "squares": [1.0, 1.0]}}, "targets"),
        ({"targets": {"number": 24, "mean": [0.0], "squares": [1.0]}}, "targets"),
        ({"targets": {"number": 3, "mean": [0.0, 0.0], "squares": [1.0, 1.0]}}, "targets"),
        ({"targets": {"number": 24, "mean": [0.0, 0.0], "squares": [-1.0, 1.0]}}, "targets"),
    ],
)
def test_impossible_descriptions_are_refused(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    deployment = Deployment(tmp_path / "federation", experiment(tmp_path, "regression"))
    deployment.grid.intercept = edit_description(2, **fields)
    with pytest.raises(RunError, match=message):
        deployment.serve(wait=2.0)


@pytest.mark.parametrize(
    ("task", "fields"),
    [
        ("classification", {"samples": 10**6}),
        ("multilabel", {"targets": {"number": 24, "mean": [0.0] * 3, "squares": [0.0] * 3}}),
        ("regression", {"targets": None}),
    ],
)
def test_most_sites_decide_the_task(task: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """The site with the lowest number is refused, and not those that differ from it."""
    exp = MOON3 if task == "classification" else experiment(tmp_path, task)
    deployment = Deployment(tmp_path / "federation", exp)
    deployment.grid.intercept = edit_description(1, **fields)
    with pytest.raises(RunError, match=r"missing: party 0 .*site-1 .* another task than site-2"):
        deployment.serve()


def test_the_first_target_statistics_hold_for_the_whole_run(tmp_path: Path) -> None:
    """A site that returns cannot change the unit of the RMSE with another description."""
    exp = experiment(tmp_path, "regression")
    deployment = Deployment(tmp_path / "federation", exp)
    drop_updates(deployment, 1, {1})
    with pytest.raises(RunError, match="round 2 needs 3 parties"):
        deployment.serve(min_parties=3)
    claim = {"number": 24, "mean": [1e30, 0.0], "squares": [1e60, 1.0]}
    deployment.grid.intercept = edit_description(2, targets=claim)
    resumed = deployment.serve(resume=True)
    here = moonfl.run(exp, workers=1)
    assert [record.rmse for record in resumed.rounds] == [record.rmse for record in here.rounds]


def test_the_first_encoding_holds_for_the_whole_run(tmp_path: Path) -> None:
    exp = experiment(tmp_path, "multilabel", "impute=mean", "encode=onehot", gaps=True)
    deployment = Deployment(tmp_path / "federation", exp)
    drop_updates(deployment, 1, {1})
    with pytest.raises(RunError, match="round 2 needs 3 parties"):
        deployment.serve(min_parties=3)
    sites = read_partition(deployment.out).sites or []
    columns = msgspec.to_builtins(sites[1].columns)
    columns[1]["mean"] = 1e6  # replaces missing values
    deployment.grid.intercept = edit_description(2, columns=columns)
    assert same(deployment.serve(resume=True).models, moonfl.run(exp, workers=1).models)


def test_a_large_error_is_no_reason_to_refuse_a_site() -> None:
    """A held-out target may be thousands of standard deviations of the training targets away."""
    objective = moonfl.objectives.make_objective("regression").with_statistics(
        {name: torch.ones(1).double() for name in TARGET_STATISTICS}
    )
    y = torch.tensor([[1.0], [1e5]]).double()
    errors = objective.tally(torch.ones(2, 1), y, 1e10, torch.zeros(2))
    site = SiteRecord(
        party=0,
        name="site-1",
        versions=versions(),
        shape=[1],
        dtype="torch.float32",
        classes=["y"],
        counts=[2],
        samples=2,
        sha256="0" * 64,
        held_out=2,
        validation=0,
    )
    header = EvaluationHeader(
        party=0, sha256=site.sha256, version=versions()["moonfl"], test=pack_errors(errors)
    )
    counts = read_evaluation(pack(header), site, {"test": 2}, "regression", 1)
    assert counts["test"] == errors


def test_all_sites_must_have_the_task_of_the_server(tmp_path: Path) -> None:
    """For example if the server's experiment.toml was edited."""
    deployment = Deployment(tmp_path / "federation", experiment(tmp_path, "multilabel"))
    deployment.exp = replace(deployment.exp, task="classification", partition="iid", column=None)
    with pytest.raises(RunError, match="does not describe its data as task=classification needs"):
        deployment.serve()
