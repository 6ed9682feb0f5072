"""moonfl.federate: train a custom model over custom data in a few lines of Python."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import settings, tree
from ..algorithms import MOON, Algorithm
from ..components import COMPONENTS, build_component, examples_with
from ..data.targets import REGRESSION
from ..errors import InputError, notify, unknown
from ..experiment import (
    CUSTOM_DATA,
    CUSTOM_MODEL,
    Experiment,
    code_names,
    fingerprint,
    rename_keys,
)
from ..models.base import Model
from ..models.encoders import ModelSource
from ..numerics import standard_settings
from ..runs.directory import holds_run, is_being_replaced, read_experiment
from ..runs.progress import in_notebook
from ..runs.recovery import Hints, recovery_hints
from ..runs.result import Result, Watch, ignore
from ..settings import RENAMED
from ..task import Task, build_task, with_derived_settings
from .experiments import Execution, check_directory, resume_run, start_run
from .user_data import TRAIN, Data, Parties, federated_data, read_parties, with_groups

PARTITIONED = "the samples are already divided between the parties; remove it"
DATA_SETTINGS = {  # settings that the parties' data determine -> what the caller does instead
    "dataset": "the data are the argument parties; remove it",
    "data_dir": "the data are the argument parties; remove it",
    "label": "the targets are the y of each party",
    "ignore": "leave these columns out of each party's x",
    "holdout_by": "pass groups=, one value per sample for every party",
    "image_size": "resize the images of each party",
    "partition": PARTITIONED,
    "parties": PARTITIONED,
    "beta": PARTITIONED,
    "min_samples": PARTITIONED,
    "classes_per_party": PARTITIONED,
    "shards_per_party": PARTITIONED,
    "partition_seed": PARTITIONED,
    "column": PARTITIONED,
    "scale": "it marks small runs of the paper's experiments; remove it",
}
COLUMN = "party"  # stored as the column of the partition
GROUP = "group"  # stored as the column whose groups are held out
DEFAULT = MOON(mu=1.0)
HINTS = Hints(
    exists="resume=True resumes it, force=True replaces it, another out keeps it",
    previous=(
        "moonfl.federate with out='{run}', resume=True and previous=True resumes from the "
        "previous checkpoint"
    ),
    restart=(
        "moonfl.federate with out='{run}' and force=True instead of resume=True starts the run "
        "again"
    ),
)


@standard_settings()
def federate(
    model: ModelSource,
    parties: Parties,
    test: Data | Parties | None = None,
    algorithm: Algorithm | str = DEFAULT,
    rounds: int = 20,
    *,
    groups: Sequence[Any] | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    previous: bool = False,
    force: bool = False,
    workers: int | None = None,
    state_memory: int | None = None,
    watch: Watch = ignore,
    track: str | Sequence[str] = (),
    progress: bool | None = None,
    **experiment: Any,
) -> Result:
    """Train one model over parties that each have their own data.

    - `model`: a module, a function that builds one (called without arguments, or with the shape of
      a sample), or a name such as "mlp". A module that returns features [B, F] is an encoder and
      gets the projection head and the output layer; one that returns (z, logits) is used unchanged.
    - `parties`: a list or a dict by name; each party's (x, y) as arrays, its torch dataset, or a
      data frame as x.
    - `test`: one test set, or a list or dict with one per party; None: a share of each party's
      samples (`holdout`) is held out.
    - `algorithm`: a value such as moonfl.FedProx(mu=0.1), or a name; by default MOON with mu=1.
    - `rounds`: the number of communication rounds.
    - `groups`: a list or a dict by name with the group of each sample of a party, such as its
      patient. Samples of a group are held out together, for test and validation.
    - `out`: the run directory; None: the run is not stored.
    - `resume`: resume an existing run in `out`.
    - `previous`: resume it from the checkpoint before the newest.
    - `force`: replace an existing run in `out`.
    - `workers`: the number of processes that train parties, by default one per core.
    - `state_memory`: the number of bytes above which party states are stored on disk, by default
      a quarter of the free memory.
    - `watch`: a function that is called with the record of each round.
    - `track`: "tensorboard", "wandb" or "mlflow", or several of them: metrics are copied there. It
      needs `out`.
    - `progress`: show a progress bar, or one line per round if stderr is no terminal; None: in
      notebooks only.
    - All other arguments are settings of Experiment, such as epochs=5, lr=0.1,
      server=moonfl.Momentum().
    """
    _check_flags(out, resume=resume, previous=previous, force=force)
    names, party_sets = read_parties(parties, "party", TRAIN)
    exp = _experiment(model, len(names), algorithm, rounds, experiment)
    if groups is not None:
        exp = replace(exp, holdout_by=GROUP)
        party_sets = with_groups(party_sets, groups, names)
    data = federated_data(model, names, party_sets, test, exp)
    task = build_task(exp, data, model=model)
    exp = with_derived_settings(exp, task)
    _notify_if_classifier(model, task)
    trusted = code_names(exp)  # the caller passed them
    options = Execution(
        workers=workers,
        state_memory=state_memory,
        watch=watch,
        trust=trusted,
        track=track,
        progress=in_notebook() if progress is None else progress,
    )
    with recovery_hints(HINTS, out):
        holds_a_run = out is not None and _holds_run(Path(out))
        if previous and not holds_a_run:
            raise InputError(f"previous=True resumes a run, and {out} holds none; check out")
        if resume and out is not None and holds_a_run:
            return _resume(Path(out), exp, task, options, previous=previous)
        return start_run(exp, out, force=force, task=task, options=options)


def _check_flags(out: str | Path | None, *, resume: bool, previous: bool, force: bool) -> None:
    """Refuse arguments that contradict each other, and an `out` that is no path."""
    if out is not None:
        check_directory("out", out)
    if resume and out is None:
        raise InputError("resume=True needs out, the directory of the run to resume")
    if previous and not resume:
        raise InputError("previous=True needs resume=True")
    if force and resume:
        raise InputError("resume=True resumes a run and force=True replaces it; use one of them")


def _holds_run(out: Path) -> bool:
    return holds_run(out) or is_being_replaced(out)


def _resume(
    out: Path, exp: Experiment, task: Task, options: Execution, *, previous: bool
) -> Result:
    """Resume the run in `out` if it has the same settings."""
    if fingerprint(read_experiment(out, trust=options.trust)) != fingerprint(exp):
        raise InputError(
            f"{out} holds a run with other settings; choose another out, or pass force=True "
            "instead of resume=True to replace it"
        )
    return resume_run(out, previous=previous, task=task, options=options)


def _experiment(
    model: ModelSource,
    parties: int,
    algorithm: Algorithm | str,
    rounds: int,
    values: dict[str, Any],
) -> Experiment:
    """Return the experiment with these settings; `values` are the remaining arguments."""
    for old, new in RENAMED.items():
        if old in values:
            notify(f"moonfl: the argument {old} is deprecated; use {new}")
    values = rename_keys(values)
    valid = [name for name in settings.names(Experiment) if name not in DATA_SETTINGS]
    for key in values:
        if key in DATA_SETTINGS:
            raise InputError(f"{key} cannot be passed to moonfl.federate: {DATA_SETTINGS[key]}")
        if key in valid:
            continue
        examples = examples_with(key, values[key])
        if examples:
            raise InputError(
                f"{key} is a setting of a component; pass it inside the component: "
                f"{' or '.join(examples)}"
            )
        also = "and the settings of a component inside it, as in algorithm=moonfl.MOON(mu=1)"
        raise unknown("setting", key, valid, also)
    components: dict[str, Any] = {"algorithm": algorithm}
    components |= {kind: values[kind] for kind in COMPONENTS if kind in values}
    for kind, value in components.items():
        if isinstance(value, str):
            components[kind] = build_component(kind, {"name": value})
    determined = {
        "dataset": CUSTOM_DATA,
        "model": model if isinstance(model, str) else CUSTOM_MODEL,
        "partition": "column",
        "column": COLUMN,
        "parties": parties,
        "rounds": rounds,
    }
    return Experiment(**{**values, **determined, **components})


def _notify_if_classifier(model: ModelSource, task: Task) -> None:
    """Notify the user if a model with one output per class is used as an encoder."""
    if isinstance(model, str):
        return
    network = tree.build_module(task.build)
    if isinstance(network, Model) and network.num_features == len(task.classes):
        kind, outputs = ("target", "predictions")
        if task.objective.name != REGRESSION:
            kind, outputs = ("class", "logits")
        notify(
            f"moonfl: the model returns {network.num_features} values per sample, one per {kind}; "
            "it is used as an encoder, with a projection head and an output layer after it. "
            f"A complete model should return (z, {outputs}), or be passed without its last layer"
        )
