"""Figures of test accuracy, or another score, by the value of one setting: a line per method."""

import itertools
from typing import TYPE_CHECKING

import numpy as np

from .rendering import Picture, render
from .style import GRID, figure_style, legend, line_style, marker_style, new_figure
from .tables import Column, MeanStd, percent, significant_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = ("FedAvg", "paper")  # the baselines
Lines = dict[str, list[MeanStd | None]]  # by label, one entry per value; None is a gap


def score_by_setting(
    name: str,
    titles: tuple[str, str],
    setting: str,
    values: list[str],
    lines: Lines,
    *,
    best: str = "",
    mark: str = "the paper's best",
    axis_label: str = "test accuracy, %",
    factor: int = 100,
) -> Picture:
    """Return a figure of test accuracy, or another score, by the values of a setting.

    `best` is the value that is highlighted as `mark`. `factor` is that from a score to the number
    that is shown. Values are spaced evenly, because on a numeric axis some would overlap.
    """
    numbers = itertools.count(1)
    with figure_style():
        figure, axes = new_figure(*titles, height=3.3 + 0.1 * len(lines))
        for k, (label, scores) in enumerate(lines.items()):
            offset = 0.05 * (k - (len(lines) - 1) / 2)  # so that error bars do not overlap
            style = 0 if label in GREY else next(numbers)
            draw_line(axes, offset, label, scores, style=style, factor=factor)
        axes.set_xticks(range(len(values)), [value.replace(" (", "\n(") for value in values])
        axes.set(xlabel=setting, ylabel=axis_label)
        axes.set_xlim(-0.4, len(values) - 0.6)
        axes.grid(axis="x", visible=False)
        if best:
            highlight(axes, values.index(best), mark)
        if len(lines) > 1:
            legend(figure, axes)
        score_name = axis_label.removesuffix(", %")
        title = score_name[0].upper() + score_name[1:]
        caption = f"{title} by {setting}: mean ± standard deviation (error bars) over seeds."
        if best:
            caption += f" Shaded: {best}, {mark}."
        unit = "In %: " if factor == 100 else ""
        description = f"{unit}{describe_lines(values, lines, factor)}"
        alt = f"Line chart of {score_name} by {setting}. {description}."
        return render(name, figure, caption, alt)


def describe_lines(values: list[str], lines: Lines, factor: int) -> str:
    """Return all scores as text, for readers who do not see the figure."""
    column = Column("", percent if factor == 100 else significant_digits)
    texts = []
    for label, scores in lines.items():
        pairs = zip(values, scores, strict=True)
        points = [f"{column.text(score)} at {value}" for value, score in pairs if score]
        texts.append(f"{label}: {', '.join(points)}")
    return "; ".join(texts)


def draw_line(
    axes: "Axes",
    offset: float,
    label: str,
    scores: list[MeanStd | None],
    *,
    style: int,
    factor: int,
) -> None:
    """Draw the means as a line with gaps, and the standard deviations as error bars."""
    means = np.array([np.nan if entry is None else factor * entry.mean for entry in scores])
    stds = [0.0 if entry is None else factor * (entry.std or 0.0) for entry in scores]
    axes.errorbar(
        np.arange(len(scores)) + offset,
        means,
        yerr=stds if any(stds) else None,
        label=label,
        capsize=2.5,
        elinewidth=0.9,
        **line_style(style) | marker_style(style),
    )


def highlight(axes: "Axes", position: int, text: str) -> None:
    """Shade the background of one value and write `text` above it."""
    axes.axvspan(position - 0.3, position + 0.3, color=GRID, alpha=0.5, lw=0)
    axes.margins(y=0.16)
    place = (position, 0.985)
    axes.annotate(
        text, place, xycoords=("data", "axes fraction"), ha="center", va="top", fontsize=8
    )
