"""Malformed and forged updates are refused with a reason, and the round continues without them."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from helpers.equality import same
from helpers.flower_deployment import (
    MOON3,
    Deployment,
)
from helpers.flower_grid import as_node, unpack
from moonfl import FedNova, Scaffold
from moonfl.flower.protocol import pack
from moonfl.runs.result import Result


def edit_update(
    change: Callable[[dict[str, Any], dict[str, Any]], None],
) -> Callable[[RecordDict], RecordDict]:
    """Return a function that changes header and tensors of an update."""

    def forge(content: RecordDict) -> RecordDict:
        header, state = unpack(content)
        tensors = {label: dict(params) for label, params in state.items()}
        change(header, tensors)
        return pack(header, tensors)

    return forge


def edit_tensor(
    label: str, edit: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[RecordDict], RecordDict]:
    """Return a function that replaces the first tensor of a label in an update."""

    def change(header: dict[str, Any], tensors: dict[str, Any]) -> None:
        first = next(iter(tensors[label]))
        tensors[label][first] = edit(tensors[label][first])

    return edit_update(change)


FORGERIES: dict[str, tuple[Callable[[RecordDict], RecordDict], str]] = {
    "another shape": (
        edit_tensor("params", lambda t: t[:1]),
        r"is float32 \[1, 64\], expected float32 \[\d+, 64\]",
    ),
    "another type": (
        edit_tensor("params", lambda t: t.double()),
        r"is float64 .* expected float32",
    ),
    "nan": (edit_tensor("params", lambda t: t * torch.nan), "is not finite"),
    "infinite": (edit_tensor("params", lambda t: t / 0), "is not finite"),
    "a name more": (
        edit_update(lambda f, t: t["params"].update(backdoor=torch.ones(1))),
        r"other tensors .*\(backdoor\)",
    ),
    "a name less": (
        edit_update(lambda f, t: t["params"].popitem()),
        r"the model has other tensors than expected: (\d+) instead of \d+ \(output\.bias\)",
    ),
    "no model": (
        edit_update(lambda f, t: t.pop("params")),
        "it sends buffers, extra/delta_c, expected params",
    ),
    "nan in addition to the model": (
        edit_tensor("extra/delta_c", lambda t: t * torch.nan),
        "of delta_c is not finite",
    ),
    "nothing in addition to the model": (
        edit_update(lambda f, t: t.pop("extra/delta_c")),
        r"it sends params, buffers, expected params, buffers, extra/delta_c; a method declares in "
        r"extra_like\(\) what its finish\(\) sends",
    ),
    "absurd samples": (
        edit_update(lambda f, t: f.update(samples=10**9)),
        r"it reports samples 1000000000, expected \d+",
    ),
    "negative samples": (
        edit_update(lambda f, t: f.update(samples=-5)),
        r"it reports samples -5, expected",
    ),
    "absurd steps": (
        edit_update(lambda f, t: f.update(steps=10**6)),
        r"it reports steps 1000000, expected",
    ),
    "fewer steps": (
        edit_update(lambda f, t: f.update(steps=0)),
        r"it reports steps 0, expected \d+",
    ),
    "true steps": (
        edit_update(lambda f, t: f.update(steps=True)),
        r"its update is malformed: Expected `int`, got `bool` - at `\$\.steps`",
    ),
    "another party": (
        edit_update(lambda f, t: f.update(party=0)),
        "it reports party 0, expected 1",
    ),
    "another round": (
        edit_update(lambda f, t: f.update(round=7)),
        "it reports round 7, expected 0",
    ),
    "other data": (
        edit_update(lambda f, t: f.update(sha256="0")),
        "its data are not the data it had when the run started",
    ),
    "another version": (
        edit_update(lambda f, t: f.update(version="0.0.1")),
        r"it has moonfl 0\.0\.1, the server",
    ),
    "a state more": (
        edit_update(lambda f, t: t.update({"prev0": t["params"]})),
        "it sends params, buffers, extra/delta_c, prev0, expected params, buffers, extra/delta_c",
    ),
    "a negative drift": (
        edit_update(lambda f, t: f["metrics"].update(drift=-1)),
        r"Expected `int` >= 0 - at `\$\.metrics\.drift`",
    ),
    "a loss beyond floats": (
        edit_update(lambda f, t: f["metrics"].update(loss=10**400)),
        r"Number out of range - at `\$\.metrics\.loss`",
    ),
    "a text in place of a number": (
        edit_update(lambda f, t: f.update(round="\x1b[2J\n@moonfl {}")),
        r"Expected `int`, got `str` - at `\$\.round`",
    ),
    "a label that controls a terminal": (
        edit_update(lambda f, t: t.update({"\x1b[2J\n@moonfl {}": t["params"]})),
        r"extra/delta_c,  \[2J moonfl {}, expected",
    ),
    "an infinite loss": (
        edit_update(lambda f, t: f["metrics"].update(loss=float("inf"))),
        r"Expected `float` <= 1000000000000\.0 - at `\$\.metrics\.loss`",
    ),
    "a metric that is null": (
        edit_update(lambda f, t: f["metrics"].update(loss=None)),
        r"Expected `float`, got `null` - at `\$\.metrics\.loss`",
    ),
    "no metrics": (edit_update(lambda f, t: f.pop("metrics")), "missing required field `metrics`"),
    "no header": (lambda content: RecordDict({}), "not a moonfl message"),
    "not json": (
        lambda content: RecordDict({"moonfl": ConfigRecord({"header": "{", "names": "{}"})}),
        "not a moonfl message",
    ),
    "a list": (
        lambda content: RecordDict({"moonfl": ConfigRecord({"header": "[]", "names": "{}"})}),
        "no header",
    ),
    "a bad array": (
        lambda content: RecordDict(
            {
                "moonfl": content["moonfl"],
                "tensors:params": ArrayRecord({"x": Array("f4", (1,), "numpy.ndarray", b"")}),
            }
        ),
        "not a moonfl message",
    ),
}


def is_train_request(request: Message, node: int) -> bool:
    """Return True if a message asks this node to train."""
    return request.metadata.message_type == "train" and request.metadata.dst_node_id == node


def serve_forgery(folder: Path, forge: Callable[[RecordDict], RecordDict] | None) -> Result:
    """Run a round of SCAFFOLD in which party 1's update is forged, or lost if `forge` is None."""
    deployment = Deployment(folder, replace(MOON3, algorithm=Scaffold(), rounds=1))

    def intercept(request: Message, reply: Message) -> Message | None:
        if not is_train_request(request, 2):
            return reply
        if forge is None:
            return None
        return as_node(2, Message(forge(reply.content), reply_to=request))

    deployment.grid.intercept = intercept
    return deployment.serve()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return the result of the two honest parties."""
    return serve_forgery(tmp_path_factory.mktemp("honest") / "federation", None)


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_malformed_update_is_refused_and_the_round_continues(
    kind: str, honest: Result, tmp_path: Path
) -> None:
    """Check that the result is bit-identical to that of the two honest parties."""
    forge, reason = FORGERIES[kind]
    result = serve_forgery(tmp_path / "federation", forge)
    (missing,) = (p for p in result.rounds[0]["parties"] if "missing" in p)
    assert missing["party"] == 1
    assert re.search(reason, missing["missing"]), missing
    assert same(result.models, honest.models)


def test_fednovas_norm_must_follow_from_the_steps(tmp_path: Path) -> None:
    nova = Deployment(tmp_path / "federation", replace(MOON3, algorithm=FedNova(), rounds=1))

    def intercept(request: Message, reply: Message) -> Message:
        if not is_train_request(request, 2):
            return reply
        header, tensors = unpack(reply.content)
        norm = {"a": torch.tensor(1e-300).double()}
        return Message(pack(header, {**tensors, "extra/norm": norm}), reply_to=request)

    nova.grid.intercept = intercept
    (missing,) = (p["missing"] for p in nova.serve().rounds[0]["parties"] if "missing" in p)
    assert missing == "norm does not have its value after 7 steps"


def test_a_site_cannot_change_the_standardisation(table_deployment: Deployment) -> None:
    """Clipping does not cover buffers, so one site could shift the inputs of all arbitrarily."""
    forge = edit_tensor("buffers", lambda tensor: tensor + 1e6)

    def intercept(request: Message, reply: Message) -> Message:
        if not is_train_request(request, 2):
            return reply
        return as_node(2, Message(forge(reply.content), reply_to=request))

    table_deployment.grid.intercept = intercept
    (missing,) = (p for p in table_deployment.serve().rounds[0]["parties"] if "missing" in p)
    assert (missing["party"], missing["missing"]) == (
        1,
        "it changed standardise.mean, which is the same for all sites",
    )
