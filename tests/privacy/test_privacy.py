"""Differential privacy: noise, clipping, accounting, and that nothing sees a party's update."""

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, kstest, norm
from torch import Tensor, nn

import moonfl
from helpers.equality import same
from helpers.flower_deployment import Deployment, run_simulated
from helpers.interruption import StopError, results_of, stop_after
from helpers.problems import MemoryRecorder, mean_variate, quadratics, train, with_algorithm
from moonfl.algorithms import ALGORITHMS, FedAvg
from moonfl.engines.embedded import Embedded
from moonfl.errors import InputError, RunError
from moonfl.experiment import Experiment, fingerprint, from_toml, override
from moonfl.federation import run
from moonfl.privacy import Guarantee, PrivateRound, ServerNoise, accountant
from moonfl.privacy.random_bits import new_key, normal, seed_key, uniform
from moonfl.privacy.server_noise import sum_clipped
from moonfl.report import result_tables
from moonfl.task import build_task, make_task, read, split, with_derived_settings
from moonfl.types import Mean, Params, Server, State, Update

PRIVATE = ["clip=0.5", "dp=server", "dp.noise=0.8", "dp.delta=0.001"]
QUICK = Experiment(
    parties=6, sample_fraction=0.5, rounds=3, epochs=1, batch_size=32, out_dim=16, partition="iid"
)
EXP = override(QUICK, PRIVATE)
SIZE = 100_000
REFUSED = ("fednova", "feddyn", "fedexp", "qfedavg", "solo")


def make_round(params: Params, **changes: object) -> PrivateRound:
    """Return a round of four parties, of which half are expected."""
    values: dict = {"t": 0, "seed": 0, "parties": 4, "rate": 0.5, "clip": 2.0, "extra": {}}
    return PrivateRound(params=params, **(values | changes))


def make_update(values: Tensor, extra: State | None = None) -> Update:
    """Return the update of a party with one parameter tensor, w."""
    return Update(
        party=0, params={"w": values}, buffers={}, num_samples=7, num_steps=3, extra=extra or {}
    )


# random numbers


def test_numbers_have_their_distributions() -> None:
    key = seed_key(0, 0)
    assert kstest(uniform(key, "u", SIZE), "uniform").pvalue > 0.01
    assert kstest(normal(key, "n", torch.Size([SIZE])).numpy(), "norm").pvalue > 0.01
    halves = normal(key, "n", torch.Size([2, SIZE])).numpy()
    assert abs(np.corrcoef(halves)[0, 1]) < 0.02


def test_streams_are_repeatable_and_different() -> None:
    shape = torch.Size([5, 3])
    first = normal(seed_key(0, 0), "w", shape)
    assert first.shape == shape
    assert first.equal(normal(seed_key(0, 0), "w", shape))
    for key, purpose in ((seed_key(1, 0), "w"), (seed_key(0, 1), "w"), (seed_key(0, 0), "v")):
        assert not first.equal(normal(key, purpose, shape))
    assert new_key() != new_key()


# the mechanism


@given(
    vectors=st.lists(st.lists(st.floats(width=32), min_size=3, max_size=3), min_size=1, max_size=5),
    clip=st.floats(0.01, 100),
)
def test_one_party_changes_the_sum_by_at_most_clip(vectors: list, clip: float) -> None:
    """The sensitivity, also for updates that are infinite or not a number."""
    origin = {"w": torch.tensor([1.0, -2.0, 0.5])}
    parties = [{"w": torch.tensor(vector)} for vector in vectors]
    everyone = sum_clipped(parties, origin, clip)["w"]
    without = sum_clipped(parties[1:], origin, clip)["w"]
    assert float((everyone - without).norm()) <= clip * (1 + 1e-9)
    assert torch.isfinite(everyone).all()


def test_the_mean_has_equal_weights_and_a_fixed_denominator() -> None:
    """w + (sum clip(w_i - w)) / (q N), if the noise is tiny; two of four parties are expected."""
    w = torch.tensor([1.0, 1.0])
    updates = [make_update(torch.tensor([4.0, 5.0])), make_update(torch.tensor([1.0, 2.0]))]
    private = make_round({"w": w})
    (first, second) = ServerNoise(noise=1e-12).privatise(updates, private)
    assert first is second
    clipped = 2.0 * torch.tensor([3.0, 4.0]) / 5
    torch.testing.assert_close(first.params["w"], w + (clipped + torch.tensor([0.0, 1.0])) / 2)


@pytest.mark.parametrize("labels", [(), ("delta_c",), ("a", "b")])
def test_the_noise_covers_all_that_a_party_sends(labels: tuple[str, ...]) -> None:
    w = {"w": torch.zeros(SIZE)}
    private = make_round(w, extra=dict.fromkeys(labels, w))
    noise = 1.5
    update, *_ = ServerNoise(noise=noise).privatise([], private)  # nobody takes part
    std = noise * private.clip * math.sqrt(1 + len(labels)) / 2
    vectors = [update.params["w"], *(update.extra[label]["w"] for label in labels)]
    for vector in vectors:
        assert kstest(vector.numpy() / std, "norm").pvalue > 0.01
    assert len({float(vector[0]) for vector in vectors}) == len(vectors)


@pytest.mark.parametrize("labels", [(), ("delta_c",), ("a", "b")])
def test_one_party_moves_all_that_is_released_by_at_most_its_share(labels: tuple[str, ...]) -> None:
    """sqrt(k) clip / (q N) for k vectors, to which the noise is proportional."""
    rng = torch.Generator().manual_seed(0)
    w = {"w": torch.randn(5, generator=rng)}
    private = make_round(w, extra=dict.fromkeys(labels, w))
    updates = []
    for _ in range(3):
        extra = {label: {"w": 50 * torch.randn(5, generator=rng)} for label in labels}
        updates.append(make_update(50 * torch.randn(5, generator=rng), extra))
    everyone, *_ = ServerNoise(noise=1).privatise(updates, private)
    without, *_ = ServerNoise(noise=1).privatise(updates[:-1], private)
    moves = [everyone.params["w"] - without.params["w"]]
    moves += [everyone.extra[label]["w"] - without.extra[label]["w"] for label in labels]
    share = private.clip * math.sqrt(1 + len(labels)) / (private.rate * private.parties)
    assert float(torch.cat(moves).norm()) == pytest.approx(share, rel=1e-5)


@pytest.mark.parametrize(
    ("parties", "rate", "clip"), [(6, 0.25, 1000), (10, 0.05, 1000), (4, 0.5, 1000), (4, 0.5, 0.3)]
)
def test_scaffolds_c_is_the_mean_of_the_c_i(parties: int, rate: float, clip: float) -> None:
    """Also if q N, the expected number of parties, is no integer, and if every delta is clipped."""
    centres = [float(i) for i in range(1, parties + 1)]
    task = quadratics([1.0] * parties, centres, [8] * parties)
    words = [f"clip={clip}", "dp=server", "dp.noise=1e-9", "algorithm=scaffold"]
    base = replace(QUICK, parties=parties, sample_fraction=rate, rounds=12)
    exp = override(base, words)
    engine = Embedded(exp, task)
    server = run(exp, task, engine, MemoryRecorder())
    mean = mean_variate(exp, engine)
    assert mean != 0
    assert float(server.shared["c"]["w"]) == pytest.approx(mean, rel=1e-4)


def test_no_noise_is_used_twice() -> None:
    """Whatever the labels and names are: 'a b' + 'c' is not 'a' + 'b c'."""
    w = {"c": torch.zeros(4), "b c": torch.zeros(4)}
    private = make_round(w, extra=dict.fromkeys(["params", "a", "a b", "0", "extra 0"], w))
    update, *_ = ServerNoise(noise=1).privatise([], private)
    vectors = [update.params, *update.extra.values()]
    noise = [tuple(params[name].tolist()) for params in vectors for name in params]
    assert len(set(noise)) == 12


@pytest.mark.parametrize(
    "extra",
    [{}, {"delta": {}}, {"delta": {"v": torch.zeros(2)}}, {"delta": {"w": torch.zeros(3, 2)}}],
)
def test_undeclared_tensors_are_refused(extra: State) -> None:
    """A larger tensor would get the same noise several times."""
    w = {"w": torch.zeros(2)}
    private = make_round(w, extra={"delta": w})
    with pytest.raises(RunError, match="extra_like"):
        ServerNoise(noise=1).privatise([make_update(torch.ones(2), extra)], private)


def test_rounds_have_different_noise() -> None:
    w = {"w": torch.zeros(4)}
    mechanism = ServerNoise(noise=1)
    first, second = (mechanism.privatise([], make_round(w, t=t))[0].params["w"] for t in (0, 1))
    assert not first.equal(second)


def test_parties_are_sampled_independently() -> None:
    mechanism = ServerNoise(noise=1)
    rounds = [mechanism.sample(20, 0.3, 0, t) for t in range(2000)]
    numbers = np.array([len(parties) for parties in rounds])
    assert numbers.mean() == pytest.approx(6, abs=0.15)
    assert numbers.var() == pytest.approx(binom(20, 0.3).var(), rel=0.1)
    both = np.mean([{0, 1} <= set(parties) for parties in rounds])
    assert both == pytest.approx(0.09, abs=0.02)
    assert mechanism.sample(20, 1.0, 0, 0) == list(range(20))


def test_the_fixed_point_is_the_mean_of_the_optima() -> None:
    """Quadratic losses with the same curvature, whatever the sizes of the parties."""
    task = quadratics([1.0, 1.0, 1.0], [0.0, 3.0, 6.0], [10, 20, 90])
    exp = Experiment(
        parties=3,
        rounds=60,
        epochs=1,
        batch_size=200,
        lr=0.1,
        momentum=0.0,
        clip=10.0,
        algorithm=FedAvg(),
        dp=ServerNoise(noise=1e-9),
    )
    assert float(train(exp, task).params["w"]) == pytest.approx(3.0, abs=0.01)


# what methods see


@dataclass(frozen=True)
class Curious(FedAvg):
    """FedAvg that remembers the updates of every round."""

    rounds: ClassVar[list[list[Update]]] = []

    def finish_round(
        self, server: Server, updates: list[Update], parties: int, mean: Mean
    ) -> tuple[State, State]:
        self.rounds.append(updates)
        return {}, {}


def test_methods_see_only_the_noisy_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Curious, "rounds", [])
    task = make_task(EXP)
    train(replace(EXP, algorithm=Curious()), task)
    assert len(Curious.rounds) == EXP.rounds
    for updates in Curious.rounds:
        assert all(update is updates[0] for update in updates)
        assert updates[0].num_samples == 1
        assert updates[0].buffers == updates[0].metrics == {}


@dataclass(frozen=True)
class Counting(FedAvg):
    """FedAvg that sends a number in addition to the model."""

    def extra_like(self, params: Params, effective_steps: float) -> State:
        return {"count": {"n": torch.tensor(1.0)}}


def test_numbers_that_parties_send_are_refused() -> None:
    with pytest.raises(InputError, match=r"in addition to the model \(count\)"):
        make_task(replace(EXP, algorithm=Counting()))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_is_covered_or_refused(name: str) -> None:
    exp = replace(with_algorithm(QUICK, name), rounds=1)
    if name in REFUSED:
        with pytest.raises(InputError, match=r"dp|aggregates nothing"):
            override(exp, PRIVATE)
        return
    private = override(exp, PRIVATE)
    task = make_task(private)
    before = task.init_shared(private.seed)[0]
    after = train(private, task).params
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
    assert not any(after[key].equal(before[key]) for key in before)


class Counter(nn.Module):
    """A classifier with a buffer that depends on the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.total += x.sum().detach()
        return self.layer(x.flatten(1))


def test_buffers_keep_their_initial_values() -> None:
    task = build_task(EXP, split(EXP, read(EXP)), model=Counter())
    buffers = train(EXP, task).buffers
    assert [float(value) for name, value in buffers.items() if name.endswith("total")] == [0.0]


# runs


@pytest.mark.parametrize("algorithm", ["moon", "moon+scaffold"])
def test_runs_are_bit_identical(algorithm: str, tmp_path: Path) -> None:
    """With one or two workers, resumed, and over Flower."""
    exp = override(EXP, [f"algorithm={algorithm}", "server=momentum"])
    expected = moonfl.run(exp, workers=1)
    assert same(results_of(moonfl.run(exp, workers=2)), results_of(expected))
    with pytest.raises(StopError):
        moonfl.run(exp, tmp_path / "run", workers=1, watch=stop_after(1))
    assert same(results_of(moonfl.resume(tmp_path / "run", workers=1)), results_of(expected))
    assert same(run_simulated(exp, tmp_path / "flower").models, expected.models)


def test_a_round_without_parties_adds_noise() -> None:
    exp = replace(EXP, sample_fraction=1e-6, rounds=2)
    assert [record.parties for record in moonfl.run(exp, workers=1).rounds] == [[], []]
    task = make_task(exp)
    before = task.init_shared(0)[0]
    after = train(exp, task).params
    assert not any(after[name].equal(before[name]) for name in before)


@pytest.mark.parametrize("engine", ["pool", "flower"])
def test_every_engine_has_rounds_without_parties(engine: str, tmp_path: Path) -> None:
    exp = replace(EXP, sample_fraction=1e-6, rounds=2)
    expected = moonfl.run(exp, workers=1).models
    if engine == "pool":
        result = moonfl.run(exp, tmp_path / "run", workers=2)
    else:
        result = run_simulated(exp, tmp_path / "run")
    assert same(result.models, expected)


def test_batchnorm_must_stay_at_the_party() -> None:
    data = split(EXP, read(EXP))
    layers = [nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)]
    with pytest.raises(InputError, match="personal=batchnorm"):
        build_task(EXP, data, model=nn.Sequential(*layers))
    build_task(replace(EXP, personal="batchnorm"), data, model=nn.Sequential(*layers))


def test_secret_noise_differs_in_every_run() -> None:
    exp = replace(EXP, sample_fraction=1.0, dp=replace(EXP.dp, secret=True))
    first, second = (moonfl.run(exp, workers=1) for _ in range(2))
    assert not same(first.models, second.models)


def test_secret_sampling_differs_in_every_round() -> None:
    mechanism = ServerNoise(noise=1, secret=True)
    samples = [mechanism.sample(100, 0.5, 0, 0) for _ in range(2)]
    assert samples[0] != samples[1]
    private = make_round({"w": torch.zeros(4)})
    first, second = (mechanism.privatise([], private)[0].params["w"] for _ in range(2))
    assert not first.equal(second)


def test_a_run_with_secret_noise_is_resumed(tmp_path: Path) -> None:
    exp = replace(EXP, dp=replace(EXP.dp, secret=True))
    with pytest.raises(StopError):
        moonfl.run(exp, tmp_path / "run", workers=1, watch=stop_after(1))
    before = json.loads((tmp_path / "run" / "rounds.jsonl").read_text())
    result = moonfl.resume(tmp_path / "run", workers=1)
    assert result.experiment.dp == exp.dp
    assert len(result.rounds) == 3
    assert result.rounds[0].loss == before["loss"]


def test_a_deployment_has_secret_noise(tmp_path: Path) -> None:
    words = ["clip=1", "dp=server", "dp.epsilon=20", "sample_fraction=1", "parties=3"]
    deployment = Deployment(tmp_path / "federation", override(QUICK, words))
    stored = from_toml(tmp_path / "federation" / "app" / "experiment.toml")
    assert isinstance(stored.dp, ServerNoise)
    assert stored.dp.secret
    assert stored.dp.guarantee(1.0, 3).epsilon == pytest.approx(20, rel=0.01)
    deployment.exp = replace(stored, dp=replace(stored.dp, secret=False))
    with pytest.raises(InputError, match="secret = true"):
        deployment.serve()
    assert not deployment.out.exists()
    deployment.exp = stored
    assert len(deployment.serve().rounds) == 3


def test_a_deployment_with_epsilon_is_resumed(tmp_path: Path) -> None:
    """If somebody writes it into app/experiment.toml."""
    words = ["clip=1", "dp=server", "dp.noise=1", "sample_fraction=1", "parties=3", "rounds=1"]
    deployment = Deployment(tmp_path / "federation", override(QUICK, words))
    deployment.exp = replace(deployment.exp, dp=ServerNoise(epsilon=20, secret=True))
    first = deployment.serve()
    assert isinstance(first.experiment.dp, ServerNoise)
    assert first.experiment.dp.noise is not None
    assert same(deployment.serve(resume=True).models, first.models)


def test_federate_resumes_a_run_with_epsilon(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parties = [(rng.random((20, 4)), np.arange(20) % 2) for _ in range(3)]
    settings: dict = {"rounds": 2, "epochs": 1, "standardise": False, "clip": 1.0}
    settings |= {"dp": ServerNoise(epsilon=30, delta=0.01), "out": tmp_path / "run"}
    with pytest.raises(StopError):
        moonfl.federate("mlp", parties, workers=1, watch=stop_after(1), **settings)
    result = moonfl.federate("mlp", parties, workers=1, resume=True, **settings)
    guarantee = result.experiment.dp.guarantee(1.0, len(result.rounds))
    assert guarantee.epsilon == pytest.approx(30, rel=0.01)


def test_a_sweep_over_epsilon_finds_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from moonfl.cli.main import main

    words = ["digits-fedavg", "rounds=1", "epochs=1", "parties=3", "clip=1", "dp=server"]
    words += ["dp.epsilon=20,40", "--out", str(tmp_path / "sweep"), "--jobs", "1"]
    assert main(["sweep", *words]) == 2
    assert "--select test" in capsys.readouterr().err
    assert main(["sweep", *words, "--select", "test"]) == 0
    assert "selected dp.epsilon=" in capsys.readouterr().out


def test_an_export_describes_its_guarantee(tmp_path: Path) -> None:
    for secret in (False, True):
        exp = replace(EXP, rounds=1, dp=replace(EXP.dp, secret=secret))
        result = moonfl.run(exp, tmp_path / f"run{secret}", workers=1)
        moonfl.export(result, tmp_path / f"export{secret}")
        text = (tmp_path / f"export{secret}" / "README.md").read_text()
        assert str(exp.dp.guarantee(0.5, 1)) in text
        assert ("void" in text) == (not secret)


def test_the_guarantee_is_stored_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from moonfl.cli.main import main

    words = ["digits-fedavg", "rounds=2", "epochs=1", "parties=4", *PRIVATE]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 0
    output = capsys.readouterr()
    epsilon = accountant.epsilon(0.8, 1.0, 2, 0.001)
    guarantee = str(Guarantee(epsilon, 0.001, "dp-accounting"))
    assert guarantee in output.err
    assert f"after round 2: {guarantee}" in output.out
    assert "dp.secret=true" in output.out
    privacy = json.loads((tmp_path / "run" / "final.json").read_text())["privacy"]
    assert privacy["epsilon"] == pytest.approx(epsilon)
    assert privacy["rounds"] == 2
    assert privacy["accountant"].startswith("dp-accounting")
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report")]) == 0
    table = (tmp_path / "report" / "accuracy.csv").read_text()
    assert "DP-FedAvg" in table
    assert "epsilon" in table
    assert main(["compare", str(tmp_path / "run")]) == 0
    assert "epsilon" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("epsilon", "text"), [(8.0, "8"), (7.0501, "7.06"), (0.12345, "0.124"), (51349.9, "51400")]
)
def test_epsilon_is_rounded_up(epsilon: float, text: str) -> None:
    assert str(Guarantee(epsilon, 1e-5, "")) == f"epsilon {text}, delta 1e-05"
    assert result_tables.EPSILON.format(epsilon) == text


def test_experiments_without_privacy_keep_their_fingerprint() -> None:
    assert "dp" not in moonfl.experiment.to_dict(QUICK)
    assert fingerprint(QUICK) != fingerprint(EXP)


# accounting


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Return epsilon of the Gaussian mechanism, from the exact delta (Balle and Wang 2018)."""

    def excess(epsilon: float) -> float:
        a = norm.logcdf(1 / (2 * noise) - epsilon * noise)
        b = epsilon + norm.logcdf(-1 / (2 * noise) - epsilon * noise)
        return float(a + math.log1p(-math.exp(min(b - a, -1e-12))) - math.log(delta))

    return float(brentq(excess, 1e-6, 1 / (2 * noise**2) + 20 / noise))


@pytest.mark.parametrize(
    ("noise", "rounds"), [(1.0, 1), (4.0, 50), (10.0, 7), (0.3, 3), (0.1, 1), (0.1, 1000)]
)
def test_epsilon_of_all_parties_is_exact(noise: float, rounds: int) -> None:
    """Many rounds of the Gaussian mechanism are one with less noise."""
    exact = gaussian_epsilon(noise / math.sqrt(rounds), 1e-5)
    epsilon = accountant.epsilon(noise, 1.0, rounds, 1e-5)
    assert exact <= epsilon * (1 + 1e-6)
    assert epsilon == pytest.approx(exact, rel=0.005)


def test_sampling_and_fewer_rounds_cost_less() -> None:
    everyone = accountant.epsilon(1.0, 1.0, 20, 1e-5)
    some = accountant.epsilon(1.0, 0.1, 20, 1e-5)
    assert accountant.epsilon(1.0, 0.1, 10, 1e-5) < some < everyone
    assert accountant.epsilon(1.0, 0.1, 0, 1e-5) == 0


def test_noise_is_calibrated_to_epsilon() -> None:
    noise = accountant.noise_for(3.0, 0.1, 40, 1e-5)
    epsilon = accountant.epsilon(noise, 0.1, 40, 1e-5)
    assert 2.95 < epsilon <= 3.0
    exp = override(QUICK, ["clip=1", "dp=server", "dp.epsilon=3"])
    resolved = with_derived_settings(exp, make_task(exp))
    assert isinstance(resolved.dp, ServerNoise)
    assert resolved.dp.epsilon is None
    assert resolved.dp.guarantee(0.5, 3).epsilon == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize("target", [0.01, 8.0, 1000.0])
@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_calibrated_noise_never_exceeds_epsilon(target: float, rate: float) -> None:
    noise = accountant.noise_for(target, rate, 30, 1e-5)
    assert 0.98 * target < accountant.epsilon(noise, rate, 30, 1e-5) <= target


@pytest.mark.parametrize(
    ("dp", "reason"),
    [
        (ServerNoise(noise=1e-9), "increase dp.noise"),
        (ServerNoise(epsilon=1e-9, delta=1e-12), "increase dp.epsilon or dp.delta"),
    ],
)
def test_a_guarantee_that_cannot_be_proved_is_refused(
    dp: ServerNoise, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=reason):
        moonfl.run(replace(EXP, dp=dp), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_epsilon_alone_has_no_guarantee_yet() -> None:
    with pytest.raises(InputError, match="calibrated"):
        ServerNoise(epsilon=1).guarantee(1.0, 5)


def test_without_the_library_a_run_is_not_resumed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(StopError):
        moonfl.run(EXP, tmp_path / "run", workers=1, watch=stop_after(1))
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"moonfl\[privacy\]"):
        moonfl.resume(tmp_path / "run", watch=lambda record: pytest.fail("a round was trained"))


def test_without_the_library_a_run_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"moonfl\[privacy\]"):
        moonfl.run(EXP, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# refusals


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["dp=server"], "dp.noise or dp.epsilon"),
        (["dp=server", "dp.noise=1", "dp.epsilon=2"], "not both"),
        (["dp=server", "dp.noise=0"], "> 0"),
        (["dp=server", "dp.noise=1"], "clip=NORM"),
        (["dp=client"], "allowed: none, server"),
        (["dp.noise=1"], "dp=server"),
        ([*PRIVATE, "aggregation=median"], "noisy mean"),
        ([*PRIVATE, "algorithm=feddyn"], "noisy mean"),
        ([*PRIVATE, "algorithm=solo", "rounds=1"], "aggregates nothing"),
        ([*PRIVATE, "validation=0.1"], "validation"),
        (["clip=1", "dp=server", "dp.noise=1", "dp.delta=0.2"], "1/parties"),
        (["clip=1", "dp=server", "dp.noise=1", "dp.delta=1e-20"], ">= 1e-12"),
        ([*PRIVATE, "dataset=csv", "task=regression", "column=site"], "task=regression"),
    ],
)
def test_what_the_guarantee_does_not_cover_is_refused(words: list[str], reason: str) -> None:
    with pytest.raises(InputError) as error:
        override(replace(QUICK, sample_fraction=1), words)
    assert reason in str(error.value)


def test_statistics_of_features_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{k % 7},{k % 2},{k % 3}" for k in range(60)]
    path.write_text("\n".join(["a,outcome,site", *rows]))
    words = ["dataset=csv", f"data_dir={path}", "label=outcome", "column=site", *PRIVATE]
    with pytest.raises(InputError, match="standardise=false"):
        make_task(override(Experiment(), words))
    with pytest.raises(InputError, match="impute and encode"):
        make_task(override(Experiment(), [*words, "standardise=false", "impute=mean"]))
    make_task(override(Experiment(), [*words, "standardise=false"]))
