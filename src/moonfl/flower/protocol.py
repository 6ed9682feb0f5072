"""The message format between the Flower server and its sites: all messages, fields and checks.

A message is a Flower RecordDict. Its config record "moonfl" holds two JSON texts: `header`, the
fields of one of the structs below, and `names`, the tensor names of each label in the sender's
order. The tensors of a label are the array record "tensors:LABEL".

| message  | direction | header             | tensors                 | read by              |
|----------|-----------|--------------------|-------------------------|----------------------|
| query    | to site   | DescribeRequest    |                         |                      |
| query    | to server | schema.SiteRecord  |                         | read_site            |
| train    | to site   | TrainRequest       | params, buffers, shared | read_train_request   |
| train    | to server | UpdateHeader       | params, buffers, extra  | read_update          |
| evaluate | to site   | EvaluateRequest    | model                   | read_evaluate_request|
| evaluate | to server | EvaluationHeader   |                         | read_evaluation      |
| any      | to server | ErrorReply         |                         | read_header          |

Every message is decoded into its struct, which checks types and ranges; a message that does not fit
raises RefusedError with the reason. Both ends know which tensors a message must have, and compare
names, number, shapes, dtypes and sizes before anything is decoded (arrays.py). The readers also
check what a struct cannot express:

- `read_site`: the party number exists; there is one sample count per class and at least one sample;
  sizes are plausible; the moments of features and of targets fit the shape and the number of
  samples and are finite; the counts of a table's columns fit the number of rows (site_checks.py).
- `read_train_request`, `read_evaluate_request`: the message is meant for this party; the tensors
  are those of the site's own model and of the method's `init_server`.
- `read_update`, `read_evaluation`: party, version of moonfl and the data's hash are the expected
  ones (`check_reply`).
- `read_update`: round, samples and steps are the expected ones; tensors are finite; variances are
  not negative; the federation's standardisation is unchanged; what is sent in addition to the model
  has the scalars that the algorithm declares in `extra_like`.
- `read_evaluation`: the counts of the task are consistent with each other and with the number of
  held-out samples (counts.py); the loss is finite and plausible.

`membership.py` then compares sites with each other (version, task, shape, classes, features,
secret).
Texts from a site pass through `sanitize` (refusals.py) before anybody sees them.

Apart from messages, the server prints RunEvents in its log, one per line after MARKER;
`moonfl flower run` reads them from there (run.py).
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from msgspec import UNSET, Meta, UnsetType
from torch import Tensor

from .. import tree
from ..exchange import extra_from, server_from, server_state, update_state
from ..metrics import Counts
from ..models.base import STATISTICS
from ..runs import schema
from ..types import Params, Server, State, Update
from .arrays import owner_of, read_tensors, to_arrays
from .counts import FORMATS, check_loss
from .refusals import MARKER, RefusedError, sanitize
from .site_checks import CHANGED_DATA, check_site, check_version

CONFIG = "moonfl"  # name of the config record with header and names
TENSORS = "tensors:"  # starts the name of the array record of a label
MAX_JSON = 2**23  # characters of a header or a list of names; 40,000 columns of a table need 3 MB
MAX_METRIC = 10**12  # larger values are not measurements, and a report would refuse them
EVALUATION_SETS = {  # the counts of a message -> the field of a SiteRecord with their size
    "test": "held_out",
    "validation": "validation",
    "global_test": "held_out",
    "global_validation": "validation",
}

RunId = Annotated[str, Meta(pattern=r"^[0-9A-Za-z]+\Z")]  # names a folder at the site
Loss = Annotated[float, Meta(ge=-MAX_METRIC, le=MAX_METRIC)]
Amount = (
    Annotated[int, Meta(ge=0, le=MAX_METRIC)] | Annotated[float, Meta(ge=0, le=float(MAX_METRIC))]
)
T = TypeVar("T")
C = TypeVar("C")  # the counts of a task


class Header(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of a message."""


class ColumnOrder(Header, kw_only=True, frozen=True):
    """A request to a site, with what all sites agreed on about the columns of a table."""

    features: list[schema.Name] = []  # their order; empty: the order of the site's own table
    encoding: schema.EncodingRecord | None = None  # of missing values and categories


class DescribeRequest(ColumnOrder, frozen=True):
    """Asks a site to describe itself and its data. The answer is a SiteRecord."""


class TrainRequest(ColumnOrder, kw_only=True, frozen=True):
    """Asks a party to train in one round."""

    run: RunId  # the run that the party's state belongs to
    party: schema.Count
    round: schema.Count
    accepted: schema.Count | None = None  # the last round of this party that the server accepted


class TrainingMetrics(Header, frozen=True):
    """Measurements of a party's training. Any of them may be missing."""

    loss: Loss | UnsetType = UNSET
    drift: Amount | UnsetType = UNSET
    seconds: Amount | UnsetType = UNSET
    cpu_seconds: Amount | UnsetType = UNSET
    bytes_down: Amount | UnsetType = UNSET
    bytes_up: Amount | UnsetType = UNSET


class PartyReply(Header, kw_only=True, frozen=True):
    """An answer of a party that took part in a round. The server checks who it is from."""

    party: int
    sha256: str  # hash of the party's data
    version: str  # of moonfl


class UpdateHeader(PartyReply, kw_only=True, frozen=True):
    """Describes the model that a party sends after training."""

    round: int
    samples: int
    steps: int
    metrics: TrainingMetrics


class EvaluateRequest(ColumnOrder, kw_only=True, frozen=True):
    """Asks a party to evaluate a model on its held-out samples.

    If each party has a model of its own, the party adds the tensors of its state.
    """

    party: schema.Count
    round: schema.Count
    run: RunId  # the run that the party's state belongs to
    accepted: schema.Count | None = None  # the last round of this party that the server accepted


class EvaluationHeader(PartyReply, Generic[C], kw_only=True, frozen=True, omit_defaults=True):
    """The counts of a party on its held-out samples, of the kind that its task has (counts.py).

    If each party has a model of its own, the first two are of this model, and the others of the
    model that the server sent, if it is complete.
    """

    test: C | None = None
    validation: C | None = None
    global_test: C | None = None
    global_validation: C | None = None


class ErrorReply(Header, frozen=True):
    """The reason why a site could not answer."""

    error: str


class RunEvent(Header, frozen=True, omit_defaults=True):
    """A line of the server's log for whoever follows the run. One of the first three is set."""

    round: schema.RoundRecord | None = None
    summary: str | None = None  # the run is finished
    error: str | None = None  # the run failed
    failure: Literal["input", "divergence", "run"] = "run"


@dataclass(frozen=True)
class ExpectedUpdate:
    """What the server knows about a party's update before it arrives."""

    request: TrainRequest
    server: Server  # the model that was sent
    site: schema.SiteRecord  # what the site reported before the first round
    steps: int  # optimizer steps that its samples make
    extra: State  # sent in addition to the model, as Algorithm.extra_like declares it


def pack(header: object, tensors: State | None = None) -> RecordDict:
    """Return a message with this header (a struct of this module) and these tensors."""
    return assemble(header, to_arrays(tensors or {}))


def assemble(header: object, arrays: Mapping[str, ArrayRecord]) -> RecordDict:
    """Return a message. It lists the names of its tensors, so that both ends sum in one order."""
    names = {label: list(record) for label, record in arrays.items()}
    texts = {"header": json.dumps(msgspec.to_builtins(header)), "names": json.dumps(names)}
    content = RecordDict({CONFIG: ConfigRecord(dict(texts))})
    for label, record in arrays.items():
        content[f"{TENSORS}{label}"] = record
    return content


def read_header(content: RecordDict, kind: type[T], name: str) -> T:
    """Return the header of a message as this kind of struct; `name` is used in errors."""
    header = read_json(content, "header")
    if "error" in header:
        raise RefusedError(sanitize(str(header["error"])))
    try:
        return msgspec.convert(header, kind)
    except msgspec.ValidationError as error:
        raise RefusedError(f"its {name} is malformed: {sanitize(str(error))}") from None


def read_body(content: RecordDict, expected: State) -> State:
    """Return the tensors of a message; names, shapes and dtypes must be those of `expected`."""
    try:
        names = msgspec.convert(read_json(content, "names"), dict[str, list[str]])
        if set(content) != {CONFIG, *(f"{TENSORS}{label}" for label in names)}:
            raise RefusedError("not a moonfl message (its records are not those that it lists)")
        # Not content.array_records, which Flower collects anew for every access.
        records = {label: content[f"{TENSORS}{label}"] for label in names}
        arrays = {k: record for k, record in records.items() if isinstance(record, ArrayRecord)}
        return read_tensors(arrays, names, expected)
    except RefusedError:
        raise
    except Exception as error:  # whatever a stranger may send
        reason = sanitize(f"{type(error).__name__}: {error}")
        raise RefusedError(f"its tensors cannot be read ({reason})") from None


def read_json(content: RecordDict, key: str) -> dict[str, object]:
    """Return one of the two JSON objects of a message, after a check of its length."""
    config = content.get(CONFIG)
    text = config.get(key) if isinstance(config, ConfigRecord) else None
    if not isinstance(text, str):
        raise RefusedError(f"not a moonfl message (no {key})")
    if len(text) > MAX_JSON:
        raise RefusedError(f"its {key} has {len(text)} characters, allowed are {MAX_JSON}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = sanitize(f"{type(error).__name__}: {error}")
        raise RefusedError(f"not a moonfl message ({reason})") from None
    if not isinstance(value, dict):
        raise RefusedError(f"not a moonfl message (no {key})")
    return value


def server_arrays(server: Server) -> dict[str, ArrayRecord]:
    """Return the part of the server that is sent to the parties, as Flower arrays."""
    return to_arrays(server_state(server))


def read_train_request(
    content: RecordDict, party: int, expected: Server
) -> tuple[TrainRequest, Server]:
    """Return the request to this party, and the server's model and shared state.

    Both must look like those of `expected`, a server with the site's own model.
    """
    request = read_header(content, TrainRequest, "train request")
    check_recipient(request.party, party)
    return request, server_from(read_body(content, server_state(expected)))


def read_evaluate_request(
    content: RecordDict, party: int, expected: Params
) -> tuple[EvaluateRequest, Params]:
    """Return the request to this party, and the model that it evaluates.

    The model must look like `expected`, the party's own model.
    """
    request = read_header(content, EvaluateRequest, "evaluate request")
    check_recipient(request.party, party)
    return request, read_body(content, {"model": expected})["model"]


def check_recipient(addressed: int, party: int) -> None:
    """Check at a site that a request is meant for its party."""
    if addressed != party:
        raise RefusedError(
            f"the server takes this site for party {addressed}, but it is party {party}"
        )


def pack_update(update: Update, round: int, *, sha256: str, version: str) -> RecordDict:
    """Return a party's update of a round as a message.

    `sha256` is the hash of its data, and `version` its version of moonfl.
    """
    fields = TrainingMetrics.__struct_fields__
    metrics = {name: update.metrics[name] for name in fields if name in update.metrics}
    header = UpdateHeader(
        party=update.party,
        sha256=sha256,
        version=version,
        round=round,
        samples=update.num_samples,
        steps=update.num_steps,
        metrics=TrainingMetrics(**metrics),
    )
    return pack(header, update_state(update))


def read_update(content: RecordDict, expected: ExpectedUpdate) -> Update:
    """Return a party's update; raise RefusedError unless it is exactly as expected.

    No other update reaches the aggregation. See the module's docstring for the checks.
    """
    header = read_header(content, UpdateHeader, "update")
    request = expected.request
    samples = expected.site.num_samples
    check_reply(header, expected.site)
    check_value("round", header.round, request.round)
    check_value("samples", header.samples, samples)
    check_value("steps", header.steps, expected.steps)
    extra_like = tree.add_prefix("extra", expected.extra)
    model = {"params": expected.server.params, "buffers": expected.server.buffers}
    tensors = read_body(content, {**model, **extra_like})
    extra = extra_from(tensors)
    check_values(owner_of("params"), tensors["params"])
    check_buffers(tensors["buffers"], expected.server.buffers)
    check_extra(extra, expected)
    return Update(
        party=request.party,
        params=tensors["params"],
        buffers=tensors["buffers"],
        num_samples=samples,
        num_steps=expected.steps,
        extra=extra,
        metrics=msgspec.to_builtins(header.metrics),
    )


def check_reply(header: PartyReply, site: schema.SiteRecord) -> None:
    """Check that an answer is that of a site whose software and data are as they were."""
    check_value("party", header.party, site.party)
    check_version(header.version)
    if header.sha256 != site.sha256:
        raise RefusedError(CHANGED_DATA)


def check_value(name: str, value: int, expected: int) -> None:
    """Check an integer that a site reports."""
    if value != expected:
        raise RefusedError(f"it reports {name} {sanitize(str(value))}, expected {expected}")


def check_buffers(buffers: Params, expected: Params) -> None:
    """Check the buffers of an update. Nobody may change the federation's mean and std."""
    check_values(owner_of("buffers"), buffers, unchanged=expected)
    for name, tensor in buffers.items():
        if name in STATISTICS and not tensor.equal(expected[name].cpu()):
            raise RefusedError(f"it changed {name}, which is the same for all sites")


def check_extra(extra: State, expected: ExpectedUpdate) -> None:
    """Check what an update contains in addition to the model.

    Scalars, which follow from the number of steps (FedNova's norm), must have the declared value.
    """
    for label, params in extra.items():
        check_values(label, params)
        for name, tensor in params.items():
            if tensor.dim() == 0 and not tensor.equal(expected.extra[label][name]):
                raise RefusedError(f"{label} does not have its value after {expected.steps} steps")


def check_values(owner: str, tensors: Params, *, unchanged: Params | None = None) -> None:
    """Check that values are finite and variances not negative.

    Values that are not finite are accepted where `unchanged` has the same, as in a mask.
    """
    for name, tensor in tensors.items():
        valid = torch.isfinite(tensor)
        if unchanged is not None:
            valid = valid | unchanged_mask(tensor, unchanged[name])
        if not bool(valid.all()):
            raise RefusedError(f"{name} of {owner} is not finite")
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise RefusedError(f"{name} of {owner} is a negative variance")


def unchanged_mask(tensor: Tensor, sent: Tensor) -> Tensor:
    """Return a mask of the elements that have the value that was sent."""
    return (tensor == sent) | (tensor.isnan() & sent.isnan())


def read_site(content: RecordDict, parties: int) -> schema.SiteRecord:
    """Return what a site reports about itself; `parties` is the number of parties."""
    site = read_header(content, schema.SiteRecord, "description")
    read_body(content, {})
    check_site(site, parties)
    return msgspec.structs.replace(site, name=sanitize(site.name))


def read_evaluation(
    content: RecordDict,
    site: schema.SiteRecord,
    sizes: Mapping[str, int],
    task: str,
    classes: int,
) -> dict[str, Counts]:
    """Return what a site counted on each evaluation set; `sizes` are its numbers of samples.

    Sets without samples are left out. `classes` is the number of classes, labels or targets.
    """
    counts_format = FORMATS[task]
    generic: Any = EvaluationHeader
    header = read_header(content, generic[counts_format.message], "evaluation")
    read_body(content, {})
    check_reply(header, site)
    tallies = {}
    for name, size in sizes.items():
        if size > 0:
            counts = getattr(header, name)
            if counts is None:
                raise RefusedError(f"it reports no counts for its {size} {name} samples")
            check_loss(counts.loss, size, counts_format.max_mean_loss)
            tallies[name] = counts_format.unpack(counts, site.party, size, classes)
    return tallies


def format_event(event: RunEvent) -> str:
    """Return an event as a line for the server's log."""
    return f"{MARKER} {json.dumps(msgspec.to_builtins(event))}"


def parse_event(line: str) -> RunEvent | None:
    """Return the event in a line of the server's log, or None if there is none."""
    if line.startswith(f"{MARKER} "):
        with contextlib.suppress(ValueError, msgspec.ValidationError):
            return msgspec.convert(json.loads(line.removeprefix(MARKER)), RunEvent)
    return None
