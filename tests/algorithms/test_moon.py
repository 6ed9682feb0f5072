"""MOON's loss against the written-out equation, and what it keeps."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.problems import TINY, gaussians, with_algorithm
from moonfl.algorithms.moon import MOON, model_contrastive
from moonfl.engines.embedded import Embedded
from moonfl.federation import init_server
from moonfl.local import Workbench
from moonfl.types import Batch, Output, Party


def written_out(z: Tensor, z_glob: Tensor, z_prev: list[Tensor], tau: float) -> float:
    """Eq. 3, sample by sample in plain Python."""

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
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(5, 7, generator=rng, dtype=torch.float64) for _ in range(count)]


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_equals_the_equation(tau: float, k: int) -> None:
    z, z_glob, *z_prev = representations(2 + k)
    assert float(model_contrastive(z, z_glob, z_prev, tau)) == pytest.approx(
        written_out(z, z_glob, z_prev, tau), abs=1e-12
    )


def test_zero_without_negatives() -> None:
    z, z_glob = representations(2)
    z.requires_grad_()
    loss = model_contrastive(z, z_glob, [], 0.5)
    loss.backward()
    assert loss == 0
    assert not z.grad.any()


def test_log_2_and_no_gradient_when_previous_equals_global() -> None:
    """Sec. 3.3: without drift MOON is FedAvg."""
    z, z_glob = representations(2)
    z.requires_grad_()
    loss = model_contrastive(z, z_glob, [z_glob.clone()], 0.5)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert z.grad.abs().max() < 1e-15


@pytest.mark.parametrize("k", [1, 3])
def test_gradient_by_finite_differences(k: int) -> None:
    z, z_glob, *z_prev = representations(2 + k)
    assert torch.autograd.gradcheck(
        lambda z: model_contrastive(z, z_glob, z_prev, 0.5), z.requires_grad_()
    )


def test_gradient_pulls_to_global_and_pushes_from_previous() -> None:
    z, z_glob, z_prev = representations(3)
    z.requires_grad_()
    model_contrastive(z, z_glob, [z_prev], 0.5).backward()
    moved = z.detach() - 1e-3 * z.grad
    assert F.cosine_similarity(moved, z_glob).mean() > F.cosine_similarity(z, z_glob).mean()
    assert F.cosine_similarity(moved, z_prev).mean() < F.cosine_similarity(z, z_prev).mean()


def one_loss(algorithm: MOON, z: Tensor, glob: Tensor, prev: list[Tensor]) -> float:
    """The local loss where the models' representations are given, and the supervised part is 7."""
    tables = {"glob": glob} | {f"prev{i}": p for i, p in enumerate(prev)}
    party = Party(
        0,
        {name: {name: tables[name]} for name in tables if name != "glob"},
        {"glob": glob},
        {},
        {},
        0.1,
        0.0,
        lambda logits, batch: torch.tensor(7.0, dtype=torch.float64),
        lambda params: lambda x, rows: Output(next(iter(params.values())), z),
    )
    loss = algorithm.local_loss(party)
    return float(loss(lambda x: Output(z, z), Batch(z, z, z)))


def test_local_loss_is_supervised_plus_mu_times_contrast() -> None:
    z, glob, *prev = representations(4)
    assert one_loss(MOON(mu=3.0, tau=0.7), z, glob, prev) == pytest.approx(
        7 + 3 * written_out(z, glob, prev, 0.7)
    )
    assert one_loss(MOON(mu=3.0), z, glob, []) == 7


def test_l2_is_the_mean_of_the_unsquared_norms() -> None:
    z, glob = representations(2)
    norms = [
        math.sqrt(sum((a - b) ** 2 for a, b in zip(p, q, strict=True)))
        for p, q in zip(z.tolist(), glob.tolist(), strict=True)
    ]
    assert one_loss(MOON(mu=2.0, contrast="l2"), z, glob, []) == pytest.approx(
        7 + 2 * sum(norms) / len(norms)
    )


def test_no_model_is_frozen_where_there_is_nothing_to_compare() -> None:
    """On samples that look alike in every epoch that is a pass over all of them."""
    asked: list[object] = []
    party = Party(0, {}, {}, {}, {}, 0.1, 0.0, lambda logits, batch: logits.sum(), asked.append)
    MOON().local_loss(party)
    assert asked == []


def test_l2_has_a_finite_gradient_where_z_equals_z_glob() -> None:
    """The first step of every round starts there."""
    task = gaussians()
    exp = with_algorithm(TINY, MOON(contrast="l2"))
    update = Embedded(exp, task).train(init_server(exp, task), [0], 0)[0]
    assert all(torch.isfinite(v).all() for v in update.params.values())


@pytest.mark.parametrize("k", [1, 2, 3])
def test_keeps_the_k_newest_models_newest_first(k: int) -> None:
    task = gaussians()
    exp = with_algorithm(TINY, MOON(negatives=k))
    server, engine = init_server(exp, task), Embedded(exp, task)
    sent = [engine.train(server, [0], t)[0].params for t in range(5)]
    kept = list(engine.states.load(0, before=5).values())
    assert len(kept) == k
    for model, expected in zip(kept, sent[::-1], strict=False):
        assert all(torch.equal(model[name], expected[name]) for name in expected)


def test_party_left_out_for_rounds_keeps_its_latest_model() -> None:
    task = gaussians()
    exp = with_algorithm(TINY, MOON())
    server, engine = init_server(exp, task), Embedded(exp, task)
    update = engine.train(server, [2], 0)[0]
    engine.train(server, [0, 1], 1)
    kept = engine.states.load(2, before=7)["prev0"]
    assert all(torch.equal(kept[name], update.params[name]) for name in update.params)


def test_frozen_models_are_read_in_eval_mode_and_do_not_drift() -> None:
    task = gaussians(batch_norm=True)
    params, buffers = task.init_model(0)
    bench = Workbench(task.build)
    x = task.parties[0].x
    read = bench.frozen(params | buffers)
    first = read(Batch(x, x, x))
    assert not first.z.requires_grad
    assert torch.equal(first.z, read(Batch(x, x, x)).z)
    assert all(torch.equal(v, buffers[k]) for k, v in bench.modules[0].named_buffers())
    assert torch.allclose(read(Batch(x[:1], x, x)).z, first.z[:1], atol=1e-6)


def test_first_round_is_fedavg_to_the_bit() -> None:
    task = gaussians()
    moon, fedavg = with_algorithm(TINY, MOON(mu=5)), with_algorithm(TINY, "fedavg")
    server = init_server(moon, task)
    a, b = (Embedded(exp, task).train(server, [1], 0)[0].params for exp in (moon, fedavg))
    assert all(torch.equal(a[name], b[name]) for name in a)
