"""Local optimizers: each step is that of torch.optim, and gradients are clipped by their norm."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from moonfl.errors import RunError
from moonfl.optimizers import SGD, Adam, AdamW, LocalOptimizer, StepOptions, take_step

Reference = Callable[[list[nn.Parameter], StepOptions], torch.optim.Optimizer]


def torch_sgd(params: list[nn.Parameter], options: StepOptions) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        params,
        options.lr,
        options.momentum,
        weight_decay=options.weight_decay,
        nesterov=options.nesterov,
        fused=True,
    )


def torch_adam(cls: type[torch.optim.Adam], betas: tuple[float, float], eps: float) -> Reference:
    return lambda params, options: cls(
        params, options.lr, betas, eps, options.weight_decay, fused=True
    )


REFERENCES: dict[str, tuple[LocalOptimizer, Reference]] = {
    "sgd": (SGD(), torch_sgd),
    "adam": (Adam(), torch_adam(torch.optim.Adam, (0.9, 0.999), 1e-8)),
    "adamw": (
        AdamW(beta1=0.5, beta2=0.9, eps=1e-3),
        torch_adam(torch.optim.AdamW, (0.5, 0.9), 1e-3),
    ),
}


def two_models() -> list[nn.Module]:
    """Return two equal models with a convolution in channels-last layout."""
    models = [nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        model[0].to(memory_format=torch.channels_last)
    return models


def assert_same_steps(name: str, options: StepOptions, steps: int = 4) -> None:
    """Compare the weights of both implementations after each of several steps.

    In every second step the last layer has no gradient.
    """
    optimizer, reference = REFERENCES[name]
    models = two_models()
    params, their_params = ([*model.parameters()] for model in models)
    slots = [optimizer.init(param) for param in params]
    theirs = reference(their_params, options)
    for step in range(steps):
        x = torch.randn(5, 2, 4, 4, generator=torch.Generator().manual_seed(step))
        for model in models:
            model.zero_grad()
            (model if step % 2 == 0 else model[0])(x).square().mean().backward()
        take_step(optimizer, params, slots, options)
        if options.grad_clip is not None:
            nn.utils.clip_grad_norm_(their_params, options.grad_clip)
        theirs.step()
        assert all(torch.equal(a, b) for a, b in zip(params, their_params, strict=True)), step


MOMENTA = [(0.0, False), (0.5, False), (0.9, False), (0.5, True), (0.9, True)]


@st.composite
def step_options(draw: st.DrawFn) -> StepOptions:
    momentum, nesterov = draw(st.sampled_from(MOMENTA))
    return StepOptions(
        lr=draw(st.floats(1e-4, 0.5)),
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=draw(st.sampled_from([0.0, 0.01, 0.5])),
        grad_clip=draw(st.sampled_from([None, 1e-3, 0.1, 100.0])),
    )


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([*REFERENCES]), step_options())
def test_a_step_is_bit_identical_to_torch_optim(name: str, options: StepOptions) -> None:
    assert_same_steps(name, options)


@pytest.mark.parametrize("name", REFERENCES)
def test_hyperparameters_change_the_step(name: str) -> None:
    """The comparison with torch cannot pass because both ignore a setting."""
    base = StepOptions(lr=0.1, momentum=0.9, weight_decay=0.1)
    variants = [base, base._replace(lr=0.2), base._replace(weight_decay=0.0)]
    variants.append(base._replace(grad_clip=1e-3, weight_decay=0.0))
    if name == "sgd":
        variants += [base._replace(nesterov=True), base._replace(momentum=0.5)]
    optimizer, _ = REFERENCES[name]
    results = []
    for options in variants:
        torch.manual_seed(0)
        model = two_models()[0]
        params = [*model.parameters()]
        slots = [optimizer.init(param) for param in params]
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(5, 2, 4, 4)).square().mean().backward()
            take_step(optimizer, params, slots, options)
        results.append(torch.cat([param.detach().flatten() for param in params]))
    for i, first in enumerate(results):
        assert not any(torch.equal(first, second) for second in results[i + 1 :])


def test_the_norm_is_that_of_all_parameters_together() -> None:
    params = [
        nn.Parameter(torch.zeros(1)),
        nn.Parameter(torch.zeros(1)),
        nn.Parameter(torch.ones(1)),
    ]
    (3 * params[0] + 4 * params[1]).sum().backward()
    options = StepOptions(lr=1.0, grad_clip=0.5)
    take_step(SGD(), params, [SGD().init(param) for param in params], options)
    assert [param.item() for param in params] == pytest.approx([-0.3, -0.4, 1.0], rel=1e-5)


def test_a_short_gradient_is_not_clipped() -> None:
    param = nn.Parameter(torch.zeros(1))
    (3 * param).sum().backward()
    take_step(SGD(), [param], [SGD().init(param)], StepOptions(lr=1.0, grad_clip=5.0))
    assert param.item() == -3.0


@pytest.mark.parametrize("optimizer", [SGD(), Adam(), AdamW()])
def test_a_step_updates_parameters_of_different_dtypes(optimizer: LocalOptimizer) -> None:
    params = [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float64, torch.float32)]
    for param in params:
        param.square().sum().backward()
    slots = [optimizer.init(param) for param in params]
    take_step(optimizer, params, slots, StepOptions(lr=0.25))
    assert torch.equal(params[0].float(), params[1])
    assert (params[1] < 1).all()


def test_a_sparse_gradient_is_refused() -> None:
    layer = nn.Embedding(5, 3, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    params = [*layer.parameters()]
    with pytest.raises(RunError, match="with sparse=False"):
        take_step(SGD(), params, [SGD().init(layer.weight)], StepOptions(lr=0.1))
