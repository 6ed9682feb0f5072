"""Which sites are admitted: identity, secrets, versions, compatible data, plausible sizes."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import moonfl
from helpers.equality import same
from helpers.flower_deployment import (
    MOON3,
    RULES,
    Deployment,
    edit_description,
)
from helpers.flower_grid import InProcessGrid, unpack
from moonfl import Experiment, InputError, RunError
from moonfl.cli import main
from moonfl.flower import membership
from moonfl.flower.init import init
from moonfl.flower.protocol import pack
from moonfl.flower.server import serve, site_app

MALFORMED = {
    "an empty shape": {"shape": [0], "moments": {}},
    "a count beyond integers": {"moments": {"number": 10**400, "mean": [0.0], "squares": [0.0]}},
    "a mean beyond floats": {"moments": {"number": 1, "mean": [10**400], "squares": [0.0]}},
    "a secret that is not text": {"secret": "\ud800"},
    "an invalid hash": {"sha256": "\ud800"},
    "classes that are not names": {"classes": [{}] * 10},
    "features that are not names": {"features": [[]]},
    "versions that are not text": {"versions": {"moonfl": [10**400]}},
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_description_is_refused(
    kind: str, deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run continues with the others."""

    def intercept(request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "query" or request.metadata.dst_node_id != 4:
            return reply
        return Message(pack(unpack(reply.content)[0] | MALFORMED[kind]), reply_to=request)

    deployment.grid.contexts = {4: deployment.grid.contexts[3], **deployment.grid.contexts}
    deployment.grid.online, deployment.grid.intercept = {1, 2, 3, 4}, intercept
    deployment.exp = replace(deployment.exp, rounds=1)
    assert len(deployment.serve(min_parties=3).rounds) == 1
    assert re.search(r"\(?node 4\)? was refused", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda site: site.update(x=np.zeros((9, 1, 7, 7), np.uint8), y=np.arange(9)),
            r"shape \[1, 7, 7\]",
        ),
        (lambda site: site.update(x=site["x"].astype(np.float32)), "samples of type torch.float32"),
        (lambda site: site.update(classes=np.array([*map(str, range(11))])), "has the classes"),
    ],
)
def test_incompatible_sites_are_named_before_the_first_round(
    deployment: Deployment, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = deployment.folder / "site-3" / "data.npz"
    arrays = {name: value for name, value in np.load(path).items() if not name.endswith("_test")}
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(
        RunError, match=f"2 of 3 sites are connected, missing: party 2 after 0 s.*{message}"
    ):
        deployment.serve()
    assert not deployment.out.exists()


ROWS = ["age,pressure,pulse,label"] + [
    f"{20 + i % 50},{100 + i * 7 % 60},{50 + i * 11 % 40},{i % 2}" for i in range(60)
]


def select_columns(rows: list[str], names: list[str]) -> str:
    """Return a table with these columns in this order."""
    header = rows[0].split(",")
    columns = [header.index(name) for name in names]
    lines = [",".join(row.split(",")[k] for k in columns) for row in rows]
    return "\n".join(lines) + "\n"


def serve_tables(folder: Path, tables: list[str], **changes: Any) -> moonfl.Result:
    """Run over sites with these tables; node k + 1 has table k."""
    parties = len(tables)
    exp = Experiment(dataset="sites", model="mlp", rounds=2, parties=parties, validation=0.1)
    if not folder.exists():
        init(folder, exp, parties, "127.0.0.1:8000", with_data=False)
    configs: list[dict[str, object]] = []
    for k, table in enumerate(tables, 1):
        site = folder / f"site-{k}"
        (site / "rows.csv").write_text(table)
        text = (site / "site.toml").read_text().replace('"data.npz"', '"rows.csv"')
        (site / "site.toml").write_text(text)
        configs.append({"site": str(site / "site.toml")})
    grid = InProcessGrid(site_app(folder / "app" / "experiment.toml"), configs)
    config = {**RULES, "out": str(folder / "run"), **changes}
    return serve(grid, exp, config, lambda record: None)


ALL_COLUMNS = ["age", "pressure", "pulse", "label"]


def test_sites_rearrange_columns_that_differ_only_in_order(tmp_path: Path) -> None:
    """The result is bit-identical to that of tables in one order, also when it is resumed."""
    same_order = [select_columns(ROWS, ALL_COLUMNS)] * 3
    mixed = [
        select_columns(ROWS, ALL_COLUMNS),
        select_columns(ROWS, ["label", "pulse", "age", "pressure"]),
        select_columns(ROWS, ["pressure", "age", "pulse", "label"]),
    ]
    expected = serve_tables(tmp_path / "same", same_order)
    result = serve_tables(tmp_path / "mixed", mixed)
    assert same(result.models, expected.models)
    assert [r.accuracy for r in result.rounds] == [r.accuracy for r in expected.rounds]
    assert [r.sites for r in result.rounds] == [r.sites for r in expected.rounds]
    stored = json.loads((tmp_path / "mixed" / "run" / "partition.json").read_text())
    assert [site["features"] for site in stored["sites"]] == [["age", "pressure", "pulse"]] * 3
    resumed = serve_tables(tmp_path / "mixed", mixed, resume=True, min_parties=3)
    assert same(resumed.models, expected.models)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_missing_column_is_named_with_its_site(wrong: int, tmp_path: Path) -> None:
    """The site that differs from the others is blamed, whoever answers first."""
    tables = [select_columns(ROWS, ALL_COLUMNS)] * 3
    tables[wrong] = select_columns(ROWS, ["age", "pressure", "label"])
    other = "site-2" if wrong == 0 else "site-1"
    site = rf"site-{wrong + 1} \(node {wrong + 1}\)"
    reason = (
        rf"missing: party {wrong} after 0 s.*{site} was refused: its "
        f"table has other columns: it lacks the column 'pulse', which {other} has$"
    )
    with pytest.raises(RunError, match=reason):
        serve_tables(tmp_path / "federation", tables)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([2], "it has column names, site-1 has none; columns are identified by name"),
        ([1, 3], "it has no column names, site-1 has them; columns are identified by name"),
    ],
)
def test_an_array_next_to_tables_is_refused(
    tables: list[int], message: str, table_deployment: Deployment
) -> None:
    """Its features may have another order."""

    def name_columns(request: Message, reply: Message) -> Message:
        node = request.metadata.dst_node_id
        if request.metadata.message_type != "query" or node not in tables:
            return reply
        return edit_description(node, features=["age", "sex"])(request, reply)

    table_deployment.grid.intercept = name_columns
    with pytest.raises(RunError, match=rf"site-2 \(node 2\) was refused: {message}"):
        table_deployment.serve()


def test_blame_does_not_alternate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "RETRY_REFUSED", 0.0)
    tables = [
        select_columns(ROWS, ["pressure", "pulse", "label"]),
        select_columns(ROWS, ["age", "pressure", "label"]),
    ]
    with pytest.raises(RunError):
        serve_tables(tmp_path / "federation", tables, wait=3.0)
    refused = [line for line in capsys.readouterr().err.splitlines() if "was refused" in line]
    assert refused == [
        "moonfl: site-2 (node 2) was refused: its table has other columns: it lacks the column "
        "'pulse', which site-1 has, and it has the column 'age', which site-1 lacks"
    ]


@pytest.mark.parametrize("features", [["a"], ["a"] * 64, ["a\nb"] * 64])
def test_column_names_must_fit_the_samples(deployment: Deployment, features: list[str]) -> None:
    deployment.grid.intercept = edit_description(2, features=features)
    with pytest.raises(RunError, match=r"column names for samples of shape|features"):
        deployment.serve()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"counts": [10**6] * 10},
            r"site-2 reports 10000000 of all 10000941 samples: more than max_share=0\.9",
        ),
        (
            {"held_out": 10**6},
            "site-2 reports 1000000 of all 1000240 held-out samples: more than",
        ),
        ({"counts": [5]}, "party 1 must report one sample count for each of its 10 classes"),
        ({"counts": "x"}, r"Expected `array`, got `str` - at `\$\.counts`"),
        ({"counts": [0] * 10}, "party 1 must report one sample count for each .* not all 0"),
        ({"counts": [2**40] * 10}, "party 1 must report one sample count for each"),
        ({"shape": [2**31]}, "party 1 reports samples of shape .2147483648.; every dimension"),
        (
            {"held_out": 2**40},
            "party 1 reports 1099511627776 held-out samples; it must be less than 1099511627776",
        ),
        ({"held_out": -1}, r"Expected `int` >= 0 - at `\$\.held_out`"),
        ({"validation": 1.5}, r"Expected `int`, got `float` - at `\$\.validation`"),
        (
            {"validation": 100},
            "site-2 reports 100 of all 100 validation samples: more than",
        ),
        ({"party": "1"}, r"description is malformed: Expected `int`, got `str` - at `\$\.party`"),
        ({"versions": {"moonfl": "0.0.1"}}, r"it has moonfl 0\.0\.1, the server"),
        ({"versions": 3}, r"Expected `object`, got `int` - at `\$\.versions`"),
        ({"error": "x" * 999}, "x{200}[.]{3}$"),
    ],
)
def test_false_descriptions_are_refused_before_the_first_round(
    deployment: Deployment, fields: dict[str, Any], message: str
) -> None:
    deployment.grid.intercept = edit_description(2, **fields)
    with pytest.raises(RunError, match=message):
        deployment.serve()
    assert not deployment.out.exists()


def test_a_site_without_moments_ends_the_run(table_deployment: Deployment) -> None:
    def silent(request: Message, reply: Message) -> Message:
        header = unpack(reply.content)[0] if request.metadata.message_type == "query" else {}
        if request.metadata.dst_node_id != 2 or header.pop("moments", None) is None:
            return reply
        return Message(pack(header), reply_to=request)

    table_deployment.grid.intercept = silent
    with pytest.raises(RunError, match="party 1 must report number, mean and squares"):
        table_deployment.serve()


def test_a_silent_site_costs_one_query(deployment: Deployment) -> None:
    deployment.grid.intercept = lambda request, reply: (
        None if request.metadata.dst_node_id == 2 else reply
    )
    started = time.monotonic()
    with pytest.raises(
        RunError, match=r"node 2 was refused: no answer within 0\.2 s; a site has 0\.2 s .*--query"
    ):
        deployment.serve(deadline=30.0)
    assert time.monotonic() - started < 5
    assert sum(m.metadata.dst_node_id == 2 for m in deployment.grid.sent) == 1


def test_a_site_returns_as_another_node(deployment: Deployment) -> None:
    """A node with the party's data and secret replaces the party's old node if that has left."""

    def move(request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "evaluate" and deployment.grid.online == {1, 2, 3}:
            deployment.grid.contexts[7] = deployment.grid.contexts[2]
            deployment.grid.online = {1, 3, 7}
        return reply

    deployment.grid.intercept = move
    result = deployment.serve()
    assert not any("missing" in party for party in result.rounds[-1]["parties"])
    assert same(result.models, moonfl.run(MOON3, workers=1).models)


def test_a_repaired_site_joins_before_the_first_round(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site that was admitted first had the wrong data, so the others did not fit."""
    monkeypatch.setattr(membership, "RETRY_REFUSED", 0.5)
    path = deployment.folder / "site-1" / "data.npz"
    good = path.read_bytes()
    np.savez(path, x=np.zeros((9, 1, 7, 7), np.uint8), y=np.arange(9), classes=np.arange(10))

    def repair(request: Message, reply: Message) -> Message:
        path.write_bytes(good)
        return reply

    deployment.grid.intercept = repair
    assert same(deployment.serve(wait=20.0).models, moonfl.run(MOON3, workers=1).models)


def test_a_refused_site_that_left_is_forgotten(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "RETRY_REFUSED", 0.0)
    site = deployment.folder / "site-3" / "site.toml"
    site.write_text("party = 9")
    rules = membership.RoundRules(5.0, 2, wait=0.0)
    members = membership.Membership(deployment.grid, 3, rules, log=lambda line: None)
    assert set(members.connect_sites()) == {0, 1}
    deployment.grid.online -= {3}
    members.connect_sites()
    before = len(deployment.grid.sent)
    assert set(members.connect_sites()) == {0, 1}
    assert len(deployment.grid.sent) == before


def test_two_sites_cannot_be_one_party(deployment: Deployment) -> None:
    site = deployment.folder / "site-3" / "site.toml"
    site.write_text(site.read_text().replace("party = 2", "party = 1"))
    with pytest.raises(
        RunError, match=r"site-3 \(node 3\) was refused: it claims to be party 1 but does not"
    ):
        deployment.serve()
    with pytest.raises(
        RunError, match=r"site-3 \(node 3\) was refused: party 1 is already site-2, at node 2"
    ):
        deployment.serve(secrets="")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("party = 9", "it claims to be party 9; parties are numbered 0 to 2"),
        ("party = 2", "it claims to be party 2 but does not have its secret"),
    ],
)
def test_a_site_with_a_wrong_party_number_is_refused(
    deployment: Deployment, text: str, message: str
) -> None:
    (deployment.folder / "site-3" / "site.toml").write_text(text)
    with pytest.raises(RunError, match=message):
        deployment.serve()


def test_the_number_of_secrets_must_fit(deployment: Deployment) -> None:
    deployment.exp = replace(deployment.exp, parties=4)
    with pytest.raises(
        InputError, match=r"has the secrets of 3 sites, but app/experiment\.toml has parties=4"
    ):
        deployment.serve()


def test_secrets_may_be_separated_by_spaces(deployment: Deployment) -> None:
    path = deployment.folder / "app" / "pyproject.toml"
    path.write_text(re.sub("(?<=[0-9a-f]),(?=[0-9a-f])", " ,  ", path.read_text()))
    assert len(deployment.serve().rounds) == 3


def test_every_rule_of_a_round_has_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["flower", "run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for rule in fields(membership.RoundRules):
        assert f"--{rule.name.replace('_', '-')} N {rule.metadata['doc']} (default" in text
