"""What the files of a run may hold: a damaged one is told in one sentence, before anything is computed from it."""

import re
import reprlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError

Fact = dict[str, Any]
LARGEST = 1e15  # what is beyond was never measured
FINITE = sys.float_info.max  # and what is set may be anything up to it
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # an SVG cannot hold them
WHOLE = {
    "rounds": 1,
    "parties": 1,
    "patience": 1,
}  # settings that reports count with, and the smallest of each
TEXTS = ("algorithm.name", "server.name", "dataset", "partition", "scale")
SUMS = ("seconds", "cpu_seconds", "bytes_down", "bytes_up", "accuracy_std")  # of a round
SHARES = ("macro_f1", "balanced_accuracy", "validation_accuracy")  # likewise


def need(good: bool, where: str, what: str, value: object) -> None:
    if not good:
        raise InputError(f"{where}: {what} was expected, not {reprlib.repr(value)}")


def is_number(value: object, low: float = -LARGEST, high: float = LARGEST) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def is_integer(value: object, low: int = 0) -> bool:
    return isinstance(value, int) and is_number(value, low)


def is_text(value: object) -> bool:
    return isinstance(value, str) and not UNPRINTABLE.search(value)


def settings(values: Fact, path: Path) -> None:
    """Of experiment.toml, flat; those of methods we do not know may be anything that can be shown."""
    where = str(path)
    for key in ("algorithm.name", "dataset", "rounds"):
        if key not in values:
            raise InputError(f"{path} does not say {key}; it is no moonfl run's")
    for key, value in values.items():
        if key in WHOLE:
            need(
                is_integer(value, WHOLE[key]),
                where,
                f"{key}, a whole number from {WHOLE[key]} up,",
                value,
            )
        elif key == "seed":
            need(
                isinstance(value, int) and is_number(value, 0, FINITE),
                where,
                "seed, a whole number from 0 up,",
                value,
            )
        elif key == "beta":
            need(is_number(value, -FINITE, FINITE), where, "beta, a number,", value)
        elif key in TEXTS or isinstance(value, str):
            need(is_text(value), where, f"{key}, plain text,", value)
        elif isinstance(value, int | float):
            need(
                is_number(value, -FINITE, FINITE) or isinstance(value, bool),
                where,
                f"{key}, a number,",
                value,
            )


def texts(value: Any, key: str, path: Path) -> dict[str, str]:
    need(isinstance(value, dict), str(path), f"[{key}], a table,", value)
    return {str(k): str(v) for k, v in value.items()}


def of_round(fact: Any, number: int, where: str) -> Fact:
    need(isinstance(fact, dict), where, "an object in braces", fact)
    told = {key: fact.get(key) for key in ("round", "accuracy")}
    good = (
        told["round"] == number and is_integer(told["round"]) and is_number(told["accuracy"], 0, 1)
    )
    need(good, where, f"round {number} with an accuracy from 0 to 1", told)
    for key in SUMS:
        need(
            key not in fact or is_number(fact[key], 0),
            where,
            f"'{key}', a number from 0 up,",
            fact.get(key),
        )
    for key in SHARES:
        need(
            key not in fact or is_number(fact[key], 0, 1),
            where,
            f"'{key}', a number from 0 to 1,",
            fact.get(key),
        )
    sites = fact.get("sites", {})
    need(isinstance(sites, dict), where, "'sites', an object,", sites)
    for i, counted in sites.items():
        good = (
            isinstance(counted, list) and len(counted) == 2 and all(is_integer(n) for n in counted)
        )
        good = good and i.isdecimal() and len(i) < 10 and counted[0] <= counted[1] != 0
        need(good, where, "in 'sites' a party with how many are right, of how many,", {i: counted})
    parties = fact.get("parties", [])
    need(isinstance(parties, list), where, "'parties', a list,", parties)
    for row in parties:
        need(isinstance(row, dict), where, "in 'parties' an object a party", row)
        drift = row.get("drift")
        need(
            drift is None or is_number(drift, 0),
            where,
            "the 'drift' of a party, a number from 0 up,",
            drift,
        )
    return dict(fact)


def partition(fact: Fact, path: Path) -> None:
    where, names = str(path), fact.get("classes", [])
    need(
        isinstance(names, list) and all(map(is_text, names)),
        where,
        "'classes', a list of names,",
        names,
    )
    parties = fact.get("names", [])
    need(
        isinstance(parties, list) and all(map(is_text, parties)),
        where,
        "'names', a list of names,",
        parties,
    )
    if "counts" in fact:
        shape = table(fact["counts"], "counts", path).shape
        need(
            "classes" not in fact or len(names) == shape[1],
            where,
            f"'classes', {shape[1]} as in 'counts',",
            names,
        )


def final(fact: Fact, classes: list[str] | None, path: Path) -> None:
    where = str(path)
    if "confusion" in fact:
        rows, columns = table(fact["confusion"], "confusion", path).shape
        size = len(classes) if classes is not None else rows
        need(
            rows == columns == size,
            where,
            f"'confusion', {size} by {size} classes,",
            (rows, columns),
        )
    parties = fact.get("parties") or []
    need(isinstance(parties, list), where, "'parties', a list,", parties)
    for row in parties:
        need(
            isinstance(row, dict) and is_integer(row.get("party")),
            where,
            "in 'parties' a 'party', a number,",
            row,
        )
        for key in ("samples", "accuracy", "distance", "similarity"):
            value = row.get(key)
            need(
                value is None or is_number(value),
                where,
                f"'{key}' of a party, a number or null,",
                value,
            )
    tsne = fact.get("tsne") or {}
    need(isinstance(tsne, dict), where, "'tsne', an object,", tsne)
    labels = tsne.get("labels", [])
    need(
        isinstance(labels, list) and all(map(is_integer, labels)),
        where,
        "'labels' of 'tsne', a list of classes,",
        labels,
    )
    for key in ("points", "local"):
        points(tsne.get(key) or [], key, len(labels), where)


def points(value: Any, key: str, count: int, where: str) -> None:
    good = isinstance(value, list) and all(
        isinstance(point, list) and len(point) == 2 and all(map(is_number, point))
        for point in value
    )
    need(good, where, f"'{key}' of 'tsne', points [x, y],", value)
    need(
        len(value) in (0, count),
        where,
        f"'{key}' of 'tsne', as many as there are labels,",
        len(value),
    )


def table(value: object, key: str, path: Path) -> Any:
    """Counts, a row a party or class, all of one length."""
    try:
        made = np.asarray(value)
        good = (
            made.ndim == 2
            and made.dtype.kind in "iu"
            and made.min() >= 0
            and 0 < made.max() <= LARGEST
        )
    except ValueError:
        good = False
    need(good, str(path), f"'{key}', a table of counts with one column a class,", value)
    return made
