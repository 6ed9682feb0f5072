"""What every algorithm and every server step must hold to. A new one is in these tests by its line in the table."""

import copy
import dataclasses
from dataclasses import replace

import pytest
import torch

from helpers.equality import PAIRS, is_state, same
from helpers.problems import TINY, MemoryRecorder, gaussians, train, with_algorithm
from moonfl import settings
from moonfl.algorithms import ALGORITHMS, MOON, FedProx
from moonfl.engines.embedded import Embedded
from moonfl.errors import InputError
from moonfl.experiment import Experiment
from moonfl.federation import aggregate, init_server, run
from moonfl.local import Workbench, local_update
from moonfl.runs.states import States
from moonfl.server_optimizers import SERVERS
from moonfl.types import Params, State

everywhere = pytest.mark.parametrize("algorithm", ALGORITHMS)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize(("algorithm", "server"), PAIRS)
def test_deterministic(algorithm: str, server: str, batch_norm: bool) -> None:
    exp, task = (
        replace(with_algorithm(TINY, algorithm), server=SERVERS[server]()),
        gaussians(batch_norm=batch_norm),
    )
    first, second = train(exp, task), train(exp, task)
    assert same(first, second)
    other = train(replace(exp, seed=1), task)
    assert not same(first, other)


@everywhere
@pytest.mark.parametrize("batch_norm", [False, True])
def test_inputs_unchanged_and_states_plain(algorithm: str, batch_norm: bool) -> None:
    exp, task = with_algorithm(TINY, algorithm), gaussians(batch_norm=batch_norm)
    server, state = init_server(exp, task), None
    for t in range(3):
        before = copy.deepcopy((server, state))
        update, kept = local_update(
            exp, task, Workbench(task.build), server, state=state, party=0, t=t
        )
        assert same(before[0], server)
        assert same(before[1], state)
        assert is_state(kept)
        assert is_state(update.extra)
        old_server, old_update = copy.deepcopy(server), copy.deepcopy(update)
        following = aggregate(exp, server, [update])
        assert same(old_server, server)
        assert same(vars(old_update), vars(update))
        server, state = following, kept


class NumpyStates(States):
    """Carries every state as bytes, as a file or a message does."""

    def save(self, party: int, round: int, state: State) -> None:
        def carry(params: Params) -> Params:
            arrays = {
                k: (v.numpy().dtype, v.shape, v.contiguous().numpy().tobytes())
                for k, v in params.items()
            }
            return {
                k: torch.frombuffer(bytearray(b), dtype=getattr(torch, str(d))).view(s)
                for k, (d, s, b) in arrays.items()
            }

        super().save(party, round, {label: carry(params) for label, params in state.items()})


@everywhere
def test_state_survives_its_carrier(algorithm: str) -> None:
    exp, task = with_algorithm(TINY, algorithm), gaussians(batch_norm=True)
    engine = Embedded(exp, task)
    engine.states = NumpyStates()
    assert same(run(exp, task, engine, MemoryRecorder()), train(exp, task))


@everywhere
def test_order_of_arrival_does_not_matter(algorithm: str) -> None:
    exp, task = with_algorithm(TINY, algorithm), gaussians()
    server = init_server(exp, task)
    updates = Embedded(exp, task).train(server, [0, 1, 2, 3], 0)
    assert same(aggregate(exp, server, updates), aggregate(exp, server, updates[::-1]))


@everywhere
def test_repeated_round_starts_from_the_state_it_started_from(algorithm: str) -> None:
    exp, task = with_algorithm(TINY, algorithm), gaussians()
    server, engine = init_server(exp, task), Embedded(exp, task)
    engine.train(server, [0, 1], 0)
    once = engine.train(server, [0, 1], 1)
    again = engine.train(server, [0, 1], 1)
    assert [
        same(vars(a) | {"metrics": 0}, vars(b) | {"metrics": 0})
        for a, b in zip(once, again, strict=True)
    ] == [
        True,
        True,
    ]


@pytest.mark.parametrize("method", [FedProx(mu=0), MOON(mu=0), MOON(mu=0, contrast="l2")])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_mu_zero_is_fedavg_to_the_bit(method, batch_norm: bool) -> None:
    task = gaussians(batch_norm=batch_norm)
    fedavg, other = (
        train(with_algorithm(TINY, "fedavg"), task),
        train(with_algorithm(TINY, method), task),
    )
    assert same(fedavg.params, other.params)
    assert same(fedavg.buffers, other.buffers)


def test_moon_is_not_fedavg() -> None:
    task = gaussians()
    fedavg, moon = (
        train(with_algorithm(TINY, "fedavg"), task),
        train(with_algorithm(TINY, MOON(mu=1)), task),
    )
    assert not same(fedavg.params, moon.params)


@everywhere
def test_learns(algorithm: str) -> None:
    """Well above chance (1/3) on three clusters."""
    exp, task = (
        with_algorithm(replace(TINY, rounds=12, epochs=5, lr=0.05, batch_size=8), algorithm),
        gaussians(),
    )
    log = MemoryRecorder()
    run(exp, task, Embedded(exp, task), log)
    record = log.records[-1]
    accuracies = record.accuracies or {"global": record.accuracy}
    assert max(accuracies.values()) > 0.8


@pytest.mark.parametrize("server", SERVERS)
def test_server_steps_learn(server: str) -> None:
    exp = replace(TINY, rounds=25, epochs=5, lr=0.05, batch_size=8, server=SERVERS[server]())
    task, log = gaussians(), MemoryRecorder()
    run(exp, task, Embedded(exp, task), log)
    assert log.records[-1].accuracy > 0.8


@everywhere
@pytest.mark.parametrize("sampled", [0.25, 0.5])
def test_sampled_parties(algorithm: str, sampled: float) -> None:
    if not ALGORITHMS[algorithm].federated:
        with pytest.raises(InputError, match="trains every party"):
            Experiment(algorithm=ALGORITHMS[algorithm](), rounds=1, sample_fraction=sampled)
        return
    exp, task = (
        with_algorithm(replace(TINY, rounds=6, sample_fraction=sampled), algorithm),
        gaussians(),
    )
    log = MemoryRecorder()
    run(exp, task, Embedded(exp, task), log)
    assert all(len(updates) == 4 * sampled for updates in log.updates)


def test_no_setting_hides_a_key() -> None:
    """`mu=5` must mean one thing: no algorithm's setting has the name of an experiment's key."""
    for cls in ALGORITHMS.values():
        assert not set(settings.names(cls)) & set(settings.names(Experiment))
    for cls in [*ALGORITHMS.values(), *SERVERS.values()]:
        assert all(field.metadata.get("doc") for field in dataclasses.fields(cls))
