"""The pool is bit-identical to the embedded engine, also if workers die."""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.equality import same
from helpers.problems import TINY, MemoryRecorder, gaussians, train, with_algorithm
from helpers.processes import start
from moonfl import run as run_experiment
from moonfl.algorithms import ALGORITHMS, MOON, FedAvg
from moonfl.engines.base import make_engine, num_cores
from moonfl.engines.embedded import Embedded
from moonfl.engines.pool import Pool
from moonfl.engines.worker import TrainJob
from moonfl.errors import InputError, RunError
from moonfl.exchange import server_state
from moonfl.experiment import Experiment
from moonfl.federation import init_server, run
from moonfl.runs.states import States
from moonfl.task import Task, make_task
from moonfl.types import Batch, Loss, Output, Params, Party, Server, State, Update

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the pool forks, which is safe on Linux only"
)


def pooled(
    exp: Experiment, task: Task, workers: int = 2, log: MemoryRecorder | None = None
) -> Server:
    with closing(Pool(exp, task, workers)) as pool:
        return run(exp, task, pool, log or MemoryRecorder())


def without_times(update: Update) -> dict:
    """Return the fields of an update without the seconds that it took."""
    return vars(update) | {"metrics": update.metrics.get("loss")}


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_pool_and_the_embedded_engine_are_bit_identical(
    algorithm: str, batch_norm: bool
) -> None:
    exp = with_algorithm(replace(TINY, rounds=4, parties=5, sample_fraction=0.6), algorithm)
    task = gaussians((40, 1, 20, 33, 64), batch_norm=batch_norm)
    task = replace(task, validation=task.parties[0], test_party=torch.arange(50) // 10)
    alone, together = MemoryRecorder(), MemoryRecorder()
    first, second = run(exp, task, Embedded(exp, task), alone), pooled(exp, task, 3, together)
    assert same(first, second)
    assert alone.metrics() == together.metrics()
    for a, b in zip(alone.updates, together.updates, strict=True):
        assert [u.party for u in a] == [u.party for u in b]
        assert all(same(without_times(u), without_times(v)) for u, v in zip(a, b, strict=True))


@dataclass(frozen=True)
class Random(FedAvg):
    """A method that draws random numbers in every hook of a party."""

    def init_party(self, params: Params) -> State:
        return {"kept": {"r": torch.rand(1)}}

    def local_loss(self, party: Party) -> Loss:
        supervised, first = super().local_loss(party), torch.rand(())
        return lambda model, batch: supervised(model, batch) * (first + torch.rand(()))

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        return {"kept": {"r": party.state["kept"]["r"] + torch.rand(1)}}, {
            "sent": {"r": party.state["kept"]["r"]}
        }


def test_random_numbers_of_a_method_are_the_same_in_any_process() -> None:
    exp, task = with_algorithm(replace(TINY, rounds=3), Random()), gaussians()
    alone, together = MemoryRecorder(), MemoryRecorder()
    torch.manual_seed(1)
    first = run(exp, task, Embedded(exp, task), alone)
    torch.manual_seed(2)
    assert same(first, pooled(exp, task, 3, together))
    sent = [[[u.extra["sent"]["r"] for u in of] for of in log.updates] for log in (alone, together)]
    assert same(*sent)


def test_several_negatives_keep_their_order() -> None:
    exp, task = with_algorithm(replace(TINY, rounds=5), MOON(negatives=3)), gaussians()
    assert same(train(exp, task), pooled(exp, task))


def test_results_do_not_depend_on_workers(tmp_path: Path) -> None:
    exp = replace(Experiment(), rounds=2, epochs=1, parties=6)
    facts = [[f["loss"] for f in run_experiment(exp, workers=n).rounds] for n in (1, 2, 5)]
    assert facts[0] == facts[1] == facts[2]
    with pytest.raises(InputError, match="workers must be an integer >= 1"):
        run_experiment(exp, tmp_path / "out", workers=0)
    assert not (tmp_path / "out").exists()


def test_a_pool_is_no_larger_than_the_number_of_parties() -> None:
    task = gaussians()
    assert isinstance(make_engine(replace(TINY, parties=1), task, 8), Embedded)
    with closing(make_engine(TINY, task, 8)) as engine:
        assert isinstance(engine, Pool)
        assert engine.size == 4


@pytest.mark.parametrize("algorithm", ["moon", "scaffold"])
def test_spawned_workers_are_bit_identical_to_forked_ones(algorithm: str) -> None:
    """An accelerator needs spawned workers; here they are forced to use the CPU."""
    exp = with_algorithm(replace(Experiment(), rounds=2, epochs=1, parties=4), algorithm)
    task = make_task(exp)
    with closing(Pool(exp, task, 2, start_method="spawn")) as pool:
        assert same(run(exp, task, pool, MemoryRecorder()), pooled(exp, task))
        killed = pool.workers[0].process
        os.kill(killed.pid, signal.SIGKILL)
        killed.join()
        server = init_server(exp, task)
        updates = pool.train(server, [0, 1, 2], 0)
    expected = Embedded(exp, task).train(server, [0, 1, 2], 0)
    for update, other in zip(updates, expected, strict=True):
        assert same(without_times(update), without_times(other))


def test_a_model_that_cannot_be_sent_to_spawned_workers_gets_a_clear_message() -> None:
    task = gaussians()
    local = replace(task, build=lambda: task.build())
    with pytest.raises(InputError, match=r"workers=2 with an accelerator .* use workers=1"):
        Pool(TINY, local, 2, start_method="spawn")


def test_a_pool_with_an_accelerator_is_spawned_and_must_be_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    exp = replace(Experiment(), parties=4)
    task = make_task(exp)
    assert isinstance(make_engine(exp, task), Embedded)
    with closing(make_engine(exp, task, 2)) as engine:
        assert isinstance(engine, Pool)
        assert engine.start_method == "spawn"


@pytest.mark.parametrize(
    ("text", "expected"), [("max 100000", None), ("100000 100000", 1), ("50000 100000", 1)]
)
def test_cores_are_limited_by_the_container(
    text: str, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(text)
    monkeypatch.setattr("moonfl.engines.base.CPU_LIMIT", path)
    assert num_cores() == (expected or len(os.sched_getaffinity(0)))


def test_small_parties_are_handed_out_ahead_and_large_ones_are_not() -> None:
    """A worker never waits for a small party, and a large one waits for the first free worker."""
    exp, task = with_algorithm(TINY, "fedavg"), gaussians()
    server = init_server(exp, task)
    with closing(Pool(exp, task, 1)) as pool:
        jobs = [TrainJob(i, 0) for i in (0, 1, 2, 3)]
        answers = pool._run(jobs, server_state(server))
        first, _, _ = next(answers)
        assert first == jobs[0]
        assert list(pool.workers[0].jobs) == jobs[1:]
        answers.close()
        large = replace(exp, epochs=1024)
        pool.exp = large
        waiting = deque(jobs)
        pool._hand_out(waiting, limit=16)
        assert list(waiting) == jobs[1:]


class Deadly(Task):
    """A task that kills the worker of party 1 (30 samples), once for each file in a folder."""

    def supervised(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        if len(batch.y) == 30:
            for path in sorted(Path(os.environ["MOONFL_TEST_KILLS"]).iterdir()):
                path.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().supervised(logits, batch)


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Task]:
    monkeypatch.setenv("MOONFL_TEST_KILLS", str(tmp_path))
    task = gaussians()
    return Deadly(task.build, task.parties, task.test, task.preparation, task.batch_norm)


def test_a_killed_worker_is_replaced_and_its_party_trained_again(
    deadly: Task, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exp = with_algorithm(TINY, "scaffold")
    expected = train(exp, deadly)
    (tmp_path / "kill").touch()
    assert same(expected, pooled(exp, deadly))
    assert (
        "a worker process died while training party 1 in round 1 (exit code -9); trying once more"
        in capfd.readouterr().err
    )


def test_a_job_that_kills_two_workers_ends_the_run(deadly: Task, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).touch()
    with pytest.raises(
        RunError, match=r"died while training party 1 in round 1 .*for the second time"
    ):
        pooled(TINY, deadly)


def test_a_worker_killed_between_rounds_is_replaced() -> None:
    exp, task = with_algorithm(TINY, "moon"), gaussians()
    server, alone = init_server(exp, task), Embedded(exp, task)
    with closing(Pool(exp, task, 2)) as pool:
        for t in range(3):
            os.kill(pool.workers[0].process.pid, signal.SIGKILL)
            pool.workers[0].process.join()
            a, b = pool.train(server, [0, 1, 2, 3], t), alone.train(server, [0, 1, 2, 3], t)
            assert all(same(p.params, q.params) for p, q in zip(a, b, strict=True))


class Exploding(Task):
    def supervised(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().supervised(logits, batch) * float("nan")


class Broken(Task):
    def supervised(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        raise KeyError("a bug in user code")


def test_errors_in_a_worker_reach_the_user() -> None:
    task = gaussians()
    parts = (task.build, task.parties, task.test, task.preparation, task.batch_norm)
    with pytest.raises(RunError, match=r"party \d became nan in round 1"):
        pooled(TINY, Exploding(*parts))
    with pytest.raises(RuntimeError, match="a bug in user code"):
        pooled(TINY, Broken(*parts))


class FailingParty(Task):
    """A task that fails for party 2 (20 samples)."""

    def supervised(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().supervised(logits, batch) * (float("nan") if len(batch.y) == 20 else 1.0)


def test_after_an_error_the_pool_gives_correct_answers() -> None:
    task = gaussians((40, 30, 20, 33))
    exp = with_algorithm(TINY, "fedavg")
    server = init_server(exp, task)
    failing = FailingParty(task.build, task.parties, task.test, task.preparation, task.batch_norm)
    with closing(Pool(exp, failing, 2)) as pool:
        for _ in range(3):
            with pytest.raises(RunError, match="party 2"):
                pool.train(server, [0, 1, 2, 3], 0)
            (update,) = pool.train(server, [3], 0)
            assert update.num_samples == 33
        assert [u.num_samples for u in pool.train(server, [0, 1, 3], 0)] == [40, 30, 33]


class FullDisk(States):
    """A store that cannot save the state of party 2."""

    def save(self, party: int, round: int, state: State) -> None:
        if party == 2:
            raise RunError("no space left")
        super().save(party, round, state)


def test_after_an_error_in_the_parent_the_pool_gives_correct_answers() -> None:
    """Workers that were busy when a state could not be saved do not answer a later job."""
    exp, task = with_algorithm(TINY, "fedavg"), gaussians((40, 30, 20, 33))
    server = init_server(exp, task)
    expected = Embedded(exp, task).train(server, [3, 1], 0)
    with closing(Pool(exp, task, 2, FullDisk())) as pool:
        for _ in range(3):
            with pytest.raises(RunError, match="no space left"):
                pool.train(server, [2, 0, 1, 3], 0)
            updates = pool.train(server, [3, 1], 0)
            for update, other in zip(updates, expected, strict=True):
                assert same(without_times(update), without_times(other))


class WithDropout(nn.Module):
    """A model with dropout on its inputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Output:
        output: Output = self.model(nn.functional.dropout(x, 0.3, self.training))
        return output


def test_models_with_dropout_do_not_depend_on_workers() -> None:
    """Dropout draws from torch's global generator, which must have the same state everywhere."""
    task = gaussians()
    dropping = replace(task, build=lambda: WithDropout(task.build()))
    exp = with_algorithm(TINY, "moon")
    results = [train(exp, dropping), pooled(exp, dropping), pooled(exp, dropping, 3)]
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def processes_in(folder: Path) -> list[int]:
    """Return the processes whose working directory is `folder`."""
    processes = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and os.readlink(entry / "cwd") == str(folder)
                and "Z" not in (entry / "stat").read_text().split()[2]
            ):
                processes.append(int(entry.name))
        except OSError:
            continue
    return processes


@pytest.mark.parametrize("signal_sent", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_its_parent(tmp_path: Path, signal_sent: signal.Signals) -> None:
    process = start(tmp_path, "run", "rounds=100000", "--workers", "2", "--out", "long")
    assert process.pid is not None
    try:
        deadline = time.monotonic() + 60
        while not (
            (tmp_path / "long" / "rounds.jsonl").exists()
            and (tmp_path / "long" / "rounds.jsonl").read_text()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(processes_in(tmp_path)) == 3
        os.kill(process.pid, signal_sent)
        process.join(timeout=30)
        assert (
            process.exitcode
            == {signal.SIGINT: 130, signal.SIGKILL: -9, signal.SIGTERM: 143}[signal_sent]
        )
        while processes_in(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()
        process.join()
