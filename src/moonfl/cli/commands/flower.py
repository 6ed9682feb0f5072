"""`moonfl flower simulate`, `moonfl flower init` and `moonfl flower run`."""

import argparse
from pathlib import Path
from typing import Any

from ... import settings
from ...components import short_name
from ...data.base import Reading
from ...data.npz import read_npz
from ...errors import DivergenceError, InputError, RunError, notify, quoted
from ...experiment import Experiment
from ...flower import run as deployment
from ...flower.init import check_path
from ...flower.init import init as create_deployment
from ...flower.membership import RoundRules
from ...flower.server import check_config
from ...flower.simulation import simulate as run_simulation
from ...runs.progress import Progress
from ...task import make_task, with_derived_settings
from ..directories import claim_directory
from ..experiments import describe, select_experiment
from .training import check_new, print_result, run_directory, train, with_hint


def simulate(args: argparse.Namespace) -> None:
    """Run an experiment on Flower's simulation engine."""
    name, exp = select_experiment(args.words, args.trust)
    check_new(args.out, force=args.force)
    task = make_task(exp)
    exp = with_derived_settings(exp, task)
    notify(describe(exp))
    out = run_directory(args.out, name)
    with Progress(exp.rounds, shows_lr=exp.has_schedule) as progress:
        result = train(
            out,
            lambda: run_simulation(
                exp,
                out,
                force=args.force,
                task=task,
                workers=args.workers,
                ray_address=args.ray_address,
                watch=progress,
                track=args.track,
            ),
        )
    print_result(result, args.json)


def init(args: argparse.Namespace) -> None:
    """Create the folder of a deployment."""
    _, exp = select_experiment(args.words, args.trust)
    folder = Path(args.folder)
    create_deployment(folder, exp, args.sites, args.address, args.with_data)
    readme = folder / "README.md"
    print(f"the deployment is in {folder}; {readme} describes what to start on which machine")


def run(args: argparse.Namespace) -> None:
    """Train over the sites of a deployment and show the progress."""
    folder = Path(args.folder)
    exp = deployment.read_experiment(folder)
    if (args.resume or args.previous) and args.out is None:
        raise InputError("--resume needs --out RUN, the directory of the run to resume")
    config = _config(args, exp)
    deployment.find_server(folder)
    if args.out is None:
        out = claim_directory(folder / "server" / "runs", short_name(exp.algorithm))
    else:
        out = Path(args.out)
    notify(describe(exp))
    with Progress(exp.rounds, shows_lr=exp.has_schedule) as progress:
        try:
            summary = deployment.run(folder, out, config, progress)
        except DivergenceError:
            raise  # it would diverge again
        except RunError as error:
            raise RunError(with_hint(str(error), out, _resume_hint(args, out))) from None
    print(summary)


def _config(args: argparse.Namespace, exp: Experiment) -> dict[str, Any]:
    """Return the options as changes of the app's configuration, checked."""
    config: dict[str, Any] = {}
    for key in settings.names(RoundRules):
        value = getattr(args, key)
        if value is not None:
            config[key] = value
    check_config(exp, config | {"out": "set"})
    if args.test is not None:
        test = Path(args.test)
        check_path(test)
        read_npz(test, Reading(task=exp.task))
        config["test"] = str(test.resolve())
    if args.track:
        config["track"] = ",".join(args.track)
    config["resume"] = args.resume or args.previous
    config["previous"] = args.previous
    return config


def _resume_hint(args: argparse.Namespace, out: Path) -> str:
    """Return the command that resumes a failed run, with the options that it was started with."""
    words = ["moonfl", "flower", "run", args.folder, "--out", out, "--resume"]
    for key in [*settings.names(RoundRules), "test"]:
        value = getattr(args, key)
        if value is not None:
            words += [f"--{key.replace('_', '-')}", value]
    for name in args.track:
        words += ["--track", name]
    return f"`{' '.join(map(quoted, words))}` resumes from the last finished round"
