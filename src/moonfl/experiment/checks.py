"""Checks of an Experiment: combinations of settings that make no sense are refused."""

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ..aggregation import AGGREGATIONS
from ..algorithms import has_own_model, overrides_deployed, replaces_aggregation
from ..components import component_name, parts_of
from ..data.datasets import source
from ..data.partition import CLASS_PARTITIONS
from ..data.targets import CLASSIFICATION, REGRESSION
from ..errors import InputError
from ..optimizers import Constant

if TYPE_CHECKING:
    from .experiment import Experiment

CUSTOM_MODEL = "own"  # model= of a run whose model was passed to moonfl.federate
CUSTOM_DATA = "given"  # dataset= of a run whose data were passed to moonfl.federate
READER_SETTINGS = {  # settings of a reader, and the datasets that have it
    "label": ("csv", "hub"),
    "ignore": ("csv", "hub"),
    "impute": ("csv", "hub", CUSTOM_DATA),
    "encode": ("csv", "hub", CUSTOM_DATA),
    "categorical": ("csv", "hub", CUSTOM_DATA),
    "min_category": ("csv", "hub", CUSTOM_DATA),
    "image_size": ("folder", "hub"),
    "split": ("emnist",),
    "subset": ("hub",),
    "classes": ("csv", "folder", "npz", "hub", CUSTOM_DATA),
    "holdout_by": ("csv", "npz", "hub", CUSTOM_DATA),
}
# that may have other targets than classes
TASK_DATASETS = ("csv", "npz", "hub", "sites", CUSTOM_DATA)
PARTITION_SETTINGS = {  # settings of one kind of partition
    "classes_per_party": "labels",
    "shards_per_party": "shards",
}
UNUSED_BY_PARTITION = {  # settings, the partitions that ignore them, and those that do not
    "beta": (
        ("labels", "shards", "iid", "column"),
        "partition=dirichlet, dirichlet-balanced or quantity",
    ),
    "min_samples": (("iid", "column"), "another partition, such as partition=dirichlet"),
}


def check_effects(exp: "Experiment", keys: Collection[str]) -> None:
    """Refuse settings among `keys`, which the user has just written, that have no effect.

    Experiments that were stored before this check may have them.
    """
    for key, (partitions, alternative) in UNUSED_BY_PARTITION.items():
        if key in keys and is_changed(exp, key) and exp.partition in partitions:
            raise InputError(
                f"{key}={getattr(exp, key)} has no effect with partition={exp.partition}; "
                f"remove {key}, or use {alternative}"
            )
    if "out_dim" in keys and is_changed(exp, "out_dim") and not exp.head:
        raise InputError(
            f"out_dim={exp.out_dim} has no effect with head=false; remove out_dim, or use head=true"
        )

    preparation = source(exp.dataset).preparation
    if "augment" in keys and not exp.augment and not (preparation and preparation.augments):
        raise InputError(
            f"augment=false has no effect with dataset={exp.dataset}, whose images are not "
            "augmented; remove augment"
        )


def is_changed(exp: "Experiment", key: str) -> bool:
    """Return True if a setting differs from its default."""
    return bool(getattr(exp, key) != getattr(type(exp), key))


def check_combinations(exp: "Experiment") -> None:
    """Refuse combinations of settings that make no sense."""
    check_method(exp)
    check_training(exp)
    check_data(exp)
    check_task(exp)
    check_privacy(exp)


def check_method(exp: "Experiment") -> None:
    """Refuse combinations of method settings that make no sense."""
    name = component_name(exp.algorithm)
    server = component_name(exp.server)
    if not exp.algorithm.takes_server_optimizer and server != "average":
        raise InputError(
            f"algorithm={name} cannot be combined with server={server}; use server=average"
        )
    if (exp.aggregation == "trimmed-mean") != (exp.trim is not None):
        raise InputError(
            "aggregation=trimmed-mean and trim=SHARE belong together; set both or neither"
        )
    if exp.aggregation == "fednova" and replaces_aggregation(exp.algorithm):
        raise InputError(
            f"aggregation=fednova cannot be combined with algorithm={name}, which aggregates "
            "parameters in its own way; use aggregation=mean"
        )
    if exp.patience is not None and exp.validation is None:
        raise InputError(
            "patience needs validation samples; set validation=SHARE too, for example 0.1"
        )
    check_party_models(exp, name)
    if exp.algorithm.federated:
        return
    if exp.personal is not None:
        raise InputError(
            f"algorithm={name} shares nothing, got personal={exp.personal}; remove personal"
        )
    if exp.rounds != 1:
        raise InputError(
            f"algorithm={name} has a single round, got rounds={exp.rounds}; set rounds=1 and "
            "choose the length of training with epochs"
        )
    if exp.aggregation != "mean" or exp.clip is not None:
        raise InputError(
            f"algorithm={name} aggregates nothing; leave aggregation, trim and clip unset"
        )
    if exp.sample_fraction != 1:
        raise InputError(
            f"algorithm={name} trains every party, "
            f"got sample_fraction={exp.sample_fraction:g}; set sample_fraction=1"
        )


def check_training(exp: "Experiment") -> None:
    """Refuse combinations of settings of local training that make no sense."""
    optimizer = component_name(exp.optimizer)
    if exp.nesterov and not (exp.optimizer.uses_momentum and exp.momentum > 0):
        raise InputError(
            "nesterov=true needs optimizer=sgd and momentum > 0, "
            f"got optimizer={optimizer} and momentum={exp.momentum:g}"
        )
    if not exp.optimizer.uses_momentum and is_changed(exp, "momentum"):
        raise InputError(
            f"momentum={exp.momentum:g} has no effect with optimizer={optimizer}; remove "
            "momentum (Adam's is optimizer.beta1), or use optimizer=sgd"
        )
    if exp.warmup >= exp.rounds and exp.warmup > 0:
        raise InputError(
            f"warmup must be smaller than rounds={exp.rounds}, got {exp.warmup}: the "
            "learning rate would never reach lr"
        )
    if not exp.algorithm.federated and exp.schedule != Constant():
        raise InputError(
            f"algorithm={component_name(exp.algorithm)} has a single round, so "
            f"schedule={component_name(exp.schedule)} has no effect; remove schedule"
        )
    exp.learning_rate(exp.rounds - 1)  # the smallest one
    check_sgd(exp)


def check_sgd(exp: "Experiment") -> None:
    """Refuse another optimizer than plain SGD where the method's formulas assume it."""
    changes = []
    if not exp.optimizer.uses_momentum:
        changes.append(f"optimizer={component_name(exp.optimizer)}")
    if exp.nesterov:
        changes.append("nesterov=true")
    if exp.grad_clip is not None:
        changes.append(f"grad_clip={exp.grad_clip:g}")
    reasons = {
        f"algorithm={component_name(exp.algorithm)}": exp.algorithm.requires_sgd,
        f"aggregation={exp.aggregation}": AGGREGATIONS[exp.aggregation].requires_sgd,
    }
    for key, reason in reasons.items():
        if changes and reason:
            raise InputError(
                f"{key} cannot be combined with {' and '.join(changes)}: {reason}; use "
                "optimizer=sgd without nesterov and grad_clip, or another method"
            )


def check_party_models(exp: "Experiment", name: str) -> None:
    """Refuse combinations of settings of the parties' models that make no sense."""
    if exp.personal is not None:
        check_pattern("personal", exp.personal)
    for key, example in exp.algorithm.requires.items():
        if getattr(exp, key) is None:
            raise InputError(f"algorithm={name} needs {key}; set it, as in {key}={example}")
    if has_own_model(exp.algorithm):
        for key in ("personal", "finetune"):
            value = getattr(exp, key)
            if value is not None:
                raise InputError(
                    f"algorithm={name} already trains a complete model for each party, got "
                    f"{key}={value}; remove {key}"
                )
    if exp.has_party_models and exp.algorithm.federated and overrides_deployed(exp.algorithm):
        keys = [key for key in ("personal", "finetune") if getattr(exp, key) is not None]
        reason = f"remove {keys[0]}" if keys else "use a method that defines only one of the two"
        raise InputError(
            f"algorithm={name} evaluates other models than the aggregated one (deployed), and the "
            f"parties' models are built from the aggregated one; {reason}"
        )
    if exp.finetune is not None and not exp.algorithm.federated:
        raise InputError(
            f"algorithm={name} has no global model, got finetune={exp.finetune}; "
            "remove finetune and choose the length of training with epochs"
        )


def check_data(exp: "Experiment") -> None:
    """Refuse combinations of data settings that make no sense."""
    if (exp.partition == "column") != (exp.column is not None):
        raise InputError("partition=column and column=NAME belong together; set both or neither")
    if exp.holdout_by is not None and exp.holdout_by == exp.column:
        raise InputError(
            f"holdout_by={exp.holdout_by} would hold out whole parties, because column is the "
            "same; use a column that divides the samples of a party, such as the patient"
        )
    for key, kind in PARTITION_SETTINGS.items():
        if getattr(exp, key) is not None and exp.partition != kind:
            raise InputError(f"{key} belongs to partition={kind}, not to partition={exp.partition}")
    check_shift(exp)
    check_table(exp)
    for key, datasets in READER_SETTINGS.items():
        if is_changed(exp, key) and exp.dataset not in (*datasets, "sites"):
            raise InputError(
                f"{key} belongs to dataset={' or '.join(selectable(datasets))}, "
                f"not to dataset={exp.dataset}"
            )


def selectable(datasets: Sequence[str]) -> list[str]:
    """Return the datasets without CUSTOM_DATA, which only moonfl.federate sets."""
    return [name for name in datasets if name != CUSTOM_DATA]


def check_table(exp: "Experiment") -> None:
    """Refuse settings of the encoding of tables that make no sense."""
    for key in ("categorical", "min_category"):
        if is_changed(exp, key) and exp.encode == "refuse":
            raise InputError(f"{key} belongs to encode=onehot; set both, or remove {key}")


def check_task(exp: "Experiment") -> None:
    """Refuse data, partitions and methods that need classes if the task has none."""
    if exp.task == CLASSIFICATION:
        return
    if exp.dataset not in TASK_DATASETS:
        raise InputError(
            f"dataset={exp.dataset} has classes, got task={exp.task}; use "
            f"dataset={', '.join(selectable(TASK_DATASETS))}, or remove task"
        )
    if exp.partition in CLASS_PARTITIONS and exp.dataset != "sites":
        raise InputError(
            f"partition={exp.partition} splits samples by their class, and task={exp.task} "
            "has none; set column=NAME, or partition=iid or quantity"
        )
    if exp.task == REGRESSION and exp.classes is not None:
        raise InputError("classes=a,b,c belongs to labels, and task=regression has numbers")
    for part in parts_of(exp.algorithm):
        reason = getattr(part, "needs_classes", "")
        if reason:
            raise InputError(
                f"algorithm={component_name(part)} needs one class per sample, because it "
                f"{reason}; task={exp.task} has none: choose another method"
            )


def check_shift(exp: "Experiment") -> None:
    """Refuse settings of a feature shift that make no sense."""
    if exp.shift_level is not None and exp.shift is None:
        raise InputError(
            "shift_level needs a kind of shift; set shift=noise, rotation or scale too"
        )
    if exp.shift == "scale" and exp.shift_level is not None and exp.shift_level >= 1:
        raise InputError(
            f"shift_level must be < 1 with shift=scale, got {exp.shift_level:g}: the last "
            "party's values are multiplied by 1 - shift_level"
        )
    if exp.shift is not None and exp.dataset == "sites":
        raise InputError(
            f"shift={exp.shift} is for data that moonfl splits; sites have their own data: "
            "remove shift"
        )


def check_privacy(exp: "Experiment") -> None:
    """Refuse settings under which the guarantee of differential privacy would not hold."""
    if not exp.dp.is_private:
        return
    key = f"dp={component_name(exp.dp)}"
    algorithm = f"algorithm={component_name(exp.algorithm)}"
    if exp.clip is None:
        raise InputError(f"{key} needs clip=NORM, the largest norm of a party's update")
    if not exp.algorithm.federated:
        raise InputError(f"{key}: {algorithm} aggregates nothing; remove dp")
    noisy_mean = f"{key} replaces the aggregation by a noisy mean; it cannot be combined with"
    if exp.aggregation != "mean":
        raise InputError(
            f"{noisy_mean} aggregation={exp.aggregation}: use aggregation=mean, or remove dp"
        )
    if replaces_aggregation(exp.algorithm):
        raise InputError(
            f"{noisy_mean} {algorithm}: use a method that leaves the aggregation unchanged, such "
            "as algorithm=moon"
        )
    if exp.validation is not None:
        raise InputError(
            f"{key}: selecting a round on validation samples of the parties is not covered by the "
            "guarantee; remove validation"
        )
    if exp.task == REGRESSION:
        raise InputError(
            f"{key}: task=regression standardises targets by their mean and standard deviation "
            "over all parties, which the guarantee does not cover; use another task"
        )
    exp.dp.check(exp.parties)


def check_pattern(key: str, pattern: str) -> None:
    """Check that a setting is a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise InputError(
            f"{key} must be a keyword or a regular expression, got {pattern!r}: {error}"
        ) from None
