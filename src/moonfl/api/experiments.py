"""The library's front door."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..engines.base import Engine, check_workers, make_engine
from ..errors import InputError, notify, quoted
from ..experiment import Experiment, from_toml
from ..federation import run as run_federation
from ..runs import checkpoint
from ..runs.checkpoint import Checkpoint
from ..runs.directory import (
    CHECKPOINT,
    SETTINGS,
    Fact,
    check_data,
    finish_replacement,
    finished,
    is_being_replaced,
    locked,
    new_directory,
    read_rounds,
    record_divergence,
    roll_back,
    update_versions,
)
from ..runs.recorder import Recorder, Result, choices
from ..runs.states import States
from ..task import Task, make_task, with_party_count
from ..types import Params, Server

Watch = Callable[[Fact], None]
MakeEngine = Callable[[Experiment, Task, States], Engine]


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    force: bool = False,
    workers: int | None = None,
    state_memory: int | None = None,
    task: Task | None = None,
    watch: Watch = lambda fact: None,
    engine: MakeEngine | None = None,
) -> Result:
    """Run an experiment; with `out`, keep its facts in that directory (`force`: overwrite a run that is there).

    `workers` processes train the parties, by default one per core. Above `state_memory` bytes, by default a quarter of
    what is free, party states are on disk. The results are the same for any number of either. Runs in several threads
    of a process take turns, a party at a time; to run side by side they need processes.
    `watch` is called with each round's facts. `task` is what `make_task` made of the experiment, where that is at hand.
    `engine` makes one that trains elsewhere than in processes of this machine.
    """
    check_workers(workers)
    task = task or make_task(experiment)
    experiment = with_party_count(experiment, task)
    with contextlib.ExitStack() as stack:
        directory = None
        if out is not None:
            directory = stack.enter_context(
                new_directory(Path(out), force, experiment, task, choices(experiment, task))
            )
        states = States(state_memory, directory and directory / CHECKPOINT)
        return _carry_on(
            Recorder(experiment, task, watch, directory, states), engine or local(workers), None
        )


def resume(
    directory: str | Path,
    *,
    previous: bool = False,
    data_dir: str | None = None,
    workers: int | None = None,
    state_memory: int | None = None,
    task: Task | None = None,
    watch: Watch = lambda fact: None,
    engine: MakeEngine | None = None,
) -> Result:
    """Go on with a run that ended early, bit for bit as if it had not; `previous`: from the last checkpoint but one.

    A run that is finished is read, not run again. `data_dir`: where the data are now, if they were moved.
    """
    check_workers(workers)
    directory = Path(directory)
    if not directory.is_dir():
        raise InputError(f"{directory} holds no run: there is no such folder")
    if engine is None and checkpoint.over_sites(directory):
        raise InputError(
            f"{directory} is a run over sites: `moonfl flower run DEPLOYMENT --out {quoted(directory)} --resume`"
        )
    with locked(directory):
        finish_replacement(directory)
        exp = experiment_of(directory)
        exp = exp if data_dir is None else replace(exp, data_dir=data_dir)
        task = task or make_task(exp)
        folder = directory / CHECKPOINT
        found = checkpoint.read(folder, exp, previous)
        rounds = found.rounds if found else 0
        if found is not None and not same_model(found.server, *task.init_model(exp.seed)):
            raise InputError(
                f"the model is not the one that {directory} was begun with: its weights or buffers have other shapes"
            )
        facts = read_rounds(directory, rounds)
        check_data(directory, exp, task)
        changed = update_versions(directory, rounds + 1) if not finished(exp, facts) else []
        if changed:
            notify(
                f"moonfl: {', '.join(changed)} since the run was begun; the result may differ by rounding"
            )
        folder.mkdir(exist_ok=True)
        chosen = exp.algorithm.deployed(found.chosen) if found and found.chosen else None
        roll_back(directory, facts, exp, chosen)
        states = States(state_memory, folder)
        states.restore(found.parties if found else {})
        return _carry_on(
            Recorder(exp, task, watch, directory, states, facts, chosen),
            engine or local(workers),
            found,
        )


def experiment_of(directory: Path, device: str | None = None) -> Experiment:
    """What a run directory is a run of; `device`: for work elsewhere than where it was trained."""
    if is_being_replaced(directory) and not (directory / SETTINGS).exists():
        with locked(directory):
            finish_replacement(directory)
    if not (directory / SETTINGS).exists():
        raise InputError(f"{directory} holds no run: there is no {SETTINGS} in it")
    return from_toml(directory / SETTINGS, {"device": device} if device else None)


def same_model(server: Server, params: Params, buffers: Params) -> bool:
    pairs = (server.params, params), (server.buffers, buffers)
    return all(
        {k: v.shape for k, v in a.items()} == {k: v.shape for k, v in b.items()} for a, b in pairs
    )


def local(workers: int | None) -> MakeEngine:
    return lambda exp, task, states: make_engine(exp, task, workers, states)


def _carry_on(recorder: Recorder, make: MakeEngine, found: Checkpoint | None) -> Result:
    exp, task, done = recorder.exp, recorder.task, (found.rounds, found.server) if found else None
    if found is not None and finished(exp, recorder.facts):
        return recorder.result(found.server)
    with (
        contextlib.closing(make(exp, task, recorder.states)) as engine,
        record_divergence(recorder.directory),
    ):
        server = run_federation(exp, task, engine, recorder, done)
    return recorder.result(server)
