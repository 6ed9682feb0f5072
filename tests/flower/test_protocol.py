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
    read_moments,
    read_site,
    read_train_request,
)
from moonfl.flower.refusals import MARKER, RefusedError, sanitize
from moonfl.types import Server

SITE = {
    "party": 0,
    "name": "site-1",
    "versions": {},
    "shape": [1],
    "dtype": "torch.float32",
    "classes": ["ill", "well"],
    "counts": [1, 0],
    "sha256": "0" * 64,
    "held_out": 0,
    "validation": 0,
}
VALUES = "must report number, mean and squares of its features"
INVALID_MOMENTS: list[tuple[object, str]] = [
    ({}, r"missing required field `number` - at `\$\.moments`"),
    ("x", r"got `str` - at `\$\.moments`"),
    ({"number": 1, "mean": [0.0], "squares": ["x"]}, r"got `str` - at `\$\.moments\.squares"),
    ({"number": 1, "mean": [0.0], "squares": [-1.0]}, VALUES),
    ({"number": 1, "mean": [1e300], "squares": [1.0]}, VALUES),
    ({"number": 1, "mean": [0.0], "squares": [1e300]}, VALUES),
    ({"number": 1, "mean": [float("nan")], "squares": [1.0]}, VALUES),
    ({"number": 2, "mean": [0.0], "squares": [1.0]}, VALUES),
    ({"number": 1, "mean": [0.0, 0.0], "squares": [1.0, 1.0]}, VALUES),
    ({"number": 1, "mean": [], "squares": []}, VALUES),
]


@pytest.mark.parametrize(("moments", "reason"), INVALID_MOMENTS)
def test_invalid_moments_are_refused(moments: object, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        read_site(pack(SITE | {"moments": moments}), 1)


def test_missing_moments_are_refused_where_they_are_needed() -> None:
    site = read_site(pack(SITE), 1)
    with pytest.raises(RefusedError, match=VALUES):
        read_moments(site)


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
    update = {"party", "round", "samples", "steps", "metrics", "sha256", "[params]", "[buffers]"}
    assert sent == {"query": site, "train": update, "evaluate": {"party", "test"}}
    assert all(list(deployment.states(party)[2]) == ["prev0"] for party in range(3))
    assert all(deployment.states(party).keys() == {0, 1, 2} for party in range(3))
    assert "secret" not in (deployment.out / "partition.json").read_text()
