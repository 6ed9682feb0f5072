"""A site that is missing in an evaluation does not make the result look better."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Message

from helpers.flower_deployment import MOON3, Deployment
from helpers.flower_grid import unpack
from moonfl.flower.protocol import pack
from moonfl.report.build import compare, write
from moonfl.runs.directory import read_rounds
from moonfl.runs.progress import Progress
from moonfl.runs.result import Result
from moonfl.runs.stopping import selected_round
from moonfl.runs.summary import summarise_result
from moonfl.runs.tensor_files import load


def hide_weak_site(deployment: Deployment, rounds: set[int]) -> None:
    """Let sites 1 and 2 improve with every round and site 3 be wrong always; hide it in rounds."""
    counts = dict.fromkeys((1, 2, 3), 0)

    def intercept(request: Message, reply: Message) -> Message | None:
        node = request.metadata.dst_node_id
        if request.metadata.message_type != "evaluate":
            return reply
        counts[node] += 1
        if node == 3 and counts[node] in rounds:
            return None
        header, _ = unpack(reply.content)
        for name in header.keys() & {"test", "validation"}:
            actual = header[name]["actual"]
            hits = [0] * 10
            if node != 3:
                largest = actual.index(max(actual))
                hits = [*actual[:largest], counts[node], *actual[largest + 1 :]]
            header[name] |= {"predicted": actual, "hits": hits}
        return Message(pack(header), reply_to=request)

    deployment.grid.intercept = intercept


@pytest.fixture
def result(tmp_path: Path) -> Result:
    """Return a run whose last round was evaluated without the weak site 3."""
    deployment = Deployment(tmp_path / "federation", MOON3)
    hide_weak_site(deployment, {3})
    return deployment.serve()


def test_a_round_without_a_site_is_marked_and_never_the_best(
    result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    accuracies = [record.accuracy for record in result.rounds]
    assert accuracies[2] > accuracies[1] > accuracies[0], "the missing site inflates the accuracy"
    assert result.best.round == 2
    assert result.summary()["best_round"] == 2
    reason = {"2": "no answer within 0.2 s"}
    assert result.summary()["absent"] == reason
    assert result.directory is not None
    stored = [json.loads(line) for line in (result.directory / "rounds.jsonl").open()]
    assert [record.get("absent") for record in stored] == [None, None, reason]
    progress = Progress(3)
    for record in result.rounds:
        progress(record)
    shown = capsys.readouterr().err.splitlines()[-3:]
    assert [("evaluated without party 2" in line) for line in shown] == [False, False, True]


def test_the_summary_compares_over_the_sites_in_common(result: Result) -> None:
    text = summarise_result(result)
    assert "after round 3, evaluated without site-3 (best " in text
    assert "in round 2); results in" in text
    assert "rounds evaluated without all sites: 3;" in text
    sites = result.rounds[1].sites or {}
    common = sum(sites[i][0] for i in "01") / sum(sites[i][1] for i in "01")
    assert f"on the sites that evaluated round 3, round 2 has {100 * common:.1f} %" in text


def test_reports_mark_rounds_without_a_site(result: Result, tmp_path: Path) -> None:
    assert result.directory is not None
    page = write([result.directory], tmp_path / "report", target=result.accuracy).read_text()
    mark = "MOON mu=1 (final round without site-3)"
    assert mark in page
    assert "seed 0: rounds were evaluated without all sites (3 without site-3)" in page
    assert "A cross marks a round that was evaluated without all sites." in page
    assert "line-0-absences" in (tmp_path / "report" / "accuracy.svg").read_text()
    (row,) = csv.DictReader((tmp_path / "report" / "accuracy.csv").open())
    assert row["best round, by seed"] == "2"
    assert row["incomplete rounds, by seed"] == "3"
    (row,) = csv.DictReader((tmp_path / "report" / "target.csv").open())
    assert row["reached"] == "0 of 1", "only the incomplete round has this accuracy"
    text = compare([result.directory])
    assert mark in text
    assert "(3 without site-3)" in text


def test_rounds_without_a_site_neither_select_nor_stop(tmp_path: Path) -> None:
    """Rounds 2 and 3 have higher validation accuracies, because the weak site is missing."""
    exp = replace(MOON3, rounds=6, validation=0.1, patience=2)
    deployment = Deployment(tmp_path / "federation", exp)
    hide_weak_site(deployment, {2, 3})
    result = deployment.serve()
    assert [list(record.validation_absent or {}) for record in result.rounds[:3]] == [
        [],
        ["2"],
        ["2"],
    ]
    validations = [record.validation_accuracy or 0 for record in result.rounds]
    assert validations[2] > max(validations[3:5]), "round 3 looks best until round 5"
    assert len(result.rounds) == 6, "it did not stop after round 5, two rounds after round 3"
    assert result.chosen is not None
    assert result.chosen.round == 6
    stored = selected_round(read_rounds(deployment.out, len(result.rounds)))
    assert stored is not None
    assert stored.round == result.chosen.round
    assert load(deployment.out / "best.safetensors").keys() == {"global"}
