"""Local training at the edges: tiny parties, one class, BatchNorm, a loss that explodes."""

import random
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.equality import same
from helpers.problems import TINY, MemoryRecorder, gaussians, train, with_algorithm
from moonfl import tree
from moonfl.algorithms import ALGORITHMS, FedAvg
from moonfl.data.base import Examples
from moonfl.data.loader import batches
from moonfl.engines.base import make_engine
from moonfl.engines.embedded import Embedded
from moonfl.errors import RunError
from moonfl.federation import aggregate, init_server, run
from moonfl.local import Workbench, local_update, sgd_step
from moonfl.models.base import Model
from moonfl.seeds import rng
from moonfl.task import Task
from moonfl.types import Output

SIZES = (1, 10, 63, 64, 65)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parties_of_every_size_train(algorithm: str, batch_norm: bool) -> None:
    exp = with_algorithm(replace(TINY, parties=5, batch_size=64, epochs=2), algorithm)
    task, log = gaussians(SIZES, batch_norm), MemoryRecorder()
    server = run(exp, task, Embedded(exp, task), log)
    steps = [u.num_steps for u in log.updates[-1]]
    assert steps == [0 if batch_norm else 2, 2, 2, 2, 2]
    for name, value in (server.params | server.buffers).items():
        assert torch.isfinite(value.float()).all(), name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parties_with_one_class_only(algorithm: str) -> None:
    task = gaussians()
    one_class = [Examples(p.x, torch.full_like(p.y, i % 3)) for i, p in enumerate(task.parties)]
    exp = with_algorithm(TINY, algorithm)
    server = train(exp, replace(task, parties=one_class))
    assert all(torch.isfinite(v).all() for v in server.params.values())


def test_a_lone_sample_under_batch_norm_leaves_its_state_and_has_no_say() -> None:
    exp, task = (
        with_algorithm(replace(TINY, parties=2), "scaffold"),
        gaussians((1, 40), batch_norm=True),
    )
    server, engine = init_server(exp, task), Embedded(exp, task)
    lone, other = engine.train(server, [0, 1], 0)
    assert lone.num_steps == 0
    after = aggregate(exp, server, [lone, other])
    assert all(torch.allclose(after.params[k], other.params[k]) for k in after.params)


def test_equals_a_plain_training_loop() -> None:
    """local_update of FedAvg is nothing but SGD: written out with the optimiser's formula."""
    exp, task = with_algorithm(replace(TINY, weight_decay=0.01), "fedavg"), gaussians()
    server = init_server(exp, task)
    update, _ = local_update(exp, task, Workbench(task.build), server, state=None, party=1, t=0)

    model = tree.load(task.build(), server.params)
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    order = rng(exp.seed, "batches", 0, 1)
    for _ in range(exp.epochs):
        for batch in batches(task.parties[1], task.preparation, exp.batch_size, order, None):
            grads = torch.autograd.grad(
                F.cross_entropy(model(batch.x).logits, batch.y), list(model.parameters())
            )
            with torch.no_grad():
                for p, g, v in zip(model.parameters(), grads, velocity, strict=True):
                    v.mul_(exp.momentum).add_(g + exp.weight_decay * p)
                    p.sub_(exp.lr * v)
    for name, p in model.named_parameters():
        assert torch.allclose(update.params[name], p, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_is_that_of_torchs_own_class_to_the_bit(momentum: float) -> None:
    exp = replace(TINY, momentum=momentum, weight_decay=0.01)
    models = [nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        model[0].to(memory_format=torch.channels_last)
    params = list(models[0].parameters())
    velocity = [torch.zeros_like(p) for p in params]
    theirs = torch.optim.SGD(
        models[1].parameters(), exp.lr, momentum, weight_decay=0.01, fused=True
    )
    for step in range(4):
        x = torch.randn(5, 2, 4, 4, generator=torch.Generator().manual_seed(step))
        for model in models:
            model.zero_grad()
            model(x).square().mean().backward()
        sgd_step(exp, params, velocity)
        theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(params, models[1].parameters(), strict=True))


class Sometimes(nn.Module):
    """A layer that every second pass leaves out, the first too."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.seldom, self.passes = nn.Linear(6, 3), nn.Linear(3, 3), 0

    def forward(self, x: Tensor) -> Output:
        self.passes += 1
        z = self.always(x.flatten(1))
        return Output(z, z if self.passes % 2 else self.seldom(z))


def test_a_layer_may_be_left_out_of_some_passes() -> None:
    """It moves when it has a gradient; torch's own class cannot do that with its fused step."""
    exp, base = with_algorithm(replace(TINY, batch_size=4), "fedavg"), gaussians()
    task = replace(base, build=Sometimes)
    server = init_server(exp, task)
    update, _ = local_update(exp, task, Workbench(task.build), server, state=None, party=1, t=0)
    assert not torch.equal(update.params["seldom.weight"], server.params["seldom.weight"])


class Exploding(Task):
    def supervised(self, logits, batch):
        return super().supervised(logits, batch) * (float("inf") if len(batch.y) == 20 else 1.0)


def test_loss_that_is_not_finite_names_party_round_and_cause() -> None:
    task = gaussians()
    exploding = Exploding(task.build, task.parties, task.test, task.preparation, False)
    with pytest.raises(RunError, match=r"party 2 became (inf|nan) in round 1, epoch 1: .*lr=0.01"):
        train(replace(TINY, parties=4), exploding)


def test_recycled_modules_carry_nothing_over() -> None:
    """A party's result does not depend on who trained on the same modules before."""
    exp, task = with_algorithm(TINY, "moon"), gaussians(batch_norm=True)
    server, bench = init_server(exp, task), Workbench(task.build)
    for i in (0, 1):
        local_update(exp, task, bench, server, state=None, party=i, t=0)
    used, _ = local_update(exp, task, bench, server, state=None, party=2, t=0)
    fresh, _ = local_update(exp, task, Workbench(task.build), server, state=None, party=2, t=0)
    assert all(torch.equal(used.params[k], fresh.params[k]) for k in used.params)
    assert all(torch.equal(used.buffers[k], fresh.buffers[k]) for k in used.buffers)


def test_buffers_that_are_not_saved_are_not_carried_over() -> None:
    """They are no part of a model; that of one party must not reach the next."""
    bench = Workbench(Counting)
    params = {**tree.params_of(Counting()), **tree.buffers_of(Counting())}
    model = bench.module(params)
    start = model.noise.clone()
    model(torch.ones(1, 2))
    assert not torch.equal(model.noise, start)
    bench.clear()
    assert torch.equal(bench.module(params).noise, start)
    assert torch.equal(Workbench(Counting).module(params).noise, start), "the same in every process"


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("noise", torch.rand(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.noise += 1
        return super().forward(x)


class Masked(nn.Linear):
    """Makes a buffer when it needs one, anew for batches of another size, and registers another in its first pass."""

    mask: Tensor | None

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("mask", None, persistent=False)
        self.register_buffer("row", torch.ones(2).expand(3, 2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None or len(self.mask) != len(x):
            self.mask = torch.ones(len(x), 1)
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.zeros(2), persistent=False)
        return super().forward(x * self.mask) + self.late


def test_buffers_that_a_forward_pass_makes_are_its_own() -> None:
    bench, params = Workbench(Masked), tree.params_of(Masked())
    for size in (1, 3):
        bench.clear()
        model = bench.module(params)
        assert model.mask is None
        assert not hasattr(model, "late")
        model(torch.ones(size, 2))
        assert "late" in dict(model.named_buffers())


def test_control_variates_cover_trainable_parameters_only() -> None:
    exp, task = with_algorithm(TINY, "scaffold"), gaussians(batch_norm=True)
    server = init_server(exp, task)
    update, kept = local_update(exp, task, Workbench(task.build), server, state=None, party=0, t=0)
    assert (
        set(server.shared["c"])
        == set(server.params)
        == set(kept["c_i"])
        == set(update.extra["delta_c"])
    )
    assert all(not v.any() for v in server.shared["c"].values())
    assert set(server.buffers)


class Remembering(nn.Linear):
    """Counts its calls in plain numbers, draws from every global generator there is, and does so in evaluation too."""

    def __init__(self) -> None:
        super().__init__(6, 8)
        self._calls, self.last, self.turn = 0, None, np.random.permutation(6)
        with torch.no_grad():
            self.weight += float(np.random.rand())

    def forward(self, x: Tensor) -> Tensor:
        self._calls += 1
        drawn = 1 + 0.1 * (random.random() + float(np.random.rand()) + float(torch.rand(())))
        self.last = self.last or drawn
        if not hasattr(self, "first"):
            self.first = drawn
        return super().forward(x[:, self.turn]) * drawn / self._calls * self.last * self.first


def test_what_a_model_remembers_or_draws_does_not_depend_on_who_came_before() -> None:
    """By one process or three, whatever was drawn before; and the caller's streams go on as they were."""
    exp, task = replace(with_algorithm(TINY, "fedavg"), patience=None), gaussians()
    task = replace(
        task,
        build=lambda: Model(nn.Sequential(nn.Flatten(), Remembering()), 8, 3, 5),
        validation=task.parties[0],
    )
    found = []
    for workers, seed in ((1, 1), (3, 2)):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        before = (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
        )
        with closing(make_engine(exp, task, workers)) as engine:
            log = MemoryRecorder()
            found.append((run(exp, task, engine, log), log.metrics()))
        assert (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
        ) == before
    assert same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


class Late(nn.Linear):
    """Fills a buffer of its state_dict in its first pass."""

    def __init__(self) -> None:
        super().__init__(6, 8)
        self.register_buffer("seen", None)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.mean(dim=0)
        return super().forward(x)


def test_a_buffer_that_is_made_in_training_is_told() -> None:
    task = replace(gaussians(), build=lambda: Model(nn.Sequential(nn.Flatten(), Late()), 8, 3, 5))
    with pytest.raises(
        RunError, match=r"creates, drops or reshapes its buffer 'encoder\.1\.seen' during training"
    ):
        train(TINY, task)


@pytest.mark.parametrize(
    ("wrong_loss", "message"),
    [
        (lambda loss: float(loss.detach()), "must be a scalar tensor, got float"),
        (lambda loss: loss.expand(3), r"must be a scalar tensor, got shape \[3\]"),
        (lambda loss: loss.detach(), "has no gradient"),
    ],
)
def test_a_loss_that_cannot_be_minimised_is_refused(wrong_loss, message: str) -> None:
    class Wrong(FedAvg):
        def local_loss(self, party):
            loss = super().local_loss(party)
            return lambda model, batch: wrong_loss(loss(model, batch))

    with pytest.raises(RunError, match=message):
        train(replace(TINY, algorithm=Wrong()), gaussians())
