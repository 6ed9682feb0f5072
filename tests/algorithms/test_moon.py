"""MOON: its loss compared with the equation of the paper, and the models that a party stores."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.problems import TINY, gaussians, make_party, with_algorithm
from moonfl.algorithms.moon import MOON
from moonfl.engines.embedded import Embedded
from moonfl.federation import init_server
from moonfl.kernels.contrast import model_contrastive
from moonfl.local import Workbench
from moonfl.types import Batch, Output


def equation_3(z: Tensor, z_glob: Tensor, z_prev: list[Tensor], tau: float) -> float:
    """Compute eq. 3 of the paper sample by sample in plain Python."""

    def sim(a: list[float], b: list[float]) -> float:
        dot = sum(p * q for p, q in zip(a, b, strict=True))
        return dot / math.sqrt(sum(p * p for p in a)) / math.sqrt(sum(q * q for q in b))

    total = 0.0
    for i, row in enumerate(z.tolist()):
        positive = math.exp(sim(row, z_glob[i].tolist()) / tau)
        negative = sum(math.exp(sim(row, prev[i].tolist()) / tau) for prev in z_prev)
        total -= math.log(positive / (positive + negative))
    return total / len(z)


def representations(count: int, seed: int = 0) -> list[Tensor]:
    """Return random representations of five samples."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(5, 7, generator=rng, dtype=torch.float64) for _ in range(count)]


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_the_loss_equals_equation_3(tau: float, k: int) -> None:
    z, z_glob, *z_prev = representations(2 + k)
    assert float(model_contrastive(z, z_glob, z_prev, tau)) == pytest.approx(
        equation_3(z, z_glob, z_prev, tau), abs=1e-12
    )


def test_the_loss_is_zero_without_negatives() -> None:
    z, z_glob = representations(2)
    z.requires_grad_()
    loss = model_contrastive(z, z_glob, [], 0.5)
    loss.backward()
    assert loss == 0
    assert not z.grad.any()


def test_the_loss_is_log_2_without_gradient_if_the_previous_model_is_the_global_one() -> None:
    """Without drift MOON is FedAvg (sec. 3.3 of the paper)."""
    z, z_glob = representations(2)
    z.requires_grad_()
    loss = model_contrastive(z, z_glob, [z_glob.clone()], 0.5)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert z.grad.abs().max() < 1e-15


@pytest.mark.parametrize("k", [1, 3])
def test_the_gradient_equals_finite_differences(k: int) -> None:
    z, z_glob, *z_prev = representations(2 + k)
    assert torch.autograd.gradcheck(
        lambda z: model_contrastive(z, z_glob, z_prev, 0.5), z.requires_grad_()
    )


def test_the_gradient_points_to_the_global_and_away_from_the_previous_model() -> None:
    z, z_glob, z_prev = representations(3)
    z.requires_grad_()
    model_contrastive(z, z_glob, [z_prev], 0.5).backward()
    updated = z.detach() - 1e-3 * z.grad
    assert F.cosine_similarity(updated, z_glob).mean() > F.cosine_similarity(z, z_glob).mean()
    assert F.cosine_similarity(updated, z_prev).mean() < F.cosine_similarity(z, z_prev).mean()


class Representation(nn.Module):
    """A model that returns z for every input."""

    def __init__(self, z: Tensor) -> None:
        super().__init__()
        self.z = z

    def forward(self, x: Tensor) -> Output:
        return Output(self.z, self.z)


def local_loss(algorithm: MOON, z: Tensor, glob: Tensor, prev: list[Tensor]) -> float:
    """Return the local loss for representations of the models and a supervised loss of 7."""
    party = make_party(
        state={f"prev{i}": {f"prev{i}": z_prev} for i, z_prev in enumerate(prev)},
        global_params={"glob": glob},
        supervised=lambda logits, batch: torch.tensor(7.0, dtype=torch.float64),
        frozen=lambda params: lambda x, rows: Output(next(iter(params.values())), z),
    )
    loss = algorithm.local_loss(party)
    return float(loss(Representation(z), Batch(z, z, z)))


def test_local_loss_is_supervised_plus_mu_times_contrast() -> None:
    z, glob, *prev = representations(4)
    expected = 7 + 3 * equation_3(z, glob, prev, 0.7)
    assert local_loss(MOON(mu=3.0, tau=0.7), z, glob, prev) == pytest.approx(expected)
    assert local_loss(MOON(mu=3.0), z, glob, []) == 7


def test_l2_is_the_mean_of_the_unsquared_norms() -> None:
    z, glob = representations(2)
    norms = [
        math.sqrt(sum((a - b) ** 2 for a, b in zip(p, q, strict=True)))
        for p, q in zip(z.tolist(), glob.tolist(), strict=True)
    ]
    expected = 7 + 2 * sum(norms) / len(norms)
    assert local_loss(MOON(mu=2.0, contrast="l2"), z, glob, []) == pytest.approx(expected)


def test_no_frozen_model_is_built_without_previous_models() -> None:
    """Without augmentation a frozen model costs one pass over all samples of the party."""
    frozen_models: list[object] = []
    party = make_party(frozen=frozen_models.append)
    MOON().local_loss(party)
    assert frozen_models == []


def test_l2_has_a_finite_gradient_if_z_equals_z_glob() -> None:
    """Every round starts with equal representations."""
    task = gaussians()
    exp = with_algorithm(TINY, MOON(contrast="l2"))
    update = Embedded(exp, task).train(init_server(exp, task), [0], 0)[0]
    assert all(torch.isfinite(v).all() for v in update.params.values())


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_party_stores_its_k_newest_models_newest_first(k: int) -> None:
    task = gaussians()
    exp = with_algorithm(TINY, MOON(negatives=k))
    server = init_server(exp, task)
    engine = Embedded(exp, task)
    trained = [engine.train(server, [0], t)[0].params for t in range(5)]
    stored = list(engine.states.load(0, before=5).values())
    assert len(stored) == k
    for model, expected in zip(stored, trained[::-1], strict=False):
        assert all(torch.equal(model[name], expected[name]) for name in expected)


def test_a_party_that_skips_rounds_keeps_its_latest_model() -> None:
    task = gaussians()
    exp = with_algorithm(TINY, MOON())
    server = init_server(exp, task)
    engine = Embedded(exp, task)
    update = engine.train(server, [2], 0)[0]
    engine.train(server, [0, 1], 1)
    stored = engine.states.load(2, before=7)["prev0"]
    assert all(torch.equal(stored[name], update.params[name]) for name in update.params)


def test_frozen_models_are_in_eval_mode_and_do_not_change() -> None:
    task = gaussians(batch_norm=True)
    params, buffers = task.init_model(0)
    bench = Workbench(task.build)
    x = task.parties[0].x
    frozen = bench.frozen(params | buffers)
    first = frozen(Batch(x, x, x))
    assert not first.z.requires_grad
    assert torch.equal(first.z, frozen(Batch(x, x, x)).z)
    assert all(torch.equal(v, buffers[k]) for k, v in bench.replicas[0].module.named_buffers())
    assert torch.allclose(frozen(Batch(x[:1], x, x)).z, first.z[:1], atol=1e-6)


def test_the_first_round_is_bit_identical_to_fedavg() -> None:
    task = gaussians()
    moon = with_algorithm(TINY, MOON(mu=5))
    fedavg = with_algorithm(TINY, "fedavg")
    server = init_server(moon, task)
    a, b = (Embedded(exp, task).train(server, [1], 0)[0].params for exp in (moon, fedavg))
    assert all(torch.equal(a[name], b[name]) for name in a)
