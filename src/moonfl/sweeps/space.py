r"""The settings of a sweep: which keys have several values, and all combinations of them.

`mu=1,5` sweeps a key over values, and `lr=0.001..0.1` over a range, for trials. A comma inside a
value is written `\,`. The keys in LISTS take a list themselves and are never swept.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..errors import InputError
from ..experiment import Experiment, fingerprint
from ..settings import parse_float

LISTS = ("classes", "ignore", "categorical", "label")
SEPARATOR = re.compile(r"(?<!\\),")
NUMBER = r"[-+]?[\d.]+?(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"(log:)?({NUMBER})\.\.({NUMBER})")
MakeExperiment = Callable[[list[str]], Experiment]  # from the words of a command


@dataclass(frozen=True)
class Values:
    """A key and its values, as they are written on the command line."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Range:
    """A key and the range of its values: integers if both ends are, otherwise floats."""

    key: str
    low: str
    high: str
    log: bool = False

    @property
    def is_integer(self) -> bool:
        """Return True if both ends are integers."""
        return all(re.fullmatch(r"[+-]?\d+", end) for end in (self.low, self.high))


Axis = Values | Range


@dataclass(frozen=True)
class Setting:
    """One combination of the swept keys."""

    values: dict[str, str]
    experiment: Experiment

    @property
    def label(self) -> str:
        """Return the combination as it is written on the command line."""
        return " ".join(f"{key}={value}" for key, value in self.values.items())


def read_space(words: list[str]) -> tuple[list[str], list[Axis]]:
    """Return the words of a command that are the same for all runs, and the swept keys."""
    common: list[str] = []
    axes: list[Axis] = []
    for word in words:
        key, equals, text = word.partition("=")
        values = split_values(key, text)
        interval = RANGE.fullmatch(text)
        if not equals or key in LISTS:
            common.append(word)
        elif interval:
            axes.append(read_range(key, interval))
        elif len(values) == 1:
            common.append(f"{key}={values[0]}")
        else:
            axes.append(Values(key, values))
    if not axes:
        raise InputError("a sweep needs a key with several values, such as mu=0.1,1,5")
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"{key} is set twice; remove one of the two")
    if "seed" in keys:
        raise InputError("seed cannot be swept; --seeds N runs every setting with N seeds")
    return common, axes


def split_values(key: str, text: str) -> tuple[str, ...]:
    """Return the values of a key that commas separate."""
    values = tuple(value.replace("\\,", ",") for value in SEPARATOR.split(text))
    if len(values) > 1 and "" in values:
        raise InputError(f"{key}={text} has an empty value; remove the extra comma")
    return values


def read_range(key: str, match: re.Match[str]) -> Range:
    """Return a range after checking its ends."""
    log, low, high = match.groups()
    try:
        ends = parse_float(low), parse_float(high)
    except ValueError:
        raise InputError(
            f"{key}={match[0]} is not a range of numbers, such as 0.001..0.1 or log:0.001..0.1"
        ) from None
    if not ends[0] < ends[1]:
        raise InputError(f"{key}={match[0]}: the first number must be smaller than the second")
    if log and ends[0] <= 0:
        raise InputError(f"{key}={match[0]}: a logarithmic range must begin above 0")
    return Range(key, low, high, log=log is not None)


def grid(common: list[str], axes: list[Axis], make: MakeExperiment) -> list[Setting]:
    """Return all combinations of the values, checked before the first run starts."""
    settings = list(_combinations(common, axes, make))
    labels: dict[str, str] = {}
    for setting in settings:
        identity = fingerprint(setting.experiment)
        if identity in labels:
            raise InputError(
                f"{labels[identity]} and {setting.label} are the same experiment; remove one"
            )
        labels[identity] = setting.label
    return settings


def _combinations(common: list[str], axes: list[Axis], make: MakeExperiment) -> Iterator[Setting]:
    choices: list[list[tuple[str, str]]] = []
    for axis in axes:
        if isinstance(axis, Range):
            raise InputError(f"{axis.key} has a range; ranges need --trials N")
        choices.append([(axis.key, value) for value in axis.values])
    for pairs in itertools.product(*choices):
        yield make_setting(dict(pairs), common, make)


def count_combinations(axes: list[Axis]) -> int | None:
    """Return the number of all combinations; None if a key has a range of floats."""
    counts = []
    for axis in axes:
        if isinstance(axis, Values):
            counts.append(len(set(axis.values)))
        elif axis.is_integer:
            counts.append(int(axis.high) - int(axis.low) + 1)
        else:
            return None
    return math.prod(counts)


def make_setting(values: dict[str, str], common: list[str], make: MakeExperiment) -> Setting:
    """Return one combination with its experiment."""
    setting = [f"{key}={value}" for key, value in values.items()]
    try:
        return Setting(values, make([*common, *setting]))
    except InputError as error:
        raise InputError(f"with {' '.join(setting)}: {error}") from None
