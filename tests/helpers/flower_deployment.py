"""Deployments and simulations over Flower messages, served in one process."""

import threading
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Message

import moonfl
from helpers.flower_grid import InProcessGrid, unpack
from moonfl import MOON, Experiment
from moonfl.experiment import override
from moonfl.flower.client import client_app
from moonfl.flower.init import init
from moonfl.flower.protocol import pack
from moonfl.flower.server import serve, site_app
from moonfl.flower.simulation import simulation_engine, simulation_site
from moonfl.runs.index import CHECKPOINT
from moonfl.runs.result import Result
from moonfl.runs.tensor_files import load

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


def table_experiment(folder: Path, table: str, parties: int, *changes: str) -> Experiment:
    """Write a table to a folder and return an experiment whose parties are its column `site`."""
    path = folder / "t.csv"
    path.write_text(table)
    words = ["dataset=csv", f"data_dir={path}", "label=outcome", "column=site", "epochs=1"]
    return replace(override(Experiment(), [*words, *changes]), parties=parties)


def run_simulated(exp: Experiment, out: Path, **options: Any) -> Result:
    """Run an experiment like `moonfl flower simulate`, but in this process."""
    configs = [{"partition-id": k, "num-partitions": exp.parties} for k in range(exp.parties)]
    make_site = partial(simulation_site, exp, out / CHECKPOINT)
    grid = InProcessGrid(client_app(make_site, private=False), configs)
    engine = partial(simulation_engine, grid, out=out, stop=threading.Event())
    return moonfl.run(exp, out, engine=engine, **options)


class Deployment:
    """A deployment of `moonfl flower init`, by default --with-data, served in one process."""

    def __init__(self, folder: Path, exp: Experiment, *, with_data: bool = True) -> None:
        init(folder, exp, exp.parties, "127.0.0.1:8000", with_data=with_data)
        self.folder = folder
        self.exp = exp
        self.out = folder / "run"
        sites = [folder / f"site-{k + 1}" / "site.toml" for k in range(exp.parties)]
        configs: list[dict[str, object]] = [{"site": str(site)} for site in sites]
        self.grid = InProcessGrid(site_app(folder / "app" / "experiment.toml"), configs)

    def serve(self, **changes: Any) -> Result:
        """Run or resume the experiment; `changes` are of the app's configuration."""
        app = tomllib.loads((self.folder / "app" / "pyproject.toml").read_text())
        config = app["tool"]["flwr"]["app"]["config"]
        config = {**config, **RULES, "out": str(self.out), **changes}
        return serve(self.grid, self.exp, config, lambda record: None)

    def states(self, party: int) -> dict[int, Any]:
        """Return round -> the state that the party has stored of it on its own disk."""
        paths = (self.folder / f"site-{party + 1}" / "states").glob("*/*.safetensors")
        return {int(path.stem.rpartition("-")[2]): load(path) for path in paths}


def drop_updates(deployment: Deployment, party: int, rounds: set[int], times: int = 99) -> None:
    """Let a party train in these rounds, but lose its answers, so many times per round."""
    remaining = dict.fromkeys(rounds, times)

    def intercept(request: Message, reply: Message) -> Message | None:
        if request.metadata.message_type != "train":
            return reply
        header: dict[str, Any] = unpack(request.content)[0]
        if header["party"] != party or remaining.get(header["round"], 0) == 0:
            return reply
        remaining[header["round"]] -= 1
        return None

    deployment.grid.intercept = intercept


def edit_description(node: int, **fields: Any) -> Callable[[Message, Message], Message]:
    """Return an interception that replaces fields of what a node reports about itself."""

    def intercept(request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "query" or request.metadata.dst_node_id != node:
            return reply
        return Message(pack(unpack(reply.content)[0] | fields), reply_to=request)

    return intercept
