"""Results of a sweep: scores on validation data, the selected setting, table and figure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import RunError
from ..measures import ACCURACY, Measure, is_evaluated
from ..report.conclusions import NO_VARIANCE, mean_interval
from ..report.formats import Format
from ..report.rendering import Picture, render
from ..report.report_files import write_picture
from ..report.runs import Run
from ..report.setting_curves import score_by_setting
from ..report.statistics import mean_std
from ..report.style import INK, draw_cells, figure_style, new_figure, text_colour
from ..report.tables import Column, Table, csv_text, markdown, percent
from ..runs.files import write_atomically
from ..runs.schema import RoundRecord
from ..runs.stopping import Evaluation, evaluation_of, selected_round, validation_of
from .space import Axis, Setting, Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Select = Literal["validation", "test"]
NAME = "sweep"  # of the files
TEST_WARNING = (
    "the setting is selected on test data: its test score is too good, because the best of several "
    "is chosen; do not report it as the accuracy on unseen data"
)


@dataclass(frozen=True)
class Outcome:
    """What the runs of one setting show."""

    setting: Setting
    scores: tuple[float, ...] = ()  # by seed, on the data that select
    test: tuple[float, ...] = ()  # by seed
    status: str = ""  # why there is no score, or for which seeds
    measure: Measure = field(default=ACCURACY)

    @property
    def score(self) -> float | None:
        """Return the mean score; None if a run diverged or was not completed."""
        return None if self.status or not self.scores else float(np.mean(self.scores))


def outcome(setting: Setting, runs: dict[int, Run], diverged: list[int], select: Select) -> Outcome:
    """Return the outcome of a setting from its runs by seed."""
    records = [scored_round(run) for run in runs.values()]
    scores = []
    for record in records:
        score = selection_score(record, select)
        assert score is not None, "a sweep sets validation"
        scores.append(score.value)
    tests = [evaluation_of(record) for record in records]
    status = f"diverged with seed {', '.join(map(str, diverged))}" if diverged else ""
    return Outcome(
        setting=setting,
        scores=tuple(scores),
        test=tuple(test.value for test in tests),
        status=status,
        measure=tests[0].measure if tests else ACCURACY,
    )


def scored_round(run: Run) -> RoundRecord:
    """Return the round that counts: the last one, or the selected one of a run with patience."""
    selected = selected_round(run.rounds) if run.settings.get("patience") else None
    return selected or run.rounds[-1]


def selection_score(record: RoundRecord, select: Select) -> Evaluation | None:
    """Return the score of a round on the data that select a setting; None if it has none."""
    if select == "validation":
        return validation_of(record)
    return evaluation_of(record) if is_evaluated(record) else None


def best(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the first outcome with the best mean score."""
    scored = [(entry.score, entry) for entry in outcomes if entry.score is not None]
    chosen: Outcome | None = None
    if scored:
        value = scored[0][1].measure.best(score for score, _ in scored)
        chosen = next(entry for score, entry in scored if score == value)
    if chosen is None:
        raise RunError(
            f"none of {len(outcomes)} settings has a score: "
            + "; ".join(f"{entry.setting.label} {entry.status}" for entry in outcomes[:5])
        )
    return chosen


def score_table(outcomes: Sequence[Outcome], selected: Outcome, select: Select) -> Table:
    """Return one line per setting. Only the selected setting has its test score.

    Whoever compares the test scores of all settings selects on test data.
    """
    keys = list(outcomes[0].setting.values)
    measure = selected.measure
    columns = [Column(key) for key in keys]
    columns += [
        Column(f"{select} {measure.with_unit}", number_format(measure)),
        Column("by seed", number_format(measure)),
        Column(f"test {measure.with_unit}", number_format(measure)),
        Column("95 % interval of the mean", number_format(measure)),
        Column("status"),
    ]
    rows = []
    for entry in outcomes:
        is_selected = entry is selected
        status = "selected" if is_selected else entry.status
        rows.append(
            (
                *(entry.setting.values[key] for key in keys),
                mean_std(entry.scores) if not entry.status else None,
                entry.scores,
                mean_std(entry.test) if is_selected else None,
                mean_interval(entry.test) if is_selected else None,
                status,
            )
        )
    note = (
        f"The selected setting has the {measure.superlative} mean {select} {measure.name}. ± is "
        "the standard deviation over seeds. The interval is that of the mean, by Student's t."
    )
    if select == "test":
        note += f" Warning: {TEST_WARNING}."
    else:
        note += " Test scores of other settings are not shown: comparing them is selecting on them."
    chosen = outcomes.index(selected)
    return Table(
        name=NAME,
        title=f"Sweep over {', '.join(keys)}",
        columns=tuple(columns),
        rows=rows,
        note=note,
        highlighted=frozenset((chosen, k) for k in range(len(keys))),
    )


def number_format(measure: Measure) -> Format:
    """Return how numbers of a measure are written in a table."""
    return percent if measure.is_share else four_digits


def four_digits(value: float) -> str:
    """Return a number with four significant digits."""
    return f"{value:.4g}"


def count_settings(outcomes: Sequence[Outcome]) -> int:
    """Return the number of different settings; trials may repeat one."""
    return len({entry.setting.label for entry in outcomes})


def summarise(outcomes: Sequence[Outcome], selected: Outcome, select: Select) -> str:
    """Return the selected setting and its test score, in a few lines."""
    measure = selected.measure
    column = Column("", number_format(measure))
    unit = " %" if measure.is_share else ""
    seeds = len(selected.test)
    lines = [
        f"selected {selected.setting.label}: {measure.superlative} mean {select} {measure.name} of "
        f"{count_settings(outcomes)} settings, {column.text(mean_std(selected.scores))}{unit}"
    ]
    ties = count_settings([entry for entry in outcomes if entry.score == selected.score]) - 1
    if ties > 0:
        noun = "setting has" if ties == 1 else "settings have"
        lines.append(f"{ties} other {noun} the same score: the first one is selected")
    test = f"its test {measure.name}: {column.text(mean_std(selected.test))}{unit}"
    ends = mean_interval(selected.test)
    if seeds == 1:
        lines.append(f"{test}, with one seed: there is no interval; --seeds 3 or more gives one")
    elif ends is None:
        reason = NO_VARIANCE.format(measure.name)
        lines.append(f"{test} over {seeds} seeds: there is no interval; {reason}")
    else:
        lines.append(
            f"{test} over {seeds} seeds; 95 % interval of the mean, by Student's t: "
            f"{column.text(ends)}{unit}"
        )
    if select == "test":
        lines.append(f"warning: {TEST_WARNING}")
    return "\n".join(lines)


def as_json(outcomes: Sequence[Outcome], selected: Outcome, select: Select) -> str:
    """Return the results as one JSON object."""
    ends = mean_interval(selected.test)
    test = mean_std(selected.test)
    return json.dumps(
        {
            "select": select,
            "settings": [
                {
                    "setting": entry.setting.values,
                    "score": entry.score,
                    "by_seed": entry.scores,
                    "status": entry.status,
                }
                for entry in outcomes
            ],
            "selected": selected.setting.values,
            "test": None if test is None else test.mean,
            "test_by_seed": selected.test,
            "interval": None if ends is None else [ends.low, ends.high],
        }
    )


def write_results(table: Table, picture: Picture | None, folder: Path) -> list[Path]:
    """Write table and figure to the folder and return the paths."""
    write_atomically(folder / f"{NAME}.md", markdown(table))
    write_atomically(folder / f"{NAME}.csv", csv_text(table))
    paths = [folder / f"{NAME}.md", folder / f"{NAME}.csv"]
    if picture is not None:
        return paths + write_picture(picture, folder)
    for suffix in ("svg", "png"):
        (folder / f"{NAME}.{suffix}").unlink(missing_ok=True)  # of a sweep over other keys
    return paths


def draw(
    axes: Sequence[Axis], outcomes: Sequence[Outcome], selected: Outcome, select: Select
) -> Picture | None:
    """Return a line chart of one swept key or a heat map of two; None for more."""
    grid = [axis for axis in axes if isinstance(axis, Values)]
    title = f"{select.capitalize()} {selected.measure.name}"
    if len(grid) == 1:
        return draw_line(title, grid[0], outcomes, selected)
    if len(grid) == 2:
        return draw_heat_map(title, (grid[0], grid[1]), outcomes, selected)
    return None


def draw_line(title: str, axis: Values, outcomes: Sequence[Outcome], selected: Outcome) -> Picture:
    """Return a line chart of the mean scores with error bars."""
    measure = selected.measure
    line = [None if entry.status else mean_std(entry.scores) for entry in outcomes]
    return score_by_setting(
        NAME,
        (f"{title} by {axis.key}", subtitle(outcomes)),
        axis.key,
        list(axis.values),
        {title: line},
        best=selected.setting.values[axis.key],
        mark="selected",
        axis_label=f"{title[0].lower()}{title[1:]}{', %' if measure.is_share else ''}",
        factor=measure.factor,
    )


def subtitle(outcomes: Sequence[Outcome]) -> str:
    """Return dataset, method and number of seeds of a sweep."""
    exp = outcomes[0].setting.experiment
    seeds = max(len(entry.scores) for entry in outcomes)
    return f"{exp.dataset} · mean over {seeds} seed{'s' if seeds > 1 else ''}"


def draw_heat_map(
    title: str, axes: tuple[Values, Values], outcomes: Sequence[Outcome], selected: Outcome
) -> Picture:
    """Return a heat map: rows are the values of the first key, columns those of the second."""
    rows, columns = axes
    shape = (len(rows.values), len(columns.values))
    values = np.array([np.nan if e.score is None else e.score for e in outcomes]).reshape(shape)
    shares = cell_shades(values, selected.measure)
    unit = ", %" if selected.measure.is_share else ""
    with figure_style():
        figure = cells_figure(title + unit, axes, outcomes, selected, shares)
        caption = (
            f"{title}{unit} by {rows.key} and {columns.key}, mean over seeds. Framed: the selected "
            f"setting, {selected.setting.label}."
        )
        texts = [f"{entry.setting.label}: {cell_text(entry)}" for entry in outcomes]
        alt = f"Heat map of {title[0].lower()}{title[1:]}{unit}. {'; '.join(texts)}."
        return render(NAME, figure, caption, alt)


def cell_shades(values: Any, measure: Measure) -> Any:
    """Return shades from 0.1 for the worst to 1 for the best value; NaN stays NaN."""
    signed = values if measure.higher_is_better else -values
    low, high = np.nanmin(signed), np.nanmax(signed)
    return 0.1 + 0.9 * (signed - low) / (high - low if high > low else 1)


def cell_text(entry: Outcome) -> str:
    """Return the text of a cell: the mean score, or that the setting diverged."""
    if entry.score is None:
        return entry.status.partition(" ")[0] or "missing"
    return number_format(entry.measure)(entry.score)


def cells_figure(
    title: str,
    axes: tuple[Values, Values],
    outcomes: Sequence[Outcome],
    selected: Outcome,
    shares: Any,
) -> "Figure":
    """Return the figure of a heat map with the value in every cell."""
    from matplotlib.patches import Rectangle

    rows, columns = axes
    figure, plot = new_figure(title, subtitle(outcomes), height=1.6 + 0.42 * len(rows.values))
    draw_cells(plot, shares, 1.0)
    for k, entry in enumerate(outcomes):
        i, j = divmod(k, len(columns.values))
        shade = 0 if np.isnan(shares[i, j]) else shares[i, j]
        plot.text(j, i, cell_text(entry), ha="center", va="center", color=text_colour(shade))
        if entry is selected:
            frame = Rectangle((j - 0.47, i - 0.45), 0.94, 0.9, fill=False, ec=INK, lw=1.8)
            plot.add_patch(frame)
    plot.set_xticks(range(len(columns.values)), columns.values)
    plot.set_yticks(range(len(rows.values)), rows.values)
    plot.set(xlabel=columns.key, ylabel=rows.key)
    plot.tick_params(length=0)
    return figure
