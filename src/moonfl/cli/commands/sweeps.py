"""`moonfl sweep`."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from ...api.experiments import Execution
from ...errors import Interrupted, RunError
from ...experiment import Experiment
from ...runs.progress import Progress
from ...sweeps.runner import Options
from ...sweeps.runner import sweep as run_sweep
from ..experiments import check_spaces, select_experiment
from ..signals import Terminated
from . import training

HINT = "the same command continues the sweep"


def sweep(args: argparse.Namespace) -> None:
    """Run all settings of a grid, or trials, and print the selected one."""

    def make(words: list[str]) -> Experiment:
        return select_experiment(words, args.trust, may_be_unused=True)[1]

    @contextlib.contextmanager
    def execution(exp: Experiment, is_alone: bool) -> Iterator[Execution]:
        if not is_alone:  # the progress of several runs would be mixed
            yield training.options(args, None)
            return
        with Progress(exp.rounds, shows_lr=exp.has_schedule) as progress:
            yield training.options(args, progress)

    check_spaces(args.words)
    options = Options(
        out=Path(args.out),
        execution=execution,
        seeds=args.seeds,
        select=args.select,
        trials=args.trials,
        jobs=args.jobs,
        workers=args.workers,
        track=args.track,
        json=args.json,
    )
    try:
        run_sweep(args.words, make, options)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {HINT}") from None
    except Terminated:
        raise Terminated(f"terminated; {HINT}") from None
    except RunError as error:
        raise RunError(f"{error}; {HINT}") from None
