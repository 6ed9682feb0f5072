"""Loading of parameters, and flat buffers: the same bits as operations on separate tensors."""

import pytest
import torch
from torch import Tensor, nn

from helpers.equality import same
from moonfl import RunError, tree
from moonfl.types import Params

SHAPES = {"conv": (6, 3, 5, 5), "bias": (6,), "linear": (120, 401), "scalar": ()}


def separate(seed: int) -> dict[str, Tensor]:
    """Return tensors that do not share memory."""
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=rng) for name, shape in SHAPES.items()}


def flat(seed: int) -> Params:
    """Return the same tensors in one buffer."""
    copies = tree.copy(separate(seed))
    assert tree.flat_buffer(copies) is not None
    return copies


OPERATIONS = {
    "copy": lambda a, b: tree.copy(a),
    "zeros_like": lambda a, b: tree.zeros_like(a),
    "add": lambda a, b: tree.add(a, b, 0.3),
    "sub": tree.sub,
    "mul": lambda a, b: tree.mul(a, 1 / 3),
    "norm": lambda a, b: {"norm": torch.tensor(tree.norm(a), dtype=torch.float64)},
    "distance": lambda a, b: {"distance": torch.tensor(tree.distance(a, b), dtype=torch.float64)},
    "mean": lambda a, b: tree.mean([(a, 3), (b, 7), (a, 0.1)]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_on_a_buffer_are_bit_identical(name: str) -> None:
    operation = OPERATIONS[name]
    expected = operation(separate(1), separate(2))
    for a, b in ((flat(1), flat(2)), (flat(1), separate(2)), (separate(1), flat(2))):
        assert same(operation(a, b), expected)
        assert same(a, separate(1))
        assert same(b, separate(2))


def test_the_distance_is_the_norm_of_the_difference_and_changes_nothing() -> None:
    """Also for float64, which needs no conversion, and with names that only the second has."""
    for a, b in ((flat(1), flat(2)), (separate(1), {**separate(2), "more": torch.ones(3)})):
        assert tree.distance(a, b) == tree.norm(tree.sub(a, b))
    doubles = {"w": torch.tensor([3.0, 5.0], dtype=torch.float64)}
    assert tree.distance(doubles, {"w": torch.tensor([0.0, 1.0], dtype=torch.float64)}) == 5
    assert tree.norm(doubles) == 34**0.5
    assert doubles["w"].tolist() == [3, 5]


def test_a_buffer_is_only_used_for_equal_shapes_and_without_gradients() -> None:
    a = flat(1)
    transposed = {**a, "linear": a["linear"].t()}
    assert tree.flat_buffer(transposed) is None
    assert tree.flat_buffer({**a, "bias": a["bias"].clone()}) is None
    assert tree.flat_buffer({}) is None
    buffer = tree.flat_buffer(a)
    other = tree.copy({**separate(2), "linear": torch.randn(401, 120)})
    assert tree.matching_buffer(a, buffer, other) is None
    assert torch.equal(tree.matching_buffer(a, buffer, {**a, "more": torch.ones(1)}), buffer)


def test_gradients_flow_through_arithmetic_on_parameters_in_a_buffer() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = tree.copy(tree.params_of(model))
    tree.flatten_parameters(model)
    params = tree.params_of(model)
    assert same(tree.copy(params), before)
    with torch.no_grad():
        assert tree.flat_buffer(params) is not None
    difference = tree.sub(params, tree.zeros_like(before))
    sum(value.sum() for value in difference.values()).backward()
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in params.values())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_found(value: float) -> None:
    params = flat(1)
    assert tree.is_finite(params)
    params["linear"][7, 7] = value
    assert not tree.is_finite(params)
    large = tree.copy({"w": torch.full((9,), 3e38)})
    assert tree.is_finite(large), "their sum is infinite"


def test_arithmetic_inside_torch_func() -> None:
    a = flat(1)
    gradient = torch.func.grad(lambda p: tree.sub(p, a)["linear"].square().sum())(flat(2))
    assert torch.equal(gradient["linear"], 2 * (flat(2)["linear"] - a["linear"]))


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("weight", torch.zeros(1, 3), r"torch.float32 \[1, 3\]"),
        ("weight", torch.zeros(()), r"torch.float32 \[\]"),
        ("weight", torch.zeros(2, 3).double(), r"torch.float64 \[2, 3\]"),
        ("bias", torch.zeros(1), r"torch.float32 \[1\]"),
    ],
)
def test_loading_neither_repeats_nor_converts_values(name: str, value: Tensor, found: str) -> None:
    model = nn.Linear(3, 2)
    params = tree.copy(tree.params_of(model))
    assert tree.load(model, params) is model
    with pytest.raises(RunError, match=rf"the model has '{name}' as .* loaded with {found}"):
        tree.load(model, {**params, name: value})
