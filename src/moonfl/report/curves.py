"""Figures over rounds: accuracy and drift, a line a group."""

from typing import TYPE_CHECKING

import numpy as np

from .groups import SMALL_SCALE, Group
from .rendering import Picture, render
from .statistics import Floats, band, drifts, final
from .style import figure_style, integer_ticks, legend, line_style, marker_style, new_figure
from .tables import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def subtitle(groups: list[Group]) -> str:
    """The setting of a panel, and the mark of reduced runs."""
    parts = list(dict.fromkeys(g.dataset for g in groups))
    shared = {g.setting for g in groups if g.federated}
    if len(shared) == 1:
        parts += [word for word in shared.pop().split() if "=" in word]
    return " · ".join(parts + ([SMALL_SCALE] if any(g.small for g in groups) else []))


def seeds_of(g: Group) -> str:
    return f"{len(g.runs)} seed{'s' if len(g.runs) > 1 else ''}"


def short_label(g: Group, groups: list[Group]) -> str:
    """Without the setting where the figure's subtitle says it for all."""
    return g.method if len({other.setting for other in groups if other.federated}) == 1 else g.label


def curve(axes: "Axes", name: str, g: Group, mean: Floats, deviation: Floats, label: str) -> None:
    rounds = np.arange(1, len(mean) + 1)
    if deviation.any():
        there, back = mean - deviation, (mean + deviation)[::-1]
        around = np.append(rounds, rounds[::-1]), np.append(there, back)
        axes.fill(*around, color=line_style(g.style)["color"], alpha=0.16, lw=0, gid=f"{name}-band")
    every = (g.style % 5, max(1, len(mean) // 8)) if len(mean) > 8 else 1
    axes.plot(
        rounds,
        mean,
        label=label,
        gid=name,
        markevery=every,
        **line_style(g.style) | marker_style(g.style),
    )


def level(axes: "Axes", name: str, g: Group, mean: float, label: str) -> None:
    """Where nothing is federated there are no rounds to compare: the final value, across."""
    axes.axhline(mean, label=label, gid=name, **line_style(g.style))


def accuracy_curves(name: str, groups: list[Group], where: str = "", since: int = 1) -> Picture:
    """`where`: a subtitle other than the setting the groups share. `since`: the first round to show, so that the last
    points can be told apart."""
    with figure_style():
        figure, axes = new_figure(
            "Test accuracy", where or subtitle(groups), height=3.3 + 0.1 * len(groups)
        )
        for k, g in enumerate(groups):
            if g.federated:
                mean, deviation = band(100 * g.series("accuracy"))
                curve(
                    axes,
                    f"line-{k}",
                    g,
                    mean,
                    deviation,
                    f"{short_label(g, groups)}, {seeds_of(g)}",
                )
            else:
                level(
                    axes,
                    f"line-{k}",
                    g,
                    100 * final(g).mean,
                    f"{short_label(g, groups)}, final, {seeds_of(g)}",
                )
        axes.set(xlabel="round", ylabel="test accuracy, %")
        axes.margins(x=0.02)
        if since > 1:
            late = np.concatenate(
                [100 * g.series("accuracy")[:, since - 1 :].ravel() for g in groups if g.federated]
            )
            axes.set(xlim=(since, None), ylim=(np.nanmin(late) - 0.3, np.nanmax(late) + 0.3))
        integer_ticks(axes)
        legend(figure, axes)
        said = "Test accuracy after each round: the mean over seeds, with the deviation over seeds as a band"
        said += (
            "; what is not federated is a level line."
            if not all(g.federated for g in groups)
            else "."
        )
        shown = f" from {since} on" if since > 1 else ""
        ends = ", ".join(f"{g.label} {percent(final(g).mean)} %" for g in groups)
        return render(
            name,
            figure,
            said,
            f"Line chart of test accuracy over rounds{shown}. At the end: {ends}.",
        )


def drift(name: str, groups: list[Group]) -> Picture | None:
    there = [(g, found) for g in groups if g.federated and (found := drifts(g)) is not None]
    if not there:
        return None
    with figure_style():
        figure, axes = new_figure(
            "Drift of the parties", subtitle(groups), height=3.3 + 0.1 * len(groups)
        )
        for k, (g, (mean, deviation)) in enumerate(there):
            curve(axes, f"line-{k}", g, mean, deviation, short_label(g, groups))
        axes.set(xlabel="round", ylabel="distance ||w_i - w||")
        axes.margins(x=0.02)
        integer_ticks(axes)
        axes.set_ylim(bottom=0)
        legend(figure, axes)
        said = "How far local training moves a party's model from the global one it started from: "
        said += "mean over parties and seeds, with their deviation as a band."
        ends = ", ".join(f"{g.label} {mean[-1]:.3g}" for g, (mean, _) in there)
        return render(
            name, figure, said, f"Line chart of mean drift over rounds. In the last round: {ends}."
        )
