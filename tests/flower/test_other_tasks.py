"""Regression and multi-label classification at three sites."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

import moonfl
from helpers.equality import same
from helpers.flower_deployment import Deployment, drop_updates, edit_description, run_simulated
from helpers.flower_grid import unpack
from helpers.interruption import results_of
from moonfl.errors import RunError
from moonfl.experiment import Experiment, override
from moonfl.flower.counts import FORMATS
from moonfl.flower.protocol import pack
from moonfl.flower.refusals import RefusedError
from moonfl.objectives.multilabel import CODES
from moonfl.objectives.regression import FRACTION
from moonfl.runs.directory import read_partition

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
        ("regression", {"squared_errors": [-1, 0]}, "squared_errors must be a plausible sum"),
        ("regression", {"squared_errors": [HUGE, 0]}, "squared_errors must be a plausible sum"),
        ("regression", {"y_squared": [1]}, "y_squared must be a plausible sum"),
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
    deployment.grid.intercept = edit_description(**fields)
    with pytest.raises(RunError, match=message):
        deployment.serve(wait=2.0)


def test_all_sites_must_have_the_task_of_the_server(tmp_path: Path) -> None:
    """For example if the server's experiment.toml was edited."""
    deployment = Deployment(tmp_path / "federation", experiment(tmp_path, "multilabel"))
    deployment.exp = replace(deployment.exp, task="classification", partition="iid", column=None)
    with pytest.raises(RunError, match="does not describe its data as task=classification needs"):
        deployment.serve()
