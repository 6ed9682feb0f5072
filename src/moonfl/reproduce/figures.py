"""The figures of the paper's targets, drawn from finished runs."""

import re
from collections.abc import Iterator, Sequence

from ..experiment import Experiment
from ..report.curves import score_curves
from ..report.groups import group_runs
from ..report.rendering import Picture
from ..report.setting_curves import score_by_setting
from ..report.tables import MeanStd
from ..report.tsne import Points, tsne_panels
from ..runs.schema import Embedding
from .tables import Runs, best_mean_std
from .targets import Entry, Target, experiments


def pictures(
    target: Target, stem: str, subtitle: str, entries: list[Entry], runs: Runs, *, small: bool
) -> Iterator[Picture]:
    """Yield the figures of a target; `subtitle` names the dataset and differences to the paper."""
    if not any(runs.values()):
        return
    if target.figure == "rounds":
        yield from by_round(stem, subtitle, entries, runs)
    elif target.figure == "models":
        yield four_models(stem, (target.title, subtitle), entries, runs)
    elif target.figure:
        titles = (target.title, subtitle)
        columns = list(dict.fromkeys(entry.column for entry in entries))
        if len(columns) > 1:
            yield by_column(stem, titles, target.figure, entries, runs)
        else:
            yield by_row(stem, titles, entries, runs, axis=target.figure, small=small)


def by_round(stem: str, subtitle: str, entries: list[Entry], runs: Runs) -> Iterator[Picture]:
    """Yield one figure of accuracy per round for each number of parties, with SOLO's level."""
    finished = [exp for exp in experiments(entries) if runs.get(exp)]
    scales = list(dict.fromkeys(scale(exp) for exp in finished if exp.algorithm.federated))
    for per_round, parties in scales:
        shown = [
            exp
            for exp in finished
            if exp.parties == parties
            and (not exp.algorithm.federated or exp.parties_per_round() == per_round)
        ]
        groups, _ = group_runs([run for exp in shown for run in runs[exp].values()])
        if len(scales) == 1:
            yield score_curves(stem, groups, subtitle)
            continue
        text = f"{subtitle} · {parties} parties"
        if per_round < parties:
            text += f", {per_round} per round"
        yield score_curves(f"{stem}-{per_round}-of-{parties}-parties", groups, text)


def scale(exp: Experiment) -> tuple[int, int]:
    """Return the number of parties per round and of all parties."""
    return exp.parties_per_round(), exp.parties


def by_column(
    stem: str, titles: tuple[str, str], axis: str, entries: list[Entry], runs: Runs
) -> Picture:
    """Return a figure with the table's columns on the x axis and one line per row."""
    columns = list(dict.fromkeys(entry.column for entry in entries))
    values = {(entry.row, entry.column): best_mean_std(entry, runs) for entry in entries}
    lines = {
        row: [values.get((row, column)) for column in columns]
        for row in dict.fromkeys(entry.row for entry in entries)
    }
    return score_by_setting(stem, titles, axis, [value_of(column) for column in columns], lines)


def by_row(
    stem: str,
    titles: tuple[str, str],
    entries: list[Entry],
    runs: Runs,
    *,
    axis: str,
    small: bool,
) -> Picture:
    """Return a figure with the table's rows on the x axis: our accuracy and the paper's."""
    ours = [best_mean_std(entry, runs) for entry in entries]
    lines = {"MOON": ours}
    best = ""
    if not small:
        best = next((value_of(entry.row) for entry in entries if entry.best), "")
        if all(entry.paper for entry in entries):
            paper: list[MeanStd | None] = [
                MeanStd(float(entry.paper) / 100, None, 1) for entry in entries
            ]
            lines = {"ours": ours, "paper": paper}
    return score_by_setting(
        stem, titles, axis, [value_of(entry.row) for entry in entries], lines, best=best
    )


def value_of(text: str) -> str:
    """Return the value in a text such as `E = 5` or `tau 0.5`; the axis names the setting."""
    return re.sub(r"^\D*(?=\d)", "", text)


def four_models(stem: str, titles: tuple[str, str], entries: list[Entry], runs: Runs) -> Picture:
    """Return the motivation's figure: a t-SNE of z under each model, one point per test sample."""
    maps: dict[str, tuple[Points, Sequence[int]]] = {}
    names: list[str] = []
    for entry in entries:
        for run in list(runs.get(entry.trials[""], {}).values())[:1]:
            tsne = run.final.tsne or Embedding(points=[], labels=[])
            local = entry.row.endswith("a local model")
            maps[entry.row] = tsne.local if local else tsne.points, tsne.labels
            names = run.partition.classes if run.partition is not None else []
    return tsne_panels(stem, titles, maps, names)
