"""Tests of the native kernels against torch."""

import copy
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.problems import train, write_cifar10
from moonfl.data.augment import crop_and_flip
from moonfl.data.cifar import CIFAR10, CIFAR100
from moonfl.experiment import Experiment
from moonfl.kernels import batch as batch_module
from moonfl.kernels import chain, plan
from moonfl.kernels import library as kernels
from moonfl.kernels.convpool import ConvReluPool
from moonfl.models.base import Model
from moonfl.models.encoders import build_model
from moonfl.task import make_task

BEST = kernels.in_use()
SHAPES = [  # batch, channels, side, outputs, kernel
    (64, 3, 32, 6, 5),
    (64, 6, 14, 16, 5),
    (64, 1, 28, 6, 5),
    (64, 6, 12, 16, 5),
    (1, 3, 32, 6, 5),
    (15, 3, 16, 5, 5),
    (17, 2, 11, 7, 3),
    (33, 6, 14, 13, 5),
    (5, 1, 9, 1, 4),
    (3, 16, 8, 4, 2),
    (2, 7, 7, 9, 1),
]


def supported() -> list[str]:
    native = kernels.library()
    if native is None:
        return []
    found = [
        name for lanes, name in kernels.SETS.items() if native.moonfl_choose(name.encode()) == lanes
    ]
    native.moonfl_choose(BEST.encode())
    return found


@pytest.fixture(params=supported() or ["torch"])
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    """Select each instruction set that this processor has."""
    native = kernels.library()
    if native is not None:
        native.moonfl_choose(request.param.encode())
    yield request.param
    if native is not None:
        native.moonfl_choose(BEST.encode())


def run_native(parts: plan.Parts, x: Tensor) -> list[Tensor] | None:
    """Plan the modules for the shape of x and run them in native code; None: use torch."""
    planned = plan.plan_layers(parts, tuple(x.shape[1:]))
    return None if planned is None else chain.run(planned, parts, x)


def reference(x: Tensor, layer: ConvReluPool) -> Tensor:
    return F.max_pool2d(F.relu(F.conv2d(x, layer.weight, layer.bias)), 2)


def integers(shape: tuple[int, ...], low: int, high: int, seed: int) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).float()


def integer_layer(channels: int, outputs: int, kernel: int, flat: bool) -> ConvReluPool:
    layer = ConvReluPool(channels, outputs, kernel, flat)
    with torch.no_grad():
        layer.weight.copy_(integers(tuple(layer.weight.shape), -2, 3, 1))
        layer.bias.copy_(integers(tuple(layer.bias.shape), -2, 3, 2))
    return layer


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_bit_identical_on_integers_with_ties(
    instructions: str, shape: tuple[int, int, int, int, int], flat: bool
) -> None:
    """Sums of small integers are exact in any order; windows with ties test which maximum wins."""
    n, c, side, o, k = shape
    layer = integer_layer(c, o, k, flat)
    x = integers((n, c, side, side), -3, 4, 0).requires_grad_()
    y, expected = layer(x), reference(x, layer)
    assert torch.equal(y, expected)
    dy = integers(tuple(expected.shape), -3, 4, 3)
    inputs = [x, layer.weight, layer.bias]
    for got, want in zip(
        torch.autograd.grad(y, inputs, dy), torch.autograd.grad(expected, inputs, dy), strict=True
    ):
        assert torch.equal(got, want)


def clear_maxima(c: int, side: int, o: int, k: int) -> tuple[Tensor, ConvReluPool]:
    """Return random inputs without near-ties, whose argmax would depend on rounding."""
    for seed in range(100):
        torch.manual_seed(seed)
        layer, x = ConvReluPool(c, o, k), torch.randn(5, c, side, side)
        outputs = F.conv2d(x.double(), layer.weight.double(), layer.bias.double())
        even = outputs[:, :, : outputs.shape[2] // 2 * 2, : outputs.shape[3] // 2 * 2]
        windows = F.unfold(even.flatten(0, 1)[:, None], 2, stride=2)
        top = windows.topk(2, dim=1).values
        if (top[:, 0] - top[:, 1]).min() > 1e-5 and top[:, 0].abs().min() > 1e-5:
            return x, layer
    raise AssertionError("no seed has clear maxima")


@pytest.mark.parametrize(("c", "side", "o", "k"), [(3, 32, 6, 5), (6, 14, 16, 5), (4, 10, 5, 3)])
def test_close_to_float64(instructions: str, c: int, side: int, o: int, k: int) -> None:
    x, layer = clear_maxima(c, side, o, k)
    double = ConvReluPool(c, o, k).double()
    double.load_state_dict(layer.state_dict())
    x32, x64 = x.clone().requires_grad_(), x.double().requires_grad_()
    y32, y64 = layer(x32), double(x64)
    dy = torch.randn(y64.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = [y32, *torch.autograd.grad(y32, [x32, layer.weight, layer.bias], dy.float())]
    want = [y64, *torch.autograd.grad(y64, [x64, double.weight, double.bias], dy)]
    for a, b in zip(got, want, strict=True):
        assert ((a - b).abs().max() / b.abs().max()) < 2e-6


def test_not_a_number_spreads_as_in_torch(instructions: str) -> None:
    layer = integer_layer(3, 6, 5, False)
    x = integers((20, 3, 16, 16), -3, 4, 0)
    x[3, 1, 7, 7], x[19, 0, 0, 0], x[5, 2, 15, 15] = float("nan"), float("nan"), float("inf")
    assert torch.equal(layer(x).isnan(), reference(x, layer).isnan())
    assert torch.equal(layer(x).nan_to_num(7), reference(x, layer).nan_to_num(7))


def test_a_loss_may_call_the_model_twice(instructions: str) -> None:
    layer = integer_layer(3, 6, 5, False)
    a, b = (integers((7, 3, 16, 16), -3, 4, seed) for seed in (0, 1))
    got = torch.autograd.grad((layer(a) * layer(b)).sum(), layer.weight)[0]
    want = torch.autograd.grad((reference(a, layer) * reference(b, layer)).sum(), layer.weight)[0]
    assert torch.equal(got, want)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("n", "i", "o"), [(64, 400, 120), (1, 1, 1), (7, 17, 33), (13, 5, 16), (2, 40, 7), (25, 3, 100)]
)
def test_linear_layers_are_bit_identical_on_integers(
    instructions: str, n: int, i: int, o: int, relu: bool
) -> None:
    layer = nn.Linear(i, o)
    with torch.no_grad():
        layer.weight.copy_(integers((o, i), -2, 3, 1))
        layer.bias.copy_(integers((o,), -2, 3, 2))
    x = integers((n, i), -3, 4, 0).requires_grad_()
    made = run_native(((layer, nn.ReLU()) if relu else (layer,),), x)
    assert made is not None
    expected = F.linear(x, layer.weight, layer.bias)
    expected = F.relu(expected) if relu else expected
    assert torch.equal(made[0], expected)
    dy, inputs = integers((n, o), -3, 4, 3), [x, layer.weight, layer.bias]
    for got, want in zip(
        torch.autograd.grad(made[0], inputs, dy),
        torch.autograd.grad(expected, inputs, dy),
        strict=True,
    ):
        assert torch.equal(got, want)


def test_not_a_number_passes_a_linear_layer_as_in_torch(instructions: str) -> None:
    layers = [nn.Linear(9, 11), nn.ReLU()]
    x = torch.ones(5, 9)
    x[2, 3], x[4, 0] = float("nan"), float("inf")
    made = run_native((tuple(layers),), x)
    assert made is not None
    assert torch.equal(made[0].isnan(), nn.Sequential(*layers)(x).isnan())
    assert made[0][2].isnan().all()


MODELS = [
    ("simple-cnn", (3, 20, 16), True),
    ("simple-cnn", (1, 16, 16), False),
    ("simple-cnn", (1, 28, 28), False),
    ("wide-cnn", (3, 20, 16), True),
    ("mlp", (1, 3, 5), True),
]


def integer_model(name: str, shape: tuple[int, ...], head: bool) -> Model:
    """Return a model with small integer parameters, so that sums are exact in any order."""
    model = build_model(name, shape, 5, head, 7)
    assert isinstance(model, Model)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(integers(tuple(parameter.shape), -1, 2, number))
    return model


def grads(model: Model, x: Tensor, loss: Callable[[Model, Tensor], Tensor]) -> list[Tensor | None]:
    model.zero_grad()
    loss(model, x).backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


LOSSES: dict[str, Callable[[Model, Tensor], Tensor]] = {
    "z and logits": lambda m, x: m(x).z.sum() + (m(x).logits % 3).sum(),
    "z alone": lambda m, x: m(x).z[:, 0].sum(),
    "logits alone": lambda m, x: m(x).logits[:, 1].sum(),
    "one model twice": lambda m, x: m(x[:2]).logits.sum() - 2 * m(x[2:]).z.sum(),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("name", "shape", "head"), MODELS)
def test_a_network_is_bit_identical_to_its_layers_in_torch(
    instructions: str, name: str, shape: tuple[int, ...], head: bool, loss: str
) -> None:
    model, x = integer_model(name, shape, head), integers((5, *shape), -1, 2, 0)
    assert runs_native(model, x)
    native = grads(model, x, LOSSES[loss]), model(x)
    for module in model.modules():
        if hasattr(module, "native"):
            module.native = False
    expected = grads(model, x, LOSSES[loss]), model(x)
    for got, want in zip((*native[0], *native[1]), (*expected[0], *expected[1]), strict=True):
        assert (got is None and want is None) or torch.equal(got, want)


def exploding_model(scale: float) -> tuple[Model, Tensor, Tensor]:
    """Return a network for 28x28 images whose weights are multiplied by `scale`, and a batch."""
    torch.manual_seed(0)
    model = build_model("simple-cnn", (1, 28, 28), 10, True, 256)
    assert isinstance(model, Model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    x = torch.randn(64, 1, 28, 28)
    assert runs_native(model, x)
    return model, x, torch.arange(64) % 10


def loss_and_grads(model: Model, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the cross-entropy and its gradient for every parameter."""
    loss = F.cross_entropy(model(x).logits, y)
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3, 1e5])
def test_gradients_of_exploding_weights_are_close_to_float64(
    instructions: str, scale: float
) -> None:
    """A run that diverges must not do so because of the kernels; at 1e5 the loss exceeds 1e30."""
    model, x, y = exploding_model(scale)
    got = loss_and_grads(model, x, y)
    want = loss_and_grads(copy.deepcopy(model).double(), x.double(), y)
    for a, b in zip(got, want, strict=True):
        assert ((a - b).abs().max() / b.abs().max()) < 1e-5


@pytest.mark.parametrize("scale", [1e7, 1e10, 1e20])
def test_overflow_is_as_undefined_as_in_torch(instructions: str, scale: float) -> None:
    """Divergence is detected in weights and losses, so no overflow may vanish on the way."""
    model, x, y = exploding_model(scale)
    got = loss_and_grads(model, x, y)
    model.native = False
    for module in model.modules():
        if isinstance(module, ConvReluPool):
            module.native = False
    want = loss_and_grads(model, x, y)
    assert not all(b.isfinite().all() for b in want)
    for a, b in zip(got, want, strict=True):
        assert bool(a.isfinite().all()) == bool(b.isfinite().all())


def test_the_gradient_of_the_input_of_a_whole_network(instructions: str) -> None:
    model = integer_model("simple-cnn", (3, 16, 16), True)
    x = integers((3, 3, 16, 16), -1, 2, 0).requires_grad_()
    got = torch.autograd.grad(model(x).logits.sum(), x)[0]
    want = torch.autograd.grad(model.output(model.head(model.encoder(x))).sum(), x)[0]
    assert torch.equal(got, want)


def runs_native(model: nn.Module, x: Tensor) -> bool:
    """Return True if a forward pass of the model on x uses native code."""
    assert isinstance(model, Model)
    if not model.native or model.native_chain is None:
        return False
    return chain.run(model.native_chain, model.parts(), x) is not None


def in_torch(model: nn.Module, x: Tensor) -> Tensor:
    """Return the logits that torch computes layer by layer."""
    logits: Tensor = model.output(model.head(model.encoder(x)))
    return logits


def test_layers_are_inspected_when_the_model_is_built_and_never_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = build_model("simple-cnn", (3, 16, 16), 5, True, 7), torch.ones(2, 3, 16, 16)
    for name in ("plan_layers", "_plan_part", "_plan_layer", "_flatten"):
        monkeypatch.setattr(plan, name, None)
    assert runs_native(model, x)
    model(x).logits.sum().backward()


@pytest.mark.parametrize(
    "hook",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
@pytest.mark.parametrize("built_before", [True, False])
def test_a_layer_with_a_hook_is_run_by_torch(hook: str, built_before: bool) -> None:
    """Hooks are honoured if they are registered before the model is built, or later."""
    seen, x = [], torch.zeros(2, 1, 3, 5, requires_grad=True)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(15, 4), nn.ReLU())
    model = build_model(encoder, (1, 3, 5), 5, True, 7) if built_before else None
    watched = encoder[1] if model is None else model.encoder[1]
    handle = getattr(watched, hook)(lambda *_: seen.append("encoder"))
    if model is None:
        model = build_model(encoder, (1, 3, 5), 5, True, 7)
        assert model.native_chain is None
        seen.clear()  # building the model runs the encoder once
    assert not runs_native(model, x)
    model(x).logits.sum().backward()
    assert seen == ["encoder"]
    handle.remove()
    model(x).logits.sum().backward()
    assert runs_native(model, x) == built_before


def test_a_layer_with_another_forward_is_run_by_it() -> None:
    model, x = build_model("mlp", (1, 3, 5), 5, True, 7), torch.zeros(2, 1, 3, 5)
    plain = model.output.forward
    model.output.forward = lambda z: 2 * plain(z)
    patched = model(x).logits
    del model.output.forward
    assert torch.allclose(patched, 2 * model(x).logits)


def replace_output(model: Model) -> None:
    model.output = nn.Linear(7, 3)


def replace_activation(model: Model) -> None:
    model.encoder[2] = nn.Tanh()


def append_layer(model: Model) -> None:
    model.head.append(nn.Tanh())


def drop_layer(model: Model) -> None:
    del model.head[1]


def drop_head(model: Model) -> None:
    model.head = nn.Linear(64, 7)


def drop_bias(model: Model) -> None:
    model.output.bias = None


def shrink_weight(model: Model) -> None:
    model.output.weight.data = torch.ones(2, 7)
    model.output.bias.data = torch.ones(2)


def parametrize(model: Model) -> None:
    nn.utils.parametrizations.weight_norm(model.output)


@pytest.mark.parametrize(
    "change",
    [
        replace_output,
        replace_activation,
        append_layer,
        drop_layer,
        drop_head,
        drop_bias,
        shrink_weight,
        parametrize,
    ],
)
def test_layers_that_are_replaced_after_the_model_was_built_are_run_by_torch(
    change: Callable[[Model], None],
) -> None:
    """Layers of result.model are replaced for fine-tuning, for example."""
    model, x = build_model("mlp", (1, 3, 5), 5, True, 7), torch.randn(4, 1, 3, 5)
    assert runs_native(model, x)
    change(model)
    assert not runs_native(model, x)
    assert torch.equal(model(x).logits, in_torch(model, x))


def test_parameters_that_are_replaced_after_the_model_was_built_are_used() -> None:
    model, x = integer_model("mlp", (1, 3, 5), True), integers((4, 1, 3, 5), -1, 2, 0)
    model.output.weight = nn.Parameter(integers((5, 7), -1, 2, 9))
    assert runs_native(model, x)
    assert torch.equal(model(x).logits, in_torch(model, x))
    swapped = {"output.bias": torch.full((5,), 3.0)}
    expected = model(x).logits - model.output.bias + 3
    assert torch.equal(torch.func.functional_call(model, swapped, x).logits, expected)


def test_a_model_that_is_moved_to_another_dtype_is_run_by_torch() -> None:
    model, x = build_model("mlp", (1, 3, 5), 5, True, 7), torch.randn(4, 1, 3, 5)
    expected = model(x).logits
    assert not runs_native(model.double(), x.double())
    assert torch.allclose(model(x.double()).logits.float(), expected, atol=1e-5)
    assert not runs_native(model, x)
    assert runs_native(model.float(), x)
    assert not runs_native(model.to("meta"), x)


def test_inputs_of_another_shape_are_run_by_torch() -> None:
    model, x = integer_model("mlp", (1, 3, 5), True), integers((4, 1, 3, 5), -1, 2, 0)
    assert not runs_native(model, x.view(4, 5, 3))
    assert torch.equal(model(x.view(4, 5, 3)).logits, model(x).logits)
    assert not runs_native(model, x[:0])
    assert model(x[:0]).logits.shape == (0, 5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_of_a_model_runs_its_own_layers(copied: Callable[[Model], Model]) -> None:
    model, x = integer_model("simple-cnn", (3, 16, 16), True), torch.ones(2, 3, 16, 16)
    another = copied(model)
    assert runs_native(another, x)
    expected = model(x).logits
    with torch.no_grad():
        another.output.bias.add_(1)
    assert torch.equal(another(x).logits, expected + 1)
    assert torch.equal(model(x).logits, expected)
    seen: list[str] = []
    another.head[0].register_forward_hook(lambda *_: seen.append("copy"))
    model(x)
    assert seen == []
    another(x)
    assert seen == ["copy"]


def test_threads_that_end_leave_no_memory_behind() -> None:
    """A server may use one thread per request."""
    model, x = (
        build_model("simple-cnn", (3, 32, 32), 10, True, 16).eval(),
        torch.zeros(16, 3, 32, 32),
    )

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def threads(count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=lambda: model(x))
            thread.start()
            thread.join()

    threads(20)
    before = resident()
    threads(150)
    assert resident() - before < 15e6


def test_a_layer_with_native_false_is_run_by_torch() -> None:
    layer = ConvReluPool(3, 6, 5)
    layer.native = False
    assert run_native(((layer,),), torch.zeros(2, 3, 16, 16)) is None


def test_hooks_that_pack_what_is_saved_change_no_gradient() -> None:
    """A packed tensor may be unpacked in another memory format."""

    def packed(tensor: Tensor) -> Tensor:
        return tensor.clone(memory_format=torch.contiguous_format)

    model, x = (
        integer_model("simple-cnn", (3, 20, 16), True),
        integers((5, 3, 20, 16), -1, 2, 0),
    )
    want = grads(model, x, LOSSES["z and logits"])
    with torch.autograd.graph.saved_tensors_hooks(packed, packed):
        got = grads(model, x, LOSSES["z and logits"])
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


def test_a_bias_may_change_before_the_backward_and_a_weight_may_not() -> None:
    model, x = integer_model("mlp", (1, 3, 5), True), torch.ones(2, 1, 3, 5)
    before = model(x).logits.sum()
    with torch.no_grad():
        model.output.bias.add_(1)
    before.backward()
    before = model(x).logits.sum()
    with torch.no_grad():
        model.output.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        before.backward()


def with_weight(layer: nn.Linear, outputs: int, inputs: int) -> nn.Linear:
    """Replace the parameters of a layer by others than its attributes say."""
    layer.weight, layer.bias = (
        nn.Parameter(torch.ones(outputs, inputs)),
        nn.Parameter(torch.zeros(outputs)),
    )
    return layer


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(3, 4), nn.Tanh()],
        [nn.ReLU(), nn.Linear(3, 4)],
        [nn.Linear(3, 4, bias=False)],
        [nn.Flatten()],
        [nn.Linear(5, 4)],
        [nn.Linear(3, 4).double()],
        [nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))],
        [with_weight(nn.Linear(3, 4), 2, 3)],
        [with_weight(nn.Linear(3, 2), 4, 3)],
    ],
)
def test_layers_without_native_implementation_are_run_by_torch(layers: list[nn.Module]) -> None:
    assert run_native((tuple(layers),), torch.zeros(2, 3)) is None


def test_an_unusable_library_is_reported_and_not_used(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = next(Path(kernels.__file__).parent.glob("_native*"))
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "__init__.py"))
    for damaged in (b"not a library", found.read_bytes()):
        (tmp_path / found.name).write_bytes(damaged)
        monkeypatch.setattr(kernels, "VERSION", -1)
        with pytest.warns(UserWarning, match="another version or machine"):
            assert kernels.library.__wrapped__() is None


def test_second_derivatives_are_refused(instructions: str) -> None:
    layer = ConvReluPool(3, 6, 5)
    x = torch.randn(2, 3, 16, 16, requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivative; set MOONFL_KERNELS=torch"):
        torch.autograd.grad(layer(x).sum(), x, create_graph=True)


@pytest.mark.parametrize("shape", [(2, 4, 16, 16), (2, 3, 4, 4), (2, 3, 5, 5), (0, 3, 16, 16)])
def test_unsupported_shapes_are_run_or_refused_by_torch(
    instructions: str, shape: tuple[int, ...]
) -> None:
    layer, x = ConvReluPool(3, 6, 5), torch.randn(shape)
    try:
        expected = reference(x, layer).shape
    except RuntimeError:
        with pytest.raises(RuntimeError):
            layer(x)
    else:
        assert layer(x).shape == expected


def test_the_default_type_of_torch_does_not_matter(instructions: str) -> None:
    layer, x = integer_layer(3, 6, 5, False), integers((4, 3, 16, 16), -3, 4, 0)
    expected = reference(x, layer)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(layer(x), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_any_layout_of_input_and_weights(instructions: str) -> None:
    layer, x = integer_layer(3, 6, 5, True), integers((9, 3, 18, 16), -3, 4, 0)
    expected = reference(x, layer)
    for variant in (
        x,
        x.to(memory_format=torch.channels_last),
        x.transpose(2, 3).contiguous().transpose(2, 3),
    ):
        assert torch.equal(layer(variant), expected)
        assert torch.equal(layer.to(memory_format=torch.channels_last)(variant), expected)


@pytest.mark.parametrize("preparation", [CIFAR10, CIFAR100])
@pytest.mark.parametrize("augmented", [False, True])
def test_batches_have_the_same_pixels_as_in_torch(
    preparation, augmented: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randint(
        0, 256, (50, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    rows = torch.randint(0, 50, (65,), generator=torch.Generator().manual_seed(1))
    made = []
    for library in (kernels.library, lambda: None):
        monkeypatch.setattr(batch_module, "library", library)
        made.append(
            preparation.batch(x, rows, torch.Generator().manual_seed(2) if augmented else None)
        )
    assert torch.equal(*made)
    assert made[0].stride() == made[1].stride()


@pytest.mark.parametrize("crop", ["reflect", "zero", None])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (9, 14), (7, 1)])
def test_rotated_maps_are_those_of_torch(
    height: int, width: int, crop: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = crop_and_flip(height, width, crop)
    choice = torch.randint(0, len(maps), (500,), generator=torch.Generator().manual_seed(0))
    right_angles = torch.tensor([0.0, 90.0, -90.0, 180.0, 360.0])
    degrees = torch.cat([torch.linspace(-200, 200, 495), right_angles])
    results = []
    for library in (kernels.library, lambda: None):
        monkeypatch.setattr(batch_module, "library", library)
        radians = degrees.deg2rad()
        results.append(batch_module.rotate(maps, choice, radians, height, width))
    assert torch.equal(*results)
    assert torch.equal(results[0][495], maps[choice[495]])


def test_training_is_the_same_up_to_rounding(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the weights after two MOON rounds on the same batches."""
    write_cifar10(tmp_path, per_file=100)
    exp = Experiment(
        dataset="cifar10", data_dir=str(tmp_path), parties=2, rounds=2, epochs=2, batch_size=32
    )
    native = train(exp, make_task(exp)).params
    monkeypatch.setattr(chain, "library", lambda: None)
    torch_only = train(exp, make_task(exp)).params
    for name, value in native.items():
        assert (value - torch_only[name]).abs().max() < 2e-5, name


def test_torch_can_be_selected() -> None:
    code = "from moonfl import kernels; print(kernels.in_use())"
    for value, expected in [("torch", "torch"), ("nonsense", "")]:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"MOONFL_KERNELS": value, "PATH": ""},
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() == expected
    assert "unknown value of MOONFL_KERNELS 'nonsense'" in done.stderr


def test_native_code_is_built_here() -> None:
    """The test environment has a compiler, so the library must not be missing."""
    assert kernels.in_use() != "torch"
