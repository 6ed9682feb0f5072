"""`moonfl reproduce --list`: estimates of how long each target takes on this machine.

A few training steps of each network are timed, and the number of steps of each run is known.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from .. import seeds
from ..algorithms import MOON, FedAvg
from ..bench import OURS, make_step
from ..data.augment import Preparation
from ..data.base import Dataset, Examples
from ..data.cifar import CIFAR10, CIFAR100
from ..data.digits import PREPARATION as DIGITS
from ..data.tiny_imagenet import PREPARATION as TINY_IMAGENET
from ..engines.base import num_cores
from ..experiment import Experiment
from ..report.tables import align
from ..seeds import one_thread
from ..task import make_task
from .options import Options, apply_options, check_dataset, seed_count, selected_datasets
from .targets import TARGETS, Target, experiments

TRIAL_BATCH = 8  # samples of a first step, which must not take long
FAST = 0.1  # seconds; if the first step is faster, full batches are timed
MEASURE_SECONDS = 0.5
MAX_REPEATS = 100


@dataclass(frozen=True)
class DataShape:
    """What an estimate needs to know about a dataset."""

    samples: int  # in the training set
    shape: tuple[int, ...]
    classes: int
    preparation: Preparation


DATA = {
    "digits": DataShape(1437, (1, 8, 8), 10, DIGITS),
    "cifar10": DataShape(50_000, (3, 32, 32), 10, CIFAR10),
    "cifar100": DataShape(50_000, (3, 32, 32), 100, CIFAR100),
    "tiny-imagenet": DataShape(100_000, (3, 64, 64), 200, TINY_IMAGENET),
}


@dataclass(frozen=True)
class Cost:
    """CPU seconds per sample of a training step, and of each frozen model that MOON evaluates."""

    step: float
    frozen: float


Costs = dict[tuple[str, str | None], Cost]  # by dataset and model


def listing(options: Options) -> str:
    """Return the targets with the number of runs and an estimate of their time here."""
    check_dataset(options)
    costs: Costs = {}
    rows: list[tuple[object, ...]] = [("target", "runs", "estimate", "what")]
    for name, target in TARGETS.items():
        runs, total = target_cost(name, target, options, costs)
        rows.append((name, runs, duration(total), f"{target.reference}: {target.title}"))
    lines = [
        align(rows, right={1, 2}),
        f"{options.seeds} seeds per setting; targets that share runs count them each, "
        "but they are run once",
        "estimates are for training alone, on a machine that is otherwise idle",
        "if ResNet-50 takes too long: --model simple-cnn (the tables state it), "
        "--dataset, --scale small",
    ]
    return "\n".join(lines)


def target_cost(name: str, target: Target, options: Options, costs: Costs) -> tuple[int, float]:
    """Return the number of runs of a target and the seconds they take; 0 without training."""
    if target.kind in ("statistics", "distributions"):
        return 0, 0.0
    entries = []
    for dataset in selected_datasets(name, options, required=False):
        entries += [apply_options(entry, options) for entry in target.entries(dataset)]
    seeds = seed_count(target, options)
    workers = options.workers or num_cores()
    total = 0.0
    for exp in experiments(entries):
        total += seeds * estimate(exp, costs) / min(workers, exp.parties_per_round())
    return len(experiments(entries)) * seeds, total


def estimate(exp: Experiment, costs: Costs) -> float:
    """Return the CPU seconds that training an experiment takes."""
    key = (exp.dataset, exp.model)
    if key not in costs:
        costs[key] = calibrate(exp)
    share = exp.parties_per_round() / exp.parties
    samples = DATA[exp.dataset].samples * exp.epochs * exp.rounds * share
    return samples * (costs[key].step + frozen_models(exp, share) * costs[key].frozen)


def frozen_models(exp: Experiment, share: float) -> float:
    """Return how many frozen models are evaluated per sample, as a mean over rounds.

    `share` is the share of parties in a round. A party has at most as many negatives as rounds
    that it took part in, and the global model is used from the second round on.
    """
    if not isinstance(exp.algorithm, MOON):
        return 0.0
    number = 1.0
    if exp.algorithm.contrast != "l2":
        limit = exp.algorithm.negatives
        growing = min(exp.rounds, limit / share)  # rounds until a party has all of its negatives
        negatives = share * growing * (growing - 1) / 2 + limit * (exp.rounds - growing)
        number = (negatives + exp.rounds - 1) / exp.rounds
    if exp.augment and DATA[exp.dataset].preparation.augments:
        return number
    return number / exp.epochs  # samples do not change, so they are evaluated once per round


def calibrate(exp: Experiment) -> Cost:
    """Measure the cost of training steps with our kernels and one thread, as in a worker."""
    with one_thread():
        cost = measure(exp, TRIAL_BATCH)
        if cost.step * TRIAL_BATCH <= FAST:
            cost = measure(exp, exp.batch_size)
    return cost


def measure(exp: Experiment, batch: int) -> Cost:
    """Measure the cost of training steps on noise of the dataset's shape."""
    shape = DATA[exp.dataset]
    pixels = torch.randint(0, 256, (batch, *shape.shape), dtype=torch.uint8)
    examples = Examples(pixels, torch.arange(batch) % shape.classes)
    classes = tuple(str(k) for k in range(shape.classes))
    data = Dataset(train=examples, test=examples, classes=classes, preparation=shape.preparation)
    fedavg = replace(exp, algorithm=FedAvg(), parties=1, partition="iid")
    moon = replace(fedavg, algorithm=MOON())
    task = make_task(fedavg, data)
    rows = torch.arange(batch)
    rng = seeds.rng(0, "augmentation") if exp.augment else None
    step = fastest(make_step(fedavg, task, OURS, batch))
    moon_step = fastest(make_step(moon, task, OURS, batch))
    prepare = fastest(lambda: task.preparation.batch(examples.x, rows, rng))
    frozen = max(0.0, moon_step - step) / 2  # the global model and one negative
    return Cost(step=(step + prepare) / batch, frozen=frozen / batch)


def fastest(work: Callable[[], object]) -> float:
    """Return the lowest CPU seconds of several calls; the first call only warms up.

    CPU seconds hardly depend on other work on the machine.
    """
    times: list[float] = []
    while sum(times) < MEASURE_SECONDS and len(times) < MAX_REPEATS:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times[1:] or times)


def duration(seconds: float) -> str:
    """Return a duration in the largest unit of which it has at least two."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
