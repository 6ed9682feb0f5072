"""`moonfl reproduce --list`: how long the targets take on this machine, from timing a few steps of each network."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from .. import seeds
from ..algorithms import MOON, FedAvg
from ..bench import step_of
from ..data.augment import Preparation
from ..data.base import Dataset, Examples
from ..data.cifar import CIFAR10, CIFAR100
from ..data.digits import PREPARATION as DIGITS
from ..data.tiny_imagenet import PREPARATION as TINY_IMAGENET
from ..engines.base import num_cores
from ..errors import unknown
from ..experiment import Experiment
from ..seeds import one_thread
from ..task import make_task
from .runner import Options, adapted, datasets, seeds_of
from .targets import TARGETS

FEW = 8  # samples of a first, careful step
QUICK = 0.1  # seconds: where that step took less, whole batches are timed
ENOUGH, MOST = 0.5, 100  # seconds of timing, and times


@dataclass(frozen=True)
class Known:
    samples: int  # of training
    shape: tuple[int, ...]
    classes: int
    preparation: Preparation


DATA = {
    "digits": Known(1437, (1, 8, 8), 10, DIGITS),
    "cifar10": Known(50_000, (3, 32, 32), 10, CIFAR10),
    "cifar100": Known(50_000, (3, 32, 32), 100, CIFAR100),
    "tiny-imagenet": Known(100_000, (3, 64, 64), 200, TINY_IMAGENET),
}


@dataclass(frozen=True)
class Cost:
    """Processor seconds of a sample in training, and in each frozen model that MOON reads beside it."""

    step: float
    frozen: float


def listing(options: Options) -> str:
    """The targets with the number of runs and an estimate of their time here."""
    lines = [f"{'target':14} {'runs':>5} {'estimate':>9}  what"]
    costs: dict[tuple[str, str | None], Cost] = {}
    known = {dataset for target in TARGETS.values() for dataset in target.datasets}
    if options.dataset is not None and options.dataset not in known:
        raise unknown("data set of the paper", options.dataset, known)
    for name, target in TARGETS.items():
        wanted = set()
        for dataset in datasets(name, options, required=False):
            wanted |= {
                exp for e in target.entries(dataset) for exp in adapted(e, options).trials.values()
            }
        trains = target.kind not in ("statistics", "distributions")
        seeds = seeds_of(target, options) if trains else 0
        workers = options.workers or num_cores()
        total = (
            sum(
                estimate(exp, costs) / min(workers, exp.parties_per_round())
                for exp in wanted
                if trains
            )
            * seeds
        )
        runs = len(wanted) * seeds
        lines.append(f"{name:14} {runs:5} {duration(total):>9}  {target.where}: {target.title}")
    lines.append(
        f"{options.seeds} seeds a setting; runs that several targets share are run once, and counted in each;"
    )
    lines.append("estimates are of training alone, on a machine that does nothing else")
    lines.append(
        "where ResNet-50 takes too long: --model simple-cnn, which the tables then say; --dataset, --scale small"
    )
    return "\n".join(lines)


def estimate(exp: Experiment, costs: dict[tuple[str, str | None], Cost]) -> float:
    """Processor seconds of training."""
    key = (exp.dataset, exp.model)
    if key not in costs:
        costs[key] = calibrate(exp)
    share = exp.parties_per_round() / exp.parties
    passes = DATA[exp.dataset].samples * exp.epochs * exp.rounds * share
    return passes * (costs[key].step + frozen_models(exp, share) * costs[key].frozen)


def frozen_models(exp: Experiment, share: float) -> float:
    """Mean over rounds; a party has no more negatives than rounds it took part in."""
    if not isinstance(exp.algorithm, MOON):
        return 0.0
    if exp.algorithm.contrast == "l2":
        number = 1.0
    else:
        growing = min(
            exp.rounds, exp.algorithm.negatives / share
        )  # rounds in which a party gains negatives
        held = share * growing * (growing - 1) / 2 + exp.algorithm.negatives * (
            exp.rounds - growing
        )
        number = (
            held + exp.rounds - 1
        ) / exp.rounds  # the global model is read from the second round on
    changing = exp.augment and DATA[exp.dataset].preparation.augments
    return (
        number if changing else number / exp.epochs
    )  # of samples that always look alike, once a round


def calibrate(exp: Experiment) -> Cost:
    """From steps on noise of the data's shape, with our kernels and one thread, as workers take them."""
    with one_thread():
        few = measure(exp, FEW)
        return few if few.step * FEW > QUICK else measure(exp, exp.batch_size)


def measure(exp: Experiment, batch: int) -> Cost:
    known = DATA[exp.dataset]
    pixels = torch.randint(0, 256, (batch, *known.shape), dtype=torch.uint8)
    made = Examples(pixels, torch.arange(batch) % known.classes)
    data = Dataset(made, made, tuple(map(str, range(known.classes))), known.preparation)
    plain, moon = (
        replace(exp, algorithm=method, parties=1, partition="iid") for method in (FedAvg(), MOON())
    )
    task, rng, rows = make_task(plain, data), seeds.rng(0, "augmentation"), torch.arange(batch)
    times = {
        "plain": quickest(step_of(plain, task, torch.channels_last, native=True, batch=batch)),
        "moon": quickest(step_of(moon, task, torch.channels_last, native=True, batch=batch)),
        "prepare": quickest(
            lambda: task.preparation.batch(made.x, rows, rng if exp.augment else None)
        ),
    }
    frozen = max(0.0, times["moon"] - times["plain"]) / 2  # the global model and one negative
    return Cost((times["plain"] + times["prepare"]) / batch, frozen / batch)


def quickest(work: Callable[[], object]) -> float:
    """Processor seconds, so that other work on the machine hardly counts; the first time is to warm up."""
    times: list[float] = []
    while sum(times) < ENOUGH and len(times) < MOST:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times[1:] or times)


def duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
