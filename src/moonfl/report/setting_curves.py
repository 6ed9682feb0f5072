"""Figures of accuracy by the value of one setting, a line a method."""

import itertools
from typing import TYPE_CHECKING

import numpy as np

from .rendering import Picture, render
from .style import GRID, figure_style, legend, line_style, marker_style, new_figure
from .tables import Column, MeanStd, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = ("FedAvg", "paper")  # what the others are compared with
Lines = dict[str, list[MeanStd | None]]  # by name, one for each value; None: a gap


def accuracy_by_setting(
    name: str, titles: tuple[str, str], across: str, values: list[str], lines: Lines, best: str = ""
) -> Picture:
    """`best` is the value that the paper found best. Values stand at equal distances: a true axis would crowd them."""
    numbers = itertools.count(1)
    with figure_style():
        figure, axes = new_figure(*titles, height=3.3 + 0.1 * len(lines))
        for k, (label, found) in enumerate(lines.items()):
            beside = 0.05 * (k - (len(lines) - 1) / 2)  # so that no deviation hides another
            line(axes, beside, label, found, 0 if label in GREY else next(numbers))
        axes.set_xticks(range(len(values)), [value.replace(" (", "\n(") for value in values])
        axes.set(xlabel=across, ylabel="test accuracy, %")
        axes.set_xlim(-0.4, len(values) - 0.6)
        axes.grid(axis="x", visible=False)
        if best:
            mark(axes, values.index(best), "the paper's best")
        if len(lines) > 1:
            legend(figure, axes)
        said = (
            f"Test accuracy by {across}: mean over seeds, with the deviation over seeds as a bar."
        )
        said += f" Shaded: {best}, the paper's best." if best else ""
        show = Column("", percent).text
        ends = "; ".join(
            f"{label}: "
            + ", ".join(f"{show(s)} at {v}" for v, s in zip(values, found, strict=True) if s)
            for label, found in lines.items()
        )
        return render(name, figure, said, f"Line chart of test accuracy by {across}. In %: {ends}.")


def line(axes: "Axes", beside: float, label: str, found: list[MeanStd | None], style: int) -> None:
    mean = np.array([np.nan if s is None else 100 * s.mean for s in found])
    deviation = [0.0 if s is None or s.std is None else 100 * s.std for s in found]
    axes.errorbar(
        np.arange(len(found)) + beside,
        mean,
        yerr=deviation if any(deviation) else None,
        label=label,
        capsize=2.5,
        elinewidth=0.9,
        **line_style(style) | marker_style(style),
    )


def mark(axes: "Axes", place: int, text: str) -> None:
    axes.axvspan(place - 0.3, place + 0.3, color=GRID, alpha=0.5, lw=0)
    axes.margins(y=0.16)
    axes.annotate(
        text, (place, 0.985), xycoords=("data", "axes fraction"), ha="center", va="top", fontsize=8
    )
