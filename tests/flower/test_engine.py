"""What happens when a site fails: missing parties, repeated rounds, lost states."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from moonfl import FedAvg, RunError, Scaffold, tree
from moonfl.federation import sample_parties
from moonfl.flower.engine import answers_needed
from moonfl.runs.files import writing
from moonfl.runs.index import CHECKPOINT, read_index
from moonfl.runs.site_states import SiteStates
from moonfl.runs.state_files import read_log
from moonfl.runs.tensor_files import load


def test_a_late_party_returns_with_its_accepted_state(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not waited for a second time in the evaluation."""
    drop_updates(deployment, 1, {1})
    result = deployment.serve()
    assert [len([p for p in record["parties"] if "missing" in p]) for record in result.rounds] == [
        0,
        1,
        0,
    ]
    (missing,) = (p for p in result.rounds[1]["parties"] if "missing" in p)
    assert dict(missing.items()) == {
        "party": 1,
        "samples": 0,
        "steps": 0,
        "missing": "no answer within 0.2 s",
    }
    requests = [
        unpack(m.content)[0] for m in deployment.grid.sent if m.metadata.message_type == "train"
    ]
    assert [r["accepted"] for r in requests if r["party"] == 1] == [None, 0, 0]
    assert deployment.states(1).keys() == {0, 2}, (
        "the state of the round that was not accepted is gone"
    )
    assert [list(record["sites"]) for record in result.rounds] == [
        ["0", "1", "2"],
        ["0", "2"],
        ["0", "1", "2"],
    ]
    assert (
        "site-2 does not evaluate the model: it missed the round's deadline"
        in capsys.readouterr().err
    )


def test_scaffolds_c_is_the_mean_of_the_accepted_c_i(tmp_path: Path) -> None:
    """Lose answers of a party and check c = 1/N sum of c_i over the accepted states."""
    exp = replace(MOON3, algorithm=Scaffold(), rounds=5)
    scaffold = Deployment(tmp_path / "federation", exp)
    drop_updates(scaffold, 2, {0, 2, 4})
    scaffold.serve()
    index = read_index(scaffold.out / CHECKPOINT / "round-5.json")
    newest = read_log(scaffold.out / CHECKPOINT, index.states)
    assert {party: state.round for party, state in newest.items()} == {0: 4, 1: 4, 2: 3}
    c = load(scaffold.out / CHECKPOINT / "server-5.safetensors")["shared/c"]
    accepted = [scaffold.states(party)[state.round]["c_i"] for party, state in newest.items()]
    mean = tree.mean((c_i, 1) for c_i in accepted)
    for name in c:
        torch.testing.assert_close(c[name], mean[name], rtol=1e-5, atol=1e-7)


def test_a_round_with_too_few_answers_is_repeated(deployment: Deployment) -> None:
    drop_updates(deployment, 0, {1}, times=1)
    result = deployment.serve(min_parties=3)
    assert same(result.models, moonfl.run(MOON3, workers=1).models)
    assert not any("missing" in party for record in result.rounds for party in record["parties"])


def test_too_few_answers_end_the_run_which_can_be_resumed(deployment: Deployment) -> None:
    drop_updates(deployment, 0, {1})
    with pytest.raises(
        RunError,
        match=r"round 2 needs 3 parties, 2 answered in 2 attempts: site-1: no answer within",
    ):
        deployment.serve(min_parties=3)
    deployment.grid.intercept = lambda request, reply: reply
    assert same(deployment.serve(resume=True).models, moonfl.run(MOON3, workers=1).models)


def test_as_many_sites_may_be_missing_in_a_sample_as_in_a_round_of_all(tmp_path: Path) -> None:
    exp = replace(MOON3, parties=4, sample_fraction=0.75, rounds=4)
    sampled = [i for t in range(4) for i in sample_parties(exp, t)]
    down = max(range(4), key=sampled.count)
    deployment = Deployment(tmp_path / "federation", exp)

    def leave(request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "query":
            deployment.grid.online -= {down + 1}
        return reply

    deployment.grid.intercept = leave
    result = deployment.serve(min_parties=3)
    missing = [[p["party"] for p in r["parties"] if "missing" in p] for r in result.rounds]
    assert [down] in missing
    deployment.grid.online |= {down + 1}
    expected = rf"[012] of [123] sites are connected, missing: site-{down + 1} after 0 s, and round"
    with pytest.raises(RunError, match=expected):
        deployment.serve(min_parties=4, out=str(tmp_path / "all"))


@pytest.mark.parametrize(
    ("sampled", "min_parties", "needed"),
    [
        (10, 8, 8),
        (5, 8, 3),
        (2, 8, 2),
        (1, 8, 1),
        (0, 8, 0),
        (5, 10, 5),
        (0, 10, 0),
        (5, 2, 2),
        (5, 1, 1),
    ],
)
def test_how_many_of_the_sampled_parties_must_answer(
    sampled: int, min_parties: int, needed: int
) -> None:
    assert answers_needed(sampled, 10, min_parties) == needed


def test_a_site_needs_no_state_file_if_its_method_stores_nothing(tmp_path: Path) -> None:
    exp = replace(MOON3, algorithm=FedAvg())
    deployment = Deployment(tmp_path / "federation", exp)

    def forget(request: Message, reply: Message) -> Message:
        shutil.rmtree(deployment.folder / "site-2" / "states", ignore_errors=True)
        return reply

    deployment.grid.intercept = forget
    assert same(deployment.serve(min_parties=3).models, moonfl.run(exp, workers=1).models)


def test_a_site_that_lost_its_state_is_named(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    def forget(request: Message, reply: Message) -> Message:
        for path in (deployment.folder / "site-2" / "states").glob("*/*round-0*"):
            path.unlink()
        return reply

    deployment.grid.intercept = forget
    result = deployment.serve()
    (missing,) = (p["missing"] for p in result.rounds[1]["parties"] if "missing" in p)
    assert missing == "the state of party 1 after round 1 is missing"
    log = capsys.readouterr().err
    assert "round 2 continues without site-2" in log
    assert f"is missing: {deployment.folder / 'site-2' / 'states'}" in log, "at the site"


def test_a_full_disk_of_a_site_is_reported_without_a_path(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(states: SiteStates, *rest: Any) -> None:
        with writing(states.folder):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SiteStates, "save", fail)
    with pytest.raises(RunError, match="site-1: a file cannot be written: No space left on device"):
        deployment.serve()


def test_answers_count_after_their_site_has_left(deployment: Deployment) -> None:
    """Party 0 answers and leaves, party 1's first answer is lost; its second makes two answers."""
    lost: list[int] = []

    def intercept(request: Message, reply: Message) -> Message | None:
        if request.metadata.message_type != "train" or (lost and request.metadata.dst_node_id != 1):
            return reply
        if request.metadata.dst_node_id == 1:
            deployment.grid.online -= {1, 3}
            return reply
        lost.append(request.metadata.dst_node_id)
        return None

    deployment.grid.intercept = intercept
    with pytest.raises(RunError, match="round 2 needs 2"):
        deployment.serve(min_parties=2)
    (record,) = [
        json.loads(line) for line in (deployment.out / "rounds.jsonl").read_text().splitlines()
    ]
    assert [p["party"] for p in record["parties"] if "missing" not in p] == [0, 1]


def test_a_disconnected_party_is_named(deployment: Deployment) -> None:
    def away(request: Message, reply: Message) -> Message:
        evaluated = sum(m.metadata.message_type == "evaluate" for m in deployment.grid.sent)
        deployment.grid.online = {1, 2} if 3 <= evaluated < 5 else {1, 2, 3}
        return reply

    deployment.grid.intercept = away
    result = deployment.serve()
    missing = [
        {p["party"]: p["missing"] for p in f["parties"] if "missing" in p} for f in result.rounds
    ]
    assert missing == [{}, {2: "not connected"}, {}]
    assert list(result.rounds[1]["sites"]) == ["0", "1"]
