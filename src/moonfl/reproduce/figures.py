"""The figures of the paper's targets, from the facts of finished runs."""

import re
from collections.abc import Iterator

from ..report.curves import accuracy_curves
from ..report.groups import group_runs
from ..report.rendering import Picture
from ..report.setting_curves import accuracy_by_setting
from ..report.statistics import MeanStd
from ..report.tsne import tsne_panels
from .tables import Runs, reported
from .targets import Entry, Target


def pictures(
    target: Target, stem: str, on: str, entries: list[Entry], runs: Runs, small: bool
) -> Iterator[Picture]:
    """`on` says the data set and what is not as in the paper."""
    if not any(runs.values()):
        return
    if target.figure == "rounds":
        yield from by_round(stem, on, entries, runs)
    elif target.figure == "models":
        yield four_models(stem, (target.title, on), entries, runs)
    elif target.figure:
        yield by_value(target, stem, on, entries, runs, small)


def by_round(stem: str, on: str, entries: list[Entry], runs: Runs) -> Iterator[Picture]:
    """A figure for each number of parties, SOLO's level in it."""
    found = [exp for e in entries for exp in e.trials.values() if runs.get(exp)]
    scales = list(
        dict.fromkeys(
            (exp.parties_per_round(), exp.parties) for exp in found if exp.algorithm.federated
        )
    )
    for chosen, parties in scales:
        there = [
            exp
            for exp in dict.fromkeys(found)
            if exp.parties == parties
            and (not exp.algorithm.federated or exp.parties_per_round() == chosen)
        ]
        groups, _ = group_runs([run for exp in there for run in runs[exp].values()])
        many = len(scales) > 1
        who = (
            f" · {parties} parties" + (f", {chosen} a round" if chosen < parties else "")
            if many
            else ""
        )
        yield accuracy_curves(
            stem + (f"-{chosen}-of-{parties}-parties" if many else ""), groups, f"{on}{who}"
        )


def by_value(
    target: Target, stem: str, on: str, entries: list[Entry], runs: Runs, small: bool
) -> Picture:
    """Across are the columns, a line a method; where there is one column its rows, beside the paper's."""
    columns = list(dict.fromkeys(e.column for e in entries))
    if len(columns) > 1:
        rows = dict.fromkeys(e.row for e in entries)
        shown = {(e.row, e.column): reported(e, runs) for e in entries}
        lines = {row: [shown.get((row, column)) for column in columns] for row in rows}
        return accuracy_by_setting(
            stem, (target.title, on), target.figure, [value_in(c) for c in columns], lines
        )
    lines = {"MOON": [reported(e, runs) for e in entries]}
    if not small and all(e.paper for e in entries):
        lines = {
            "ours": lines["MOON"],
            "paper": [MeanStd(float(e.paper) / 100, None, 1) for e in entries],
        }
    best = "" if small else next((value_in(e.row) for e in entries if e.best), "")
    return accuracy_by_setting(
        stem, (target.title, on), target.figure, [value_in(e.row) for e in entries], lines, best
    )


def value_in(text: str) -> str:
    """`E = 5` and `tau 0.5` without what the axis says."""
    return re.sub(r"^\D*(?=\d)", "", text)


def four_models(stem: str, titles: tuple[str, str], entries: list[Entry], runs: Runs) -> Picture:
    """The motivation: a t-SNE of z under each model, a point a test sample."""
    maps = {}
    for e in entries:
        for run in [*runs.get(e.trials[""], {}).values()][:1]:
            stored = run.final.get("tsne") or {}
            points = stored.get("local" if e.row.endswith("a local model") else "points") or []
            maps[e.row] = points, stored.get("labels", [])
            names = (run.partition or {}).get("classes", [])
    return tsne_panels(stem, titles, maps, names)
