"""Build the Task of an experiment."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import nn

from .. import settings
from ..data.base import Dataset, check_names
from ..data.encoding import Encoding
from ..data.moments import Moments, compute_moments, mean_and_std, target_moments
from ..errors import InputError, first_line
from ..experiment import Experiment
from ..models.encoders import ENCODERS, ModelSource
from ..numerics import standard_settings
from ..objectives import make_objective
from ..personal import check_personal, personal_names
from .federated_data import (
    FederatedData,
    check_fits_float32,
    encode_table,
    needs_test_owners,
    read,
    split,
    with_test_owners,
)
from .network import (
    check_batch_size,
    check_model,
    check_private,
    make_builder,
    notify_if_not_native,
    notify_if_time_is_first,
)
from .task import Task

UNUSED = (  # settings that a task does not depend on; `check_task` compares parts of some
    "algorithm",
    "server",
    "aggregation",
    "trim",
    "clip",
    "dp",
    "finetune",
    "evaluate_every",
    "patience",
    "sample_fraction",
    "rounds",
    "epochs",
    "batch_size",
    "lr",
    "momentum",
    "weight_decay",
    "optimizer",
    "nesterov",
    "grad_clip",
    "schedule",
    "warmup",
    "augment",
    "seed",
    "scale",
)


@standard_settings()
def make_task(
    exp: Experiment, data: Dataset | None = None, *, dtype: torch.dtype | None = None
) -> Task:
    """Build the task of an experiment: read (unless `data` is passed), split, build.

    `dtype` replaces the type of float samples, for a run that began with another one.
    """
    data = data or read(exp)
    if dtype is not None:
        data = data.with_dtype(dtype)
    return build_task(exp, split(exp, data))


@standard_settings()
def build_task(
    exp: Experiment,
    data: FederatedData,
    *,
    model: ModelSource | None = None,
    party_moments: Iterable[Moments] | None = None,
    party_targets: Iterable[Moments] | None = None,
    encoding: Encoding | None = None,
) -> Task:
    """Build the task of federated data; `model` replaces the experiment's.

    `party_moments` are the sums for standardisation where the parties' samples are elsewhere,
    `party_targets` those of regression targets, and `encoding` is that of a table whose statistics
    come from elsewhere.
    """
    data = encode_table(exp, data, encoding)
    encoding = data.preparation.encoding
    if data.test is None:
        raise ValueError("hold_out comes before build_task")
    check_device(exp.device)
    check_names("a class", data.classes)
    check_names("a party", data.names)
    shape = data.preparation.input_shape(tuple(data.train.x.shape[1:]))
    network = make_builder(exp, shape, data.train.x.dtype, len(data.classes), model)
    is_factory = exp.model not in ENCODERS and not isinstance(model, nn.Module)
    check_model(network, is_factory=is_factory)
    personal = personal_names(exp.personal, network.model)
    check_personal(exp, personal, network.model)
    if exp.dp.is_private:
        check_private(exp, network, personal, is_encoded=encoding is not None)
    if exp.precision != "float32":
        notify_if_not_native(network)
    notify_if_time_is_first(network, str(exp.model), shape)
    test, validation = data.test, data.validation
    if not network.standardises and data.train.x.dtype == torch.float64:
        check_fits_float32(data)
        data = replace(data, train=data.train.with_dtype(torch.float32))
        test = test.with_dtype(torch.float32)
        validation = validation and validation.with_dtype(torch.float32)
    train = data.train.to(exp.device)
    by_number = {i: train.take(torch.from_numpy(part)) for i, part in data.parts.items()}
    is_complete = list(by_number) == list(range(len(by_number)))  # not so at a site
    parties = list(by_number.values()) if is_complete else by_number
    shared = None
    if network.standardises and encoding is not None:
        shared = encoding.scales()
    elif network.standardises:
        shared = mean_and_std(party_moments or map(compute_moments, by_number.values()), shape)
    targets = party_targets or (target_moments(examples.y) for examples in by_number.values())
    return Task(
        build=network.build,
        parties=parties,
        test=test.to(exp.device),
        preparation=data.preparation,
        batch_norm=network.batch_norm,
        classes=data.classes,
        partition_note=data.note,
        names=data.names,
        test_party=with_test_owners(exp, data).test_party,
        validation=None if validation is None else validation.to(exp.device),
        validation_party=data.validation_party,
        personal=personal,
        scales=shared,
        features=data.features,
        objective=make_objective(exp.task).fit(targets),
        experiment=exp,
    )


def check_task(exp: Experiment, task: Task) -> None:
    """Check that a task was built for these data, this partition and this model.

    Custom tasks are not built for an experiment and are accepted.
    """
    if not isinstance(task, Task):
        raise InputError(f"task must be what moonfl.make_task returns, got {task!r}")
    if task.experiment is None:
        return
    built_for = with_derived_parties(task.experiment, task)
    exp = with_derived_parties(exp, task)
    differences = [
        key
        for key in settings.names(Experiment)
        if key not in UNUSED and getattr(exp, key) != getattr(built_for, key)
    ]
    if exp.dp.is_private and not built_for.dp.is_private:
        differences.append("dp")
    # build_task checks what a method sends and which tensors it needs at the party.
    if (exp.dp.is_private or exp.algorithm.requires) and exp.algorithm != built_for.algorithm:
        differences.append("algorithm")
    needs_owners = needs_test_owners(exp)
    lacks_owners = needs_owners and task.test_party is None
    # A common test set is shifted like the parties that share it, if they share it.
    is_shifted_by_owner = exp.shift is not None and not needs_owners
    if needs_owners != needs_test_owners(built_for) and (lacks_owners or is_shifted_by_owner):
        keys = ("algorithm", "personal", "finetune")
        differences += [key for key in keys if getattr(exp, key) != getattr(built_for, key)]
    for key in differences:
        raise InputError(
            f"the task was made for {key}={getattr(built_for, key)!r}, and the experiment has "
            f"{key}={getattr(exp, key)!r}; pass task=make_task(experiment), or leave task out"
        )
    check_batch_size(exp, is_batch_norm=task.batch_norm)


def check_device(device: str) -> None:
    """Check that this machine has the device."""
    try:
        torch.ones(1, device=device).item()
    except Exception as error:  # each backend fails in its own way
        reason = first_line(error)
        raise InputError(f"device={device} is not available ({reason}); use device=cpu") from None


def with_derived_settings(exp: Experiment, task: Task) -> Experiment:
    """Set the number of parties if the data decide it, and the noise if epsilon does."""
    return with_noise(with_derived_parties(exp, task))


def with_derived_parties(exp: Experiment, task: Task) -> Experiment:
    """Set the number of parties if the data decide it."""
    return exp if exp.parties else replace(exp, parties=len(task.parties))


def with_noise(exp: Experiment) -> Experiment:
    """Set the noise of a run with differential privacy, if epsilon decides it."""
    if not exp.dp.is_private:
        return exp
    return replace(exp, dp=exp.dp.calibrated(exp.sample_fraction, exp.rounds))
