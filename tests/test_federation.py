"""Checks of what the hooks of a method return: errors name the hook, and nothing is stored."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import moonfl
from helpers.problems import TINY, gaussians
from moonfl import RunError
from moonfl.types import Mean, Params, Party, Server, Update

SCALAR = torch.tensor(1.0)


@dataclass(frozen=True)
class ReturnsPairs(moonfl.FedAvg):
    """A method whose `finish` or `finish_round` returns something else."""

    hook: str = "none"

    def init_server(self, params: Params, buffers: Params) -> Server:
        server = super().init_server(params, buffers)
        return replace(server, shared={"d": {"x": SCALAR}})

    def finish(self, party: Party, trained: Params, steps: int) -> Any:
        pair = super().finish(party, trained, steps)
        return {"finish is None": None, "finish is one dict": {}}.get(self.hook, pair)

    def finish_round(
        self, server: Server, updates: list[Update], parties: int, mean: Mean
    ) -> tuple[Any, Any]:
        shared = {
            "shared is a float": {"d": {"x": 1.0}},
            "shared has another shape": {"d": {"x": torch.ones(4)}},
            "shared has another label": {"e": {"x": SCALAR}},
        }.get(self.hook, server.shared)
        result: Any = (shared, {"m": 2} if self.hook == "memory is an integer" else {})
        return shared if self.hook == "finish_round is one dict" else result


@dataclass(frozen=True)
class Returns(ReturnsPairs):
    """A method one of whose hooks returns something else."""

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Any:
        combined = super().combine(server, updates, parties, mean)
        if self.hook == "combine is a dict":
            return {**combined.params}
        if self.hook == "combine returns no parameters":
            return replace(combined, **{"params": None})
        if self.hook == "combine averages in float64":
            return replace(combined, params={k: v.double() for k, v in combined.params.items()})
        if self.hook == "combine drops a parameter":
            name = next(iter(combined.params))
            return replace(combined, params={k: v for k, v in combined.params.items() if k != name})
        return combined


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("finish is None", r"finish of Returns must return two dicts, \(stored, sent\), got None"),
        ("finish is one dict", "finish of Returns must return two dicts, .* got dict"),
        ("finish_round is one dict", r"two dicts, \(sent, stored\), got dict"),
        ("shared is a float", "returns 'd' for the server to send, which is not a dict of tensors"),
        ("memory is an integer", "returns 'm' for the server to store, which is not a dict of"),
        ("shared has another shape", r"changes 'x' of 'd' in a round from .*32 \[\] to .*32 \[4\]"),
        ("shared has another label", "changes 'x' of 'd' in a round from .* to nothing"),
        ("combine is a dict", "combine of Returns must return a Server, got dict"),
        ("combine drops a parameter", "of 'params' in a round from .* to nothing"),
        ("combine returns no parameters", "must return a Server whose params are a dict"),
        ("combine averages in float64", r"from torch.float32 \[.*\] to torch.float64 \[.*\]"),
    ],
)
def test_what_a_hook_returns_is_checked(hook: str, message: str) -> None:
    exp = replace(TINY, algorithm=Returns(hook=hook))
    with pytest.raises(RunError, match=message):
        moonfl.run(exp, task=gaussians(), workers=1)


def test_a_method_that_returns_what_it_must_is_fedavg() -> None:
    models = [
        moonfl.run(replace(TINY, algorithm=method), task=gaussians(), workers=1).models["global"]
        for method in (Returns(), moonfl.FedAvg())
    ]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())


def test_a_misspelt_hook_gets_a_warning() -> None:
    with pytest.warns(UserWarning, match="Mistaken.finish_rounds is not a hook; .* finish_round?"):

        class Mistaken(moonfl.FedAvg):
            finishes: int = 0  # a setting

            def finish_rounds(self) -> None: ...

            def own_helper(self) -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Derived(Mistaken):
            def finish_rounds(self) -> None:
                """Override the method of the parent."""


@pytest.mark.parametrize("hook", ["finish is one dict", "finish_round is one dict"])
def test_what_a_hook_of_a_part_returns_is_checked(hook: str) -> None:
    name = hook.partition(" ")[0]
    method = moonfl.MOON() + ReturnsPairs(hook=hook)
    with pytest.raises(RunError, match=f"{name} of ReturnsPairs must return two dicts"):
        moonfl.run(replace(TINY, algorithm=method), task=gaussians(), workers=1)
