"""The phases of a party's local training: which model they train, and with which random numbers."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from helpers.equality import same
from helpers.problems import TINY, MemoryRecorder, gaussians, train, with_algorithm
from moonfl.algorithms import MOON, Algorithm, FedAvg
from moonfl.engines.embedded import Embedded
from moonfl.errors import RunError
from moonfl.experiment import Experiment
from moonfl.federation import init_server, run
from moonfl.local import Workbench, local_update
from moonfl.runs.states import States
from moonfl.task import Task
from moonfl.types import Params, Party, Phase, State, Update

OUTPUT = ("output.weight", "output.bias")


@dataclass(frozen=True)
class Twin(Algorithm):
    """Trains a second model with the loss and the start of the first."""

    own_stream: bool = False

    def phases(self, party: Party, main: Phase):
        start = party.state.get("twin", party.global_model)
        stream = "own" if self.own_stream else ""
        return (main, Phase(loss=main.loss, stream=stream, model="twin", start=start))


@dataclass(frozen=True)
class Halves(Algorithm):
    """Trains the output layer first and the rest afterwards."""

    epochs: int = 1

    def phases(self, party: Party, main: Phase):
        output = replace(main, trains=lambda name: name in OUTPUT, epochs=self.epochs)
        rest = replace(main, trains=lambda name: name not in OUTPUT, epochs=1, stream="rest")
        return (output, rest)


@dataclass(frozen=True)
class Lost(Algorithm):
    """Does not say where its second model starts."""

    def phases(self, party: Party, main: Phase):
        return (main, Phase(loss=main.loss, model="lost"))


def one_round(exp: Experiment, task: Task) -> tuple[Update, State]:
    server = init_server(exp, task)
    return local_update(exp, task, Workbench(task.build), server, state=None, party=0, t=0)


def test_a_second_model_with_the_same_random_numbers_is_the_first() -> None:
    exp = replace(TINY, algorithm=Twin())
    update, state = one_round(exp, gaussians(batch_norm=True))
    assert same(dict(state["twin"]), {**update.params, **update.buffers})
    assert "twin" not in update.extra
    other = one_round(replace(exp, algorithm=Twin(own_stream=True)), gaussians(batch_norm=True))
    assert not same(dict(other[1]["twin"]), dict(state["twin"]))


class Noisy(FedAvg):
    """Draws from the global generator in the loss and in finish, as models with dropout do."""

    def term(self, party: Party):
        return lambda output, batch, w: torch.rand(()) * output.z.sum()

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        return {**party.state, "drawn": {"x": torch.rand(1)}}, {}


@dataclass(frozen=True)
class NoisyTwin(Noisy):
    """The same with a second model."""

    def phases(self, party: Party, main: Phase):
        return Twin(own_stream=True).phases(party, main)


def test_a_second_model_does_not_affect_the_first() -> None:
    task = gaussians(batch_norm=True)
    alone, state = one_round(replace(TINY, algorithm=Noisy()), task)
    both, other = one_round(replace(TINY, algorithm=NoisyTwin()), task)
    assert same(alone.params, both.params)
    assert same(alone.buffers, both.buffers)
    assert same(state["drawn"], other["drawn"])
    assert alone.num_steps == both.num_steps
    assert alone.metrics["loss"] == both.metrics["loss"]


def test_a_second_model_continues_from_its_own_state() -> None:
    exp = replace(TINY, algorithm=Twin(own_stream=True), rounds=2)
    task = gaussians()
    states = States()
    run(exp, task, Embedded(exp, task, states), MemoryRecorder())
    second = states.load(0, before=2)["twin"]
    first = states.load(0, before=1)["twin"]
    server = init_server(exp, task)
    _, state = local_update(
        exp, task, Workbench(task.build), server, state={"twin": first}, party=0, t=1
    )
    assert same(dict(state["twin"]), dict(second))  # it does not depend on the global model


def moved(update: Update, start: Params) -> set[str]:
    return {name for name in start if not torch.equal(update.params[name], start[name])}


def test_a_phase_trains_only_its_parameters() -> None:
    exp = replace(TINY, algorithm=Halves(), epochs=2)
    task = gaussians()
    start, _ = task.init_model(exp.seed)
    update, _ = one_round(exp, task)
    assert moved(update, start) == set(start)
    assert update.num_steps == 2  # one batch in each phase

    @dataclass(frozen=True)
    class OutputOnly(Algorithm):
        def phases(self, party: Party, main: Phase):
            return (replace(main, trains=lambda name: name in OUTPUT),)

    update, _ = one_round(replace(exp, algorithm=OutputOnly()), task)
    assert moved(update, start) == set(OUTPUT)


def test_a_method_that_changes_the_number_of_steps_is_refused() -> None:
    """A Flower server expects the steps that follow from samples, batch size and epochs."""
    with pytest.raises(RunError, match="for 4 epochs in all, which must be 2"):
        one_round(replace(TINY, algorithm=Halves(epochs=3), epochs=2), gaussians())


def test_a_second_model_needs_a_start() -> None:
    with pytest.raises(RunError, match=r"phase .lost. of Lost .* set start"):
        one_round(replace(TINY, algorithm=Lost()), gaussians())


def test_phases_compose() -> None:
    """Each part has its own state, and the model that is sent is that of the other part."""
    task = gaussians()
    moon = train(with_algorithm(TINY, MOON()), task)
    exp = with_algorithm(TINY, MOON() + Twin(own_stream=True))
    states = States()
    server = run(exp, task, Embedded(exp, task, states), MemoryRecorder())
    assert same(server.params, moon.params)
    assert set(states.load(0, before=9)) == {"moon/prev0", "twin/twin"}


def test_two_parts_cannot_both_divide_the_training() -> None:
    @dataclass(frozen=True)
    class Others(Halves):
        pass

    exp = replace(TINY, algorithm=Halves() + Others(), epochs=2)
    with pytest.raises(RunError, match=r"Halves \+ Others cannot be composed: two of its parts"):
        one_round(exp, gaussians())


def test_the_default_is_one_phase() -> None:
    def loss(model: torch.nn.Module, batch: object) -> Tensor:
        return torch.zeros(())

    main = Phase(loss=loss)
    assert FedAvg().phases(None, main) == (main,)
    assert MOON().own_model({"prev0": {}}) == {}
