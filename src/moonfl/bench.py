"""`moonfl bench`: training steps and rounds timed on this machine, and their ratios.

Everything is measured side by side in one run, so that other work on the machine affects all
variants alike.
"""

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import seeds
from .algorithms import MOON, FedAvg
from .data.base import Dataset, Examples
from .data.cifar import CIFAR10, CIFAR10_CLASSES
from .data.datasets import DATASETS, load
from .data.locations import missing_files
from .engines.base import make_engine, num_cores
from .errors import InputError, RunError
from .experiment import Experiment
from .federation import aggregate, init_server, sample_parties
from .kernels import library
from .kernels.contrast import model_contrastive
from .kernels.convpool import ConvReluPool
from .local import Workbench
from .models.base import Model, with_memory_format
from .optimizers import take_step
from .report.tables import align
from .runs.files import write_atomically
from .runs.states import States
from .task import Task, make_task
from .types import Batch, Party

BATCH = 64
SAMPLES = {True: 5000, False: 50_000}  # training samples, quick or not
REPEATS = {True: 10, False: 60}
CALLS = 5  # per repeat
SMALL_PARTY = 50  # samples of a party in the workload with many small parties
SMALL_PARTIES_PER_ROUND = 100
PLAIN_LOOP = Path(__file__).parents[2] / "benchmarks" / "plain_loop.py"  # only in a clone
Row = tuple[str, float, str]  # name, value, unit
Function = Callable[[], object]


@dataclass(frozen=True)
class Variant:
    """A way to compute a training step."""

    layout: torch.memory_format = torch.channels_last
    native: bool = True  # our kernels instead of torch's
    compiled: bool = False  # torch.compile


TORCH = Variant(torch.contiguous_format, native=False)
CHANNELS_LAST = Variant(native=False)
OURS = Variant()
COMPILED = Variant(native=False, compiled=True)


def bench(
    data_dir: Path,
    quick: bool,
    out: Path | None,
    notify: Callable[[str], None],
    *,
    phases: bool = False,
) -> dict[str, Any]:
    """Measure, report each table when it is complete, and write all of them as JSON to `out`.

    With `phases` only the phases of a MOON step are measured.
    """
    check_out(out)
    exp = Experiment(dataset="cifar10", rounds=2, epochs=1, algorithm=MOON())
    data = cifar10_or_noise(data_dir, SAMPLES[quick])
    machine = {
        "kernels": library.in_use(),
        "torch": torch.__version__,
        "cores": num_cores(),
        "processor": processor(),
        "samples": len(data.train.y),
    }
    notify(align(list(machine.items())))
    torch.set_num_threads(1)
    task = make_task(replace(exp, parties=1), data)
    if phases:
        rows = measure_phases(exp, task, REPEATS[quick])
        notify(as_text(rows, digits=3))
    else:
        rows = measure_all(exp, task, data, data_dir=data_dir, quick=quick, notify=notify)
    peak = peak_memory() / 2**20
    notify(f"peak memory of the main process  {peak:.0f} MB")
    measured = []
    for name, value, unit in rows:
        measured.append({"what": name, "value": value, "unit": unit})
    result = {**machine, "peak_memory_mb": peak, "measured": measured}
    if out is not None:
        write_atomically(out, json.dumps(result, indent=1) + "\n")
    return result


def measure_all(
    exp: Experiment,
    task: Task,
    data: Dataset,
    *,
    data_dir: Path,
    quick: bool,
    notify: Callable[[str], None],
) -> list[Row]:
    """Measure steps, torch.compile and rounds; `task` has all data in one party."""
    rows = measure_steps(exp, task, REPEATS[quick])
    notify(as_text(rows))
    compiled_rows: list[Row] = []
    reason = "torch.compile was skipped: it compiles for a minute; run without --quick"
    if not quick:
        compiled_rows, reason = measure_compiled_step(exp, task, REPEATS[quick])
    notify(as_text(compiled_rows) if compiled_rows else reason)
    round_rows = measure_rounds(exp, data)
    if PLAIN_LOOP.exists() and not quick:
        round_rows += measure_plain_loop(data_dir, len(data.train.y), round_rows)
    notify(as_text(round_rows))
    small_rows = measure_small_parties(data)
    if PLAIN_LOOP.exists() and not quick:
        small_rows += measure_plain_small_parties(data_dir, len(data.train.y), small_rows)
    notify(as_text(small_rows))
    if not PLAIN_LOOP.exists():
        notify("no comparison with a plain PyTorch loop: benchmarks/plain_loop.py is not installed")
    return rows + compiled_rows + round_rows + small_rows


def check_out(out: Path | None) -> None:
    """Check that the results can be written before anything is measured."""
    if out is not None and not out.parent.is_dir():
        raise InputError(f"--out {out}: {out.parent} is not a folder")
    if out is not None and out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file")


def cifar10_or_noise(data_dir: Path, samples: int) -> Dataset:
    """Return the first samples of CIFAR-10, or of noise of the same shape if it is not there."""
    publication = DATASETS["cifar10"].publication
    assert publication is not None
    folder = data_dir / publication.folder
    if not missing_files(folder, publication.files, publication.suffixes):
        return first_samples(load("cifar10", data_dir), samples)
    rng = torch.Generator().manual_seed(0)
    train = noise(samples, rng)
    test = noise(samples // 5, rng)
    return Dataset(train=train, test=test, classes=CIFAR10_CLASSES, preparation=CIFAR10)


def noise(number: int, rng: torch.Generator) -> Examples:
    """Return random images with ten classes."""
    pixels = torch.randint(0, 256, (number, 3, 32, 32), dtype=torch.uint8, generator=rng)
    return Examples(pixels, torch.arange(number) % 10)


def first_samples(data: Dataset, number: int) -> Dataset:
    """Return the dataset with only the first training samples."""
    rows = torch.arange(min(number, len(data.train.y)))
    return replace(data, train=data.train.take(rows))


def best_seconds(functions: dict[str, Function], repeats: int) -> dict[str, float]:
    """Return the lowest time per call of each function.

    The functions take turns, so that other work on the machine affects all of them alike.
    """
    best = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        function()
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                function()
            seconds = (time.perf_counter() - start) / CALLS
            best[name] = min(best[name], seconds)
    return best


def make_step(exp: Experiment, task: Task, variant: Variant, batch: int = BATCH) -> Function:
    """Return a function that does one training step on a prepared batch."""
    params, buffers = task.init_model(0)
    previous, _ = task.init_model(1)
    rows = torch.arange(batch)
    examples = task.parties[0]
    x = task.preparation.batch(examples.x, rows).contiguous(memory_format=variant.layout)
    samples = Batch(x, examples.y[rows], rows)

    def build() -> nn.Module:
        model = task.build()
        for layer in model.modules():
            if isinstance(layer, Model | ConvReluPool):
                layer.native = variant.native
        return with_memory_format(model, variant.layout)

    bench = Workbench(build)
    party = Party(
        id=0,
        state={"prev0": {**previous, **buffers}},
        global_params=params,
        global_buffers=buffers,
        shared={},
        lr=exp.lr,
        momentum=exp.momentum,
        supervised=task.supervised,
        frozen=bench.frozen,
        class_counts=task.objective.counts(examples.y, len(task.classes)),
        outputs=lambda model: iter([(bench.frozen(model)(samples), samples)]),
        effective_steps=lambda steps: exp.effective_steps(steps, t=0),
    )
    model = bench.module(party.global_model).train()
    loss_of = exp.algorithm.local_loss(party)
    weights = list(model.parameters())
    slots = [exp.optimizer.init(weight) for weight in weights]
    almost_still = exp.step_options(0)._replace(lr=1e-9)
    called: Any = torch.compile(model) if variant.compiled else model

    def step() -> None:
        for weight in weights:
            weight.grad = None
        loss_of(called, samples).backward()
        take_step(exp.optimizer, weights, slots, almost_still)

    return step


def measure_steps(exp: Experiment, task: Task, repeats: int) -> list[Row]:
    """Time one training step with one thread: FedAvg and MOON, with torch and our kernels."""
    ours = f"ours ({library.in_use()})"
    methods = {"FedAvg": FedAvg(), "MOON": MOON()}
    variants = {"torch, plain": TORCH, "torch, channels_last": CHANNELS_LAST, ours: OURS}
    functions: dict[str, Function] = {}
    for method, algorithm in methods.items():
        for name, variant in variants.items():
            step = make_step(replace(exp, algorithm=algorithm), task, variant)
            functions[f"{method} step, {name}"] = step
    data = task.parties[0]
    rng = seeds.rng(0, "augmentation")
    rows = torch.arange(BATCH)
    functions["augmentation of a batch"] = lambda: task.preparation.batch(data.x, rows, rng)
    seconds = best_seconds(functions, repeats)
    table: list[Row] = [(name, 1e3 * value, "ms") for name, value in seconds.items()]
    for method in methods:
        ratio = seconds[f"{method} step, torch, channels_last"] / seconds[f"{method} step, {ours}"]
        table.append((f"{method} step: channels_last / ours", ratio, "x"))
    step_seconds = seconds[f"FedAvg step, {ours}"]
    augmentation = seconds["augmentation of a batch"]
    share = augmentation / (augmentation + step_seconds)
    table.append(("augmentation share of a FedAvg step", 100 * share, "%"))
    return table + compare_with_peak(task, step_seconds)


def measure_phases(exp: Experiment, task: Task, repeats: int) -> list[Row]:
    """Return the median time of every phase of a MOON step with one thread, and their sum."""
    data = task.parties[0]
    rows = torch.arange(BATCH)
    rng = seeds.rng(0, "augmentation")
    params, buffers = task.init_model(0)
    previous, _ = task.init_model(1)
    workbench = Workbench(task.build)
    model = workbench.module({**params, **buffers}).train()
    frozen = [workbench.frozen({**values, **buffers}) for values in (params, previous)]
    weights = list(model.parameters())
    slots = [exp.optimizer.init(weight) for weight in weights]
    almost_still = exp.step_options(0)._replace(lr=1e-9)
    times: dict[str, list[float]] = {}
    start = 0.0

    def end_phase(name: str) -> None:
        nonlocal start
        now = time.perf_counter()
        times.setdefault(name, []).append(now - start)
        start = time.perf_counter()

    for _ in range(repeats * CALLS):
        for weight in weights:
            weight.grad = None
        start = time.perf_counter()
        batch = Batch(task.preparation.batch(data.x, rows, rng), data.y[rows], rows)
        end_phase("batch, augmented")
        z, logits = model(batch.x)
        end_phase("forward")
        z_glob, z_prev = (network(batch.x, batch.rows).z for network in frozen)
        end_phase("two frozen forwards")
        contrastive = model_contrastive(z, z_glob, [z_prev], tau=0.5)
        end_phase("contrastive loss")
        supervised = task.supervised(logits, batch)
        end_phase("cross-entropy")
        z_grad, logits_grad = torch.autograd.grad(supervised + contrastive, (z, logits))
        end_phase("backward of both losses")
        torch.autograd.backward((z, logits), (z_grad, logits_grad))
        end_phase("backward of the network")
        take_step(exp.optimizer, weights, slots, almost_still)
        end_phase("SGD")
    table: list[Row] = []
    for name, seconds in times.items():
        table.append((name, 1e3 * statistics.median(seconds), "ms"))
    table.append(("sum", sum(value for _, value, _ in table), "ms"))
    return table


def measure_compiled_step(exp: Experiment, task: Task, repeats: int) -> tuple[list[Row], str]:
    """Time a FedAvg step with torch.compile, next to ours. Return the rows, or why there are none.

    Compilation itself is not counted. It needs a C++ compiler, which many machines lack.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return [], f"torch.compile was skipped: there is no C++ compiler {compiler} on the PATH"
    fedavg = replace(exp, algorithm=FedAvg())
    compiled = make_step(fedavg, task, COMPILED)
    try:
        compiled()
    except Exception as error:  # the compiler fails in many ways; the other rows do not need it
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return [], f"torch.compile was skipped: {reason}"
    functions = {"compiled": compiled, "ours": make_step(fedavg, task, OURS)}
    seconds = best_seconds(functions, repeats)
    ratio = seconds["compiled"] / seconds["ours"]
    rows = [
        ("FedAvg step, torch.compile", 1e3 * seconds["compiled"], "ms"),
        ("FedAvg step: torch.compile / ours", ratio, "x"),
    ]
    return rows, ""


def compare_with_peak(task: Task, step_seconds: float) -> list[Row]:
    """Return the peak of one core and the share of it that a FedAvg step reaches."""
    peak = fma_peak()
    if peak is None:
        return []
    operations = 3 * 2 * BATCH * multiply_adds(task)
    share = operations / step_seconds / peak
    return [
        ("measured FMA peak of a core", peak / 1e9, "GFLOP/s"),
        ("FedAvg step: dense-equivalent share of the peak", 100 * share, "%"),
    ]


def multiply_adds(task: Task) -> int:
    """Count the multiply-adds of a forward pass of one sample: weights times output positions."""
    total = 0

    def count(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Linear):
            total += module.weight.numel()
        elif isinstance(module, nn.Conv2d):
            height = inputs[0].shape[2] - module.kernel_size[0] + 1
            width = inputs[0].shape[3] - module.kernel_size[1] + 1
            total += module.weight.numel() * height * width

    model = task.build().eval()
    for module in model.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        model(task.preparation.batch(task.test.x, torch.arange(1)))
    return total


def fma_peak() -> float | None:
    """Measure the floating-point operations per second of one core; None without our kernels."""
    native = library.library()
    if native is None:
        return None
    lanes = next(number for number, name in library.SETS.items() if name == library.in_use())
    n = 2_000_000
    seconds = best_seconds({"peak": lambda: native.moonfl_multiply_add(n)}, 8)["peak"]
    return 2.0 * 10 * lanes * n / seconds


def round_seconds(
    exp: Experiment,
    task: Task,
    workers: int | None = None,
    repeats: int = 2,
    states: States | None = None,
) -> float:
    """Return the lowest training time of a round, after the first: MOON then has its negatives.

    The time ends when the states are durable, if the store writes them to a folder.
    """
    best = float("inf")
    states = states or States()
    parties = sample_parties(exp, 0)
    with closing(make_engine(exp, task, workers, states)) as engine:
        server = init_server(exp, task)
        for t in range(1 + repeats):
            start = time.perf_counter()
            server = aggregate(exp, server, engine.train(server, parties, t), t)
            states.commit()
            states.release()
            seconds = time.perf_counter() - start
            if t > 0:
                best = min(best, seconds)
    return best


def measure_small_parties(data: Dataset) -> list[Row]:
    """Time rounds of many small parties that write their states, and the overhead of a party.

    The overhead is the time of a worker per party without its training step: loading and copying
    models, messages, states, and aggregation.
    """
    parties = len(data.train.y) // SMALL_PARTY
    exp = Experiment(
        dataset="cifar10",
        partition="iid",
        parties=parties,
        sample_fraction=min(1.0, SMALL_PARTIES_PER_ROUND / parties),
        epochs=1,
        augment=False,
    )
    task = make_task(exp, data)
    table: list[Row] = []
    for method, algorithm in {"FedAvg": FedAvg(), "MOON": MOON()}.items():
        exp = replace(exp, algorithm=algorithm)
        step = best_seconds({"step": make_step(exp, task, OURS, SMALL_PARTY)}, 20)["step"]
        seconds: dict[int, float] = {}
        for workers in sorted({1, num_cores()}):
            with tempfile.TemporaryDirectory(prefix="moonfl-bench-") as folder:
                states = States(folder=Path(folder))
                seconds[workers] = round_seconds(exp, task, workers, repeats=5, states=states)
            per_party = workers * seconds[workers] / exp.parties_per_round()
            name = f"many small parties, {method}, {workers_text(workers)}"
            table.append((f"{name}: round", seconds[workers], "s"))
            table.append((f"{name}: overhead per party", 1e3 * (per_party - step), "ms"))
        speedup = seconds[1] / seconds[num_cores()]
        table.append((f"many small parties, {method}: all workers against one", speedup, "x"))
    return table


def measure_rounds(exp: Experiment, data: Dataset) -> list[Row]:
    """Time the training of a round with ten parties and one local epoch, and compute ratios."""
    moon = replace(exp, algorithm=MOON())
    fedavg = replace(exp, algorithm=FedAvg())
    task = make_task(exp, data)
    seconds = {
        "MOON round": round_seconds(moon, task),
        "FedAvg round": round_seconds(fedavg, task),
        "FedAvg round, one worker": round_seconds(fedavg, task, 1),
        "MOON round without augmentation": round_seconds(replace(moon, augment=False), task),
    }
    table: list[Row] = [(name, value, "s") for name, value in seconds.items()]
    ratio = seconds["MOON round"] / seconds["FedAvg round"]
    table.append(("MOON round / FedAvg round", ratio, "x"))
    speedup = seconds["FedAvg round, one worker"] / seconds["FedAvg round"]
    table.append((f"{num_cores()} workers against one", speedup, "x"))
    long_moon = replace(moon, augment=False, epochs=10)
    long_fedavg = replace(fedavg, augment=False, epochs=10)
    few_samples = make_task(long_moon, first_samples(data, 5000))
    ratio = round_seconds(long_moon, few_samples) / round_seconds(long_fedavg, few_samples)
    table.append(("MOON round / FedAvg round, 10 epochs without augmentation", ratio, "x"))
    return table


def measure_plain_loop(data_dir: Path, samples: int, rounds: list[Row]) -> list[Row]:
    """Time a MOON round of a plain PyTorch loop, and compare it with ours in `rounds`."""
    ours = {name: value for name, value, _ in rounds}
    table: list[Row] = []
    for option, kind, name in (
        ("--augment", "with augmentation", "MOON round"),
        ("--no-augment", "without augmentation", "MOON round without augmentation"),
    ):
        seconds = plain_seconds(data_dir, samples, [option])
        table.append((f"MOON round of a plain loop {kind}", seconds, "s"))
        table.append((f"plain loop / ours, {kind}", seconds / ours[name], "x"))
    return table


def measure_plain_small_parties(data_dir: Path, samples: int, rounds: list[Row]) -> list[Row]:
    """Time rounds of many small parties of a plain PyTorch loop, which keeps states in memory."""
    ours = {name: value for name, value, _ in rounds}
    per_round = str(min(SMALL_PARTIES_PER_ROUND, samples // SMALL_PARTY))
    table: list[Row] = []
    for method in ("FedAvg", "MOON"):
        options = ["--party-size", str(SMALL_PARTY), "--parties", per_round]
        seconds = plain_seconds(data_dir, samples, [*options, "--method", method.lower()])
        name = f"many small parties, {method}"
        table.append((f"{name}, plain loop: round", seconds, "s"))
        fastest = ours[f"{name}, {workers_text(num_cores())}: round"]
        table.append((f"{name}: plain loop / ours", seconds / fastest, "x"))
    return table


def workers_text(number: int) -> str:
    """Return the number of workers in words."""
    return "one worker" if number == 1 else f"{number} workers"


def plain_seconds(data_dir: Path, samples: int, options: list[str]) -> float:
    """Run the plain loop in its own process and return the seconds that it prints."""
    command = [sys.executable, str(PLAIN_LOOP)]
    command += ["--data-dir", str(data_dir), "--samples", str(samples), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"status {done.returncode}"
        raise RunError(f"{PLAIN_LOOP} failed: {reason}")
    return float(done.stdout)


def as_text(table: list[Row], digits: int = 2) -> str:
    """Format the rows as aligned columns."""
    rows = [(name, f"{value:.{digits}f}", unit) for name, value, unit in table]
    return align(rows, right={1})


def processor() -> str:
    """Return the name of the CPU."""
    return proc_entry("cpuinfo", "model name") or platform.processor() or platform.machine()


def peak_memory() -> int:
    """Return the peak memory of this process in bytes.

    The resource module would also count the process that started this one.
    """
    text = proc_entry("self/status", "VmHWM") or "0 kB"
    return 1024 * int(text.split()[0])


def proc_entry(file: str, key: str) -> str | None:
    """Return the value of a `key: value` line in a file below /proc, or None."""
    try:
        lines = (Path("/proc") / file).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(key):
            return line.split(":", 1)[1].strip()
    return None
