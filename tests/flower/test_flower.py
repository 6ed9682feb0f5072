"""Over Flower's messages, in one process: the embedded engine's bits, and what comes of sites that fail or cheat."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from google.protobuf.message import DecodeError

import moonfl
from helpers.custom import module, own_experiment
from helpers.equality import same
from helpers.flower_grid import InProcess
from helpers.problems import TABLE, write_cifar10, write_images
from moonfl import MOON, Experiment, FedNova, InputError, RunError, Scaffold, tree
from moonfl.algorithms import ALGORITHMS
from moonfl.cli import main
from moonfl.data.augment import default_preparation
from moonfl.data.npz import write_npz
from moonfl.errors import DivergenceError
from moonfl.experiment import override
from moonfl.flower import membership
from moonfl.flower.certificates import write_certificates
from moonfl.flower.client import WRONG_THERE, client_app
from moonfl.flower.init import init
from moonfl.flower.messaging import look
from moonfl.flower.protocol import (
    MARK,
    RefusedError,
    check_tensors,
    clean,
    moments_of,
    pack,
    unpack,
)
from moonfl.flower.run import Followed, experiment_of
from moonfl.flower.server import serve, site_app
from moonfl.flower.simulation import simulate, simulated_site, simulated_sites
from moonfl.flower.site import read_site
from moonfl.runs.directory import CHECKPOINT
from moonfl.runs.recorder import Result
from moonfl.runs.tensor_files import load
from moonfl.task import make_task

_ = module  # a fixture
QUICK = Experiment(parties=4, rounds=3, epochs=1, sample_fraction=0.75)
MOON3 = Experiment(parties=3, rounds=3, epochs=1, algorithm=MOON(mu=1.0))
RULES = {
    "deadline": 0.2,
    "query": 0.2,
    "min_parties": 2,
    "wait": 0.0,
    "attempts": 2,
    "resume": False,
}


def simulated(exp: Experiment, out: Path, **given: Any) -> Result:
    configs = [{"partition-id": k, "num-partitions": exp.parties} for k in range(exp.parties)]
    grid = InProcess(
        client_app(partial(simulated_site, exp, out / CHECKPOINT), private=False), configs
    )
    stop = threading.Event()
    return moonfl.run(
        exp, out, engine=lambda *parts: simulated_sites(grid, *parts, out, stop), **given
    )


class Deployment:
    """What `moonfl flower init --with-data` lays out, served in one process."""

    def __init__(self, folder: Path, exp: Experiment) -> None:
        init(folder, exp, exp.parties, "127.0.0.1:8000", with_data=True)
        self.folder, self.exp, self.out = folder, exp, folder / "run"
        configs = [
            {"site": str(folder / f"site-{k + 1}" / "site.toml")} for k in range(exp.parties)
        ]
        self.grid = InProcess(site_app(folder / "app" / "experiment.toml"), configs)

    def serve(self, **changes: Any) -> Result:
        config = tomllib.loads((self.folder / "app" / "pyproject.toml").read_text())["tool"][
            "flwr"
        ]["app"]["config"]
        return serve(
            self.grid,
            self.exp,
            {**config, **RULES, "out": str(self.out), **changes},
            lambda fact: None,
        )

    def states(self, party: int) -> dict[int, Any]:
        """Round -> what the party's own disk has of it."""
        paths = (self.folder / f"site-{party + 1}" / "states").glob("*/*.safetensors")
        return {int(path.stem.rpartition("-")[2]): load(path) for path in paths}


@pytest.fixture
def moon(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "federation", MOON3)


def test_a_method_and_a_model_of_ones_own_go_to_the_sites(module: Path) -> None:
    """The app takes their file along; over messages they give the embedded engine's bits."""
    exp = own_experiment()
    deployment = Deployment(module / "federation", exp)
    assert (module / "federation" / "app" / "mymethod.py").read_text() == (
        module / "mymethod.py"
    ).read_text()
    there, here = deployment.serve(), moonfl.run(exp, workers=1)
    assert same(there.models, here.models)
    assert same(simulated(exp, module / "simulated").models, here.models)


def test_tables_at_sites_are_standardised_over_all_of_them(tmp_path: Path) -> None:
    """By what each site says of its sums: the bits of the run that has all rows in one place."""
    (tmp_path / "t.csv").write_text(TABLE)
    words = [
        "dataset=csv",
        f"data_dir={tmp_path / 't.csv'}",
        "label=outcome",
        "column=site",
        "validation=0.2",
    ]
    exp = replace(override(Experiment(rounds=2, epochs=1), words), parties=3)
    there, here = Deployment(tmp_path / "federation", exp).serve(), moonfl.run(exp, workers=1)
    assert same(there.models, here.models)
    assert here.models["global"]["standardise.mean"].abs().max() > 1


def test_every_site_may_have_its_own_kind_of_file(tmp_path: Path) -> None:
    exp = replace(
        Experiment(dataset="sites", model="mlp", label="outcome", ignore="site", rounds=1),
        parties=2,
    )
    init(tmp_path / "federation", exp, 2, "127.0.0.1:8000", with_data=False)
    for k in (1, 2):
        site = tmp_path / "federation" / f"site-{k}"
        (site / "rows.csv").write_text(TABLE)
        text = (site / "site.toml").read_text().replace('"data.npz"', '"rows.csv"')
        (site / "site.toml").write_text(text)
    site_1 = read_site(tmp_path / "federation" / "site-1" / "site.toml", exp)[1].task
    assert (len(site_1.parties[0].y), len(site_1.test.y)) == (96, 24)
    (tmp_path / "federation" / "site-1" / "tables").mkdir()
    for name in ("train.csv", "test.csv"):
        (tmp_path / "federation" / "site-1" / "tables" / name).write_text(TABLE)
    (tmp_path / "federation" / "site-1" / "site.toml").write_text("party = 0\ndata = 'tables'\n")
    site_1 = read_site(tmp_path / "federation" / "site-1" / "site.toml", exp)[1].task
    assert (len(site_1.parties[0].y), len(site_1.test.y)) == (120, 120)
    write_images(tmp_path / "federation" / "site-2" / "images")
    (tmp_path / "federation" / "site-2" / "site.toml").write_text("party = 1\ndata = 'images'\n")
    assert read_site(tmp_path / "federation" / "site-2" / "site.toml", exp)[1].task.classes == (
        "blue",
        "red",
    )


def test_sites_whose_columns_stand_in_another_order_do_not_mix(tmp_path: Path) -> None:
    exp = Experiment(dataset="sites", model="mlp", rounds=1, parties=2)
    init(tmp_path / "federation", exp, 2, "127.0.0.1:8000", with_data=False)
    for k, header in ((1, "age,pressure,label"), (2, "pressure,age,label")):
        site = tmp_path / "federation" / f"site-{k}"
        (site / "rows.csv").write_text(
            header + "\n" + "".join(f"{i},{i + 9},{i % 2}\n" for i in range(40))
        )
        (site / "site.toml").write_text(
            (site / "site.toml").read_text().replace('"data.npz"', '"rows.csv"')
        )
    configs = [{"site": str(tmp_path / "federation" / f"site-{k}" / "site.toml")} for k in (1, 2)]
    grid = InProcess(site_app(tmp_path / "federation" / "app" / "experiment.toml"), configs)
    with pytest.raises(
        RunError,
        match="feature 1 of its table is 'pressure', that of site-1 is 'age'; all sites need",
    ):
        serve(grid, exp, {**RULES, "out": str(tmp_path / "run")}, lambda fact: None)


def test_a_deployment_without_data_is_not_of_a_data_set_with_a_preparation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else hospitals' pixels would be scaled as digits are."""
    assert main(["flower", "init", str(tmp_path / "hospitals"), "--sites", "3"]) == 2
    assert "say dataset=sites" in capsys.readouterr().err
    assert (
        main(["flower", "init", str(tmp_path / "hospitals"), "--sites", "3", "dataset=sites"]) == 0
    )


def test_a_site_more_than_there_are_secrets_is_told(moon: Deployment) -> None:
    moon.exp = replace(moon.exp, parties=4)
    with pytest.raises(
        InputError, match=r"has the secrets of 3 sites, app/experiment\.toml has parties=4"
    ):
        moon.serve()


def test_a_deployment_brings_its_own_method(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command is typed, and whatever else of that name is there."""
    Deployment(module / "federation", own_experiment())
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "mymethod", raising=False)
    (module / "elsewhere").mkdir()
    (module / "elsewhere" / "mymethod.py").write_text("another = 3\n")
    monkeypatch.chdir(module / "elsewhere")
    monkeypatch.syspath_prepend("")
    assert type(experiment_of(module / "federation").algorithm).__name__ == "Small"


NONSENSE = [
    None,
    {},
    "x",
    {"number": 1, "mean": [0.0], "squares": [-1.0]},
    {"number": 1, "mean": [1e300], "squares": [1.0]},
    {"number": 1, "mean": [0.0], "squares": [1e300]},
]


@pytest.mark.parametrize("moments", NONSENSE)
def test_a_site_that_says_nonsense_of_its_sums_is_refused(moments: object, tmp_path: Path) -> None:
    facts = {"party": 0, "shape": [1], "counts": [1, 0], "moments": moments}
    with pytest.raises(RefusedError, match="does not say number, mean and squares"):
        moments_of(facts)


STRANGE = {
    "a shape of nothing": {"shape": [0], "moments": {}},
    "a count beyond numbers": {"moments": {"number": 10**400, "mean": [0.0], "squares": [0.0]}},
    "a mean beyond numbers": {"moments": {"number": 1, "mean": [10**400], "squares": [0.0]}},
    "a secret that is no text": {"secret": "\ud800"},
    "a hash that is none": {"sha256": "\ud800"},
    "classes that are no names": {"classes": [{}] * 10},
    "features that are no names": {"features": [[]]},
    "versions that are none": {"versions": {"moonfl": [10**400]}},
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_stranger_is_refused_whatever_it_says_of_itself(
    kind: str, moon: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the run goes on with the others."""

    def strange(order: Message, reply: Message) -> Message:
        if order.metadata.message_type != "query" or order.metadata.dst_node_id != 4:
            return reply
        return Message(pack(unpack(reply.content)[0] | STRANGE[kind]), reply_to=order)

    moon.grid.contexts = {4: moon.grid.contexts[3], **moon.grid.contexts}
    moon.grid.online, moon.grid.meddle = {1, 2, 3, 4}, strange
    moon.exp = replace(moon.exp, rounds=1)
    assert len(moon.serve(min_parties=3).rounds) == 1
    assert re.search(r"\(?node 4\)? was refused", capsys.readouterr().err)


def test_an_answer_that_cannot_be_read_is_none(moon: Deployment) -> None:
    class Broken(InProcess):
        def pull_messages(self, message_ids: Any) -> Any:
            raise DecodeError("garbage")

    grid = Broken(moon.grid.app, moon.grid.configs)
    assert look(grid, "1") == "its answer cannot be read (DecodeError)"


def test_what_replies_to_nothing_is_nobodys_answer(moon: Deployment) -> None:
    """Flower hands over all that is addressed to the server, and a site may address it in any name."""

    class Crowded(InProcess):
        def pull_messages(self, message_ids: Any) -> Any:
            return [Message(pack({"party": 1}), 1, "train"), *super().pull_messages(message_ids)]

    moon.grid = Crowded(moon.grid.app, moon.grid.configs)
    assert same(moon.serve().models, moonfl.run(MOON3, workers=1).models)


def test_an_answer_in_time_counts_though_another_takes_long(moon: Deployment) -> None:
    """Flower waits for all of an answer that has begun to come."""

    class Slow(InProcess):
        looks = 0

        def pull_messages(self, message_ids: Any) -> Any:
            asked = next(m for m in self.sent if m.metadata.message_id == message_ids[0])
            if asked.metadata.message_type == "train" and asked.metadata.dst_node_id == 1:
                self.looks += 1
                if self.looks == 1:
                    return []
            if asked.metadata.message_type == "train" and asked.metadata.dst_node_id == 3:
                time.sleep(0.5)
            return super().pull_messages(message_ids)

    moon.grid = Slow(moon.grid.app, moon.grid.configs)
    moon.exp = replace(MOON3, rounds=1)
    assert not any("missing" in party for party in moon.serve(deadline=0.3).rounds[0]["parties"])
    assert moon.grid.looks == 2


def test_who_is_to_judge_the_model_is_waited_for(moon: Deployment) -> None:
    def leave(order: Message, reply: Message) -> Message:
        if order.metadata.message_type == "train" and unpack(order.content)[0]["party"] == 2:
            moon.grid.online = set()
            threading.Timer(0.3, lambda: moon.grid.online.update((1, 2, 3))).start()
        return reply

    moon.grid.meddle = leave
    assert same(moon.serve(wait=20.0).models, moonfl.run(MOON3, workers=1).models)


@pytest.mark.parametrize(
    "claim", [{"counts": [10**6] * 10}, {"held_out": 10**6}, {"validation": 3}]
)
def test_a_site_cannot_claim_more_when_a_run_goes_on(
    claim: dict[str, Any], moon: Deployment
) -> None:
    lose(moon, 0, {1})
    with pytest.raises(RunError, match="round 2 needs 3"):
        moon.serve(min_parties=3)
    moon.grid = InProcess(moon.grid.app, moon.grid.configs, meddle=lie(**claim))
    result = moon.serve(resume=True)
    assert [p.get("missing") for p in result.rounds[-1]["parties"]] == [None, "not connected", None]
    assert list(result.rounds[-1]["sites"]) == ["0", "2"]


def test_what_a_laptop_trains_on_is_not_what_sites_do(moon: Deployment) -> None:
    path = moon.folder / "app" / "experiment.toml"
    path.write_text(path.read_text().replace('device = "cpu"', 'device = "cuda:7"'))
    assert experiment_of(moon.folder).device == "cpu"
    assert len(moon.serve().rounds) == 3


def test_spaces_between_secrets_do_no_harm(moon: Deployment) -> None:
    path = moon.folder / "app" / "pyproject.toml"
    path.write_text(re.sub("(?<=[0-9a-f]),(?=[0-9a-f])", " ,  ", path.read_text()))
    assert len(moon.serve().rounds) == 3


def test_classes_that_no_report_can_show_are_told_before_the_first_round(moon: Deployment) -> None:
    path = moon.folder / "site-1" / "data.npz"
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"classes": np.array(["ill\nacute", *arrays["classes"][1:]])})
    with pytest.raises(InputError, match="a class has the name"):
        read_site(moon.folder / "site-1" / "site.toml", moon.exp)


def test_the_test_set_of_a_run_that_goes_on_is_the_one_it_began_with(
    moon: Deployment, tmp_path: Path
) -> None:
    task = make_task(MOON3)
    for name, rows in (("one", torch.arange(60)), ("two", torch.arange(60, 120))):
        write_npz(tmp_path / f"{name}.npz", task.test.take(rows), None, task.classes)
    lose(moon, 0, {1})
    with pytest.raises(RunError, match="round 2 needs 3"):
        moon.serve(min_parties=3, test=str(tmp_path / "one.npz"))
    moon.grid.meddle = lambda order, reply: reply
    for other in ({}, {"test": str(tmp_path / "two.npz")}):
        with pytest.raises(InputError, match="--test must be as it was when the run began"):
            moon.serve(resume=True, **other)
    assert len(moon.serve(resume=True, test=str(tmp_path / "one.npz")).rounds) == 3


def test_a_constant_that_is_not_finite_is_taken_as_it_was_sent() -> None:
    mask = torch.tensor([0.0, -torch.inf, torch.nan])
    check_tensors("the buffers", {"mask": mask.clone()}, {"mask": mask}, constants=True)
    with pytest.raises(RefusedError, match="mask of the model is not finite"):
        check_tensors("the model", {"mask": mask.clone()}, {"mask": mask})
    for other in (
        torch.tensor([torch.inf, -torch.inf, torch.nan]),
        torch.tensor([0.0, torch.nan, torch.nan]),
    ):
        with pytest.raises(RefusedError, match="mask of the buffers is not finite"):
            check_tensors("the buffers", {"mask": other}, {"mask": mask}, constants=True)


@dataclass(frozen=True)
class Faulty(moonfl.FedAvg):
    def finish(self, party: Any, trained: Any, steps: int) -> Any:
        if not trained["output.bias"].equal(
            party.global_params["output.bias"]
        ):  # not where the server asks
            raise KeyError("nowhere")
        return {}, {}


def test_a_simulation_tells_what_is_wrong_with_ones_own_method(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"KeyError: 'nowhere' \(test_flower\.py, line \d+\)"):
        simulated(replace(QUICK, algorithm=Faulty()), tmp_path / "run")


def test_a_late_site_judges_where_nobody_else_can(tmp_path: Path) -> None:
    exp = replace(MOON3, parties=2)
    two = Deployment(tmp_path / "federation", exp)
    with np.load(two.folder / "site-2" / "data.npz") as file:
        arrays = {name: file[name] for name in file.files if not name.endswith("_test")}
    np.savez(two.folder / "site-2" / "data.npz", **arrays)
    path = two.folder / "site-2" / "site.toml"
    path.write_text(re.sub("holdout = .*", "holdout = 0.0", path.read_text()))
    lose(two, 0, {1})
    result = two.serve(min_parties=1, max_share=1.0)
    assert [list(fact["sites"]) for fact in result.rounds] == [["0"]] * 3


def test_a_secret_is_its_owners_alone(moon: Deployment) -> None:
    for name in ("site.toml", "key"):
        assert (moon.folder / "site-1" / name).stat().st_mode & 0o077 == 0


def test_a_site_too_small_to_hold_anything_out_takes_part(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE + "30,1,D,ill\n31,0,D,well\n")
    words = [
        "dataset=csv",
        f"data_dir={tmp_path / 't.csv'}",
        "label=outcome",
        "column=site",
        "rounds=1",
        "epochs=1",
    ]
    exp = replace(override(Experiment(), words), parties=4)
    there, here = Deployment(tmp_path / "federation", exp).serve(), moonfl.run(exp, workers=1)
    assert same(there.models, here.models)
    assert there.rounds[0]["sites"] == here.rounds[0]["sites"]


def test_the_share_to_hold_out_goes_to_the_sites(tmp_path: Path) -> None:
    init(
        tmp_path / "federation",
        Experiment(dataset="sites", holdout=0.5),
        2,
        "127.0.0.1:8000",
        with_data=False,
    )
    assert "holdout = 0.5" in (tmp_path / "federation" / "site-1" / "site.toml").read_text()


@pytest.fixture
def clinics(tmp_path: Path) -> Deployment:
    """Sites with tables, which are standardised."""
    (tmp_path / "t.csv").write_text(TABLE)
    words = [
        "dataset=csv",
        f"data_dir={tmp_path / 't.csv'}",
        "label=outcome",
        "column=site",
        "rounds=1",
        "epochs=1",
    ]
    return Deployment(tmp_path / "federation", replace(override(Experiment(), words), parties=3))


def test_a_site_that_says_nothing_of_its_sums_ends_the_run_by_name(clinics: Deployment) -> None:
    def silent(order: Message, reply: Message) -> Message:
        facts = unpack(reply.content)[0] if order.metadata.message_type == "query" else {}
        if order.metadata.dst_node_id != 2 or facts.pop("moments", None) is None:
            return reply
        return Message(pack(facts), reply_to=order)

    clinics.grid.meddle = silent
    with pytest.raises(RunError, match="party 1 does not say number, mean and squares"):
        clinics.serve()


def test_a_site_cannot_change_how_all_are_standardised(clinics: Deployment) -> None:
    """No server step and no clipping goes over buffers: one site could move the inputs of all by anything."""
    forge = put("buffers", lambda tensor: tensor + 1e6)

    def meddle(order: Message, reply: Message) -> Message:
        mine = order.metadata.message_type == "train" and order.metadata.dst_node_id == 2
        return as_node(2, Message(forge(reply.content), reply_to=order)) if mine else reply

    clinics.grid.meddle = meddle
    (missing,) = (p for p in clinics.serve().rounds[0]["parties"] if "missing" in p)
    assert (missing["party"], missing["missing"]) == (
        1,
        "it changed standardise.mean, which is that of the federation",
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_the_embedded_engines_bits(name: str, tmp_path: Path) -> None:
    algorithm = ALGORITHMS[name]()
    alone = {} if algorithm.federated else {"rounds": 1, "sample_fraction": 1.0}
    exp = replace(QUICK, algorithm=algorithm, **alone)
    assert same(simulated(exp, tmp_path).models, moonfl.run(exp, workers=1).models)


def test_a_simulated_run_is_resumed_by_any_engine(tmp_path: Path) -> None:
    def stop(fact: dict[str, Any]) -> None:
        if fact["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulated(QUICK, tmp_path, watch=stop)
    assert same(moonfl.resume(tmp_path, workers=1).models, moonfl.run(QUICK, workers=1).models)


def test_a_deployment_gives_the_embedded_engines_bits(moon: Deployment) -> None:
    """Each site has its own data only, and a third of the test set: together they find the same accuracy."""
    found, expected = moon.serve(), moonfl.run(MOON3, workers=1)
    assert same(found.models, expected.models)
    assert [fact["accuracy"] for fact in found.rounds] == [
        fact["accuracy"] for fact in expected.rounds
    ]
    assert found.rounds[0]["loss"] == pytest.approx(expected.rounds[0]["loss"])
    assert sum(n for _, n in found.rounds[0]["sites"].values()) == 360
    keys = ("party", "samples", "steps", "loss", "drift", "bytes_down", "bytes_up")
    for ours, theirs in zip(
        found.rounds[-1]["parties"], expected.rounds[-1]["parties"], strict=True
    ):
        assert {key: ours[key] for key in keys} == {key: theirs[key] for key in keys}


def test_nothing_but_a_model_and_counts_leaves_a_site(moon: Deployment) -> None:
    """What each reply holds, by name: the state, MOON's previous model, is on the site's own disk and nowhere else."""
    sent: dict[str, set[str]] = {}

    def listen(order: Message, reply: Message) -> Message:
        facts, tensors = unpack(reply.content)
        assert set(reply.content) == {"moonfl", *(f"tensors:{label}" for label in tensors)}
        sent.setdefault(order.metadata.message_type, set()).update(
            [*facts, *(f"[{label}]" for label in tensors)]
        )
        return reply

    moon.grid.meddle = listen
    moon.serve()
    site = {
        "party",
        "name",
        "secret",
        "versions",
        "shape",
        "dtype",
        "classes",
        "features",
        "counts",
        "held_out",
    }
    site |= {"validation", "sha256"}
    update = {"party", "round", "samples", "steps", "metrics", "sha256", "[params]", "[buffers]"}
    assert sent == {"query": site, "train": update, "evaluate": {"party", "test"}}
    assert all(list(moon.states(party)[2]) == ["prev0"] for party in range(3))
    assert all(moon.states(party).keys() == {0, 1, 2} for party in range(3))
    assert "secret" not in (moon.out / "partition.json").read_text()


def lose(moon: Deployment, party: int, rounds: set[int], times: int = 99) -> None:
    """The party trains, and its answer never arrives, in these rounds."""
    left = dict.fromkeys(rounds, times)

    def meddle(order: Message, reply: Message) -> Message | None:
        facts = unpack(order.content)[0]
        if (
            order.metadata.message_type == "train"
            and facts["party"] == party
            and left.get(facts["round"], 0) > 0
        ):
            left[facts["round"]] -= 1
            return None
        return reply

    moon.grid.meddle = meddle


def test_a_late_party_is_named_and_comes_back_with_the_state_that_counts(
    moon: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not waited for a second time, to judge."""
    lose(moon, 1, {1})
    result = moon.serve()
    assert [len([p for p in fact["parties"] if "missing" in p]) for fact in result.rounds] == [
        0,
        1,
        0,
    ]
    (missing,) = (p for p in result.rounds[1]["parties"] if "missing" in p)
    assert missing == {"party": 1, "samples": 0, "steps": 0, "missing": "no answer within 0.2 s"}
    orders = [unpack(m.content)[0] for m in moon.grid.sent if m.metadata.message_type == "train"]
    assert [o["accepted"] for o in orders if o["party"] == 1] == [None, 0, 0]
    assert moon.states(1).keys() == {0, 2}, "the state of the round that was not accepted is gone"
    assert [list(fact["sites"]) for fact in result.rounds] == [
        ["0", "1", "2"],
        ["0", "2"],
        ["0", "1", "2"],
    ]
    assert (
        "site-2 does not judge the model: it let the round's deadline pass"
        in capsys.readouterr().err
    )


def test_scaffolds_c_stays_the_mean_of_the_accepted_c_i(tmp_path: Path) -> None:
    """Late answers, repeated rounds and a party that is away: c = 1/N sum of c_i over the states that count."""
    exp = replace(MOON3, algorithm=Scaffold(), rounds=5)
    scaffold = Deployment(tmp_path / "federation", exp)
    lose(scaffold, 2, {0, 2, 4})
    scaffold.serve()
    index = json.loads((scaffold.out / CHECKPOINT / "round-5.json").read_bytes())
    assert {party: of["round"] for party, of in index["parties"].items()} == {
        "0": 4,
        "1": 4,
        "2": 3,
    }
    c = load(scaffold.out / CHECKPOINT / "server-5.safetensors")["shared/c"]
    accepted = [
        scaffold.states(int(party))[of["round"]]["c_i"] for party, of in index["parties"].items()
    ]
    mean = tree.mean((c_i, 1) for c_i in accepted)
    for name in c:
        torch.testing.assert_close(c[name], mean[name], rtol=1e-5, atol=1e-7)


def test_a_round_with_too_few_answers_is_repeated_to_the_same_bits(moon: Deployment) -> None:
    lose(moon, 0, {1}, times=1)
    found = moon.serve(min_parties=3)
    assert same(found.models, moonfl.run(MOON3, workers=1).models)
    assert not any("missing" in party for fact in found.rounds for party in fact["parties"])


def test_too_few_answers_for_good_end_the_run_and_it_can_go_on(moon: Deployment) -> None:
    lose(moon, 0, {1})
    with pytest.raises(
        RunError,
        match=r"round 2 needs 3 parties, 2 answered in 2 attempts: site-1: no answer within",
    ):
        moon.serve(min_parties=3)
    moon.grid.meddle = lambda order, reply: reply
    assert same(moon.serve(resume=True).models, moonfl.run(MOON3, workers=1).models)


def test_a_restarted_server_goes_on_to_the_same_bits(moon: Deployment) -> None:
    """It is killed when the sites have trained round 2 and it has not averaged: their newer states do not count."""

    def killed(order: Message, reply: Message) -> Message:
        facts = unpack(order.content)[0]
        if order.metadata.message_type == "train" and facts["round"] == 1 and facts["party"] == 2:
            raise KeyboardInterrupt
        return reply

    moon.grid.meddle = killed
    with pytest.raises(KeyboardInterrupt):
        moon.serve()
    assert moon.states(0).keys() == {0, 1}
    moon.grid = InProcess(moon.grid.app, moon.grid.configs)
    assert same(moon.serve(resume=True).models, moonfl.run(MOON3, workers=1).models)


def test_a_site_that_lost_its_state_is_named(
    moon: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    def forget(order: Message, reply: Message) -> Message:
        for path in (moon.folder / "site-2" / "states").glob("*/*round-0*"):
            path.unlink()
        return reply

    moon.grid.meddle = forget
    result = moon.serve()
    (missing,) = (p["missing"] for p in result.rounds[1]["parties"] if "missing" in p)
    assert "the state of party 1 after round 1 is missing" in missing
    assert "round 2 goes on without site-2" in capsys.readouterr().err


def test_answers_in_hand_count_though_their_site_is_gone(moon: Deployment) -> None:
    """Party 0 answers and leaves, party 1 is lost once: with its second answer there are two."""
    lost: list[int] = []

    def meddle(order: Message, reply: Message) -> Message | None:
        if order.metadata.message_type != "train" or (lost and order.metadata.dst_node_id != 1):
            return reply
        if order.metadata.dst_node_id == 1:
            moon.grid.online -= {1, 3}
            return reply
        lost.append(order.metadata.dst_node_id)
        return None

    moon.grid.meddle = meddle
    with pytest.raises(RunError, match="round 2 needs 2"):
        moon.serve(min_parties=2)
    (fact,) = [json.loads(line) for line in (moon.out / "rounds.jsonl").read_text().splitlines()]
    assert [p["party"] for p in fact["parties"] if "missing" not in p] == [0, 1]


def test_a_refused_site_that_left_is_not_asked_for_ever(
    moon: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "ASK_AGAIN", 0.0)
    site = moon.folder / "site-3" / "site.toml"
    site.write_text("party = 9")
    rules = membership.Rules(5.0, 2, wait=0.0)
    met = membership.Roll(moon.grid, 3, rules, tell=lambda line: None)
    assert set(met.present()) == {0, 1}
    moon.grid.online -= {3}
    met.present()
    before = len(moon.grid.sent)
    assert set(met.present()) == {0, 1}
    assert len(moon.grid.sent) == before


def test_a_party_that_is_not_connected_is_named(moon: Deployment) -> None:
    def away(order: Message, reply: Message) -> Message:
        evaluated = sum(m.metadata.message_type == "evaluate" for m in moon.grid.sent)
        moon.grid.online = {1, 2} if 3 <= evaluated < 5 else {1, 2, 3}
        return reply

    moon.grid.meddle = away
    result = moon.serve()
    missing = [
        {p["party"]: p["missing"] for p in f["parties"] if "missing" in p} for f in result.rounds
    ]
    assert missing == [{}, {2: "not connected"}, {}]
    assert list(result.rounds[1]["sites"]) == ["0", "1"]


def forged(
    change: Callable[[dict[str, Any], dict[str, Any]], None],
) -> Callable[[RecordDict], RecordDict]:
    def forge(content: RecordDict) -> RecordDict:
        facts, state = unpack(content)
        tensors = {label: dict(params) for label, params in state.items()}
        change(facts, tensors)
        return pack(facts, tensors)

    return forge


def put(
    label: str, tensor: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[RecordDict], RecordDict]:
    def change(facts: dict[str, Any], tensors: dict[str, Any]) -> None:
        first = next(iter(tensors[label]))
        tensors[label][first] = tensor(tensors[label][first])

    return forged(change)


FORGERIES: dict[str, tuple[Callable[[RecordDict], RecordDict], str]] = {
    "another shape": (
        put("params", lambda t: t[:1]),
        r"is float32 \[1, 64\], not float32 \[\d+, 64\]",
    ),
    "another type": (put("params", lambda t: t.double()), r"is float64 .* not float32"),
    "nan": (put("params", lambda t: t * torch.nan), "is not finite"),
    "infinite": (put("params", lambda t: t / 0), "is not finite"),
    "a name more": (
        forged(lambda f, t: t["params"].update(backdoor=torch.ones(1))),
        r"other tensors .*\(backdoor\)",
    ),
    "a name less": (forged(lambda f, t: t["params"].popitem()), "other tensors than was sent"),
    "no model": (forged(lambda f, t: t.pop("params")), "not a model alone"),
    "nan beside the model": (
        put("extra/delta_c", lambda t: t * torch.nan),
        "of delta_c is not finite",
    ),
    "nothing beside the model": (
        forged(lambda f, t: t.pop("extra/delta_c")),
        r"it sends \[\], not \['delta_c'\]",
    ),
    "absurd samples": (
        forged(lambda f, t: f.update(samples=10**9)),
        r"it says samples 1000000000, not \d+",
    ),
    "negative samples": (forged(lambda f, t: f.update(samples=-5)), r"it says samples -5, not"),
    "absurd steps": (forged(lambda f, t: f.update(steps=10**6)), r"it says steps 1000000, not"),
    "fewer steps": (forged(lambda f, t: f.update(steps=0)), r"it says steps 0, not \d+"),
    "true steps": (forged(lambda f, t: f.update(steps=True)), r"it says steps True, not \d+"),
    "another party": (forged(lambda f, t: f.update(party=0)), "it says party 0, not 1"),
    "another round": (forged(lambda f, t: f.update(round=7)), "it says round 7, not 0"),
    "other data": (
        forged(lambda f, t: f.update(sha256="0")),
        "its data are not those it had when the run began",
    ),
    "a state more": (
        forged(lambda f, t: t.update({"prev0": t["params"]})),
        "prev0, not a model alone",
    ),
    "a metric that a report would refuse": (
        forged(lambda f, t: f["metrics"].update(drift=-1)),
        "metrics are not numbers",
    ),
    "a metric beyond numbers": (
        forged(lambda f, t: f["metrics"].update(loss=10**400)),
        "metrics are not numbers that a round",
    ),
    "a text that steers": (
        forged(lambda f, t: f.update(round="\x1b[2J\n@moonfl {}")),
        r"round  \[2J moonfl {}, not",
    ),
    "infinite metrics": (
        forged(lambda f, t: f["metrics"].update(loss=float("inf"))),
        "metrics are not numbers that a round",
    ),
    "no facts": (lambda content: RecordDict({}), "not a message of moonfl's"),
    "not json": (
        lambda content: RecordDict({"moonfl": ConfigRecord({"facts": "{", "names": "{}"})}),
        "not a message",
    ),
    "a list": (
        lambda content: RecordDict({"moonfl": ConfigRecord({"facts": "[]", "names": "{}"})}),
        "no facts",
    ),
    "a bad array": (
        lambda content: RecordDict(
            {
                "moonfl": content["moonfl"],
                "tensors:params": ArrayRecord({"x": Array("f4", (1,), "numpy.ndarray", b"")}),
            }
        ),
        "not a message of moonfl's",
    ),
}


def without_party_1(folder: Path, cheat: Callable[[Message, Message], Message] | None) -> Result:
    """A round of SCAFFOLD in which its answer is lost, or made by `cheat`."""
    run = Deployment(folder, replace(MOON3, algorithm=Scaffold(), rounds=1))

    def meddle(order: Message, reply: Message) -> Message | None:
        mine = order.metadata.message_type == "train" and order.metadata.dst_node_id == 2
        return reply if not mine else as_node(2, cheat(order, reply)) if cheat else None

    run.grid.meddle = meddle
    return run.serve()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return without_party_1(tmp_path_factory.mktemp("honest") / "federation", None)


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_malformed_update_is_refused_by_name_and_the_rest_goes_on(
    kind: str, honest: Result, tmp_path: Path
) -> None:
    """The result is that of the two honest parties, to the bit."""
    forge, why = FORGERIES[kind]
    result = without_party_1(
        tmp_path / "federation", lambda order, reply: Message(forge(reply.content), reply_to=order)
    )
    (missing,) = (p for p in result.rounds[0]["parties"] if "missing" in p)
    assert missing["party"] == 1
    assert re.search(why, missing["missing"]), missing
    assert same(result.models, honest.models)


def as_node(node: int, message: Message) -> Message:
    message.metadata.__dict__["_src_node_id"] = node
    return message


def test_an_answer_that_cannot_be_read_and_an_error_reply_are_refused(moon: Deployment) -> None:
    def meddle(order: Message, reply: Message) -> Message:
        if order.metadata.message_type != "train":
            return reply
        if order.metadata.dst_node_id == 2:
            raise_when_read = Message(Error(5, "x"), reply_to=order)
            raise_when_read.__dict__["_error"] = 3
            return raise_when_read
        return (
            reply
            if order.metadata.dst_node_id == 1
            else Message(Error(5, "node\nunavailable"), reply_to=order)
        )

    moon.grid.meddle = meddle
    result = moon.serve(min_parties=1)
    missing = {p["party"]: p["missing"] for p in result.rounds[0]["parties"] if "missing" in p}
    assert missing == {1: "its answer cannot be read (AttributeError)", 2: "failed (unavailable)"}


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
def test_sites_that_do_not_fit_are_named_before_the_first_round(
    moon: Deployment, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = moon.folder / "site-3" / "data.npz"
    arrays = {name: value for name, value in np.load(path).items() if not name.endswith("_test")}
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(
        RunError, match=f"2 of 3 sites are connected, missing: party 2 after 0 s.*{message}"
    ):
        moon.serve()
    assert not moon.out.exists()


def lie(**facts: Any) -> Callable[[Message, Message], Message]:
    """Node 2 says this of itself."""

    def meddle(order: Message, reply: Message) -> Message:
        if order.metadata.message_type != "query" or order.metadata.dst_node_id != 2:
            return reply
        return Message(pack(unpack(reply.content)[0] | facts), reply_to=order)

    return meddle


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            {"counts": [10**6] * 10},
            r"site-2 says it has 10000000 of all samples, 10000941: more than max_share=0\.9",
        ),
        (
            {"held_out": 10**6},
            r"site-2 says it has 1000000 of all samples that are held out, 1000240: more than",
        ),
        ({"counts": [5]}, "party 1 does not say how many samples it has of each class"),
        ({"counts": "x"}, "party 1 does not say how many samples it has of each class"),
        ({"held_out": -1}, "party 1 says it holds out -1 samples"),
        ({"validation": 1.5}, "party 1 says it holds out 1.5 samples"),
        (
            {"validation": 100},
            r"site-2 says it has 100 of all samples that choose a round, 100: more than",
        ),
        ({"party": "1"}, "it says it is party 1; parties are"),
        ({"versions": {"moonfl": "0.0.1"}}, r"it has moonfl 0\.0\.1, the server"),
        ({"versions": 3}, "does not say its versions"),
        ({"error": "x" * 999}, "x{200}[.]{3}$"),
    ],
)
def test_a_site_that_lies_of_itself_is_named_before_the_first_round(
    moon: Deployment, facts: dict[str, Any], message: str
) -> None:
    moon.grid.meddle = lie(**facts)
    with pytest.raises(RunError, match=message):
        moon.serve()
    assert not moon.out.exists()


def test_a_site_that_is_silent_costs_no_more_than_the_time_for_a_query(moon: Deployment) -> None:
    moon.grid.meddle = lambda order, reply: None if order.metadata.dst_node_id == 2 else reply
    begun = time.monotonic()
    with pytest.raises(
        RunError, match=r"node 2 was refused: no answer within 0\.2 s; a site has 0\.2 s .*--query"
    ):
        moon.serve(deadline=30.0)
    assert time.monotonic() - begun < 5
    assert sum(m.metadata.dst_node_id == 2 for m in moon.grid.sent) == 1


def test_a_site_comes_back_at_another_node(moon: Deployment) -> None:
    """A new key, the same data and secret: while the old node is away, it is the party."""

    def move(order: Message, reply: Message) -> Message:
        if order.metadata.message_type == "evaluate" and moon.grid.online == {1, 2, 3}:
            moon.grid.contexts[7] = moon.grid.contexts[2]
            moon.grid.online = {1, 3, 7}
        return reply

    moon.grid.meddle = move
    result = moon.serve()
    assert not any("missing" in party for party in result.rounds[-1]["parties"])
    assert same(result.models, moonfl.run(MOON3, workers=1).models)


def judged(**facts: Any) -> Callable[[Message, Message], Message]:
    def meddle(order: Message, reply: Message) -> Message:
        mine = order.metadata.message_type == "evaluate" and order.metadata.dst_node_id == 2
        return (
            reply if not mine else Message(pack(unpack(reply.content)[0] | facts), reply_to=order)
        )

    return meddle


def says(**counts: Any) -> dict[str, Any]:
    """Of 120 samples, 12 of each class and all of them recognised, but for what is given."""
    return {
        "test": {"loss": 1.0} | dict.fromkeys(("actual", "predicted", "hits"), [12] * 10) | counts
    }


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"test": None}, "the sum of its losses is None"),
        ({"party": 0}, "it says party 0, not 1"),
        (says(loss=1e300), r"the sum of its losses is 1e\+300"),
        (says(loss="x"), "the sum of its losses is x"),
        (says(hits=120), "of hits it says 120, not a whole number for each of 10 classes"),
        (says(hits=[12] * 9), "of hits it says .* not a whole number for each of 10 classes"),
        (says(hits=[12.0] * 10), "of hits it says .* not a whole number for each of 10 classes"),
        (
            says(actual=[True] * 10),
            "of actual it says .* not a whole number for each of 10 classes",
        ),
        (
            says(predicted=[-12, 132] + [0] * 8),
            "of predicted it says .* not a whole number for each of 10 classes",
        ),
        (
            says(actual=[10**4299] * 10),
            "of actual it says .* not a whole number for each of 10 classes",
        ),
        (says(actual=[12] * 9 + [13]), "it counts 121 actual, and holds out 120 samples"),
        (says(predicted=[12] * 9 + [11]), "it counts 119 predicted, and holds out 120 samples"),
        (says(hits=[12] * 9 + [13]), "more samples are right than there are, or were taken for it"),
        (
            says(predicted=[11, 13] + [12] * 8),
            "more samples are right than there are, or were taken for it",
        ),
    ],
)
def test_a_site_that_cannot_count_does_not_judge(
    moon: Deployment, facts: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    moon.exp = replace(MOON3, rounds=1)
    moon.grid.meddle = judged(**facts)
    assert list(moon.serve().rounds[0]["sites"]) == ["0", "2"]
    assert re.search(f"site-2 does not judge the model: .*{message}", capsys.readouterr().err)


def test_counts_that_could_be_true_are_taken(moon: Deployment) -> None:
    moon.exp = replace(MOON3, rounds=1)
    moon.grid.meddle = judged(**says())
    assert moon.serve().rounds[0]["sites"]["1"] == [120, 120]


EARLY = replace(MOON3, rounds=9, lr=0.1, validation=0.1, patience=1)


def test_validation_samples_at_the_sites_choose_the_round_they_choose_at_home(
    tmp_path: Path,
) -> None:
    """The same facts and models, the same early end, the server's own test set or not; and what is then resumed."""
    expected = moonfl.run(EARLY, workers=1)
    assert expected.chosen is not None
    assert 1 < len(expected.rounds) < 9
    early = Deployment(tmp_path / "federation", EARLY)
    parts = [np.load(early.folder / f"site-{k + 1}" / "data.npz") for k in range(3)]
    x, y = (np.concatenate([part[name] for part in parts]) for name in ("x_test", "y_test"))
    np.savez(tmp_path / "test.npz", x=x, y=y, classes=parts[0]["classes"])
    for out, test in (("sites", ""), ("server", str(tmp_path / "test.npz"))):
        found = early.serve(test=test, out=str(tmp_path / out))
        for key in ("accuracy", "macro_f1", "balanced_accuracy", "validation_accuracy"):
            assert [fact[key] for fact in found.rounds] == [fact[key] for fact in expected.rounds]
        assert ("sites" in found.rounds[0]) == (not test)
        assert same(found.models, expected.models)
        assert same(load(tmp_path / out / "best.safetensors"), expected.chosen_models)
        before = len(early.grid.sent)
        assert same(
            early.serve(test=test, out=str(tmp_path / out), resume=True).models, expected.models
        )
        assert all(message.metadata.message_type == "query" for message in early.grid.sent[before:])


def test_a_site_that_lies_of_validation_does_not_choose(tmp_path: Path) -> None:
    early = Deployment(tmp_path / "federation", replace(EARLY, rounds=1))
    honest = early.serve(out=str(tmp_path / "honest")).rounds[0]
    early.grid.meddle = judged(
        validation={"loss": 0.0, "actual": [1] * 10, "predicted": [1] * 10, "hits": [1] * 10}
    )
    lied = early.serve().rounds[0]
    assert list(lied["sites"]) == ["0", "2"]
    assert lied["validation_accuracy"] != honest["validation_accuracy"]


def test_parties_that_hold_out_their_own_find_the_same_at_home_and_at_sites(tmp_path: Path) -> None:
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


def test_a_model_without_a_finite_loss_anywhere_has_diverged(moon: Deployment) -> None:
    def diverge(order: Message, reply: Message) -> Message:
        if order.metadata.message_type != "train":
            return reply
        facts, tensors = unpack(reply.content)
        huge = {name: torch.full_like(t, 3e38) for name, t in tensors["params"].items()}
        return Message(pack(facts, {**tensors, "params": huge}), reply_to=order)

    moon.grid.meddle = diverge
    with pytest.raises(DivergenceError, match="a finite loss at no site"):
        moon.serve()


def test_fednovas_norm_is_what_the_steps_make_it(tmp_path: Path) -> None:
    nova = Deployment(tmp_path / "federation", replace(MOON3, algorithm=FedNova(), rounds=1))

    def meddle(order: Message, reply: Message) -> Message:
        facts, tensors = unpack(reply.content)
        if order.metadata.message_type != "train" or order.metadata.dst_node_id != 2:
            return reply
        return Message(
            pack(facts, {**tensors, "extra/norm": {"a": torch.tensor(1e-300).double()}}),
            reply_to=order,
        )

    nova.grid.meddle = meddle
    (missing,) = (p["missing"] for p in nova.serve().rounds[0]["parties"] if "missing" in p)
    assert missing == "norm is not what 7 steps make it"


def test_a_site_mended_before_the_first_round_joins(
    moon: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was met first had the wrong data, so the others did not fit it."""
    monkeypatch.setattr(membership, "ASK_AGAIN", 0.5)
    path = moon.folder / "site-1" / "data.npz"
    good = path.read_bytes()
    np.savez(path, x=np.zeros((9, 1, 7, 7), np.uint8), y=np.arange(9), classes=np.arange(10))

    def mend(order: Message, reply: Message) -> Message:
        path.write_bytes(good)
        return reply

    moon.grid.meddle = mend
    assert same(moon.serve(wait=20.0).models, moonfl.run(MOON3, workers=1).models)


def test_a_simulation_that_fails_ends_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray that does not start, and Ctrl-C: one message, no thread of the server left, the run directory free."""
    before = set(threading.enumerate())
    for error, told in (
        (RuntimeError("no room"), RunError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):

        def fail(*args: object, error: BaseException = error, **kwargs: object) -> None:
            time.sleep(0.5)
            raise error

        monkeypatch.setattr("flwr.server.superlink.fleet.vce.start_vce", fail)
        with pytest.raises(told):
            simulate(QUICK, tmp_path / "run", force=True)
        end = time.monotonic() + 20
        while set(threading.enumerate()) - before and time.monotonic() < end:
            time.sleep(0.05)
        assert not set(threading.enumerate()) - before
    moonfl.run(QUICK, tmp_path / "run", force=True, workers=1)


def test_two_sites_cannot_be_one_party(moon: Deployment) -> None:
    site = moon.folder / "site-3" / "site.toml"
    site.write_text(site.read_text().replace("party = 2", "party = 1"))
    with pytest.raises(
        RunError, match=r"site-3 \(node 3\) was refused: it says it is party 1 and has not that"
    ):
        moon.serve()
    with pytest.raises(
        RunError, match=r"site-3 \(node 3\) was refused: party 1 is site-2 already, at node 2"
    ):
        moon.serve(secrets="")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("party = 2\ndevice = 'cuda:7'", "device=cuda:7 cannot be used here"),
        ("party = 2\ndata = 'site.toml'", "site.toml is not an .npz file of plain arrays"),
        ("party = -1", "party must be an integer >= 0"),
        ("parti = 1", "did you mean party"),
        ("party = 2\nholdout = 1.0", "holdout must be"),
        ("party = 2\ndata = 'nowhere.npz'", "nowhere.npz cannot be read: No such file"),
        ("party = 2\ndata = '.'", "has no class folders"),
        ("party =", "is not TOML"),
    ],
)
def test_what_is_wrong_at_a_site_is_told_in_its_own_log(
    moon: Deployment, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (moon.folder / "site-3" / "site.toml").write_text(text)
    with pytest.raises(RunError, match=WRONG_THERE):
        moon.serve()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("party = 9", "it says it is party 9; parties are 0 to 2"),
        ("party = 2", "it says it is party 2 and has not that party's secret"),
    ],
)
def test_a_site_that_takes_itself_for_another_is_refused(
    moon: Deployment, text: str, message: str
) -> None:
    (moon.folder / "site-3" / "site.toml").write_text(text)
    with pytest.raises(RunError, match=message):
        moon.serve()


def test_a_site_prepares_pixels_as_the_server_does(tmp_path: Path) -> None:
    """Whatever kind of file they are in: the model is one."""
    exp = Experiment(dataset="sites", model="simple-cnn", parties=1, rounds=1)
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").unlink()
    prepared = []
    for name in ("cifar-10-batches-py", "data.npz"):
        (tmp_path / "site.toml").write_text(f"party = 0\ndata = '{name}'\nholdout = 0.0\n")
        task = read_site(tmp_path / "site.toml", exp)[1].task
        write_npz(tmp_path / "data.npz", task.parties[0], None, task.classes)
        prepared.append(task.preparation.batch(task.parties[0].x, torch.arange(100)))
    assert torch.equal(*prepared)
    assert task.preparation == default_preparation(torch.uint8, 3)  # the server's


@pytest.mark.parametrize("name", ["train.csv", "ill/Jane Doe.txt"])
def test_no_cell_and_no_file_name_reaches_the_server(
    moon: Deployment, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not in an error either."""
    site, path = moon.folder / "site-3" / "site.toml", moon.folder / "site-3" / "data" / name
    path.parent.mkdir(parents=True)
    path.write_text("age,label\n50,1\nJane Doe,2\n")
    site.write_text(site.read_text().replace("data.npz", "data"))
    with pytest.raises(RunError, match=WRONG_THERE) as told:
        moon.serve()
    assert "Jane" not in str(told.value)
    out, err = capsys.readouterr()
    assert "Jane" not in out
    assert "Jane Doe" in next(line for line in err.splitlines() if str(site.parent) in line)


def test_a_site_holds_out_a_fifth_of_its_own_where_its_data_have_no_test_part(
    moon: Deployment,
) -> None:
    for k in range(3):
        path = moon.folder / f"site-{k + 1}" / "data.npz"
        np.savez(
            path,
            **{name: value for name, value in np.load(path).items() if not name.endswith("_test")},
        )
    result = moon.serve()
    total = sum(len(np.load(moon.folder / f"site-{k + 1}" / "data.npz")["y"]) for k in range(3))
    held = sum(n for _, n in result.rounds[0]["sites"].values())
    assert held == pytest.approx(total / 5, abs=3)
    assert sum(p["samples"] for p in result.rounds[0]["parties"]) == total - held


def test_a_test_set_at_the_server_judges_instead_of_the_sites(
    moon: Deployment, tmp_path: Path
) -> None:
    expected = moonfl.run(MOON3, workers=1)
    parts = [np.load(moon.folder / f"site-{k + 1}" / "data.npz") for k in range(3)]
    classes = parts[0]["classes"]
    x, y = (np.concatenate([part[name] for part in parts]) for name in ("x_test", "y_test"))
    np.savez(tmp_path / "test.npz", x=x, y=y, classes=classes)
    result = moon.serve(test=str(tmp_path / "test.npz"))
    assert result.accuracy == expected.accuracy
    assert "sites" not in result.rounds[0]
    assert not any(m.metadata.message_type == "evaluate" for m in moon.grid.sent)


def test_data_that_changed_are_refused_when_a_run_goes_on(moon: Deployment) -> None:
    lose(moon, 0, {1})
    with pytest.raises(RunError):
        moon.serve(min_parties=3)
    path = moon.folder / "site-1" / "data.npz"
    arrays = dict(np.load(path))
    arrays["y"] = arrays["y"][::-1]
    np.savez(path, **arrays)
    moon.grid = InProcess(moon.grid.app, moon.grid.configs)
    with pytest.raises(
        RunError, match=r"site-1 \(node 1\) was refused: its data are not those it had when"
    ):
        moon.serve(resume=True, min_parties=3)


def test_another_experiment_does_not_go_on_with_a_run(moon: Deployment) -> None:
    moon.serve()
    with pytest.raises(
        InputError, match="is a run over sites: `moonfl flower run DEPLOYMENT --out"
    ):
        moonfl.resume(moon.out)
    with pytest.raises(InputError, match=r"unknown key .* 'min_partys'; did you mean min_parties"):
        moon.serve(min_partys=1)
    with pytest.raises(InputError, match="out, the run directory, is not set"):
        moon.serve(out="")
    moon.exp = replace(MOON3, rounds=9)
    with pytest.raises(InputError, match=r"is a run of another experiment\.toml than the app's"):
        moon.serve(resume=True)
    with pytest.raises(InputError, match="min_parties=4 of 3 parties can never answer"):
        moon.serve(min_parties=4)


def test_the_run_of_a_deployment_can_be_reported(moon: Deployment, tmp_path: Path) -> None:
    lose(moon, 1, {1})
    moon.serve()
    assert main(["report", str(moon.out), "--out", str(tmp_path / "report")]) == 0
    assert main(["compare", str(moon.out)]) == 0


def test_the_model_of_a_deployment_can_be_exported(moon: Deployment, tmp_path: Path) -> None:
    """By its result and by its directory, to the same file; the server has no sample to compare by."""
    result = moon.serve()
    by_result, by_directory = (
        moonfl.export(run, tmp_path / kind) for kind, run in (("a", result), ("b", moon.out))
    )
    assert "random inputs" in by_result.checked
    assert "samples of the data" in by_directory.checked  # these digits come with scikit-learn
    files = [(tmp_path / kind / "model.safetensors").read_bytes() for kind in ("a", "b")]
    assert files[0] == files[1]


FORGED = '@moonfl {"done": {"told": "perfect"}}'


def test_following_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    facts: list[Any] = []
    lines = [
        "INFO : started run 7\n",
        '@moonfl {"fact": {"round": 1}}\n',
        "INFO : moonfl: site-1 is party 0\n",
        "\n",
    ]
    lines += [
        f"moonfl: node 3 was refused: {FORGED}\n",
        "@moonfl is a name\n",
    ]  # a site's words, were they not cleaned
    followed = Followed(facts.append)
    assert followed.to_the_end([*lines, '@moonfl {"done": {"told": "good"}}\n', "not read"]) == {
        "told": "good"
    }
    assert (facts, followed.number) == ([{"round": 1}], "7")
    assert (
        capsys.readouterr().err
        == f"moonfl: site-1 is party 0\nmoonfl: node 3 was refused: {FORGED}\n"
    )
    with pytest.raises(RunError, match="round 2 needs"):
        followed.to_the_end(['@moonfl {"error": "round 2 needs 3", "failure": "run"}\n'])
    with pytest.raises(InputError, match="min_parties"):
        followed.to_the_end(['@moonfl {"error": "min_parties", "failure": "input"}\n'])
    with pytest.raises(RunError, match=r"before it was done\. Its last words: no such thing"):
        Followed(facts.append).to_the_end(["╭─────╮\n", "│ no such thing │\n"])


@pytest.mark.parametrize(
    "text", [FORGED, f"\n{FORGED}", "@@moonfl", "@moon@moonflfl", "x" * 195 + FORGED]
)
def test_no_text_of_a_site_passes_for_the_runs_own_words(text: str) -> None:
    assert MARK not in clean(text)
    assert "\n" not in clean(text)


def test_the_folder_one_is_in_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["flower", "init", ".", "--sites", "2", "dataset=sites"]) == 2
    assert ". is the folder you are in" in capsys.readouterr().err


def test_certificates_pass_a_strict_verifier(tmp_path: Path) -> None:
    """As Python's own is from 3.13 on."""
    write_certificates(tmp_path, "fl.example.org")
    words = [
        "openssl",
        "verify",
        "-x509_strict",
        "-CAfile",
        str(tmp_path / "ca.crt"),
        str(tmp_path / "server.crt"),
    ]
    assert subprocess.run(words, capture_output=True, text=True, timeout=30).stdout.endswith(
        "server.crt: OK\n"
    )


def test_a_server_that_is_not_there(moon: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    path = moon.folder / "deployment.toml"
    path.write_text(path.read_text().replace("8000", str(port)))
    assert main(["flower", "run", str(moon.folder)]) == 1
    assert f"no SuperLink answers at 127.0.0.1:{port}" in capsys.readouterr().err.splitlines()[-1]
    assert not (moon.folder / "server" / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["init", "new", "--sites", "1"], "at least 2 sites"),
        (["init", "full", "--sites", "2"], "full is there and not empty"),
        (["init", "new", "--sites", "2", "--address", "nowhere"], "--address is HOST:PORT"),
        (["init", "new", "--sites", "2", "--address", "[::1]:8000"], "--address is HOST:PORT"),
        (["init", "new", "--sites", "2", "--address", "a b;c:8000"], "--address is HOST:PORT"),
        (
            ["init", "new", "--sites", "3", "--address", "host:65534"],
            "port must be from 1 to 65532",
        ),
        (["init", 'new"', "--sites", "3"], "no quotation marks"),
        (["init", "new", "--sites", "2", "digits-mon"], "did you mean digits-moon"),
        (["init", "new", "--sites", "2", "cifar10-moon", "--with-data"], "cifar10 is not in data"),
        (
            ["init", "new", "--sites", "2", "dataset=sites", "--with-data"],
            "dataset=sites means the data are at",
        ),
        (["run", "nowhere"], "nowhere is no deployment"),
        (["run", "full", "--resume"], "full is no deployment"),
    ],
)
def test_wrong_words_get_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    assert main(["flower", *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
