"""The tensors of a message: nothing is decoded unless it is exactly what is expected."""

import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from helpers.flower_deployment import MOON3, Deployment
from helpers.flower_grid import unpack
from moonfl import RunError, Scaffold
from moonfl.exchange import server_state
from moonfl.federation import init_server
from moonfl.flower.arrays import read_tensors, to_array, to_arrays, to_tensor
from moonfl.flower.protocol import (
    CONFIG,
    MAX_JSON,
    TENSORS,
    EvaluateRequest,
    TrainRequest,
    pack,
    read_body,
)
from moonfl.flower.refusals import RefusedError
from moonfl.task import make_task
from moonfl.types import State

EXPECTED = torch.arange(6, dtype=torch.float32).view(2, 3)
ENTRIES = 3000
LIMIT = 10.0  # seconds; decoding 4 MB 3,000 times takes more than a minute


@pytest.mark.parametrize(
    "tensor",
    [
        EXPECTED,
        torch.tensor(3.5, dtype=torch.float64),
        torch.zeros(0, 4),
        torch.tensor([True, False]),
        torch.tensor([2**62, -1]),
        torch.tensor([1 + 2j]),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
)
def test_tensors_arrive_as_they_were_sent(tensor: torch.Tensor) -> None:
    received = to_tensor("x", to_array(tensor), tensor)
    assert received.dtype == tensor.dtype
    assert received.is_contiguous()
    assert torch.equal(received, tensor)
    assert received.data_ptr() % 64 == 0 or received.numel() == 0


def npy(values: np.ndarray[Any, Any]) -> bytes:
    """Return the .npy file of an array."""
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


FILE = npy(EXPECTED.numpy())
FALSE_FILES: dict[str, bytes] = {
    "another shape": npy(EXPECTED.numpy().reshape(3, 2)),
    "another dtype": npy(np.arange(6, dtype=np.int32).reshape(2, 3)),
    "another byte order": npy(EXPECTED.numpy().astype(">f4")),
    "Fortran order": npy(np.asfortranarray(EXPECTED.numpy())),
    "truncated": FILE[:-1],
    "longer": FILE + b"\0",
    "much longer": FILE + bytes(10_000),
    "empty": b"",
    "only values": EXPECTED.numpy().tobytes(),
    "another version": b"\x93NUMPY\x02" + FILE[7:],
    "a shape that needs 4 TB": FILE.replace(b"(2, 3), }        ", b"(1000000000000,)}"),
    "objects": npy(EXPECTED.numpy()).replace(b"'<f4'", b"'|O' "),
    "not a header": FILE[:10] + b"(" * 118 + FILE[128:],
}


@pytest.mark.parametrize("kind", FALSE_FILES)
def test_a_file_that_is_not_what_the_message_states_is_refused(kind: str) -> None:
    array = Array("float32", (2, 3), "numpy.ndarray", FALSE_FILES[kind])
    content = pack({}, {"model": {"w": EXPECTED}})
    content[f"{TENSORS}model"] = ArrayRecord({"w": array})
    with pytest.raises(RefusedError, match=r"w of the model is|its tensors cannot be read"):
        read_body(content, {"model": {"w": EXPECTED}})


def test_the_smallest_valid_file_is_accepted() -> None:
    """Without this, the refusals above could have another reason."""
    array = Array("float32", (2, 3), "numpy.ndarray", FILE)
    assert torch.equal(to_tensor("w", array, EXPECTED), EXPECTED)


@pytest.mark.parametrize(
    ("label", "sent", "reason"),
    [
        ("params", {"w": torch.zeros(3)}, r"w of the model is float32 \[3\], expected float32 \[2"),
        ("params", {"w": torch.zeros(2, 3).double()}, r"is float64 \[2, 3\], expected float32"),
        ("params", {"v": EXPECTED}, r"the model has other tensors .* 1 instead of 1 \([vw]\)"),
        ("params", {}, r"the model has other tensors than expected: 0 instead of 1 \(w\)"),
        ("c", {"w": EXPECTED}, "it sends c, expected params$"),
        ("shared/c", {"w": EXPECTED}, "it sends shared/c, expected params$"),
    ],
)
def test_tensors_must_be_the_expected_ones(label: str, sent: State, reason: str) -> None:
    names = {label: list(sent)}
    with pytest.raises(RefusedError, match=reason):
        read_tensors(to_arrays({label: sent}), names, {"params": {"w": EXPECTED}})


def test_tensors_have_the_expected_order() -> None:
    expected = {"params": {"a": EXPECTED, "b": EXPECTED + 1}}
    arrays = to_arrays({"params": {"b": EXPECTED + 1, "a": EXPECTED}})
    tensors = read_tensors(arrays, {"params": ["b", "a"]}, expected)
    assert list(tensors["params"]) == ["a", "b"]
    assert torch.equal(tensors["params"]["b"], EXPECTED + 1)


def repeat_array(content: RecordDict) -> RecordDict:
    """List one array of 4 MB under 3,000 names of the model."""
    array = Array(np.zeros(2**20, np.float32))
    names = [f"w{k}" for k in range(ENTRIES)]
    content[f"{TENSORS}params"] = ArrayRecord(dict.fromkeys(names, array))
    listed = json.loads(str(content.config_records[CONFIG]["names"]))
    content.config_records[CONFIG]["names"] = json.dumps(listed | {"params": names})
    return content


def repeat_name(content: RecordDict) -> RecordDict:
    """List one array of 4 MB 3,000 times by the same name, which is one of the model's."""
    listed = json.loads(str(content.config_records[CONFIG]["names"]))
    name = listed["params"][0]
    content.array_records[f"{TENSORS}params"][name] = Array(np.zeros(2**20, np.float32))
    content.config_records[CONFIG]["names"] = json.dumps(listed | {"params": [name] * ENTRIES})
    return content


def repeat_label(content: RecordDict) -> RecordDict:
    """Send 3,000 groups of tensors that are one array of 4 MB each."""
    record = ArrayRecord({"w": Array(np.zeros(2**20, np.float32))})
    names = {f"g{k}": ["w"] for k in range(ENTRIES)}
    for record_name in [name for name in content if name != CONFIG]:
        del content[record_name]
    for label in names:
        content[f"{TENSORS}{label}"] = record
    content.config_records[CONFIG]["names"] = json.dumps(names)
    return content


def enlarge_array(content: RecordDict) -> RecordDict:
    """Hide a file of 10 MB behind the name, shape and dtype of each small tensor."""
    for array in content.array_records[f"{TENSORS}params"].values():
        array.data = array.data + bytes(10_000_000)
    return content


def add_record(content: RecordDict) -> RecordDict:
    """Send a record that is not listed."""
    content["more"] = MetricRecord({"x": 1.0})
    return content


def lengthen_names(content: RecordDict) -> RecordDict:
    """Send a list of names that is longer than any model's."""
    content.config_records[CONFIG]["names"] = json.dumps({"params": ["w" * MAX_JSON]})
    return content


FORGERIES = [
    (repeat_array, r"the model has other tensors than expected: 3000 instead of \d+", "no tensors"),
    (repeat_name, r"the model has other tensors than expected: 3000 instead of \d+", "no tensors"),
    (repeat_label, "it sends g0, g1, g2.*, expected params, buffers", "no tensors"),
    (enlarge_array, r"of the model is a file of 10\d+ bytes, expected \d+ bytes", "no tensors"),
    (add_record, "its records are not those that it lists", "not those that it lists"),
    (lengthen_names, "its names has 8388\\d+ characters, allowed are 8388608", "its names has"),
]


def forge_answers(
    deployment: Deployment, message_type: str, forge: Callable[[RecordDict], RecordDict]
) -> list[float]:
    """Forge node 2's answers to one type of message; return the list of times when it answers."""
    times: list[float] = []
    params = init_server(MOON3, make_task(MOON3)).params

    def intercept(request: Message, reply: Message) -> Message:
        metadata = request.metadata
        if metadata.message_type != message_type or metadata.dst_node_id != 2:
            return reply
        header, tensors = unpack(reply.content)
        answer = Message(forge(pack(header, tensors or {"params": params})), reply_to=request)
        times.append(time.monotonic())
        return answer

    deployment.grid.intercept = intercept
    return times


@pytest.mark.parametrize(("forge", "reason", "_"), FORGERIES)
def test_an_update_is_compared_before_it_is_decoded(
    forge: Callable[[RecordDict], RecordDict], reason: str, _: str, tmp_path: Path
) -> None:
    """A site cannot occupy the server: a false update costs no more than an honest one."""
    deployment = Deployment(tmp_path / "federation", replace(MOON3, rounds=1))
    times = forge_answers(deployment, "train", forge)
    record = deployment.serve().rounds[0]
    assert time.monotonic() - times[0] < LIMIT
    (missing,) = (party for party in record.parties or [] if party.missing)
    assert missing.party == 1
    assert re.search(reason, str(missing.missing)), missing


@pytest.mark.parametrize(("forge", "_", "reason"), FORGERIES)
def test_descriptions_and_evaluations_have_no_tensors(
    forge: Callable[[RecordDict], RecordDict],
    _: str,
    reason: str,
    deployment: Deployment,
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = forge_answers(deployment, "query", forge)
    with pytest.raises(RunError, match=f"node 2 was refused: .*{reason}"):
        deployment.serve()
    assert time.monotonic() - times[0] < LIMIT
    deployment.exp = replace(MOON3, rounds=1)
    times = forge_answers(deployment, "evaluate", forge)
    assert (deployment.serve().rounds[0].sites or {}).keys() == {"0", "2"}
    assert time.monotonic() - times[0] < LIMIT
    assert re.search(f"site-2 does not evaluate the model: .*{reason}", capsys.readouterr().err)


def answer_of_site(deployment: Deployment, kind: str, content: RecordDict) -> dict[str, Any]:
    """Return the header of site 1's answer to a message of the server."""
    (number,) = deployment.grid.push_messages([Message(content, 1, kind)])
    return unpack(deployment.grid.replies.pop(number).content)[0]


FALSE_MODELS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor], str]] = {
    "a model that would be repeated": (
        "params",
        lambda tensor: tensor[:1],
        r"of the model is float32 \[1, 64\], expected float32 \[\d+, 64\]",
    ),
    "a scalar": (
        "params",
        lambda tensor: tensor.mean(),
        r"of the model is float32 \[\], expected float32 \[\d+, 64\]",
    ),
    "a larger model": (
        "params",
        lambda tensor: tensor.repeat(2, 1),
        r"of the model is float32 \[\d+, 64\], expected",
    ),
    "another dtype": (
        "params",
        lambda tensor: tensor.double(),
        r"of the model is float64 \[\d+, 64\], expected float32",
    ),
    "shared state that would be repeated": (
        "shared/c",
        lambda tensor: tensor[:1],
        r"of c is float32 \[1, 64\], expected float32 \[\d+, 64\]",
    ),
}


@pytest.mark.parametrize("kind", FALSE_MODELS)
def test_a_site_refuses_a_model_that_is_not_its_own(kind: str, tmp_path: Path) -> None:
    """`copy_` would repeat values to fill a larger tensor, and train something else silently."""
    exp = replace(MOON3, algorithm=Scaffold(), rounds=1)
    deployment = Deployment(tmp_path / "federation", exp)
    state = {
        label: dict(params)
        for label, params in server_state(init_server(exp, make_task(exp))).items()
    }
    request = TrainRequest(run="x", party=0, round=0)
    assert "error" not in answer_of_site(deployment, "train", pack(request, state))
    label, edit, reason = FALSE_MODELS[kind]
    first = next(iter(state[label]))
    state[label][first] = edit(state[label][first])
    error = answer_of_site(deployment, "train", pack(request, state))["error"]
    assert re.fullmatch(f"{re.escape(first)} {reason}.*", error)
    if label == "params":
        model = {"model": {**state["params"], **state["buffers"]}}
        error = answer_of_site(
            deployment, "evaluate", pack(EvaluateRequest(party=0, round=1, run="1"), model)
        )
        assert re.fullmatch(f"{re.escape(first)} {reason}.*", error["error"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: state.pop("shared/c"), "params, buffers, shared/c; a method declares in in"),
        (lambda state: state.update({"shared/d": state["params"]}), "; a method declares in init"),
        (
            lambda state: state["params"].popitem(),
            r"^the model has other tensors than expected: \d+ instead of \d+ \(output\.bias\)",
        ),
        (
            lambda state: state["params"].update(w=EXPECTED),
            r"^the model has other tensors than expected: \d+ instead of \d+ \(w\)",
        ),
        (
            lambda state: state["shared/c"].update(w=EXPECTED),
            r"^c has other tensors than expected: \d+ instead of \d+ \(w\)",
        ),
    ],
)
def test_a_site_refuses_state_that_its_method_does_not_declare(
    change: Callable[[dict[str, dict[str, torch.Tensor]]], None], reason: str, tmp_path: Path
) -> None:
    exp = replace(MOON3, algorithm=Scaffold(), rounds=1)
    deployment = Deployment(tmp_path / "federation", exp)
    state = {
        label: dict(params)
        for label, params in server_state(init_server(exp, make_task(exp))).items()
    }
    change(state)
    request = TrainRequest(run="x", party=0, round=0)
    error = answer_of_site(deployment, "train", pack(request, state))["error"]
    assert re.search(reason, error)
    assert not (deployment.folder / "site-1" / "states").exists(), "it has not trained"
