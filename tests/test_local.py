"""Local training: small parties, one class, BatchNorm, buffers, and losses that are not finite."""

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
from moonfl.kernels.library import library
from moonfl.local import Workbench, local_update, outputs_of
from moonfl.models.base import Model
from moonfl.seeds import restored, rng, seed_generators, seeded
from moonfl.task import Task
from moonfl.types import Output

SIZES = (1, 10, 63, 64, 65)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parties_of_every_size_train(algorithm: str, batch_norm: bool) -> None:
    exp = with_algorithm(replace(TINY, parties=5, batch_size=64, epochs=2), algorithm)
    task = gaussians(SIZES, batch_norm)
    log = MemoryRecorder()
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


def test_a_method_sees_the_outputs_for_all_samples_of_a_party() -> None:
    """In order, including those of the last incomplete batch, from a model in eval mode."""
    task = gaussians((33,), batch_norm=True)
    exp = replace(TINY, parties=1, batch_size=10)
    server = init_server(exp, task)
    model = {**server.params, **server.buffers}
    data = task.parties[0]
    found = list(outputs_of(exp, task, Workbench(task.build), data, model))
    assert [len(batch.y) for _, batch in found] == [10, 10, 10, 3]
    assert torch.cat([batch.rows for _, batch in found]).tolist() == list(range(33))
    assert torch.cat([batch.y for _, batch in found]).equal(data.y)
    logits = torch.cat([output.logits for output, _ in found])
    torch.testing.assert_close(logits, Workbench(task.build).frozen(model)(data.x).logits)
    assert not logits.requires_grad


def test_a_party_with_one_sample_and_batch_norm_does_not_affect_the_model() -> None:
    exp = with_algorithm(replace(TINY, parties=2), "scaffold")
    task = gaussians((1, 40), batch_norm=True)
    server = init_server(exp, task)
    single, other = Embedded(exp, task).train(server, [0, 1], 0)
    assert single.num_steps == 0
    after = aggregate(exp, server, [single, other], t=0)
    assert all(torch.allclose(after.params[k], other.params[k]) for k in after.params)


def test_fedavg_equals_a_plain_training_loop() -> None:
    """Compare local_update of FedAvg with the formula of SGD."""
    exp = with_algorithm(replace(TINY, weight_decay=0.01), "fedavg")
    task = gaussians()
    server = init_server(exp, task)
    update, _ = local_update(exp, task, Workbench(task.build), server, state=None, party=1, t=0)

    model = tree.load(task.build(), server.params)
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    order = rng(exp.seed, "batches", 0, 1)
    for _ in range(exp.epochs):
        for batch in batches(task.parties[1], task.preparation, exp.batch_size, order, None):
            loss = F.cross_entropy(model(batch.x).logits, batch.y)
            grads = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, g, v in zip(model.parameters(), grads, velocity, strict=True):
                    v.mul_(exp.momentum).add_(g + exp.weight_decay * p)
                    p.sub_(exp.lr * v)
    for name, p in model.named_parameters():
        assert torch.allclose(update.params[name], p, atol=1e-6)


class SkipsLayer(nn.Module):
    """A model that skips a layer in every second pass, starting with the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 3)
        self.skipped = nn.Linear(3, 3)
        self.passes = 0

    def forward(self, x: Tensor) -> Output:
        self.passes += 1
        z = self.first(x.flatten(1))
        logits = z if self.passes % 2 else self.skipped(z)
        return Output(z, logits)


def test_a_model_may_skip_a_layer_in_some_passes() -> None:
    """A layer is updated if it has a gradient; the fused torch.optim.SGD does not support this."""
    exp = with_algorithm(replace(TINY, batch_size=4), "fedavg")
    task = replace(gaussians(), build=SkipsLayer)
    server = init_server(exp, task)
    update, _ = local_update(exp, task, Workbench(task.build), server, state=None, party=1, t=0)
    assert not torch.equal(update.params["skipped.weight"], server.params["skipped.weight"])


class InfiniteLoss(Task):
    """A task with an infinite loss for the party with 20 samples."""

    def supervised(self, logits, batch):
        loss = super().supervised(logits, batch)
        return loss * float("inf") if len(batch.y) == 20 else loss


def test_the_message_for_a_loss_that_is_not_finite_names_party_round_and_cause() -> None:
    task = gaussians()
    infinite = InfiniteLoss(
        build=task.build,
        parties=task.parties,
        test=task.test,
        preparation=task.preparation,
        batch_norm=False,
    )
    with pytest.raises(RunError, match=r"party 2 became (inf|nan) in round 1, epoch 1: .*lr=0.01"):
        train(replace(TINY, parties=4), infinite)
    warming_up = replace(TINY, parties=4, warmup=1)
    with pytest.raises(RunError, match=r"lr=0.01, 0.005 in this round\); lower lr"):
        train(warming_up, infinite)


def test_reused_modules_do_not_affect_the_result() -> None:
    """The result of a party does not depend on the parties that used the same modules before."""
    exp = with_algorithm(TINY, "moon")
    task = gaussians(batch_norm=True)
    server = init_server(exp, task)
    bench = Workbench(task.build)
    for i in (0, 1):
        local_update(exp, task, bench, server, state=None, party=i, t=0)
    reused, _ = local_update(exp, task, bench, server, state=None, party=2, t=0)
    fresh, _ = local_update(exp, task, Workbench(task.build), server, state=None, party=2, t=0)
    assert all(torch.equal(reused.params[k], fresh.params[k]) for k in reused.params)
    assert all(torch.equal(reused.buffers[k], fresh.buffers[k]) for k in reused.buffers)


def test_non_persistent_buffers_are_reset() -> None:
    """They are not part of a model, so the values of one party must not reach the next."""
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
    """A layer that changes a non-persistent buffer in every pass."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("noise", torch.rand(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.noise += 1
        return super().forward(x)


class Masked(nn.Linear):
    """A layer that creates buffers in forward passes.

    It creates a mask for every new batch size, and registers another buffer in its first pass.
    """

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


def test_buffers_that_a_forward_pass_creates_are_reset() -> None:
    bench = Workbench(Masked)
    params = tree.params_of(Masked())
    for size in (1, 3):
        bench.clear()
        model = bench.module(params)
        assert model.mask is None
        assert not hasattr(model, "late")
        model(torch.ones(size, 2))
        assert "late" in dict(model.named_buffers())


def test_control_variates_cover_trainable_parameters_only() -> None:
    exp = with_algorithm(TINY, "scaffold")
    task = gaussians(batch_norm=True)
    server = init_server(exp, task)
    update, state = local_update(exp, task, Workbench(task.build), server, state=None, party=0, t=0)
    names = set(server.params)
    assert set(server.shared["c"]) == names
    assert set(state["c_i"]) == names
    assert set(update.extra["delta_c"]) == names
    assert all(not v.any() for v in server.shared["c"].values())
    assert set(server.buffers)


class Stateful(nn.Linear):
    """A layer with plain attributes that change, and random numbers of all global generators.

    Both happen in training and in evaluation.
    """

    def __init__(self) -> None:
        super().__init__(6, 8)
        self._calls = 0
        self.last = None
        self.permutation = np.random.permutation(6)
        with torch.no_grad():
            self.weight += float(np.random.rand())

    def forward(self, x: Tensor) -> Tensor:
        self._calls += 1
        factor = 1 + 0.1 * (random.random() + float(np.random.rand()) + float(torch.rand(())))
        self.last = self.last or factor
        if not hasattr(self, "first"):
            self.first = factor
        z = super().forward(x[:, self.permutation])
        return z * factor / self._calls * self.last * self.first


def random_states() -> tuple:
    """Return the states of the global generators of Python, numpy and torch."""
    numpy_state = np.random.get_state()[1].tolist()
    return random.getstate(), numpy_state, torch.get_rng_state().tolist()


def test_models_with_attributes_and_random_numbers_are_reproducible() -> None:
    """Results do not depend on the number of processes or on the states of global generators.

    The run does not change these states either.
    """
    exp = replace(with_algorithm(TINY, "fedavg"), patience=None)
    task = gaussians()
    task = replace(
        task,
        build=lambda: Model(nn.Sequential(nn.Flatten(), Stateful()), 8, 3, 5),
        validation=task.parties[0],
    )
    servers = []
    metrics = []
    for workers, seed in ((1, 1), (3, 2)):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = random_states()
        with closing(make_engine(exp, task, workers)) as engine:
            log = MemoryRecorder()
            servers.append(run(exp, task, engine, log))
            metrics.append(log.metrics())
        assert random_states() == before
    assert same(servers[0], servers[1])
    assert metrics[0] == metrics[1]


def test_the_global_generators_are_restored_after_an_error() -> None:
    """The engine restores them; a party may end in the middle of its training."""
    exp = with_algorithm(TINY, "fedavg")
    task = gaussians()
    engine = Embedded(exp, replace(task, build=lambda: Failing(6, 8)))
    server = init_server(exp, engine.task)
    before = random_states()
    with pytest.raises(ArithmeticError):
        engine.train(server, [0], 0)
    assert random_states() == before
    with restored():
        seed_generators(0, "model", 1, 2)
        first = random_states()
        with seeded(0, "model"):
            assert random_states() != first
        assert random_states() == first
        random.random()
        seed_generators(0, "model", 1, 2)
        assert random_states() == first
    assert random_states() == before


class Failing(nn.Linear):
    """A layer that draws random numbers and then fails."""

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(1)
        np.random.rand()
        random.random()
        raise ArithmeticError


class EndsTraining(nn.Module):
    """A layer that leaves training mode in every pass, as some user code does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        z = self.dropout(self.linear(x))
        self.dropout.eval()
        return z


def test_every_party_starts_in_training_mode() -> None:
    """Layers that the previous party left in evaluation mode train again."""
    task = gaussians()
    task = replace(task, build=lambda: Model(nn.Sequential(nn.Flatten(), EndsTraining()), 8, 3, 5))
    exp = with_algorithm(TINY, "moon")
    server = init_server(exp, task)
    bench = Workbench(task.build)
    for t, state in ((0, None), (1, {"prev0": {**server.params, **server.buffers}})):
        local_update(exp, task, bench, server, state=state, party=0, t=t)
        reused, _ = local_update(exp, task, bench, server, state=state, party=1, t=t)
        fresh, _ = local_update(exp, task, Workbench(task.build), server, state=state, party=1, t=t)
        assert same(reused.params, fresh.params)


def native(task: Task) -> Task:
    """Return the task with a model that native code runs, if there is a native library."""

    def build() -> nn.Module:
        model = task.build()
        assert isinstance(model, Model)
        model.plan_native(tuple(task.parties[0].x.shape[1:]))
        return model

    return replace(task, build=build)


def test_replicas_change_between_training_and_evaluation() -> None:
    task = native(gaussians())
    params, buffers = task.init_model(0)
    replica = Workbench(task.build).replica({**params, **buffers})
    assert replica.is_fixed == (library() is not None)
    for training in (False, False, True, True, False):
        replica.set_training(training)
        assert all(module.training is training for module in replica.module.modules())


class CreatesBuffer(nn.Linear):
    """A layer that creates a buffer of its state_dict in its first pass."""

    def __init__(self) -> None:
        super().__init__(6, 8)
        self.register_buffer("seen", None)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.mean(dim=0)
        return super().forward(x)


def test_a_buffer_that_is_created_during_training_gets_a_clear_message() -> None:
    def build() -> nn.Module:
        return Model(nn.Sequential(nn.Flatten(), CreatesBuffer()), 8, 3, 5)

    message = r"creates, drops or reshapes its buffer 'encoder\.1\.seen' during training"
    with pytest.raises(RunError, match=message):
        train(TINY, replace(gaussians(), build=build))


@pytest.mark.parametrize(
    ("wrong_loss", "message"),
    [
        (lambda loss: float(loss.detach()), "must be a scalar tensor, got float"),
        (lambda loss: loss.expand(3), r"must be a scalar tensor, got shape \[3\]"),
        (lambda loss: loss.detach(), "has no gradient"),
    ],
)
def test_a_loss_that_cannot_be_minimised_is_refused(wrong_loss, message: str) -> None:
    class InvalidLoss(FedAvg):
        """An algorithm with an invalid loss."""

        def local_loss(self, party):
            loss = super().local_loss(party)
            return lambda model, batch: wrong_loss(loss(model, batch))

    with pytest.raises(RunError, match=message):
        train(replace(TINY, algorithm=InvalidLoss()), gaussians())
