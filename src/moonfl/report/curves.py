"""Figures over rounds: test accuracy and drift, one line per group."""

from typing import TYPE_CHECKING

import numpy as np

from .groups import SMALL_SCALE, Group
from .rendering import Picture, render
from .statistics import Floats, drift_curves, final_score, mean_std_curves
from .style import colour, figure_style, integer_ticks, legend, line_style, marker_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def describe_setting(groups: list[Group]) -> str:
    """Return the subtitle of a figure: dataset, shared setting, and whether runs are small."""
    parts = list(dict.fromkeys(group.dataset for group in groups))
    settings = {group.setting for group in groups if group.federated}
    if len(settings) == 1:
        parts += [word for word in settings.pop().split() if "=" in word]
    if any(group.small for group in groups):
        parts.append(SMALL_SCALE)
    return " · ".join(parts)


def seed_count(group: Group) -> str:
    """Return the number of seeds in words, such as `3 seeds`."""
    count = len(group.runs)
    return f"{count} seed" if count == 1 else f"{count} seeds"


def short_label(group: Group, groups: list[Group]) -> str:
    """Return the label without the setting if the subtitle of the figure states it for all."""
    settings = {other.setting for other in groups if other.federated}
    return group.method if len(settings) == 1 else group.label


def height(groups: list[Group]) -> float:
    """Return the height of a figure with one legend entry per group, in inches."""
    return 3.3 + 0.1 * len(groups)


def draw_curve(
    axes: "Axes", gid: str, group: Group, curve: tuple[Floats, Floats], *, label: str
) -> None:
    """Draw the mean as a line and the standard deviation as a band around it."""
    shown = np.isfinite(curve[0])  # rounds may be without evaluation or parties
    mean, std = curve[0][shown], curve[1][shown]
    rounds = np.arange(1, len(shown) + 1)[shown]
    if std.any():
        x = np.append(rounds, rounds[::-1])
        y = np.append(mean - std, (mean + std)[::-1])
        axes.fill(x, y, color=colour(group.style), alpha=0.16, lw=0, gid=f"{gid}-band")
    few_rounds = len(mean) <= 8
    markers = 1 if few_rounds else (group.style % 5, max(1, len(mean) // 8))
    style = line_style(group.style) | marker_style(group.style)
    axes.plot(rounds, mean, label=label, gid=gid, markevery=markers, **style)


def draw_absences(axes: "Axes", gid: str, group: Group, mean: Floats) -> bool:
    """Mark the rounds that were evaluated without some sites; return whether there are any."""
    numbers = sorted({number for run in group.runs for number in run.absences})
    rounds = np.array([number for number in numbers if number <= len(mean)], dtype=int)
    if len(rounds) == 0:
        return False
    axes.plot(rounds, mean[rounds - 1], "x", color="black", ms=8, zorder=5, gid=f"{gid}-absences")
    return True


def draw_level(axes: "Axes", gid: str, group: Group, label: str) -> None:
    """Draw the final score of a group without federation, which has no rounds to compare."""
    value = group.measure.factor * final_score(group).mean
    axes.axhline(value, label=label, gid=gid, **line_style(group.style))


def score_curves(
    name: str, groups: list[Group], subtitle: str = "", first_round: int = 1
) -> Picture:
    """Return a figure of test accuracy, or of the measure of another task, over rounds.

    `subtitle` replaces the setting that the groups share. `first_round` omits earlier rounds,
    so that the last ones are easier to distinguish.
    """
    with figure_style():
        subtitle = subtitle or describe_setting(groups)
        measure = groups[0].measure
        name_of_test = f"Test {measure.name}"
        figure, axes = new_figure(name_of_test, subtitle, height=height(groups))
        marked = False
        for k, group in enumerate(groups):
            label = short_label(group, groups)
            if group.federated:
                curve = mean_std_curves(measure.factor * group.metric_matrix(measure.key))
                label = f"{label}, {seed_count(group)}"
                draw_curve(axes, f"line-{k}", group, curve, label=label)
                marked |= draw_absences(axes, f"line-{k}", group, curve[0])
            else:
                draw_level(axes, f"line-{k}", group, f"{label}, final, {seed_count(group)}")
        axes.set(xlabel="round", ylabel=f"test {measure.with_unit}")
        axes.margins(x=0.02)
        if first_round > 1:
            cut_off_rounds(axes, groups, first_round)
        integer_ticks(axes)
        legend(figure, axes)
        caption = (
            f"{name_of_test} after each round: mean (line) ± standard deviation (band) over seeds."
        )
        if marked:
            caption += " A cross marks a round that was evaluated without all sites."
        if not all(group.federated for group in groups):
            caption += " Methods without federation are shown as a horizontal line."
        shown = f" from {first_round} on" if first_round > 1 else ""
        values = [f"{group.label} {measure.text(final_score(group).mean)}" for group in groups]
        alt = (
            f"Line chart of test {measure.name} over rounds{shown}. "
            f"At the end: {', '.join(values)}."
        )
        return render(name, figure, caption, alt)


def cut_off_rounds(axes: "Axes", groups: list[Group], first_round: int) -> None:
    """Limit both axes to the rounds from `first_round` on."""
    late = [
        group.measure.factor * group.metric_matrix(group.measure.key)[:, first_round - 1 :].ravel()
        for group in groups
        if group.federated
    ]
    values = np.concatenate(late)
    limits = (np.nanmin(values) - 0.3, np.nanmax(values) + 0.3)
    axes.set(xlim=(first_round, None), ylim=limits)


def drift_figure(name: str, groups: list[Group]) -> Picture | None:
    """Return a figure of the drift of the parties over rounds; None if it was not recorded."""
    curves = []
    for group in groups:
        curve = drift_curves(group) if group.federated else None
        if curve is not None:
            curves.append((group, curve))
    if not curves:
        return None
    with figure_style():
        subtitle = describe_setting(groups)
        figure, axes = new_figure("Drift of the parties", subtitle, height=height(groups))
        for k, (group, curve) in enumerate(curves):
            draw_curve(axes, f"line-{k}", group, curve, label=short_label(group, groups))
        axes.set(xlabel="round", ylabel="distance ||w_i - w||")
        axes.margins(x=0.02)
        integer_ticks(axes)
        axes.set_ylim(bottom=0)
        legend(figure, axes)
        caption = (
            "Distance between a party's model after local training and the global model it started "
            "from: mean (line) ± standard deviation (band) over parties and seeds."
        )
        values = [f"{group.label} {mean[np.isfinite(mean)][-1]:.3g}" for group, (mean, _) in curves]
        alt = f"Line chart of mean drift over rounds. At the end: {', '.join(values)}."
        return render(name, figure, caption, alt)
