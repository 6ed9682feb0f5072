"""The contract of algorithms and server optimizers.

The tests include every entry of ALGORITHMS and SERVERS, and every pair of methods that composes.
"""

import copy
import dataclasses
from dataclasses import replace

import pytest
import torch

from helpers.equality import COMPOSITIONS, PAIRS, is_state, same
from helpers.problems import TINY, MemoryRecorder, gaussians, train, with_algorithm
from moonfl import settings
from moonfl.algorithms import (
    ALGORITHMS,
    MOON,
    Ditto,
    FedDecorr,
    FedExP,
    FedLC,
    FedNTD,
    FedProx,
    FedRS,
    FedSAM,
    PerFedAvg,
    QFedAvg,
)
from moonfl.engines.embedded import Embedded
from moonfl.errors import InputError
from moonfl.experiment import Experiment
from moonfl.federation import aggregate, init_server, run
from moonfl.local import Workbench, local_update
from moonfl.runs.states import States
from moonfl.server_optimizers import SERVERS
from moonfl.types import Params, State

by_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
by_composition = pytest.mark.parametrize("algorithm", [*ALGORITHMS, *COMPOSITIONS])


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize(("algorithm", "server"), PAIRS)
def test_deterministic(algorithm: str, server: str, batch_norm: bool) -> None:
    exp = replace(with_algorithm(TINY, algorithm), server=SERVERS[server]())
    task = gaussians(batch_norm=batch_norm)
    first = train(exp, task)
    second = train(exp, task)
    assert same(first, second)
    other_seed = train(replace(exp, seed=1), task)
    assert not same(first, other_seed)


@by_composition
def test_a_method_declares_what_it_sends(algorithm: str) -> None:
    """A Flower server compares updates with `extra_like`: scalars exactly, the rest by shape."""
    exp = with_algorithm(TINY, algorithm)
    task = gaussians(batch_norm=True)
    server = init_server(exp, task)
    workbench = Workbench(task.build)
    update, _ = local_update(exp, task, workbench, server, state=None, party=0, t=0)
    declared = exp.algorithm.extra_like(server.params, exp.effective_steps(update.num_steps, t=0))
    assert list(update.extra) == list(declared)
    for label, params in declared.items():
        assert list(update.extra[label]) == list(params)
        for name, value in params.items():
            sent = update.extra[label][name]
            assert (sent.shape, sent.dtype) == (value.shape, value.dtype)
            assert value.dim() > 0 or sent == value


@by_composition
def test_a_method_without_party_states_stores_nothing(algorithm: str) -> None:
    """A Flower site then needs no file with its last state."""
    exp = with_algorithm(TINY, algorithm)
    task = gaussians()
    server = init_server(exp, task)
    _, state = local_update(exp, task, Workbench(task.build), server, state=None, party=0, t=0)
    assert exp.has_party_states or not state


@by_composition
@pytest.mark.parametrize("batch_norm", [False, True])
def test_inputs_are_unchanged_and_states_are_dicts_of_tensors(
    algorithm: str, batch_norm: bool
) -> None:
    exp = with_algorithm(TINY, algorithm)
    task = gaussians(batch_norm=batch_norm)
    server = init_server(exp, task)
    state = None
    for t in range(3):
        before = copy.deepcopy((server, state))
        update, new_state = local_update(
            exp, task, Workbench(task.build), server, state=state, party=0, t=t
        )
        assert same(before[0], server)
        assert same(before[1], state)
        assert is_state(new_state)
        assert is_state(update.extra)
        old_server = copy.deepcopy(server)
        old_update = copy.deepcopy(update)
        new_server = aggregate(exp, server, [update], t=0)
        assert same(old_server, server)
        assert same(vars(old_update), vars(update))
        server, state = new_server, new_state


class SerializedStates(States):
    """A store that serializes every state, as files and messages do."""

    def save(self, party: int, round: int, state: State) -> None:
        def copy_bytes(tensor: torch.Tensor) -> torch.Tensor:
            data = bytearray(tensor.contiguous().numpy().tobytes())
            return torch.frombuffer(data, dtype=tensor.dtype).view(tensor.shape)

        def copy_params(params: Params) -> Params:
            return {name: copy_bytes(value) for name, value in params.items()}

        super().save(party, round, {label: copy_params(params) for label, params in state.items()})


@by_composition
def test_serialization_of_states_does_not_affect_the_result(algorithm: str) -> None:
    exp = with_algorithm(TINY, algorithm)
    task = gaussians(batch_norm=True)
    engine = Embedded(exp, task)
    engine.states = SerializedStates()
    assert same(run(exp, task, engine, MemoryRecorder()), train(exp, task))


@by_composition
def test_aggregation_is_independent_of_the_order_of_updates(algorithm: str) -> None:
    exp = with_algorithm(TINY, algorithm)
    task = gaussians()
    server = init_server(exp, task)
    updates = Embedded(exp, task).train(server, [0, 1, 2, 3], 0)
    assert same(aggregate(exp, server, updates, t=0), aggregate(exp, server, updates[::-1], t=0))


@by_composition
def test_a_repeated_round_starts_from_the_same_state(algorithm: str) -> None:
    exp = with_algorithm(TINY, algorithm)
    task = gaussians()
    server = init_server(exp, task)
    engine = Embedded(exp, task)
    engine.train(server, [0, 1], 0)
    first = engine.train(server, [0, 1], 1)
    second = engine.train(server, [0, 1], 1)
    assert len(first) == 2
    for a, b in zip(first, second, strict=True):
        assert same(vars(a) | {"metrics": 0}, vars(b) | {"metrics": 0})


NEUTRAL = [
    FedProx(mu=0),
    MOON(mu=0),
    MOON(mu=0, contrast="l2"),
    FedDecorr(weight=0),
    FedNTD(weight=0),
    FedLC(tau=0),
    FedRS(alpha=1),
    FedSAM(rho=0),
    PerFedAvg(alpha=0),
    Ditto(lam=3),  # the model that is sent is FedAvg's
    FedExP(epsilon=1e9),
    QFedAvg(q=0),
]  # neutral settings


@pytest.mark.parametrize("method", NEUTRAL)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_neutral_setting_is_bit_identical_to_fedavg(method, batch_norm: bool) -> None:
    task = gaussians(batch_norm=batch_norm)
    fedavg = train(with_algorithm(TINY, "fedavg"), task)
    other = train(with_algorithm(TINY, method), task)
    assert same(fedavg.params, other.params)
    assert same(fedavg.buffers, other.buffers)


def test_moon_is_not_fedavg() -> None:
    task = gaussians()
    fedavg = train(with_algorithm(TINY, "fedavg"), task)
    moon = train(with_algorithm(TINY, MOON(mu=1)), task)
    assert not same(fedavg.params, moon.params)


@by_algorithm
def test_learns(algorithm: str) -> None:
    """Check that the accuracy on three clusters is well above chance, 1/3."""
    exp = with_algorithm(replace(TINY, rounds=12, epochs=5, lr=0.05, batch_size=8), algorithm)
    task = gaussians()
    log = MemoryRecorder()
    run(exp, task, Embedded(exp, task), log)
    record = log.records[-1]
    accuracies = record.accuracies or {"global": record.accuracy}
    assert max(accuracies.values()) > 0.8


@pytest.mark.parametrize("server", SERVERS)
def test_server_optimizers_learn(server: str) -> None:
    exp = replace(TINY, rounds=25, epochs=5, lr=0.05, batch_size=8, server=SERVERS[server]())
    task = gaussians()
    log = MemoryRecorder()
    run(exp, task, Embedded(exp, task), log)
    assert log.records[-1].accuracy > 0.8


@by_algorithm
@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_a_fraction_of_the_parties_is_sampled(algorithm: str, fraction: float) -> None:
    if not ALGORITHMS[algorithm].federated:
        with pytest.raises(InputError, match=f"trains every party, got sample_fraction={fraction}"):
            Experiment(algorithm=ALGORITHMS[algorithm](), rounds=1, sample_fraction=fraction)
        return
    exp = with_algorithm(replace(TINY, rounds=6, sample_fraction=fraction), algorithm)
    task = gaussians()
    log = MemoryRecorder()
    run(exp, task, Embedded(exp, task), log)
    assert all(len(updates) == 4 * fraction for updates in log.updates)


def test_names_of_settings_are_unique_and_documented() -> None:
    """No setting of an algorithm has the name of a setting of the experiment."""
    for cls in ALGORITHMS.values():
        assert not set(settings.names(cls)) & set(settings.names(Experiment))
    for cls in [*ALGORITHMS.values(), *SERVERS.values()]:
        assert all(field.metadata.get("doc") for field in dataclasses.fields(cls))
