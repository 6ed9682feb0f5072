"""Runs in directories that are named by their settings and seed.

The name says nothing about the data and the user's code, which may change while their location
stays. `ended_run` therefore compares them before a stored run is used.

A command that needs such a run keeps it if it is finished, resumes it if it is not, and starts it
if it does not exist. Repeating the command therefore completes what an interruption left.
"""

from dataclasses import replace
from pathlib import Path

from ..components import short_name
from ..errors import quoted
from ..experiment import Experiment, fingerprint
from ..report.runs import Run, read_run
from ..runs.directory import check_code, check_data, is_being_replaced, is_readable_run
from ..runs.recovery import Hints, recovery_hints
from ..task import Task
from .experiments import Execution, resume_run, start_run

REPEAT_HINTS = Hints(  # of commands that are repeated to complete their runs
    exists="another --out keeps it",
    previous="`moonfl resume {run} --previous` resumes from the previous checkpoint",
    restart="remove {run} and repeat the command to start the run again",
    changed="remove {run} and repeat the command to start the run again, or use another --out",
)


def run_name(exp: Experiment) -> str:
    """Return the name of the experiment's run directory; data location and device are ignored."""
    digest = fingerprint(replace(exp, seed=0))[:8]
    method = short_name(exp.algorithm)
    server = short_name(exp.server)
    if server != "average":
        method += f"-{server}"
    return f"{exp.dataset}-{method}-{digest}-seed{exp.seed}"


def ended_run(exp: Experiment, out: Path, *, task: Task, hints: Hints) -> Run | None:
    """Return the run in a directory if it is finished or diverged.

    A run of other data or code is refused, also if it is unfinished: resuming it would mix both.
    """
    if not is_readable_run(out):
        return None
    with recovery_hints(hints, quoted(out)):
        check_data(out, exp, task)
        check_code(out, exp)
    return read_ended_run(out)


def read_ended_run(out: Path) -> Run | None:
    """Return the run in a directory if it is finished or diverged, of whatever data and code."""
    if not is_readable_run(out):
        return None
    run = read_run(out)
    return run if run.finished or run.diverged else None


def complete_run(
    exp: Experiment,
    out: Path,
    *,
    force: bool = False,
    task: Task | None = None,
    options: Execution,
    hints: Hints,
) -> Run:
    """Start the run of an experiment in a directory, or resume it, and return it finished.

    `force`: replace an existing run.
    """
    exists = is_readable_run(out) or is_being_replaced(out)
    with recovery_hints(hints, quoted(out)):
        if exists and not force:
            resume_run(out, data_dir=exp.data_dir, task=task, options=options)
        else:
            start_run(exp, out, force=force, task=task, options=options)
    return read_run(out)
