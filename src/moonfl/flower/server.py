"""The ServerApp of a deployment: federation.run over the sites that are there, told in lines that can be followed."""

import contextlib
import hashlib
import json
import sys
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from .. import settings
from ..api import experiments as api
from ..data.augment import default_preparation
from ..data.base import Dataset, Examples, check_names
from ..data.datasets import source
from ..data.moments import mean_and_std
from ..data.npz import read_npz
from ..errors import DivergenceError, InputError, RunError, unknown
from ..experiment import Experiment, from_toml
from ..models.encoders import ENCODERS
from ..runs.checkpoint import fingerprint
from ..runs.directory import PARTITION
from ..runs.recorder import Result
from ..runs.states import States
from ..runs.summary import summarise_result
from ..task import Task, check_model, hash_examples, make_builder
from .client import Site, client_app
from .engine import Sites
from .membership import Roll, Rules
from .protocol import MARK, Facts, RefusedError, check_site, moments_of
from .site import read_site

FAILURES: dict[str, type[InputError | RunError]] = {
    "input": InputError,
    "divergence": DivergenceError,
    "run": RunError,
}
HERE = {"device": "cpu"}  # whatever the experiment was laid out with: sites say theirs in site.toml
CONFIG = (
    "out",
    "resume",
    "previous",
    "test",
    "secrets",
)  # keys of an app's config beside the Rules


@dataclass(frozen=True)
class AtSites(Task):
    """A task whose training data are elsewhere; what is known of them is what the sites said."""

    run: str = ""
    sites: tuple[Facts, ...] = ()

    def partition_record(self) -> Facts:
        hashes = "".join(facts["sha256"] for facts in self.sites)
        return {
            "classes": list(self.classes),
            "counts": [facts["counts"] for facts in self.sites],
            "names": list(self.names),
            "sha256": hashlib.sha256(hashes.encode()).hexdigest(),
            "run": self.run,
            "sites": list(self.sites),
            "test": hash_test_set(self.test),
        }


def server_app(experiment: Path) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """The run, and a last line that says how it ended."""
        config = dict(context.run_config)

        def tell(line: Facts) -> None:
            # One write, so that nobody's words come between; it begins a line of its own whatever came before.
            sys.stdout.write(f"\n{MARK} {json.dumps(line)}\n")
            sys.stdout.flush()

        try:
            result = serve(
                grid, from_toml(experiment, HERE), config, lambda fact: tell({"fact": fact})
            )
        except (InputError, RunError) as error:
            failure = next(name for name, kind in FAILURES.items() if isinstance(error, kind))
            tell({"error": str(error), "failure": failure})
            raise
        tell({"done": {"told": summarise_result(result)}})

    return app


def site_app(experiment: Path) -> ClientApp:
    """The ClientApp of a site whose SuperNode was started with the path of its site.toml in its node-config."""

    def site_of(context: Context) -> tuple[Experiment, Site]:
        path = context.node_config.get("site")
        if not isinstance(path, str):
            raise InputError(
                "this SuperNode's --node-config names no site.toml; the start.sh of a site does"
            )
        return read_site(Path(path), from_toml(experiment, HERE))

    return client_app(site_of)


def serve(grid: Grid, exp: Experiment, config: dict[str, Any], watch: api.Watch) -> Result:
    """A new run over all sites, or one that goes on with those that are there."""
    rules = check_config(exp, config)
    out, previous = Path(config["out"]), bool(config.get("previous"))
    stored = read_stored(out, exp) if config.get("resume") else None
    test = read_test(str(config.get("test", "")))
    judge = hash_test_set(test.train if test is not None else None)
    if stored is not None and stored.get("test", judge) != judge:
        was = "a test set at the server, and this is not it" if stored["test"] else "the sites"
        raise InputError(
            f"the models of {out} were judged by {was}; --test must be as it was when the run began"
        )
    secrets = tuple(filter(None, map(str.strip, str(config.get("secrets", "")).split(","))))
    if secrets and len(secrets) != exp.parties:
        raise InputError(
            f"app/pyproject.toml has the secrets of {len(secrets)} sites, app/experiment.toml has parties={exp.parties}"
        )
    roll = Roll(
        grid, exp.parties, rules, dict(enumerate(stored["sites"])) if stored else {}, secrets
    )
    if stored is not None:
        roll.begun = True
        roll.wait_for(
            lambda present: len(present) >= rules.min_parties,
            f"and a round needs {rules.min_parties}",
        )
    else:
        roll.wait_for(
            lambda present: len(present) == exp.parties,
            "and a run begins when all have been compared",
        )
        roll.begin()
    run = stored["run"] if stored is not None else uuid.uuid4().hex
    task = make_task(exp, roll, run, test)

    def engine(exp: Experiment, task: Task, states: States) -> Sites:
        return Sites(exp, task, states, roll, run)

    if stored is not None:
        return api.resume(out, previous=previous, task=task, watch=watch, engine=engine)
    return api.run(exp, out, task=task, watch=watch, engine=engine)


def check_config(exp: Experiment, config: dict[str, Any]) -> Rules:
    for key in config:
        if key not in CONFIG and key not in settings.names(Rules):
            raise unknown("key of [tool.flwr.app.config]", key, [*CONFIG, *settings.names(Rules)])
    rules = settings.build(
        Rules, {key: value for key, value in config.items() if key not in CONFIG}, ""
    )
    if rules.min_parties > exp.parties:
        raise InputError(
            f"min_parties={rules.min_parties} of {exp.parties} parties can never answer"
        )
    if not config.get("out"):
        raise InputError("out, the run directory, is not set; `moonfl flower run` sets it")
    return rules


def read_test(path: str) -> Dataset | None:
    """The samples of the server's own that models are judged on, an .npz file, where it has one."""
    if not path:
        return None
    data = read_npz(Path(path))
    return data if data.test is None else replace(data, train=data.test)


def hash_test_set(test: Examples | None) -> str:
    return hash_examples(test) if test is not None and len(test.y) > 0 else ""


def make_task(exp: Experiment, roll: Roll, run: str, test: Dataset | None) -> AtSites:
    """What the sites have in common; `test` is the server's own, where it has one."""
    sites = tuple(roll.known[i] for i in range(exp.parties))
    shape, classes = tuple(sites[0]["shape"]), tuple(sites[0]["classes"])
    check_names("a class", classes)
    dtype = next((d for d in (torch.uint8, torch.float32) if str(d) == sites[0]["dtype"]), None)
    if dtype is None:
        raise InputError(
            f"the sites have samples of type {sites[0]['dtype']}; only bytes and float32 are known here"
        )
    network = make_builder(exp, shape, dtype, len(classes))
    check_model(network, exp.model not in ENCODERS)
    try:
        shared = (
            mean_and_std([moments_of(facts) for facts in sites], shape)
            if network.standardises
            else None
        )
    except RefusedError as error:  # one that said nothing of them at all
        raise RunError(str(error)) from None
    held = Examples(torch.zeros(0, *shape, dtype=dtype), torch.zeros(0, dtype=torch.long))
    if test is not None:
        held = test.train
        if tuple(held.x.shape[1:]) != shape or held.x.dtype != dtype or test.classes != classes:
            raise InputError(
                f"--test has not the shape {list(shape)}, the type {dtype} and the classes of the sites"
            )
    elif not any(facts["held_out"] for facts in sites):
        raise InputError(
            "no site holds data out and the server has no test set: nobody could judge the model"
        )
    if exp.validation is not None and not any(facts["validation"] for facts in sites):
        raise InputError(
            f"no site has samples enough to keep a share of {exp.validation:g} apart; raise validation"
        )
    preparation = source(exp.dataset).preparation or default_preparation(dtype, len(shape))
    names = tuple(facts["name"] for facts in sites)
    return AtSites(
        network.build,
        (),
        held,
        preparation,
        network.batch_norm,
        classes,
        "",
        names,
        scales=shared,
        run=run,
        sites=sites,
    )


def read_stored(out: Path, exp: Experiment) -> Facts:
    """What a run that goes on wrote of its sites when it began."""
    if fingerprint(api.experiment_of(out)) != fingerprint(exp):
        raise InputError(f"{out} is a run of another experiment.toml than the app's")
    with contextlib.suppress(
        OSError, ValueError, KeyError, TypeError, AttributeError, RefusedError
    ):
        stored: Facts = json.loads((out / PARTITION).read_bytes())
        for facts in stored["sites"]:
            facts.setdefault("features", [])  # as of a run that began before they were told
        if [check_site(facts, exp.parties) for facts in stored["sites"]] == list(
            range(exp.parties)
        ):
            return stored | {"run": str(stored["run"])}
    raise InputError(
        f"{out / PARTITION} is damaged, or not a deployment's: it does not say which sites the run has"
    )
