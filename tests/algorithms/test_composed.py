"""Compositions of methods: what they compute, how they are written, and which are refused."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import moonfl
from helpers.equality import COMPOSITIONS, same
from helpers.flower_deployment import run_simulated
from helpers.interruption import StopError, results_of, stop_after
from helpers.problems import TINY, gaussians, quadratics, train, with_algorithm
from moonfl.algorithms import (
    ALGORITHMS,
    MOON,
    Algorithm,
    Composed,
    Ditto,
    FedAvg,
    FedDyn,
    FedLC,
    FedNova,
    FedProx,
    FedRS,
    Scaffold,
    Solo,
    compose,
    stores_state,
)
from moonfl.errors import InputError
from moonfl.experiment import Experiment, fingerprint, from_dict, override, to_dict
from moonfl.local import Workbench, local_update
from moonfl.server_optimizers import SERVERS

COMPOSABLE = sorted({name for pair in COMPOSITIONS for name in pair.split("+")})
QUICK = Experiment(parties=4, rounds=3, epochs=1, batch_size=64, sample_fraction=0.5)


@dataclass(frozen=True)
class Watcher(Algorithm):
    """A method without a term that checks that it sees only what it stores and sends itself."""

    def init_server(self, params, buffers):
        server = super().init_server(params, buffers)
        return replace(server, shared={"own": params}, memory={"own": params})

    def init_party(self, params):
        return {"own": params}

    def term(self, party):
        assert list(party.state) == list(party.shared) == ["own"]

    def finish(self, party, trained, steps):
        assert list(party.state) == ["own"]
        return party.state, {"own": party.global_params}

    def extra_like(self, params, effective_steps):
        return {"own": params}

    def finish_round(self, server, updates, parties, mean):
        assert list(server.shared) == list(server.memory) == ["own"]
        assert all(list(update.extra) == ["own"] for update in updates)
        return server.shared, server.memory


@dataclass(frozen=True)
class Halved(Algorithm):
    """A method that starts from half of the weights and evaluates twice the weights."""

    def init_server(self, params, buffers):
        half = {name: value / 2 for name, value in params.items()}
        return super().init_server(half, buffers)

    def deployed(self, server):
        return {"global": {name: 2 * value for name, value in server.params.items()}}


@dataclass(frozen=True)
class Doubled(Algorithm):
    """Another method that says what is evaluated."""

    def deployed(self, server):
        return {"global": {name: 2 * value for name, value in server.params.items()}}


@dataclass(frozen=True)
class WholeLoss(Algorithm):
    """A method that replaces the local loss."""

    def local_loss(self, party):
        return super().local_loss(party)


def test_the_terms_add_up() -> None:
    """MOON's negatives and SCAFFOLD's c_i differ between rounds, so two rounds show both terms."""
    task = gaussians()
    both = train(with_algorithm(TINY, "moon+scaffold"), task)
    assert not same(both.params, train(with_algorithm(TINY, "moon"), task).params)
    assert not same(both.params, train(with_algorithm(TINY, "scaffold"), task).params)
    assert list(both.shared) == ["scaffold/c"]


@pytest.mark.parametrize("neutral", [MOON(mu=0), FedProx(mu=0), FedAvg()])
@pytest.mark.parametrize("name", COMPOSABLE)
def test_a_neutral_part_changes_no_bit(name: str, neutral: Algorithm) -> None:
    method = ALGORITHMS[name]()
    if type(method) is type(neutral):
        return
    task = gaussians(batch_norm=True)
    alone = train(with_algorithm(TINY, method), task)
    composed = train(with_algorithm(TINY, method + neutral), task)
    assert same(alone.params, composed.params)
    assert same(alone.buffers, composed.buffers)


def test_the_order_of_the_parts_does_not_matter() -> None:
    a, b, c = MOON(mu=2), FedProx(mu=0.3), Scaffold()
    assert a + b + c == c + (b + a) == compose(b, c, a)
    assert (a + b).label == "MOON + FedProx"
    forward = with_algorithm(QUICK, "moon+scaffold")
    assert fingerprint(forward) == fingerprint(with_algorithm(QUICK, "scaffold+moon"))


def test_a_composition_has_party_states_if_a_part_has() -> None:
    assert not stores_state(FedProx() + FedRS())
    assert stores_state(FedProx() + Ditto())
    assert stores_state(FedProx() + MOON())
    assert replace(TINY, algorithm=FedProx(), personal="output").has_party_states


def test_fedavg_is_neutral() -> None:
    assert FedAvg() + MOON(mu=2) == MOON(mu=2)
    assert FedAvg() + FedAvg() == FedAvg()


@pytest.mark.parametrize("other", [MOON(mu=5), FedProx(mu=0.5)])
def test_scaffold_with_a_term_reaches_the_optimum(other: Algorithm) -> None:
    """At the optimum the additional term has no gradient, so it is still a fixed point."""
    exp = Experiment(
        algorithm=Scaffold() + other,
        parties=2,
        rounds=80,
        epochs=10,
        batch_size=8,
        lr=0.05,
        momentum=0.0,
        weight_decay=0.0,
    )
    server = train(exp, quadratics([1.0, 4.0], [0.0, 1.0], [8, 8]))
    assert float(server.params["w"]) == pytest.approx(0.8, abs=2e-3)


@pytest.mark.parametrize("name", COMPOSABLE)
def test_each_part_sees_only_its_own(name: str) -> None:
    exp = with_algorithm(TINY, ALGORITHMS[name]() + Watcher())
    server = train(exp, gaussians())
    assert "watcher/own" in server.shared
    assert "watcher/own" in server.memory


UNEVEN = replace(TINY, batch_size=8)  # parties of 20 to 40 samples take 2 to 5 steps per epoch


def test_a_part_may_change_the_start_and_the_evaluated_models() -> None:
    params = {"w": torch.tensor([2.0, 4.0])}
    both = Halved() + Scaffold()
    server = both.init_server(params, {})
    assert same(server.params, {"w": torch.tensor([1.0, 2.0])})
    assert list(server.shared) == ["scaffold/c"]
    assert same(both.deployed(server)["global"], params)


def test_fednova_as_aggregation_is_the_method_up_to_rounding() -> None:
    task = gaussians()
    method = train(with_algorithm(UNEVEN, FedNova()), task)
    rule = train(replace(with_algorithm(UNEVEN, FedAvg()), aggregation="fednova"), task)
    mean = train(with_algorithm(UNEVEN, FedAvg()), task)
    for name, value in method.params.items():
        assert torch.allclose(rule.params[name], value, rtol=0, atol=1e-5)
    gaps = [float((mean.params[k] - method.params[k]).abs().max()) for k in method.params]
    assert max(gaps) > 1e-3


def test_moon_with_fednova_is_the_composition() -> None:
    task = gaussians()
    rule = train(replace(with_algorithm(UNEVEN, MOON()), aggregation="fednova"), task)
    parts = train(with_algorithm(UNEVEN, MOON() + FedNova()), task)
    for name, value in parts.params.items():
        assert torch.allclose(rule.params[name], value, rtol=0, atol=1e-5)


REFUSED = [
    (lambda: MOON() + Solo(), "SOLO cannot be composed: its parties never exchange models"),
    (lambda: MOON() + WholeLoss(), "WholeLoss cannot be composed: it replaces the whole local"),
    (lambda: FedNova() + FedDyn(), "FedNova and FedDyn cannot be composed: each aggregates"),
    (lambda: FedLC() + FedRS(), "FedLC and FedRS cannot be composed: each replaces the supervised"),
    (lambda: Halved() + Doubled(), "Doubled and Halved cannot be composed: each evaluates"),
    (lambda: MOON(mu=1) + MOON(mu=2), "moon occurs twice in moon\\+moon"),
    (lambda: replace(QUICK, algorithm=MOON() + FedDyn(), server=SERVERS["momentum"]()), "feddyn"),
    (lambda: replace(QUICK, algorithm=FedDyn(), aggregation="fednova"), "in its own way"),
    (lambda: replace(QUICK, algorithm=MOON() + FedNova(), aggregation="fednova"), "its own way"),
    (lambda: override(QUICK, ["algorithm=moon+"]), "must name different methods"),
    (lambda: override(QUICK, ["algorithm=moon+moon"]), "must name different methods"),
    (lambda: override(QUICK, ["algorithm=moon+mon"]), "unknown algorithm 'mon'"),
    (lambda: override(QUICK, ["algorithm=moon+fedprox", "mu=1"]), "write moon.mu or fedprox.mu"),
    (lambda: override(QUICK, ["algorithm=moon+fedprox", "alpha=1"]), "belongs to algorithm=feddyn"),
    (lambda: override(QUICK, ["mu=1", "moon.mu=2"]), "mu is set twice, by mu and moon.mu"),
    (
        lambda: override(QUICK, ["algorithm=moon+scaffold", "moon.mu=-1"]),
        "moon.mu must be a finite",
    ),
    (lambda: from_dict({"algorithm": {"name": "moon+scaffold", "mu": 1}}), "below .algorithm.moon"),
    (lambda: from_dict({"algorithm": {"name": "moon+scaffold", "moon": 1}}), "must be a table"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_makes_no_sense_is_refused_with_the_reason(build, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_something_else_cannot_be_added() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        MOON() + 1


def test_settings_are_written_by_name_or_with_their_part() -> None:
    words = ["algorithm=moon+fedprox", "tau=0.3", "moon.mu=2", "algorithm.fedprox.mu=0.1"]
    exp = override(QUICK, words)
    assert override(QUICK, [*words[:3], "fedprox.mu=0.1"]) == exp
    assert exp.algorithm == MOON(mu=2, tau=0.3) + FedProx(mu=0.1)
    assert from_dict(to_dict(exp)) == exp
    assert override(exp, ["algorithm=moon"]).algorithm == MOON(mu=2, tau=0.3)
    wider = override(replace(QUICK, algorithm=MOON(mu=7)), ["algorithm=scaffold+moon"])
    assert wider.algorithm == MOON(mu=7) + Scaffold()


def test_what_a_composition_sends_is_counted() -> None:
    task = gaussians()
    sizes = {}
    for name in ("moon", "scaffold", "moon+scaffold"):
        exp = with_algorithm(TINY, name)
        server = exp.algorithm.init_server(*task.init_model(0))
        update, _ = local_update(exp, task, Workbench(task.build), server, state=None, party=0, t=0)
        sizes[name] = update.metrics["bytes_up"], update.metrics["bytes_down"]
    assert sizes["moon+scaffold"] == sizes["scaffold"]
    assert sizes["scaffold"][0] > sizes["moon"][0]


@st.composite
def compositions(draw: st.DrawFn) -> Experiment:
    """Draw an experiment with random components: methods, server, aggregation, personal part."""
    names = draw(st.lists(st.sampled_from(COMPOSABLE), min_size=2, max_size=3, unique=True))
    words = ["algorithm=" + "+".join(names)]
    words.append(f"server={draw(st.sampled_from(list(SERVERS)))}")
    words.append(f"aggregation={draw(st.sampled_from(['mean', 'median', 'fednova']))}")
    words.append(f"personal={draw(st.sampled_from(['none', 'output', 'encoder']))}")
    words.append(f"finetune={draw(st.sampled_from(['none', '1']))}")
    words.append(f"evaluate_every={draw(st.integers(1, 2))}")
    try:
        return override(replace(QUICK, seed=draw(st.integers(0, 3))), words)
    except InputError:  # the composition makes no sense: draw another one
        reject()


@given(exp=compositions())
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_random_compositions_resume_and_need_no_particular_engine(
    exp: Experiment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("composition")
    expected = results_of(moonfl.run(exp, workers=1))
    assert same(results_of(moonfl.run(exp, workers=2)), expected)
    with pytest.raises(StopError):
        moonfl.run(exp, out / "run", workers=1, watch=stop_after(2))
    assert same(results_of(moonfl.resume(out / "run", workers=2, state_memory=0)), expected)


def test_a_composition_over_flower_is_bit_identical(tmp_path: Path) -> None:
    exp = override(QUICK, ["algorithm=moon+scaffold", "server=momentum"])
    assert isinstance(exp.algorithm, Composed)
    assert same(run_simulated(exp, tmp_path).models, moonfl.run(exp, workers=1).models)
