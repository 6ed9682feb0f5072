"""Every Flower message as an input folder, so that the mutations of files apply to messages.

The config record is header.json and names.json. Each tensor is a file LABEL/NAME.npy, and
arrays.json states the dtype and shape that the message claims for it.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from moonfl.exchange import server_state
from moonfl.flower.counts import ClassCounts, ErrorCounts, ScoreCounts
from moonfl.flower.protocol import (
    CONFIG,
    TENSORS,
    ColumnOrder,
    DescribeRequest,
    EvaluateRequest,
    EvaluationHeader,
    ExpectedUpdate,
    RunEvent,
    TrainRequest,
    format_event,
    pack,
    pack_update,
    parse_event,
    read_evaluate_request,
    read_evaluation,
    read_header,
    read_site,
    read_train_request,
    read_update,
)
from moonfl.flower.refusals import RefusedError
from moonfl.flower.site_checks import read_target_moments
from moonfl.objectives import make_objective
from moonfl.objectives.multilabel import CODES
from moonfl.objectives.regression import FRACTION
from moonfl.runs.directory import versions
from moonfl.runs.schema import Moments, SiteRecord
from moonfl.types import Params, Server, State, Update

from .harness import Reader

PARAMS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}
BUFFERS = {"running_var": torch.ones(2), "standardise.mean": torch.zeros(3)}
EXTRA: State = {"c": {"a": torch.ones(2, 3)}}
SERVER = Server(params=PARAMS, buffers=BUFFERS, shared=EXTRA)
REQUEST = TrainRequest(run="r1", party=1, round=0)
HASH = "0" * 64
SITE = SiteRecord(
    party=1,
    name="Bonn",
    versions={"moonfl": "0.1.0"},
    shape=[3],
    dtype="torch.float32",
    classes=["ill", "well"],
    counts=[4, 6],
    sha256=HASH,
    held_out=3,
    validation=0,
    features=["age", "sex", "height"],
    moments=Moments(number=10, mean=[0.0, 1.0, 2.0], squares=[1.0, 1.0, 1.0]),
    secret="x",
)
SITES = {  # by task
    "classification": SITE,
    "regression": msgspec.structs.replace(
        SITE,
        counts=[10, 10],
        samples=10,
        targets=Moments(number=10, mean=[0.0, 1e6], squares=[0.0, 1.0]),
    ),
    "multilabel": msgspec.structs.replace(SITE, counts=[0, 7], samples=10),
}
UPDATE = Update(
    party=1,
    params=PARAMS,
    buffers=BUFFERS,
    num_samples=10,
    num_steps=7,
    extra=EXTRA,
    metrics={"loss": 0.5, "seconds": 1.0},
)
EXPECTED_UPDATE = ExpectedUpdate(request=REQUEST, server=SERVER, site=SITE, steps=7, extra=EXTRA)
COUNTS = {
    "classification": ClassCounts(loss=1.5, actual=[1, 2], predicted=[2, 1], hits=[1, 1]),
    "regression": ErrorCounts(
        loss=1.5,
        y=[1 << FRACTION, 0],
        y_squared=[1 << 2 * FRACTION, 1],
        squared_errors=[3 << FRACTION, 0],
    ),
    "multilabel": ScoreCounts(
        loss=1.5,
        actual=[1, 0],
        predicted=[2, 1],
        hits=[1, 0],
        scores=[5, CODES + 7, 2 * CODES],
        numbers=[2, 1, 3],
    ),
}


def write_message(folder: Path, content: RecordDict) -> None:
    """Write a message into a folder."""
    claims: dict[str, dict[str, Any]] = {}
    for key, text in content.config_records[CONFIG].items():
        (folder / f"{key}.json").write_text(str(text))
    for record, arrays in content.array_records.items():
        label = record.removeprefix(TENSORS)
        (folder / label).mkdir(parents=True)
        claims[label] = {}
        for name, array in arrays.items():
            (folder / label / f"{name}.npy").write_bytes(array.data)
            claims[label][name] = [array.dtype, list(array.shape)]
    (folder / "arrays.json").write_text(json.dumps(claims))


def read_message(folder: Path) -> RecordDict:
    """Return the message that a folder describes, with whatever Flower would transport."""
    config = {}
    for key in ("header", "names"):
        path = folder / f"{key}.json"
        if path.is_file():
            config[key] = path.read_bytes().decode(errors="replace")
    content = RecordDict({CONFIG: ConfigRecord(dict(config))})
    claims = _read_claims(folder)
    for label, names in claims.items():
        arrays = {}
        for name, (dtype, shape) in names.items():
            path = folder / label / f"{name}.npy"
            arrays[name] = Array(dtype, shape, "numpy.ndarray", _read_data(path))
        content[f"{TENSORS}{label}"] = ArrayRecord(arrays)
    return content


def _read_data(path: Path) -> bytes:
    """Return the content of a tensor's file; empty if a claimed name is not that of a file."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:
        return b""


def _read_claims(folder: Path) -> dict[str, dict[str, tuple[str, tuple[int, ...]]]]:
    """Return dtype and shape of every array; what Flower's message format cannot hold is absent."""
    path = folder / "arrays.json"
    try:
        claims = json.loads(path.read_bytes()) if path.is_file() else {}
        return {
            str(label): {
                str(name): (str(dtype), tuple(int(side) for side in shape))
                for name, (dtype, shape) in names.items()
                if Path(str(name)).name == name
            }
            for label, names in claims.items()
            if ".." not in label and not label.startswith("/")
        }
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def message(
    content: RecordDict,
    read: Callable[[RecordDict], Any],
    check: Callable[[Any, Any], None] = lambda value, expected: None,
    cases: int = 1000,
) -> Reader:
    """Return the reader of a message; it accepts or raises RefusedError."""
    return Reader(
        write=lambda folder: write_message(folder, content),
        read=lambda folder: read(read_message(folder)),
        check=check,
        errors=(RefusedError,),
        cases=cases,
    )


def check_tensors(tensors: Params, expected: Params) -> None:
    """Check names, shapes and dtypes: copying them into the model must not broadcast."""
    assert list(tensors) == list(expected)
    for name, tensor in tensors.items():
        assert tensor.shape == expected[name].shape, name
        assert tensor.dtype == expected[name].dtype, name


def check_update(update: Update, expected: Update) -> None:
    """Check that what reaches the aggregation is finite and counts as much as it should."""
    check_tensors(update.params, expected.params)
    check_tensors(update.buffers, expected.buffers)
    assert list(update.extra) == list(expected.extra)
    for params in (update.params, update.buffers, *update.extra.values()):
        assert all(bool(torch.isfinite(tensor).all()) for tensor in params.values())
    assert (update.party, update.num_samples, update.num_steps) == (1, 10, 7)
    assert bool((update.buffers["standardise.mean"] == 0).all())


def check_train_request(value: tuple[TrainRequest, Server], expected: Any) -> None:
    request, server = value
    assert request.party == 1
    assert request.run.isalnum(), request.run
    check_tensors(server.params, PARAMS)
    check_tensors(server.buffers, BUFFERS)


def check_site(site: SiteRecord, expected: Any) -> None:
    assert 0 <= site.party < 3
    assert len(site.counts) == len(site.classes) > 0
    assert site.num_samples >= max(1, *site.counts)
    if site.targets is not None:
        objective = make_objective("regression").fit([read_target_moments(site)])
        assert all(bool(values.isfinite().all()) for values in objective.statistics.values())
        assert bool((objective.statistics["rescale.std"] > 0).all())
    assert site.name.isprintable()


def check_tallies(task: str, tallies: Any, expected: Any) -> None:
    """Check that accepted counts are of three samples and have metrics in their range."""
    scales = dict.fromkeys(("rescale.mean", "rescale.std"), torch.ones(2, dtype=torch.float64))
    score = make_objective(task).with_statistics(scales).score(tallies["test"])
    assert score.sites is not None
    assert score.sites[1][1] == 3
    for share in (score.accuracy, score.macro_f1, score.mean_average_precision):
        assert share is None or 0 <= share <= 1
    assert score.rmse is None or 0 <= score.rmse <= 1e6
    assert score.r2 is None or score.r2 <= 1


def write_log(folder: Path) -> None:
    (folder / "line").write_text(format_event(RunEvent(error="it failed", failure="input")))


def read_log(folder: Path) -> object:
    """Return the event in the server's log; a log without one is refused by this function."""
    path = folder / "line"
    text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
    events = [parse_event(line) for line in text.split("\n")]
    if not any(events):
        raise RefusedError("no event")
    return events


MESSAGES: dict[str, Reader] = {
    "query": message(
        pack(DescribeRequest(features=["age", "sex"])),
        lambda content: read_header(content, ColumnOrder, "request"),
    ),
    **{
        f"description, {task}": message(
            pack(site), functools.partial(read_site, parties=3), check_site
        )
        for task, site in SITES.items()
    },
    "train request": message(
        pack(REQUEST, server_state(SERVER)),
        lambda content: read_train_request(content, 1, SERVER),
        check_train_request,
    ),
    "update": message(
        pack_update(UPDATE, 0, sha256=HASH, version=versions()["moonfl"]),
        lambda content: read_update(content, EXPECTED_UPDATE),
        check_update,
        cases=2000,
    ),
    "evaluate request": message(
        pack(EvaluateRequest(party=1, run="r1", round=1, accepted=0), {"model": PARAMS}),
        lambda content: read_evaluate_request(content, 1, PARAMS),
        lambda answer, expected: check_tensors(answer[1], expected[1]),
    ),
    **{
        f"evaluation, {task}": message(
            pack(EvaluationHeader(party=1, sha256=HASH, version=versions()["moonfl"], test=counts)),
            functools.partial(
                read_evaluation, site=SITE, sizes={"test": 3, "validation": 0}, task=task, classes=2
            ),
            functools.partial(check_tallies, task),
        )
        for task, counts in COUNTS.items()
    },
    "event in a log": Reader(write=write_log, read=read_log, errors=(RefusedError,)),
}
