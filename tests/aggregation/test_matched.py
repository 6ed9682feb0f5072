"""Matched averaging, the trial in benchmarks/: permuted units are found, and functions stay."""

import importlib.util
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from helpers.documents import ROOT
from moonfl import tree
from moonfl.models.encoders import build_model
from moonfl.types import Params, Server, Update

SHAPES = {"mlp": (1, 8, 8), "simple-cnn": (3, 32, 32)}


@pytest.fixture
def matched() -> Iterator[ModuleType]:
    """Import the script, as `algorithm=matched:Matched` does in its folder."""
    path = ROOT / "benchmarks" / "matched.py"
    spec = importlib.util.spec_from_file_location("matched", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["matched"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["matched"]


def network(name: str, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return build_model(name, SHAPES[name], classes=10, head=True, out_dim=16)


def shuffle(matched: Any, params: Params, seed: int) -> Params:
    """Return the model with the units of every hidden layer in random order."""
    generator = torch.Generator().manual_seed(seed)
    layers = matched.layers_of(params)
    for layer, following in itertools.pairwise(layers):
        order = torch.randperm(len(params[f"{layer}.weight"]), generator=generator)
        params = matched.permute(params, layer, following, order)
    return params


@pytest.mark.parametrize("name", SHAPES)
def test_permuting_units_does_not_change_the_function(matched: Any, name: str) -> None:
    model = network(name, 0)
    x = torch.randn(4, *SHAPES[name], generator=torch.Generator().manual_seed(0))
    before = model(x).logits
    shuffled = shuffle(matched, tree.params_of(model), 1)
    assert not shuffled["output.weight"].equal(tree.params_of(model)["output.weight"])
    model.load_state_dict({key: value.clone() for key, value in shuffled.items()})
    torch.testing.assert_close(model(x).logits, before, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sweeps", [0, 5])
@pytest.mark.parametrize("name", SHAPES)
def test_permuting_units_of_a_party_does_not_change_the_aggregate(
    matched: Any, name: str, sweeps: int
) -> None:
    params = {k: v.detach() for k, v in tree.params_of(network(name, 0)).items()}
    generator = torch.Generator().manual_seed(2)
    models = []
    for _ in range(3):
        noise = {k: 0.01 * torch.randn(v.shape, generator=generator) for k, v in params.items()}
        models.append({k: params[k] + noise[k] for k in params})
    method = matched.Matched(sweeps=sweeps)
    server = method.init_server(params, {})

    def aggregate(parties: list[Params]) -> Server:
        updates = [
            Update(party=i, params=p, buffers={}, extra={}, num_samples=10 * (i + 1), num_steps=1)
            for i, p in enumerate(parties)
        ]
        return method.combine(server, updates, 3, tree.mean)

    plain = aggregate(models)
    assert float(plain.memory["moved"]["moved"]) == 0
    mean = tree.mean((model, 10 * (i + 1)) for i, model in enumerate(models))
    assert all(plain.params[k].equal(mean[k]) for k in params)
    permuted = aggregate(
        [shuffle(matched, models[0], 7), models[1], shuffle(matched, models[2], 8)]
    )
    assert float(permuted.memory["moved"]["moved"]) > 0
    assert all(permuted.params[k].equal(mean[k]) for k in params)
