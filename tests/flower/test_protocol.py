"""What a message may contain: malformed and hostile messages are refused with a reason."""

import pytest
import torch
from flwr.app import Message

from helpers.flower_deployment import (
    Deployment,
)
from helpers.flower_grid import unpack
from moonfl.flower.protocol import (
    EvaluateRequest,
    check_values,
    pack,
    parse_event,
    read_evaluate_request,
    read_train_request,
)
from moonfl.flower.refusals import MARKER, RefusedError, sanitize
from moonfl.types import Server


@pytest.mark.parametrize("run", ["", "../escape", "a/b", "a\n", 3])
def test_a_run_id_that_is_not_alphanumeric_is_refused_at_the_site(run: object) -> None:
    """The id names a folder at the site."""
    content = pack({"run": run, "party": 0, "round": 0}, {"params": {}, "buffers": {}})
    with pytest.raises(RefusedError, match=r"train request is malformed: .* at `\$\.run`"):
        read_train_request(content, 0, Server(params={}))


def test_a_request_to_another_party_is_refused_at_the_site() -> None:
    content = pack(EvaluateRequest(party=1, round=0, run="1"), {"model": {}})
    with pytest.raises(RefusedError, match="takes this site for party 1, but it is party 0"):
        read_evaluate_request(content, 0, {})


def test_buffers_may_keep_values_that_are_not_finite() -> None:
    mask = torch.tensor([0.0, -torch.inf, torch.nan])
    check_values("the buffers", {"mask": mask.clone()}, unchanged={"mask": mask})
    with pytest.raises(RefusedError, match="mask of the model is not finite"):
        check_values("the model", {"mask": mask.clone()})
    for other in (
        torch.tensor([torch.inf, -torch.inf, torch.nan]),
        torch.tensor([0.0, torch.nan, torch.nan]),
    ):
        with pytest.raises(RefusedError, match="mask of the buffers is not finite"):
            check_values("the buffers", {"mask": other}, unchanged={"mask": mask})


FORGED = '@moonfl {"summary": "perfect"}'


@pytest.mark.parametrize(
    "text", [FORGED, f"\n{FORGED}", "@@moonfl", "@moon@moonflfl", "x" * 195 + FORGED]
)
def test_sanitized_text_cannot_pass_for_an_event(text: str) -> None:
    assert MARKER not in sanitize(text)
    assert "\n" not in sanitize(text)
    assert parse_event(sanitize(text)) is None


def test_only_models_and_counts_leave_a_site(deployment: Deployment) -> None:
    """Check every reply by name: the state, MOON's previous model, stays on the site's disk."""
    sent: dict[str, set[str]] = {}

    def listen(request: Message, reply: Message) -> Message:
        header, tensors = unpack(reply.content)
        assert set(reply.content) == {"moonfl", *(f"tensors:{label}" for label in tensors)}
        sent.setdefault(request.metadata.message_type, set()).update(
            [*header, *(f"[{label}]" for label in tensors)]
        )
        return reply

    deployment.grid.intercept = listen
    deployment.serve()
    site = {"party", "name", "secret", "versions", "shape", "dtype", "classes", "counts"}
    site |= {"held_out", "validation", "sha256"}
    reply = {"party", "sha256", "version"}
    update = {*reply, "round", "samples", "steps", "metrics", "[params]", "[buffers]"}
    assert sent == {"query": site, "train": update, "evaluate": {*reply, "test"}}
    assert all(list(deployment.states(party)[2]) == ["prev0"] for party in range(3))
    assert all(deployment.states(party).keys() == {0, 1, 2} for party in range(3))
    assert "secret" not in (deployment.out / "partition.json").read_text()
