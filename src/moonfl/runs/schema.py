"""The files of a run as typed values: one schema for recorder, resume, report, export and Flower.

`encode` and `decode` are the only way from a value to JSON and back. Decoding checks types and
ranges, ignores unknown keys, and raises an InputError that names the file and the wrong value.
Fields that are None are left out of the file, so old runs stay readable when a field is added.
This module does not import torch: reports must start fast.
"""

import json
import re
import reprlib
import sys
from collections.abc import Iterator
from decimal import ROUND_CEILING, Context
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ..errors import InputError

LARGEST = 1e15  # larger values are not measurements
FLOAT32 = 3.4028234663852886e38  # the largest float32
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Amount = Count | Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]
Number = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Loss = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]  # finite
Number32 = Annotated[float, msgspec.Meta(ge=-FLOAT32, le=FLOAT32)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]*\Z"
DIGEST = r"^[0-9a-f]{64}\Z"
PARTY = r"^[0-9]{1,9}\Z"
PATTERNS = {PRINTABLE: "printable text", DIGEST: "a SHA-256 hash", PARTY: "the number of a party"}
Name = Annotated[str, msgspec.Meta(pattern=PRINTABLE)]
Sha256 = Annotated[str, msgspec.Meta(pattern=DIGEST)]
PartyKey = Annotated[str, msgspec.Meta(pattern=PARTY)]
Size = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]  # of any unit
PartySum = tuple[Count | Size, Positive]  # a sum over a party's samples, and their number
MEASURE_KEYS = (
    "accuracy",
    "rmse",
    "mean_average_precision",
)  # a round record has one of them, see measures.py
T = TypeVar("T")


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A value of the schema. Its fields can also be read by key, as in `record["accuracy"]`."""

    def keys(self) -> list[str]:
        """Return the names of the fields that are set."""
        return [name for name in self.__struct_fields__ if getattr(self, name) is not None]

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in self.__struct_fields__ and getattr(self, str(key)) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def get(self, key: str, default: Any = None) -> Any:
        """Return the field named `key`, or `default` if it is not set."""
        return getattr(self, key) if key in self else default

    def __len__(self) -> int:
        return len(self.keys())

    def values(self) -> list[Any]:
        """Return the values of the fields that are set."""
        return [getattr(self, name) for name in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        """Return the fields that are set, with their names."""
        return [(name, getattr(self, name)) for name in self.keys()]


class PartyRecord(Record):
    """One party in one round."""

    loss: Loss | None = None  # mean training loss
    drift: Size | None = None  # norm of the party's change of the weights
    seconds: Amount | None = None
    cpu_seconds: Amount | None = None
    bytes_down: Amount | None = None  # tensors sent to the party
    bytes_up: Amount | None = None  # tensors sent by the party
    party: Count | None = None
    samples: Count | None = None
    steps: Count | None = None  # optimizer steps
    missing: str | None = None  # why a Flower site sent no update


class RoundRecord(Record):
    """One line of rounds.jsonl: the metrics of one round."""

    round: Positive
    # on the test set; the mean over the models if there are several; None: not evaluated
    accuracy: Share | None = None
    accuracy_std: Amount | None = None  # over the models, if there are several (SOLO)
    accuracies: dict[str, Share] | None = None  # of each model, if there are several
    # if each party has its own model, over those with held-out samples; `accuracy` weights them
    party_accuracy: Share | None = None  # mean
    party_accuracy_std: Amount | None = None
    party_accuracy_worst: Share | None = None  # mean of the worst 10 %, at least of one party
    # by party, on the samples that it holds out: correct predictions (squared errors; number
    # times mAP), and number of samples
    sites: dict[PartyKey, PartySum] | None = None
    # of the global model on the same samples, if each party has its own model: the measure over
    # all samples, and its mean, standard deviation and worst 10 % over the parties
    global_score: Size | None = None
    global_party_score: Size | None = None
    global_party_score_std: Size | None = None
    global_party_score_worst: Size | None = None
    global_sites: dict[PartyKey, PartySum] | None = None
    absent: dict[PartyKey, str] | None = None  # parties whose test samples are missing, and why
    loss: Loss | None = None
    macro_f1: Share | None = None
    balanced_accuracy: Share | None = None
    rmse: Size | None = None  # with task=regression, in the units of the target
    r2: Loss | None = None
    mean_average_precision: Share | None = None  # with task=multilabel
    # of rmse or mean_average_precision, like the fields of accuracy with these endings
    score_std: Size | None = None
    scores: dict[str, Size] | None = None
    party_score: Size | None = None
    party_score_std: Size | None = None
    party_score_worst: Size | None = None
    validation_score: Size | None = None
    validation_accuracy: Share | None = None
    validation_loss: Loss | None = None
    validation_sites: dict[PartyKey, PartySum] | None = None  # over Flower sites
    validation_absent: dict[PartyKey, str] | None = None
    bytes_down: Amount | None = None  # sums over the parties of the round
    bytes_up: Amount | None = None
    cpu_seconds: Amount | None = None
    seconds: Amount | None = None
    lr: Size | None = None  # learning rate of the parties in this round
    parties: list[PartyRecord] | None = None

    def __post_init__(self) -> None:
        is_evaluated = self.loss is not None  # other rounds, by `evaluate_every`, have neither
        if is_evaluated and all(getattr(self, key) is None for key in MEASURE_KEYS):
            raise ValueError(f"object missing required field {' or '.join(MEASURE_KEYS)}")


class Moments(Record):
    """Sums that a site shares for standardisation: one entry per feature."""

    number: Count
    mean: list[float]
    squares: list[float]


class ColumnRecord(Record):
    """What a site shares about a column of a table, for imputation and one-hot encoding."""

    number: Count  # of values that are present in its training rows
    missing: Count
    mean: float = 0.0  # of a numeric column
    squares: float = 0.0  # sum of squared deviations from the mean
    counts: dict[Name, Positive] | None = None  # rows of each category; None: numeric


class EncodedColumnRecord(Record):
    """How a column of a table becomes features, see data/encoding.py."""

    name: Name
    mean: Number32 = 0.0
    std: Number32 = 1.0
    categories: list[Name] | None = None
    shares: list[Share] = []
    indicator: bool = False


class EncodingRecord(Record):
    """How the rows of a table become features: imputation and one-hot encoding."""

    impute: Literal["refuse", "mean", "indicator"]
    columns: list[EncodedColumnRecord]


class SiteRecord(Record):
    """What a Flower site reports about itself and its data before the first round."""

    party: Count
    name: str
    versions: dict[str, str]
    shape: list[Positive]  # of one sample
    dtype: str
    classes: list[str]
    counts: list[Count]  # training samples per class
    sha256: Sha256  # hash of the site's data
    held_out: Count  # number of samples for evaluation
    validation: Count  # number of samples for selecting a round
    samples: Count | None = None  # training samples, if they are not the sum of the counts
    features: list[Name] = []  # column names of a table
    moments: Moments | None = None
    targets: Moments | None = None  # of the targets of a regression
    columns: list[ColumnRecord] | None = None  # instead of moments, if a table is encoded
    secret: str | None = None  # proves that the site is this party; never stored

    @property
    def num_samples(self) -> int:
        """Return the number of training samples."""
        return sum(self.counts) if self.samples is None else self.samples


class PartitionRecord(Record):
    """partition.json: which party has how many samples of each class, and a hash of all data."""

    classes: list[Name]
    counts: list[list[Count]]  # [parties][classes]; with several labels those that have the label
    samples: list[Count] | None = None  # of each party, if it is not the sum of its counts
    names: list[Name] | None = None  # of the parties
    features: list[Name] | None = None  # column names of a table
    shape: list[Count] | None = None  # of one sample; missing in old runs
    dtype: str | None = None
    encoding: EncodingRecord | None = None  # of a table with categories or missing values
    sha256: str | None = None
    # held-out samples that are identical to training samples, by set ("test", "validation")
    duplicates: dict[Name, Count] | None = None
    run: str | None = None  # runs over Flower sites: the id that sites store their states under
    sites: list[SiteRecord] | None = None
    test: str | None = None  # hash of the server's test set; empty: the sites evaluate


class FinalParty(Record):
    """A party in the final analysis."""

    party: Count
    samples: Count | None = None
    similarity: Number | None = None  # cosine of its z and the global model's z
    distance: Size | None = None  # norm of the difference of its weights and the global ones
    accuracy: Share | None = None  # of the global model on the party's training samples
    score: Size | None = None  # the same for other tasks: RMSE or mAP


class Embedding(Record):
    """A t-SNE of the representations of some test samples."""

    points: list[tuple[Number, Number]]
    labels: list[Count]
    local: list[tuple[Number, Number]] = []  # the same samples under the first party's model


class PrivacyRecord(Record):
    """The guarantee of differential privacy for all samples of one party, after all rounds."""

    epsilon: float
    delta: float
    rounds: Count
    accountant: str  # name and version of the library that computed epsilon


def rounded_up(epsilon: float) -> str:
    """Return an epsilon with three significant digits; a smaller number would not be proven."""
    number = Context(prec=3, rounding=ROUND_CEILING).create_decimal_from_float(epsilon)
    return f"{float(number):g}"


class FinalRecord(Record):
    """final.json: the analysis of the models after the last round."""

    confusion: list[list[Count]] | None = None  # [true class][predicted class]
    parties: list[FinalParty] = []
    sampled_from: Count | None = None  # parties that trained, if `parties` are a sample of them
    tsne: Embedding | None = None
    privacy: PrivacyRecord | None = None


class TensorHeader(Record):
    """The header of a tensor file: tensor k is called names[k], a label and a name."""

    labels: list[str]
    names: list[tuple[str, str]]
    note: str = ""


class FileEntry(Record):
    """A file that a checkpoint refers to."""

    file: str
    sha256: Sha256


class StateEntry(Record):
    """The newest state of a party in an index of format 1 or 2; without a file it is empty."""

    round: Count
    file: str | None = None
    sha256: Sha256 | None = None


class StateLine(Record):
    """A line of checkpoint/states.jsonl: the state of a party after a round.

    Without a hash there is no file: the state is empty, or stored at a Flower site.
    """

    party: Count
    round: Count
    sha256: Sha256 | None = None


class LogEntry(Record):
    """The part of a growing file that a checkpoint refers to: its first `size` bytes."""

    size: Count
    sha256: Sha256


class TrackerRecord(Record):
    """The run of a tracker that copies this run."""

    id: Name
    rounds: Count = 0  # rounds that were logged
    closed: bool = False  # whether the tracker could write what was pending
    finished: bool = False  # whether the final metrics and the report were logged


class TrackersRecord(Record):
    """trackers.json: the runs of trackers, by the name of the tracker."""

    trackers: dict[Name, TrackerRecord]


class Versioned(Record):
    """The format number of a file; it can be read in every format."""

    format: int


class CheckpointIndex(Versioned):
    """checkpoint/round-N.json: the files that make up a checkpoint, with their hashes."""

    experiment: str  # fingerprint of the experiment
    rounds: Count  # number of finished rounds
    server: FileEntry
    states: LogEntry | None = None  # of states.jsonl
    parties: dict[str, StateEntry] | None = None  # instead of `states` in formats 1 and 2
    chosen: FileEntry | None = None  # server after the round with the best validation accuracy
    files: dict[str, Sha256] | None = None  # of the run directory; see index.py

    def __post_init__(self) -> None:
        if self.states is None and self.parties is None:
            raise ValueError("object missing required field states")


def encode(record: Record) -> str:
    """Return the JSON of a record on one line. Infinite and undefined numbers are refused."""
    return json.dumps(msgspec.to_builtins(record), allow_nan=False)


def decode(text: str | bytes, kind: type[T], location: str) -> T:
    """Return the record that `text` holds; `location` names the file in the error message."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{location} is not valid JSON: {error.msg} at character {error.pos}"
        ) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, too many digits or levels
        raise InputError(f"{location} is not valid JSON: {error}") from None
    return convert(values, kind, location)


def convert(values: object, kind: type[T], location: str) -> T:
    """Return decoded JSON values as a record of this kind."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{location}: {explain(error, values)}") from None


def explain(error: msgspec.ValidationError, values: object) -> str:
    """Return the message of a validation error with the field first and the wrong value last."""
    text, _, path = str(error).replace("`", "").partition(" - at ")
    for pattern, description in PATTERNS.items():
        text = text.replace(f"str matching regex {pattern!r}", description)
    text = text[0].lower() + text[1:]
    is_key = path.startswith("key in ")
    field = path.removeprefix("key in ").removeprefix("$").removeprefix(".")
    if is_key:
        text = f"{text} as key"
    elif field and "[...]" not in path:
        text = f"{text.partition(', got ')[0]}, got {reprlib.repr(value_at(path, values))}"
    return f"{field}: {text}" if field else text


def value_at(path: str, values: Any) -> object:
    """Return the value at a path of msgspec, such as `$.parties[0].drift`."""
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        values = values[key] if key else values[int(index)]
    return values
