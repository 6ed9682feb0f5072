"""Exchange of parameters between modules and dictionaries."""

import pytest
import torch
from torch import nn

from moonfl import RunError, tree


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("weight", torch.zeros(1, 3), r"torch.float32 \[1, 3\]"),
        ("weight", torch.zeros(()), r"torch.float32 \[\]"),
        ("weight", torch.zeros(2, 3).double(), r"torch.float64 \[2, 3\]"),
        ("bias", torch.zeros(1), r"torch.float32 \[1\]"),
    ],
)
def test_loading_neither_repeats_nor_converts_values(
    name: str, value: torch.Tensor, found: str
) -> None:
    model = nn.Linear(3, 2)
    params = tree.copy(tree.params_of(model))
    assert tree.load(model, params) is model
    with pytest.raises(RunError, match=rf"the model has '{name}' as .* loaded with {found}"):
        tree.load(model, {**params, name: value})
