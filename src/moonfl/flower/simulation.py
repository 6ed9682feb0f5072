"""`moonfl flower simulate`: an experiment on Flower's simulation engine, Ray, to the embedded engine's bits."""

import functools
import logging
import threading
import warnings
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from ..api import experiments as api
from ..engines.base import num_cores
from ..errors import RunError
from ..experiment import Experiment
from ..runs.directory import CHECKPOINT
from ..runs.recorder import Result
from ..runs.site_states import SiteStates
from ..runs.states import States
from ..task import Task, hash_examples, make_task, with_party_count
from .client import Site, client_app
from .engine import Sites
from .membership import Roll, Rules

HOUR, WEEK = 3600.0, 7 * 86400.0
RUN = "simulation"  # its states lie in the folder of the run, so no other name is needed


def simulate(
    exp: Experiment,
    out: Path,
    *,
    force: bool = False,
    task: Task | None = None,
    workers: int | None = None,
    ray_address: str | None = None,
    watch: api.Watch = lambda fact: None,
) -> Result:
    """Like api.run, by ClientApps on Ray. On a cluster (`ray_address`) every machine must see `out` and the data."""
    task = task or make_task(exp)
    exp = with_party_count(exp, task)
    results: list[Result | BaseException] = []
    stop, server = threading.Event(), ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def engine(exp: Experiment, task: Task, states: States) -> Sites:
            return simulated_sites(grid, exp, task, states, out, stop)

        try:
            results.append(api.run(exp, out, force=force, task=task, watch=watch, engine=engine))
        except BaseException as error:
            results.append(error)

    where: dict[str, str | int] = (
        {"address": ray_address} if ray_address else {"num_cpus": workers or num_cores()}
    )
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    backend: Any = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": where | quiet,
    }
    client = client_app(
        functools.partial(simulated_site, exp, out.resolve() / CHECKPOINT), private=False
    )
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run_simulation(server, client, exp.parties, backend_config=backend)
        except RuntimeError as error:
            raise RunError(f"Flower's simulation failed: {error.__cause__ or error}") from None
        finally:
            stop.set()  # Flower's thread of the server outlives it otherwise
    if not results:
        raise RunError("Flower's simulation ended before the run did")
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def simulated_sites(
    grid: Grid, exp: Experiment, task: Task, states: States, out: Path, stop: threading.Event
) -> Sites:
    """Every party must answer: nothing is lost on the way, so a failure is a fault of the run's own."""
    rules = Rules(WEEK, exp.parties, wait=120.0, attempts=1, query=HOUR)
    roll = Roll(grid, exp.parties, rules, tell=lambda line: None, stop=stop)
    roll.wait_for(lambda present: len(present) == exp.parties, "and a simulation needs all of them")
    for i, facts in roll.known.items():
        if facts["sha256"] != hash_examples(task.parties[i], *task.held_out.values()):
            raise RunError(f"party {i} has other data where it is simulated than here")
    return Sites(exp, task, states, roll, RUN, SiteStates(out / CHECKPOINT, remove_old=False))


def simulated_site(exp: Experiment, folder: Path, context: Context) -> tuple[Experiment, Site]:
    party = int(context.node_config["partition-id"])
    states = SiteStates(folder, remove_old=False)
    return exp, Site(party, f"party {party}", task_of(exp), lambda run: states)


@functools.lru_cache(maxsize=1)
def task_of(exp: Experiment) -> Task:
    """Read once by each process."""
    return make_task(exp)
