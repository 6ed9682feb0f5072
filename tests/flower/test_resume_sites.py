"""Resumed runs over sites: bit-identical, and only with the same data, test set and experiment."""

import json
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
from helpers.flower_deployment import (
    MOON3,
    QUICK,
    Deployment,
    drop_updates,
    edit_description,
    run_simulated,
)
from helpers.flower_grid import InProcessGrid, unpack
from helpers.run_files import remove_hashes
from moonfl import InputError, RunError
from moonfl.data.npz import write_npz
from moonfl.runs.index import PARTITION
from moonfl.task import make_task


def test_a_restarted_server_resumes_bit_identically(deployment: Deployment) -> None:
    """It stops after the sites trained round 2, before the aggregation: new states are void."""

    def killed(request: Message, reply: Message) -> Message:
        header = unpack(request.content)[0]
        if (
            request.metadata.message_type == "train"
            and header["round"] == 1
            and header["party"] == 2
        ):
            raise KeyboardInterrupt
        return reply

    deployment.grid.intercept = killed
    with pytest.raises(KeyboardInterrupt):
        deployment.serve()
    assert deployment.states(0).keys() == {0, 1}
    deployment.grid = InProcessGrid(deployment.grid.app, deployment.grid.configs)
    assert same(deployment.serve(resume=True).models, moonfl.run(MOON3, workers=1).models)


def test_a_finished_run_is_read_without_sites(deployment: Deployment) -> None:
    finished = deployment.serve()
    deployment.grid = InProcessGrid(deployment.grid.app, {})
    resumed = deployment.serve(resume=True)
    assert same(resumed.models, finished.models)
    assert resumed.rounds[-1] == finished.rounds[-1]


def test_a_simulated_run_is_resumed_by_any_engine(tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_simulated(QUICK, tmp_path, watch=stop)
    assert same(moonfl.resume(tmp_path, workers=1).models, moonfl.run(QUICK, workers=1).models)


@pytest.mark.parametrize(
    "claim", [{"counts": [10**6] * 10}, {"held_out": 10**6}, {"validation": 3}]
)
def test_a_site_cannot_report_other_sizes_on_resume(
    claim: dict[str, Any], deployment: Deployment
) -> None:
    drop_updates(deployment, 0, {1})
    with pytest.raises(RunError, match="round 2 needs 3"):
        deployment.serve(min_parties=3)
    deployment.grid = InProcessGrid(
        deployment.grid.app, deployment.grid.configs, intercept=edit_description(2, **claim)
    )
    result = deployment.serve(resume=True)
    assert [p.get("missing") for p in result.rounds[-1]["parties"]] == [None, "not connected", None]
    assert list(result.rounds[-1]["sites"]) == ["0", "2"]


def test_changed_data_are_refused_on_resume(deployment: Deployment) -> None:
    drop_updates(deployment, 0, {1})
    with pytest.raises(RunError):
        deployment.serve(min_parties=3)
    path = deployment.folder / "site-1" / "data.npz"
    arrays = dict(np.load(path))
    arrays["y"] = arrays["y"][::-1]
    np.savez(path, **arrays)
    deployment.grid = InProcessGrid(deployment.grid.app, deployment.grid.configs)
    with pytest.raises(
        RunError, match=r"site-1 \(node 1\) was refused: its data are not the data it had when"
    ):
        deployment.serve(resume=True, min_parties=3)


def test_a_renamed_site_keeps_its_name_in_the_run(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    drop_updates(deployment, 0, {1})
    with pytest.raises(RunError, match="round 2 needs 3"):
        deployment.serve(min_parties=3)
    path = deployment.folder / "site-3" / "site.toml"
    path.write_text(path.read_text().replace('"site-3"', '"Hospital North"'))
    deployment.grid.intercept = lambda request, reply: reply
    result = deployment.serve(resume=True)
    assert result.names == ("site-1", "site-2", "site-3")
    assert same(result.models, moonfl.run(MOON3, workers=1).models)
    note = "party 2 is now named Hospital North; this run keeps the name site-3"
    assert note in capsys.readouterr().err


def test_the_test_set_must_be_the_same_on_resume(deployment: Deployment, tmp_path: Path) -> None:
    task = make_task(MOON3)
    for name, rows in (("one", torch.arange(60)), ("two", torch.arange(60, 120))):
        write_npz(tmp_path / f"{name}.npz", task.test.take(rows), None, task.classes)
    drop_updates(deployment, 0, {1})
    with pytest.raises(RunError, match="round 2 needs 3"):
        deployment.serve(min_parties=3, test=str(tmp_path / "one.npz"))
    deployment.grid.intercept = lambda request, reply: reply
    for other in ({}, {"test": str(tmp_path / "two.npz")}):
        with pytest.raises(InputError, match="--test must be the same as when the run started"):
            deployment.serve(resume=True, **other)
    assert len(deployment.serve(resume=True, test=str(tmp_path / "one.npz")).rounds) == 3


def test_a_run_of_an_earlier_version_can_be_resumed(deployment: Deployment) -> None:
    """Its partition.json has all keys of a site except features, and no hash of the test set."""
    drop_updates(deployment, 0, {1})
    with pytest.raises(RunError, match="round 2 needs 3"):
        deployment.serve(min_parties=3)
    path = deployment.out / PARTITION
    record = json.loads(path.read_bytes())
    del record["test"]
    for site in record["sites"]:
        site["validation"] = 0
        site.pop("features", None)
    path.write_text(json.dumps(record))
    remove_hashes(deployment.out)
    deployment.grid.intercept = lambda request, reply: reply
    assert same(deployment.serve(resume=True).models, moonfl.run(MOON3, workers=1).models)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda record: record.pop("sites"), "it lists 0 of 3 sites"),
        (lambda record: record["sites"].pop(), "it lists 2 of 3 sites"),
        (lambda record: record["sites"].reverse(), "its sites are not in the order of the parties"),
        (lambda record: record.pop("run"), "it has no run id"),
        (lambda record: record["sites"][0].update(counts=[5]), "one sample count for each"),
        (
            lambda record: record["sites"][0].update(sha256="0"),
            r"sites\[0\]\.sha256: expected a SHA-256 hash",
        ),
    ],
)
def test_a_damaged_partition_file_is_refused_on_resume(
    deployment: Deployment, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    deployment.exp = replace(MOON3, rounds=1)
    deployment.serve()
    path = deployment.out / PARTITION
    record = json.loads(path.read_bytes())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=rf"partition\.json is damaged or .* {reason}"):
        deployment.serve(resume=True)


def test_another_experiment_cannot_resume_a_run(deployment: Deployment) -> None:
    deployment.serve()
    with pytest.raises(
        InputError, match="is a run over Flower sites; `moonfl flower run DEPLOYMENT --out"
    ):
        moonfl.resume(deployment.out)
    with pytest.raises(InputError, match=r"unknown key .* 'min_partys'; did you mean min_parties"):
        deployment.serve(min_partys=1)
    with pytest.raises(InputError, match="out, the run directory, is not set"):
        deployment.serve(out="")
    deployment.exp = replace(MOON3, rounds=9)
    with pytest.raises(
        InputError, match=r"is a run of another experiment than app/experiment\.toml"
    ):
        deployment.serve(resume=True)
    with pytest.raises(InputError, match="min_parties=4 is more than the 3 parties there are"):
        deployment.serve(min_parties=4)
