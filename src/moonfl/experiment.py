"""Experiment: one frozen, validated description of a run; to and from TOML; strict overrides."""

import dataclasses
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w
import torch

from . import settings
from .algorithms import ALGORITHMS
from .algorithms.fedavg import FedAvg
from .algorithms.moon import MOON
from .data.base import Reading
from .data.datasets import source
from .data.partition import PARTITIONS, check_kind
from .errors import InputError, unknown
from .models.encoders import ENCODERS
from .registry import find, name_of
from .server_optimizers import SERVERS
from .server_optimizers.average import Average
from .settings import setting

PARTS: dict[str, dict[str, Any]] = {"algorithm": ALGORITHMS, "server": SERVERS}
BASES: dict[str, type] = {"algorithm": FedAvg, "server": Average}
CUSTOM_MODEL = "own"  # the model that moonfl.federate was given
PARTIES, HOLDOUT = 10, 0.2  # where nothing is said
READ = {
    "label": ("csv",),
    "ignore": ("csv",),
    "image_size": ("folder",),
    "classes": ("csv", "folder", "npz", "given"),
}
FACTS = ("versions", "choices")  # what a run adds to its experiment.toml for people to read


@dataclass(frozen=True)
class Experiment:
    """Everything that decides the result of a run. The defaults are the paper's, on digits."""

    dataset: str = setting(
        "digits", "digits, cifar10, cifar100, tiny-imagenet, folder, npz, csv, or sites"
    )
    data_dir: str = setting(
        "data",
        "the folder that holds the data sets; with dataset=folder, npz or csv that folder or file",
    )
    label: str | None = setting(
        None, "with dataset=csv: the column that holds the classes; none: label"
    )
    ignore: str | None = setting(None, "with dataset=csv: columns to leave out, as a,b,c")
    classes: str | None = setting(None, "the classes as a,b,c, where a user's files may lack some")
    image_size: int | None = setting(
        None,
        "with dataset=folder: pixels a side that images are brought to; none: all have one size",
        low=1,
        high=4096,
    )
    holdout: float | None = setting(
        None,
        "the share of each party's samples held out as test set, where the data have none; none: 0.2",
        above=0,
        below=1,
    )
    validation: float | None = setting(
        None,
        "the share of each party's training samples kept apart to choose a round by; none: there is no choice",
        above=0,
        below=1,
    )
    patience: int | None = setting(
        None,
        "stop after so many rounds without a better accuracy on the validation samples; none: never",
        low=1,
    )
    standardise: bool | None = setting(
        None,
        "whether inputs are standardised by mean and deviation over all parties; none: numbers are, pixels are not",
    )
    model: str | None = setting(
        None,
        "the encoder: mlp, simple-cnn, resnet18, resnet50, cnn1d, or your own as package.module:name; none: the data "
        "set's own",
    )
    head: bool = setting(True, "whether the network has the projection head")
    out_dim: int = setting(256, "output dimension of the projection head", low=1, high=65536)
    algorithm: FedAvg = dataclasses.field(default_factory=MOON)
    server: Average = dataclasses.field(default_factory=Average)
    combination: Literal["median", "trimmed-mean"] | None = setting(
        None,
        "median or trimmed-mean by coordinate, each party one vote; none: the algorithm's weighted mean",
    )
    trim: float | None = setting(
        None,
        "with combination=trimmed-mean: the share of parties left out at either end",
        low=0,
        below=0.5,
    )
    clip: float | None = setting(
        None,
        "the largest norm of a party's change of the weights; larger ones are scaled down to it",
        above=0,
    )
    partition: str = setting(
        "dirichlet", f"how samples are split among parties: {', '.join(PARTITIONS)}"
    )
    parties: int = setting(
        0, "N, the number of parties; 0: as many as the column has values, else 10", low=0
    )
    beta: float = setting(0.5, "concentration of the Dirichlet partition; small is uneven", above=0)
    min_samples: int = setting(10, "the smallest party a Dirichlet partition may have", low=1)
    partition_seed: int = setting(
        0, "seed of the partition alone; 0 gives the paper's party sizes", low=0, high=2**32 - 1
    )
    column: str | None = setting(
        None, "with partition=column: the column whose values are the parties"
    )
    sample_fraction: float = setting(
        1.0, "the share of parties that take part in a round", above=0, high=1
    )
    rounds: int = setting(20, "T, communication rounds", low=1)
    epochs: int = setting(10, "E, local epochs", low=1)
    batch_size: int = setting(64, "samples in a batch", low=1, high=2**31 - 1)
    lr: float = setting(0.01, "step size of the local optimiser", above=0)
    momentum: float = setting(0.9, "momentum of the local optimiser", low=0, below=1)
    weight_decay: float = setting(1e-5, "weight decay of the local optimiser", low=0)
    augment: bool = setting(
        True, "whether CIFAR's training images are augmented, as by the paper's authors"
    )
    seed: int = setting(0, "seed of weights, batches and sampling", low=0, high=2**63 - 1)
    scale: Literal["small"] | None = setting(
        None, "small: a reduced setting, which every report then says"
    )
    device: str = setting("cpu", "where the model is trained: cpu, cuda, cuda:1, ...")

    def __post_init__(self) -> None:
        settings.check(self)
        for part, base in BASES.items():
            if not isinstance(getattr(self, part), base):
                raise InputError(
                    f"{part} is a value such as {base.__name__}(), not {getattr(self, part)!r}"
                )
            settings.check_field_types(
                type(getattr(self, part)), f"{part}={part_name(getattr(self, part))}"
            )
            settings.check(getattr(self, part), f"{part}.")
        object.__setattr__(self, "model", self.model or source(self.dataset).model)
        if self.model != CUSTOM_MODEL:
            find("model", str(self.model), ENCODERS)
        check_kind(self.partition)
        if self.parties == 0 and self.partition != "column":
            object.__setattr__(self, "parties", PARTIES)
        self._check_pairs()

    def _check_pairs(self) -> None:
        """Settings that mean nothing together are refused."""
        name, server = part_name(self.algorithm), part_name(self.server)
        if not self.algorithm.takes_server_step and server != "average":
            raise InputError(
                f"algorithm={name} cannot be combined with server={server}; use server=average"
            )
        if not self.algorithm.federated and self.rounds != 1:
            raise InputError(
                f"algorithm={name} is one round; set rounds=1 and the length of training by epochs"
            )
        if not self.algorithm.federated and (self.combination is not None or self.clip is not None):
            raise InputError(
                f"algorithm={name} combines nothing; leave combination, trim and clip at none"
            )
        if (self.combination == "trimmed-mean") != (self.trim is not None):
            raise InputError(
                "combination=trimmed-mean and trim=SHARE belong together; set both or neither"
            )
        if (self.partition == "column") != (self.column is not None):
            raise InputError(
                "partition=column and column=NAME belong together; set both or neither"
            )
        for key, kinds in READ.items():
            if getattr(self, key) is not None and self.dataset not in (*kinds, "sites"):
                raise InputError(
                    f"{key} belongs to dataset={' or '.join(kinds)}, not to dataset={self.dataset}"
                )
        if self.patience is not None and self.validation is None:
            raise InputError(
                "patience looks at the validation samples; set validation=SHARE too, such as 0.1"
            )
        if not self.algorithm.federated and self.sample_fraction != 1:
            raise InputError(f"algorithm={name} trains every party; set sample_fraction=1")
        try:
            torch.ones(1, device=self.device).item()
        except Exception as error:  # each backend fails in its own way
            reason = str(error).splitlines()[0]
            raise InputError(
                f"device={self.device} cannot be used here ({reason}); use device=cpu"
            ) from None

    @property
    def reading(self) -> Reading:
        """How the user's files are read."""
        classes, ignore = (
            tuple(n.strip() for n in (text or "").split(",") if n.strip())
            for text in (self.classes, self.ignore)
        )
        return Reading(self.label or Reading.label, self.column, ignore, classes, self.image_size)

    def parties_per_round(self) -> int:
        return max(1, round(self.sample_fraction * self.parties))


def part_name(part: object) -> str:
    """The name of an algorithm or server step: the one in its table, or its dotted path."""
    return name_of(type(part), {**ALGORITHMS, **SERVERS})


def find_part(part: str, name: object) -> type:
    """The class of an algorithm or server step by its name or dotted path."""
    if not isinstance(name, str):
        raise unknown(part, "without a name" if name is None else str(name), PARTS[part])
    found: Any = find(part, name, PARTS[part])
    if not (
        isinstance(found, type)
        and issubclass(found, BASES[part])
        and dataclasses.is_dataclass(found)
    ):
        raise InputError(
            f"{part}={name} is no {part}: it must be a dataclass that extends {BASES[part].__name__}"
        )
    settings.check_field_types(found, f"{part}={name}")
    return found


def check_resumable(exp: Experiment) -> None:
    """A run that is to be gone on with names its algorithm and server step; both must be there under that name."""
    for part in PARTS:
        cls, name = type(getattr(exp, part)), part_name(getattr(exp, part))
        try:
            why = (
                ""
                if find_part(part, name) is cls
                else "another class has that name now: make the value again"
            )
        except InputError as error:
            why = "made within a function" if "<locals>" in name else str(error)
            why += "; define it at the top of a module"
        if why:
            raise InputError(f"a run of {part}={name} could be kept, but never gone on with: {why}")


def to_dict(exp: Experiment) -> dict[str, Any]:
    """Plain values; the algorithm and the server as tables with their name."""
    values = {f.name: getattr(exp, f.name) for f in dataclasses.fields(exp)}
    for part in PARTS:
        given = {name: getattr(values[part], name) for name in settings.names(type(values[part]))}
        given |= {
            key: "none" for key, value in given.items() if value is None
        }  # left out, it would be the default
        values[part] = {"name": part_name(values[part])} | given
    return {key: value for key, value in values.items() if value is not None}


def from_dict(values: dict[str, Any]) -> Experiment:
    values = {key: value for key, value in values.items() if key not in FACTS}
    parts: dict[str, Any] = {}
    for part in PARTS:
        given = values.pop(part, None)
        if given is not None:
            given = dict(given) if isinstance(given, dict) else {"name": given}
            parts[part] = settings.build(
                find_part(part, given.pop("name", None)), given, f"{part}."
            )
    for key in values.keys() - set(settings.names(Experiment)):
        for part, of in ({"algorithm": MOON(), "server": Average()} | parts).items():
            if key in settings.names(type(of)):
                raise InputError(
                    f'{key} is a setting of the {part}: [{part}] with name = "{part_name(of)}" and {key} below'
                )
    return replace(settings.build(Experiment, values, ""), **parts)


def to_toml(exp: Experiment, facts: dict[str, dict[str, str]] | None = None) -> str:
    return tomli_w.dumps(to_dict(exp) | (facts or {}))


def from_toml(path: Path, changes: dict[str, str] | None = None) -> Experiment:
    values = read_toml(path) | (changes or {})
    try:
        return from_dict(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # bad TOML or UTF-8, numbers or nesting beyond reason
        raise InputError(f"{path} is not TOML: {error}") from None


def override(exp: Experiment, changes: list[str]) -> Experiment:
    """The experiment with `key=value` changes.

    A key is a field of Experiment, a setting of the algorithm (`mu=5` or `algorithm.mu=5`), or `server.KEY`.
    `algorithm=NAME` and `server=NAME`, wherever they stand among the changes, start from that part's defaults; where
    the experiment has that part already, its settings stay.
    """
    pairs: dict[str, str] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise InputError(f"'{change}' is not of the form key=value")
        if {key, key.removeprefix("algorithm."), f"algorithm.{key}"} & pairs.keys():
            raise InputError(f"{key} is given twice")
        pairs[key] = value
    values = to_dict(exp)
    for part in PARTS:
        if part in pairs and pairs[part] != values[part]["name"]:
            values[part] = {"name": pairs[part]}
        pairs.pop(part, None)
    if "dataset" in pairs and pairs["dataset"] != exp.dataset:
        values.pop("model", None)
    if "column" in pairs and "partition" not in pairs and pairs["column"] != "none":
        pairs["partition"] = "column"
    if pairs.get("partition") == "column" and "parties" not in pairs:
        pairs["parties"] = "0"
    known = valid_keys(values)
    for key, value in pairs.items():
        if key not in known:
            raise unknown("key", key, known)
        part, name = known[key]
        (values[part] if part else values)[name] = value
    return from_dict(values)


def valid_keys(values: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Every key an override may name -> (the part it belongs to, its name there)."""
    known = {name: ("", name) for name in settings.names(Experiment)}
    for part in PARTS:
        for field in settings.names(find_part(part, values[part]["name"])):
            known[f"{part}.{field}"] = (part, field)
            if part == "algorithm":
                if field in settings.names(Experiment):
                    raise InputError(
                        f"{values[part]['name']} has a setting {field}, as every experiment has; rename it"
                    )
                known[field] = (part, field)
    return known
