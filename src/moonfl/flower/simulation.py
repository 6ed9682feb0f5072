"""`moonfl flower simulate`: an experiment on Flower's simulation engine, which runs on Ray.

The parties are ClientApps in Ray's processes. The result is bit-identical to that of the embedded
engine. Party states are stored in the run directory, which all processes share.
"""

import functools
import logging
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from ..api.experiments import Execution, start_run
from ..engines.base import num_cores
from ..errors import RunError
from ..experiment import Experiment
from ..runs.index import CHECKPOINT
from ..runs.result import Result, Watch, ignore
from ..runs.site_states import SiteStates
from ..runs.states import States
from ..task import Task, hash_examples, make_task, with_derived_settings
from .client import Site, client_app
from .engine import SiteEngine
from .membership import Membership, RoundRules

HOUR = 3600.0  # seconds
WEEK = 7 * 24 * HOUR
RUN_ID = "simulation"  # states are in the folder of the run, so the id need not be unique


def simulate(
    exp: Experiment,
    out: Path,
    *,
    force: bool = False,
    task: Task | None = None,
    workers: int | None = None,
    ray_address: str | None = None,
    watch: Watch = ignore,
    track: str | Sequence[str] = (),
) -> Result:
    """Run an experiment like moonfl.run, with the parties as ClientApps on Ray.

    On a cluster (`ray_address`) every machine must have access to `out` and to the data.
    """
    task = task or make_task(exp)
    exp = with_derived_settings(exp, task)
    results: list[Result | BaseException] = []
    stop = threading.Event()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def engine(exp: Experiment, task: Task, states: States) -> SiteEngine:
            return simulation_engine(grid, exp, task, states, out=out, stop=stop)

        options = Execution(watch=watch, engine=engine, track=track)
        try:
            results.append(start_run(exp, out, force=force, task=task, options=options))
        except BaseException as error:
            results.append(error)

    make_site = functools.partial(simulation_site, exp, out.resolve() / CHECKPOINT)
    client = client_app(make_site, private=False)
    backend = backend_config(workers, ray_address)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run_simulation(server, client, exp.parties, backend_config=backend)
        except RuntimeError as error:
            raise RunError(f"Flower's simulation failed: {error.__cause__ or error}") from None
        finally:
            stop.set()  # otherwise Flower's server thread would continue
    if not results:
        raise RunError("Flower's simulation ended before the run was finished")
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def backend_config(workers: int | None, ray_address: str | None) -> Any:
    """Return the configuration of Ray: an existing cluster, or this machine's cores."""
    arguments: dict[str, str | int | bool] = {
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if ray_address:
        arguments["address"] = ray_address
    else:
        arguments["num_cpus"] = workers or num_cores()
    return {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": arguments}


def simulation_engine(
    grid: Grid,
    exp: Experiment,
    task: Task,
    states: States,
    *,
    out: Path,
    stop: threading.Event,
) -> SiteEngine:
    """Return the engine of a simulation.

    Every party must answer at once: no network is involved, so a failure is an error of the run.
    """
    rules = RoundRules(deadline=WEEK, min_parties=exp.parties, wait=120.0, attempts=1, query=HOUR)
    membership = Membership(
        grid=grid, parties=exp.parties, rules=rules, log=lambda line: None, stop=stop
    )
    membership.wait_for(
        lambda present: len(present) == exp.parties, "and a simulation needs all of them"
    )
    for i, site in membership.sites.items():
        if site.sha256 != hash_examples(task.parties[i], *task.held_out.values()):
            raise RunError(f"the data of party {i} differ between its process and this one")
    return SiteEngine(
        exp=exp,
        task=task,
        states=states,
        membership=membership,
        run=RUN_ID,
        has_states=True,
    )


def simulation_site(exp: Experiment, folder: Path, context: Context) -> tuple[Experiment, Site]:
    """Return the site of a simulated party; `folder` has the states of all parties."""
    party = int(context.node_config["partition-id"])
    states = SiteStates(folder, remove_old=False)
    site = Site(
        party=party, name=f"party {party}", task=cached_task(exp), states=lambda run: states
    )
    return exp, site


@functools.lru_cache(maxsize=1)
def cached_task(exp: Experiment) -> Task:
    """Return the task of an experiment; each process reads the data once."""
    return make_task(exp)
