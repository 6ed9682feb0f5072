"""Evaluation at the sites: counts, validation samples, absent sites, a test set at the server."""

import re
import threading
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
    Deployment,
    drop_updates,
)
from helpers.flower_grid import unpack
from moonfl import RunError
from moonfl.errors import DivergenceError
from moonfl.flower import client
from moonfl.flower.protocol import pack
from moonfl.runs.directory import read_rounds
from moonfl.runs.tensor_files import load


def edit_evaluation(**fields: Any) -> Callable[[Message, Message], Message]:
    """Return an interception that replaces fields of node 2's evaluation."""

    def intercept(request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "evaluate" or request.metadata.dst_node_id != 2:
            return reply
        return Message(pack(unpack(reply.content)[0] | fields), reply_to=request)

    return intercept


def counts(**fields: Any) -> dict[str, Any]:
    """Return counts of 120 samples, 12 per class and all correct, with some fields replaced."""
    correct = dict.fromkeys(("actual", "predicted", "hits"), [12] * 10)
    return {"test": {"loss": 1.0, **correct, **fields}}


PER_CLASS = "must be an integer from 0 to 120 for each of 10 classes, got"
TOO_MANY_HITS = "more correct samples of a class than samples or predictions of it"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"test": None}, "it reports no counts for its 120 test samples"),
        ({"party": 0}, "it reports party 0, expected 1"),
        ({"version": "0.0.1"}, r"it has moonfl 0\.0\.1, the server"),
        ({"sha256": "0" * 64}, "its data are not the data it had when the run started"),
        (counts(loss=1e300), r"it reports 1e\+300 as the sum of its losses; it must be from 0 to"),
        (counts(loss="x"), r"Expected `float`, got `str` - at `\$\.test\.loss`"),
        (counts(hits=120), r"Expected `array`, got `int` - at `\$\.test\.hits`"),
        (counts(hits=[12] * 9), f"hits {PER_CLASS}"),
        (counts(hits=[12.0] * 10), r"Expected `int`, got `float` - at `\$\.test\.hits"),
        (
            counts(actual=[True] * 10),
            r"Expected `int`, got `bool` - at `\$\.test\.actual",
        ),
        (
            counts(predicted=[-12, 132] + [0] * 8),
            f"predicted {PER_CLASS}",
        ),
        (
            counts(actual=[10**4299] * 10),
            f"actual {PER_CLASS}",
        ),
        (
            counts(actual=[12] * 9 + [13]),
            "its actual counts sum to 121, but it holds out 120 samples",
        ),
        (
            counts(predicted=[12] * 9 + [11]),
            "its predicted counts sum to 119, but it holds out 120 samples",
        ),
        (
            counts(hits=[12] * 9 + [13]),
            TOO_MANY_HITS,
        ),
        (
            counts(predicted=[11, 13] + [12] * 8),
            TOO_MANY_HITS,
        ),
    ],
)
def test_inconsistent_counts_are_refused(
    deployment: Deployment, fields: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment.exp = replace(MOON3, rounds=1)
    deployment.grid.intercept = edit_evaluation(**fields)
    assert list(deployment.serve().rounds[0]["sites"]) == ["0", "2"]
    assert re.search(f"site-2 does not evaluate the model: .*{message}", capsys.readouterr().err)


def test_a_site_whose_held_out_samples_changed_is_left_out(deployment: Deployment) -> None:
    """They change after the site has trained, and their number is the same."""
    deployment.exp = replace(MOON3, rounds=1)
    path = deployment.folder / "site-2" / "data.npz"

    def change(request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train" and request.metadata.dst_node_id == 3:
            arrays = dict(np.load(path))
            np.savez(path, **{**arrays, "y_test": arrays["y_test"][::-1]})
        return reply

    deployment.grid.intercept = change
    (record,) = deployment.serve().rounds
    assert record.absent == {"1": "its data are not the data it had when the run started"}
    assert list(record.sites or {}) == ["0", "2"]


def test_a_site_with_another_version_takes_no_part(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sites are updated during the run: two evaluate afterwards, and none trains again."""

    def update(request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "evaluate":
            monkeypatch.setattr(client, "versions", lambda: {"moonfl": "0.0.1"})
        return reply

    deployment.grid.intercept = update
    reason = "it has moonfl 0.0.1, the server "
    with pytest.raises(RunError, match=f"round 2 needs 2 .*: site-1: {reason}"):
        deployment.serve()
    (record,) = read_rounds(deployment.out, 1)
    assert list(record.absent or {}) == ["1", "2"]
    assert all(text.startswith(reason) for text in (record.absent or {}).values())


def test_consistent_counts_are_accepted(deployment: Deployment) -> None:
    deployment.exp = replace(MOON3, rounds=1)
    deployment.grid.intercept = edit_evaluation(**counts())
    assert deployment.serve().rounds[0].sites["1"] == (120, 120)


EARLY = replace(MOON3, rounds=9, lr=0.1, validation=0.1, patience=1)


def test_validation_at_sites_selects_the_same_round(
    tmp_path: Path,
) -> None:
    """Metrics, models and early stopping are the same, with or without the server's test set."""
    expected = moonfl.run(EARLY, workers=1)
    assert expected.chosen is not None
    assert 1 < len(expected.rounds) < 9
    early = Deployment(tmp_path / "federation", EARLY)
    parts = [np.load(early.folder / f"site-{k + 1}" / "data.npz") for k in range(3)]
    x, y = (np.concatenate([part[name] for part in parts]) for name in ("x_test", "y_test"))
    np.savez(tmp_path / "test.npz", x=x, y=y, classes=parts[0]["classes"])
    for out, test in (("sites", ""), ("server", str(tmp_path / "test.npz"))):
        result = early.serve(test=test, out=str(tmp_path / out))
        for key in ("accuracy", "macro_f1", "balanced_accuracy", "validation_accuracy"):
            assert [record[key] for record in result.rounds] == [
                record[key] for record in expected.rounds
            ]
        assert ("sites" in result.rounds[0]) == (not test)
        assert same(result.models, expected.models)
        assert same(load(tmp_path / out / "best.safetensors"), expected.chosen_models)
        before = len(early.grid.sent)
        assert same(
            early.serve(test=test, out=str(tmp_path / out), resume=True).models, expected.models
        )
        assert all(message.metadata.message_type == "query" for message in early.grid.sent[before:])


def test_a_site_with_false_validation_counts_is_left_out(tmp_path: Path) -> None:
    early = Deployment(tmp_path / "federation", replace(EARLY, rounds=1))
    honest = early.serve(out=str(tmp_path / "honest")).rounds[0]
    early.grid.intercept = edit_evaluation(
        validation={"loss": 0.0, "actual": [1] * 10, "predicted": [1] * 10, "hits": [1] * 10}
    )
    forged = early.serve().rounds[0]
    assert list(forged["sites"]) == ["0", "2"]
    assert forged["validation_accuracy"] != honest["validation_accuracy"]


def test_held_out_samples_give_the_same_scores_at_sites(tmp_path: Path) -> None:
    digits = np.load(
        Deployment(tmp_path / "whole", replace(MOON3, parties=2)).folder / "site-1" / "data.npz"
    )
    np.savez(tmp_path / "own.npz", x=digits["x"], y=digits["y"], classes=digits["classes"])
    exp = replace(
        MOON3,
        dataset="npz",
        model="mlp",
        data_dir=str(tmp_path / "own.npz"),
        rounds=1,
        validation=0.1,
    )
    here, there = moonfl.run(exp, workers=1), Deployment(tmp_path / "federation", exp).serve()
    for key in ("sites", "accuracy", "macro_f1", "balanced_accuracy", "validation_accuracy"):
        assert here.rounds[0][key] == there.rounds[0][key]
    assert len(here.rounds[0]["sites"]) == 3
    assert there.names == ("site-1", "site-2", "site-3")


def test_a_test_set_at_the_server_replaces_the_sites(
    deployment: Deployment, tmp_path: Path
) -> None:
    expected = moonfl.run(MOON3, workers=1)
    parts = [np.load(deployment.folder / f"site-{k + 1}" / "data.npz") for k in range(3)]
    classes = parts[0]["classes"]
    x, y = (np.concatenate([part[name] for part in parts]) for name in ("x_test", "y_test"))
    np.savez(tmp_path / "test.npz", x=x, y=y, classes=classes)
    result = deployment.serve(test=str(tmp_path / "test.npz"))
    assert result.accuracy == expected.accuracy
    assert "sites" not in result.rounds[0]
    assert not any(m.metadata.message_type == "evaluate" for m in deployment.grid.sent)


def test_evaluation_waits_for_sites_with_held_out_samples(deployment: Deployment) -> None:
    def leave(request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train" and unpack(request.content)[0]["party"] == 2:
            deployment.grid.online = set()
            threading.Timer(0.3, lambda: deployment.grid.online.update((1, 2, 3))).start()
        return reply

    deployment.grid.intercept = leave
    assert same(deployment.serve(wait=20.0).models, moonfl.run(MOON3, workers=1).models)


def test_a_late_site_evaluates_if_no_other_site_can(tmp_path: Path) -> None:
    exp = replace(MOON3, parties=2)
    two = Deployment(tmp_path / "federation", exp)
    with np.load(two.folder / "site-2" / "data.npz") as file:
        arrays = {name: file[name] for name in file.files if not name.endswith("_test")}
    np.savez(two.folder / "site-2" / "data.npz", **arrays)
    path = two.folder / "site-2" / "site.toml"
    path.write_text(re.sub("holdout = .*", "holdout = 0.0", path.read_text()))
    drop_updates(two, 0, {1})
    result = two.serve(min_parties=1, max_share=1.0)
    assert [list(record["sites"]) for record in result.rounds] == [["0"]] * 3


@pytest.mark.parametrize(("lost", "finished"), [(3, True), (6, False)])
def test_an_evaluation_without_answers_is_repeated(
    deployment: Deployment, lost: int, finished: bool
) -> None:
    """The third round begins only if one of the two attempts of the second has answers."""
    replies: list[Message] = []

    def lose(request: Message, reply: Message) -> Message | None:
        if request.metadata.message_type != "evaluate":
            return reply
        replies.append(reply)
        return None if 3 < len(replies) <= 3 + lost else reply

    deployment.grid.intercept = lose
    if not finished:
        with pytest.raises(RunError, match=r"no site could evaluate .* in 2 attempts"):
            deployment.serve()
        assert len(replies) == 9
        return
    result = deployment.serve()
    assert same(result.models, moonfl.run(MOON3, workers=1).models)
    assert [list(record.sites or {}) for record in result.rounds] == [["0", "1", "2"]] * 3
    assert [record.absent for record in result.rounds] == [None] * 3


@pytest.mark.parametrize("has_test", [True, False])
def test_a_site_that_has_answered_is_neither_absent_nor_awaited(
    has_test: bool, tmp_path: Path
) -> None:
    """Site 1 has test samples only; it answers and leaves before site 2 answers."""
    exp = replace(MOON3, parties=2, rounds=1, validation=0.1)
    two = Deployment(tmp_path / "federation", exp)
    edit_arrays(two.folder / "site-1", lambda name: slice(4) if name in ("x", "y") else slice(None))
    if not has_test:
        edit_arrays(two.folder / "site-2", lambda name: None if "test" in name else slice(None))
        path = two.folder / "site-2" / "site.toml"
        path.write_text(re.sub("holdout = .*", "holdout = 0.0", path.read_text()))
    lost = []

    def lose(request: Message, reply: Message) -> Message | None:
        node = request.metadata.dst_node_id
        if request.metadata.message_type != "evaluate" or node == 1 or lost:
            return reply
        lost.append(reply)
        two.grid.online = {2}
        return None

    two.grid.intercept = lose
    result = two.serve(max_share=1.0)
    record = result.rounds[0]
    assert lost
    assert list(record.sites or {}) == (["0", "1"] if has_test else ["0"])
    assert (record.absent, record.validation_absent) == (None, None)


def edit_arrays(site: Path, rows: Callable[[str], slice | None]) -> None:
    """Select rows of the arrays of a site's data by their name; None removes an array."""
    with np.load(site / "data.npz") as file:
        arrays = {name: file[name] for name in file.files}
    selection = {name: rows(name) for name in arrays}
    remaining = {name: arrays[name][part] for name, part in selection.items() if part is not None}
    np.savez(site / "data.npz", **remaining)


def test_a_model_without_a_finite_loss_has_diverged(deployment: Deployment) -> None:
    def diverge(request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "train":
            return reply
        header, tensors = unpack(reply.content)
        huge = {name: torch.full_like(t, 3e38) for name, t in tensors["params"].items()}
        return Message(pack(header, {**tensors, "params": huge}), reply_to=request)

    deployment.grid.intercept = diverge
    with pytest.raises(DivergenceError, match="no finite loss at any site"):
        deployment.serve()
