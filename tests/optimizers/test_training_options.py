"""Settings of local training: in experiments, methods, records, resumed runs and processes."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
import torch

import moonfl
from helpers.equality import COMPOSITIONS, same
from helpers.interruption import StopError, results_of, stop_after
from helpers.problems import TINY, MemoryRecorder, gaussians, train, with_algorithm
from moonfl.algorithms import ALGORITHMS, FedAvg, Scaffold
from moonfl.cli import main
from moonfl.engines.embedded import Embedded
from moonfl.errors import InputError
from moonfl.experiment import Experiment, fingerprint, from_dict, override, to_dict, to_toml
from moonfl.federation import init_server, run
from moonfl.local import Workbench, local_update
from moonfl.optimizers import (
    OPTIMIZERS,
    SCHEDULES,
    SGD,
    Adam,
    AdamW,
    Constant,
    Cosine,
    LocalOptimizer,
    Schedule,
    Step,
)
from moonfl.types import Party

QUICK = Experiment(parties=4, rounds=4, epochs=1, sample_fraction=0.5, algorithm=FedAvg())
SGD_ONLY = [name for name, cls in ALGORITHMS.items() if cls.requires_sgd]
OTHERS = [name for name in ALGORITHMS if name not in SGD_ONLY]
EVERYTHING = {
    "adam": ["optimizer=adam", "lr=0.002", "schedule=cosine", "warmup=1", "grad_clip=0.5"],
    "adamw": ["optimizer=adamw", "optimizer.beta1=0.8", "weight_decay=0.1", "schedule=exponential"],
    "nesterov": ["nesterov=true", "schedule=step", "schedule.every=2", "grad_clip=1"],
}


def test_keys() -> None:
    words = ["optimizer=adam", "optimizer.beta2=0.99", "schedule=step", "schedule.gamma=0.5"]
    exp = override(Experiment(), [*words, "grad_clip=2", "warmup=3"])
    assert exp.optimizer == Adam(beta2=0.99)
    assert exp.schedule == Step(gamma=0.5)
    assert (exp.grad_clip, exp.warmup) == (2.0, 3)
    again = override(exp, ["optimizer=adam", "schedule=cosine", "schedule.final=0.5"])
    assert again.optimizer == Adam(beta2=0.99)  # it keeps its settings
    assert again.schedule == Cosine(final=0.5)
    assert from_dict(to_dict(again)) == again


def test_defaults_leave_experiments_as_they_were() -> None:
    """Stored runs keep their fingerprints and files."""
    values = to_dict(Experiment())
    new = {"optimizer", "nesterov", "grad_clip", "schedule", "warmup", "precision"}
    assert not new & values.keys()
    explicit = Experiment(optimizer=SGD(), schedule=Constant(), nesterov=False, warmup=0)
    assert fingerprint(explicit) == fingerprint(Experiment())
    assert fingerprint(Experiment(optimizer=Adam())) != fingerprint(Experiment())
    assert 'name = "adam"' in to_toml(Experiment(optimizer=Adam()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer=adan"], "unknown optimizer 'adan'; did you mean adam"),
        (["optimizer.beta1=0.5"], "optimizer.beta1 belongs to optimizer=adam or adamw, and this"),
        (["optimizer=adam", "optimizer.beta1=1"], "optimizer.beta1 must be a finite number >= 0"),
        (["optimizer=adam", "optimizer.beta=1"], "unknown key 'optimizer.beta'; did you mean"),
        (["optimizer=adam", "optimizer.eps=0"], "optimizer.eps must be a finite number > 0"),
        (["optimizer=adam", "momentum=0.5"], "momentum=0.5 has no effect with optimizer=adam"),
        (["optimizer=adam", "nesterov=true"], "nesterov=true needs optimizer=sgd and momentum > 0"),
        (["nesterov=true", "momentum=0"], "nesterov=true needs optimizer=sgd and momentum > 0"),
        (["nesterov=yes"], "nesterov must be true or false"),
        (["grad_clip=0"], "grad_clip must be a finite number > 0 or none, got 0"),
        (["schedule=linear"], "unknown schedule 'linear'"),
        (["schedule.gamma=0.1"], "schedule.gamma belongs to schedule=step or exponential"),
        (["schedule=step", "schedule.every=0"], "schedule.every must be an integer >= 1"),
        (["schedule=cosine", "schedule.final=0"], "schedule.final must be a finite number > 0"),
        (["schedule=exponential", "schedule.gamma=2"], "schedule.gamma must be a finite number"),
        (["warmup=-1"], "warmup must be an integer >= 0"),
        (["warmup=5", "rounds=5"], "warmup must be smaller than rounds=5, got 5"),
        (
            ["schedule=exponential", "schedule.gamma=0.1", "rounds=100"],
            "the schedule Exponential gives the learning rate 1e-101 in round 100",
        ),
        (
            ["algorithm=solo", "rounds=1", "schedule=cosine"],
            "algorithm=solo has a single round, so schedule=cosine has no effect",
        ),
    ],
)
def test_wrong_values_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        override(Experiment(), words)


def test_wrong_values_in_python_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"optimizer must be of type LocalOptimizer, such as moonfl\."
    ):
        Experiment(optimizer=moonfl.Adam())  # the server optimizer
    with pytest.raises(InputError, match="schedule must be of type Schedule, such as"):
        Experiment(schedule="cosine")


def test_the_command_line_prints_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "digits-scaffold", "optimizer=adam", "grad_clip=1"]) == 2
    error = capsys.readouterr().err
    assert "algorithm=scaffold cannot be combined with optimizer=adam and grad_clip=1: " in error
    assert "mean gradient" in error


@pytest.mark.parametrize("words", [["optimizer=adam"], ["nesterov=true"], ["grad_clip=1"]])
@pytest.mark.parametrize("algorithm", [*SGD_ONLY, "moon+scaffold", "moon+fednova"])
def test_methods_that_assume_sgd_refuse_other_optimizers(algorithm: str, words: list[str]) -> None:
    with pytest.raises(
        InputError, match=f"algorithm={algorithm.replace('+', '.')} cannot be .*SGD"
    ):
        override(Experiment(), [f"algorithm={algorithm}", *words])
    with pytest.raises(InputError, match="aggregation=fednova cannot be combined with"):
        override(Experiment(), ["aggregation=fednova", *words])


def test_scaffold_fednova_and_qfedavg_assume_sgd() -> None:
    assert SGD_ONLY == ["scaffold", "fednova", "qfedavg"]


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize(
    "algorithm",
    [*OTHERS, *(pair for pair in COMPOSITIONS if not set(pair.split("+")) & {*SGD_ONLY})],
)
def test_all_other_methods_train_with_adam(algorithm: str, optimizer: str) -> None:
    exp = with_algorithm(replace(TINY, optimizer=OPTIMIZERS[optimizer](), grad_clip=1.0), algorithm)
    task = gaussians(batch_norm=True)
    first = train(exp, task)
    assert same(first, train(exp, task))
    assert all(torch.isfinite(value).all() for value in first.params.values())
    other = train(replace(exp, optimizer=SGD()), task)
    assert not same(first, other)


def test_adam_decreases_the_loss() -> None:
    exp = replace(TINY, algorithm=FedAvg(), optimizer=Adam(), lr=0.01, rounds=10)
    log = MemoryRecorder()
    task = gaussians()
    run(exp, task, Embedded(exp, task), log)
    assert log.records[-1].loss < 0.5 * log.records[0].loss


@dataclass(frozen=True)
class Spy(FedAvg):
    """FedAvg whose parties store the learning rate and momentum that a method sees."""

    def finish(self, party: Party, trained, steps):
        return {"seen": {"lr": torch.tensor([party.lr, party.momentum])}}, {}


@pytest.mark.parametrize("optimizer", [SGD(), Adam()])
def test_methods_see_the_learning_rate_of_the_round(optimizer: LocalOptimizer) -> None:
    exp = replace(TINY, algorithm=Spy(), schedule=Cosine(), warmup=1, rounds=4)
    exp = replace(exp, optimizer=optimizer)
    task = gaussians()
    server = init_server(exp, task)
    for t in range(exp.rounds):
        _, state = local_update(exp, task, Workbench(task.build), server, state=None, party=0, t=t)
        momentum = 0.9 if optimizer == SGD() else 0.0
        expected = torch.tensor([exp.learning_rate(t), momentum])
        assert torch.equal(state["seen"]["lr"], expected)


def test_a_scheduled_round_is_a_round_with_that_learning_rate() -> None:
    """SCAFFOLD divides by the learning rate of the round, so its control variates agree, too."""
    exp = replace(TINY, algorithm=Scaffold(), schedule=Step(every=1, gamma=0.5), rounds=3)
    constant = replace(exp, schedule=Constant(), lr=exp.lr / 4)
    task = gaussians()
    server = init_server(exp, task)
    updates = []
    for experiment in (exp, constant):
        update, state = local_update(
            experiment, task, Workbench(task.build), server, state=None, party=0, t=2
        )
        updates.append({"params": update.params, "extra": update.extra, "state": state})
    assert same(updates[0], updates[1])


def test_records_have_the_learning_rate() -> None:
    exp = replace(QUICK, schedule=Cosine(final=0.1), warmup=1)
    result = moonfl.run(exp, workers=1)
    assert [record.lr for record in result.rounds] == [exp.learning_rate(t) for t in range(4)]
    assert result.rounds[0].lr == 0.005
    assert result.rounds[-1].lr == pytest.approx(0.001)


@pytest.mark.parametrize("words", EVERYTHING.values(), ids=EVERYTHING)
def test_runs_are_bit_identical_with_workers_and_after_an_interruption(
    words: list[str], tmp_path: Path
) -> None:
    exp = override(QUICK, words)
    expected = results_of(moonfl.run(exp, workers=1))
    assert same(results_of(moonfl.run(exp, workers=2)), expected)
    with pytest.raises(StopError):
        moonfl.run(exp, tmp_path / "run", workers=1, watch=stop_after(2))
    resumed = moonfl.resume(tmp_path / "run", workers=2)
    assert same(results_of(resumed), expected)
    assert [record.lr for record in resumed.rounds] == [exp.learning_rate(t) for t in range(4)]
    assert not same(results_of(moonfl.run(QUICK, workers=1)), expected)


def test_the_command_line_shows_the_learning_rate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["digits-fedavg", "rounds=2", "epochs=1", "parties=2", "--workers", "1", "--out"]
    changes = ["optimizer=adam", "schedule=cosine", "grad_clip=1"]
    assert main(["run", *words, str(tmp_path / "a"), *changes]) == 0
    error = capfd.readouterr().err
    assert "local optimizer adam(beta1=0.9, beta2=0.999, eps=1e-08); gradients clipped" in error
    assert "learning rate 0.01 to 0.0001, cosine(final=0.01)" in error
    assert "lr 0.01  " in error
    assert "lr 0.0001  " in error
    assert "Adam; its state is reset in every round" in (tmp_path / "a/experiment.toml").read_text()
    assert main(["run", *words, str(tmp_path / "b")]) == 0
    assert "lr 0.01" not in capfd.readouterr().err


def test_reports_tell_optimizers_and_schedules_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, words in {"a": [], "b": ["optimizer=adam"], "c": ["schedule=cosine"]}.items():
        moonfl.run(override(replace(QUICK, rounds=2), words), tmp_path / "runs" / name, workers=1)
    assert main(["compare", str(tmp_path / "runs")]) == 0
    output = capsys.readouterr().out
    assert "optimizer=adam" in output
    assert "schedule=cosine" in output


@dataclass(frozen=True)
class SignSGD(LocalOptimizer):
    """A custom optimizer: every weight changes by lr."""

    def step(self, weights, gradients, slots, options) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(gradient.sign(), alpha=options.lr)


@dataclass(frozen=True)
class Halved(Schedule):
    """A custom schedule: half of lr in every round."""

    def factor(self, t: int, rounds: int) -> float:
        return 0.5


def test_custom_optimizers_and_schedules(tmp_path: Path) -> None:
    exp = replace(QUICK, optimizer=SignSGD(), schedule=Halved(), lr=0.001)
    expected = moonfl.run(exp, tmp_path / "run", workers=1)
    assert expected.rounds[0].lr == 0.0005
    name = f"{SignSGD.__module__}:SignSGD"
    assert f'name = "{name}"' in (tmp_path / "run" / "experiment.toml").read_text()
    assert override(Experiment(), [f"optimizer={name}"]).optimizer == SignSGD()
    assert same(results_of(moonfl.resume(tmp_path / "run")), results_of(expected))
    assert same(results_of(moonfl.run(exp, workers=2)), results_of(expected))


def test_federate(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    parties = [(torch.randn(40, 6, generator=rng), torch.arange(40) % 2) for _ in range(3)]
    options = {"rounds": 2, "epochs": 1, "workers": 1, "lr": 0.001}
    by_name = moonfl.federate("mlp", parties, optimizer="adamw", schedule="cosine", **options)
    by_value = moonfl.federate("mlp", parties, optimizer=AdamW(), schedule=Cosine(), **options)
    assert same(by_name.models, by_value.models)
    plain = moonfl.federate("mlp", parties, **options)
    assert not same(by_name.models, plain.models)
    with pytest.raises(InputError, match="unknown optimizer 'adamm'"):
        moonfl.federate("mlp", parties, optimizer="adamm", **options)


@pytest.mark.parametrize("table", [OPTIMIZERS, SCHEDULES])
def test_every_setting_has_a_description(table: dict[str, type]) -> None:
    for cls in table.values():
        assert cls.__doc__
        assert all(field.metadata["doc"] for field in fields(cls))
