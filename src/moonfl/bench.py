"""`moonfl bench`: how fast this machine is at what matters, as ratios measured side by side in one run."""

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import seeds
from .algorithms import MOON, FedAvg
from .data.base import Dataset, Examples
from .data.cifar import CIFAR10, CIFAR10_CLASSES
from .data.datasets import DATASETS, load
from .engines.base import make_engine, num_cores
from .errors import InputError, RunError
from .experiment import Experiment
from .federation import aggregate, init_server
from .kernels import library
from .kernels.convpool import ConvReluPool
from .local import Workbench, sgd_step
from .models.base import Model, with_memory_format
from .report.tables import align
from .runs.files import write_atomically
from .task import Task, make_task
from .types import Batch, Party

BATCH = 64
SAMPLES = {True: 5000, False: 50_000}  # of training, quick or not
REPEATS = {True: 10, False: 60}
PLAIN_LOOP = (
    Path(__file__).parents[2] / "benchmarks" / "plain_loop.py"
)  # in a clone, not in an installed package
Row = tuple[str, float, str]  # name, value, unit


def cifar10_or_made(data_dir: Path, samples: int) -> Dataset:
    """CIFAR-10 where it is, else noise of its shape; the first `samples` of it."""
    archive = DATASETS["cifar10"].archive
    assert archive is not None
    if all((data_dir / archive.folder / file).exists() for file in archive.files):
        data = load("cifar10", data_dir)
        return replace(data, train=data.train.take(torch.arange(min(samples, len(data.train.y)))))
    rng = torch.Generator().manual_seed(0)
    made = [
        Examples(
            torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=rng),
            torch.arange(n) % 10,
        )
        for n in (samples, samples // 5)
    ]
    return Dataset(made[0], made[1], CIFAR10_CLASSES, CIFAR10)


def best_of(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each function, the best of interleaved runs, so that a busy moment hits all alike."""
    best = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        function()
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(5):
                function()
            best[name] = min(best[name], (time.perf_counter() - start) / 5)
    return best


def step_of(
    exp: Experiment, task: Task, layout: torch.memory_format, native: bool, batch: int = BATCH
) -> Callable[[], object]:
    """One step of training on a batch that is at hand, with our kernels or torch's."""
    params, buffers = task.init_model(0)
    previous, _ = task.init_model(1)
    rows = torch.arange(batch)
    x = task.preparation.batch(task.parties[0].x, rows).contiguous(memory_format=layout)
    at_hand = Batch(x, task.parties[0].y[rows], rows)

    def build() -> nn.Module:
        model = task.build()
        for layer in model.modules():
            if isinstance(layer, Model | ConvReluPool):
                layer.native = native
        return with_memory_format(model, layout)

    bench = Workbench(build)
    state = {"prev0": {**previous, **buffers}}
    party = Party(
        0, state, params, buffers, {}, exp.lr, exp.momentum, task.supervised, bench.frozen
    )
    model = bench.module(party.global_model).train()
    loss_of = exp.algorithm.local_loss(party)
    weights = list(model.parameters())
    velocity, slow = [torch.zeros_like(p) for p in weights], replace(exp, lr=1e-9)

    def step() -> None:
        for p in weights:
            p.grad = None
        loss_of(model, at_hand).backward()
        sgd_step(slow, weights, velocity)

    return step


def steps(exp: Experiment, task: Task, repeats: int) -> list[Row]:
    """Milliseconds of a step, one thread."""
    methods = {"FedAvg": replace(exp, algorithm=FedAvg()), "MOON": replace(exp, algorithm=MOON())}
    variants = {
        "torch, plain": (torch.contiguous_format, False),
        "torch, channels_last": (torch.channels_last, False),
        f"ours ({library.in_use()})": (torch.channels_last, True),
    }
    functions = {
        f"{m} step, {v}": step_of(e, task, *how)
        for m, e in methods.items()
        for v, how in variants.items()
    }
    data, rng = task.parties[0], seeds.rng(0, "augmentation")
    rows = torch.arange(BATCH)
    functions["augmentation of a batch"] = lambda: task.preparation.batch(data.x, rows, rng)
    seconds = best_of(functions, repeats)
    ours = {m: seconds[f"{m} step, ours ({library.in_use()})"] for m in methods}
    table: list[Row] = [(name, 1e3 * value, "ms") for name, value in seconds.items()]
    for m in methods:
        table.append(
            (
                f"{m} step: channels_last / ours",
                seconds[f"{m} step, torch, channels_last"] / ours[m],
                "x",
            )
        )
    share = seconds["augmentation of a batch"]
    table.append(
        ("augmentation share of a FedAvg step", 100 * share / (share + ours["FedAvg"]), "%")
    )
    peak = fma_peak()
    if peak is not None:
        flops = 3 * 2 * BATCH * multiply_adds(task)
        table.append(("measured FMA peak of a core", peak / 1e9, "GFLOP/s"))
        table.append(
            (
                "FedAvg step: dense-equivalent share of the peak",
                100 * flops / ours["FedAvg"] / peak,
                "%",
            )
        )
    return table


def multiply_adds(task: Task) -> int:
    """Of one forward pass of one sample: weights times the places they are used at."""
    total = 0

    def count(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal total
        places = 1
        if isinstance(module, nn.Conv2d):
            places = (inputs[0].shape[2] - module.kernel_size[0] + 1) * (
                inputs[0].shape[3] - module.kernel_size[1] + 1
            )
        total += module.weight.numel() * places if isinstance(module, nn.Conv2d | nn.Linear) else 0

    model = task.build().eval()
    for module in model.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        model(task.preparation.batch(task.test.x, torch.arange(1)))
    return total


def fma_peak() -> float | None:
    """Floating-point operations a second of one core, from a loop of nothing but multiply-adds; None without our C."""
    native = library.library()
    if native is None:
        return None
    lanes = {name: lanes for lanes, name in library.SETS.items()}[library.in_use()]
    n = 2_000_000
    seconds = best_of({"peak": lambda: native.moonfl_multiply_add(n)}, 8)["peak"]
    return 2.0 * 10 * lanes * n / seconds


def round_seconds(
    exp: Experiment, task: Task, workers: int | None = None, repeats: int = 2
) -> float:
    """Training in the second round and after, when MOON has its negatives; the best of `repeats` rounds."""
    with closing(make_engine(exp, task, workers)) as engine:
        server, best = init_server(exp, task), float("inf")
        chosen = list(range(exp.parties))
        for t in range(1 + repeats):
            start = time.perf_counter()
            server = aggregate(exp, server, engine.train(server, chosen, t))
            best = min(best, time.perf_counter() - start) if t > 0 else best
        return best


def rounds(exp: Experiment, data: Dataset, quick: bool, data_dir: Path) -> list[Row]:
    """Seconds of training in a round with ten parties and one local epoch, and what they are to each other."""
    moon, fedavg = replace(exp, algorithm=MOON()), replace(exp, algorithm=FedAvg())
    task, cores = make_task(exp, data), num_cores()
    seconds = {
        "MOON round": round_seconds(moon, task),
        "FedAvg round": round_seconds(fedavg, task),
        "FedAvg round, one worker": round_seconds(fedavg, task, 1),
        "MOON round without augmentation": round_seconds(replace(moon, augment=False), task),
    }
    table: list[Row] = [(name, value, "s") for name, value in seconds.items()]
    table.append(
        ("MOON round / FedAvg round", seconds["MOON round"] / seconds["FedAvg round"], "x")
    )
    gain = seconds["FedAvg round, one worker"] / seconds["FedAvg round"]
    table.append((f"{cores} workers against one", gain, "x"))
    part = replace(data, train=data.train.take(torch.arange(min(5000, len(data.train.y)))))
    still = [replace(e, augment=False, epochs=10) for e in (moon, fedavg)]
    few = make_task(still[0], part)
    ratio = round_seconds(still[0], few) / round_seconds(still[1], few)
    table.append(("MOON round / FedAvg round, 10 epochs without augmentation", ratio, "x"))
    if PLAIN_LOOP.exists() and not quick:
        for option, ours in (
            ("--augment", "MOON round"),
            ("--no-augment", "MOON round without augmentation"),
        ):
            plain = plain_seconds(data_dir, len(data.train.y), option)
            what = "with" if option == "--augment" else "without"
            table.append((f"MOON round of a plain loop {what} augmentation", plain, "s"))
            table.append((f"plain loop / ours, {what} augmentation", plain / seconds[ours], "x"))
    return table


def plain_seconds(data_dir: Path, samples: int, option: str) -> float:
    words = [
        sys.executable,
        str(PLAIN_LOOP),
        "--data-dir",
        str(data_dir),
        "--samples",
        str(samples),
        option,
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise RunError(f"{PLAIN_LOOP} failed: {said[0]}")
    return float(done.stdout)


def bench(
    data_dir: Path, quick: bool, out: Path | None, notify: Callable[[str], None]
) -> dict[str, Any]:
    """Measure, tell each row as it is known, and write them all as JSON."""
    if out is not None and not out.parent.is_dir():
        raise InputError(f"{out.parent} is not a folder")
    if out is not None and out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file")
    exp = Experiment(dataset="cifar10", rounds=2, epochs=1, algorithm=MOON())
    data = cifar10_or_made(data_dir, SAMPLES[quick])
    facts = {
        "kernels": library.in_use(),
        "torch": torch.__version__,
        "cores": num_cores(),
        "processor": processor(),
        "samples": len(data.train.y),
    }
    notify("\n".join(f"{key:10} {value}" for key, value in facts.items()))
    torch.set_num_threads(1)
    table = steps(exp, make_task(replace(exp, parties=1), data), REPEATS[quick])
    notify(as_text(table))
    more = rounds(exp, data, quick, data_dir)
    notify(as_text(more))
    if not PLAIN_LOOP.exists():
        notify(
            "no comparison with a plain PyTorch loop: benchmarks/plain_loop.py is in a clone only"
        )
    table += more
    peak = peak_memory() / 2**20
    notify(f"peak memory of the main process  {peak:.0f} MB")
    result = {
        **facts,
        "peak_memory_mb": peak,
        "measured": [{"what": n, "value": v, "unit": u} for n, v, u in table],
    }
    if out is not None:
        write_atomically(out, json.dumps(result, indent=1) + "\n")
    return result


def as_text(table: list[Row]) -> str:
    rows = [(name, f"{value:.2f}", unit) for name, value, unit in table]
    return align(rows, right={1})


def processor() -> str:
    return proc_entry("cpuinfo", "model name") or platform.processor() or platform.machine()


def peak_memory() -> int:
    """Bytes; of this program alone, where the resource module would count what started it."""
    return 1024 * int((proc_entry("self/status", "VmHWM") or "0 kB").split()[0])


def proc_entry(file: str, key: str) -> str | None:
    """The value of a `key: value` line below /proc; None where there is none."""
    try:
        lines = (Path("/proc") / file).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), None)
