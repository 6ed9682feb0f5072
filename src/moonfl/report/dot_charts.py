"""Dot and bar charts: groups, classes or parties on the left, their values to the right."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..measures import ACCURACY, Measure
from .comparisons import Comparison, baseline
from .curves import describe_setting, short_label
from .groups import Group, baseline_name
from .rendering import Picture, render
from .statistics import (
    class_accuracies,
    final_score,
    final_scores,
    held_out_scores,
    metric_per_round,
    party_metric,
    reach_by_seed,
)
from .style import (
    INK,
    colour,
    figure_style,
    integer_ticks,
    label_rows,
    legend,
    line_style,
    marker_style,
    new_figure,
)
from .tables import MeanStd, significant_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLOSE = 1e-3  # relative difference of values whose labels have many digits
MAX_ROWS = 24  # names that fit on the left side


@dataclass(frozen=True)
class PartyChart:
    """The texts of a chart of one value per party."""

    title: str
    axis: str
    caption: str
    in_percent: bool = False  # shows accuracy, or the measure of another task

    def of_measure(self, measure: Measure) -> "PartyChart":
        """Return the chart with the name of another measure than accuracy."""
        if measure is ACCURACY:
            return self
        names = (("Accuracy", measure.title), ("accuracy", measure.name))
        texts = [self.title, self.axis, self.caption]
        for old, new in names:
            texts = [text.replace(old, new) for text in texts]
        axis = texts[1] if measure.is_share else texts[1].removesuffix(", %")
        return PartyChart(title=texts[0], axis=axis, caption=texts[2], in_percent=True)


PARTY_CHARTS = {
    "accuracy": PartyChart(
        title="Accuracy per party",
        axis="accuracy on the party's training data, %",
        caption=(
            "Accuracy of the final global model on each party's training data, mean over seeds."
        ),
        in_percent=True,
    ),
    "held-out": PartyChart(
        title="Held-out accuracy per party",
        axis="accuracy on the party's held-out samples, %",
        caption=(
            "Accuracy of the final model on the test samples that each party holds out, mean over "
            "seeds. The model is the global one, or the party's own if the method trains one."
        ),
        in_percent=True,
    ),
    "distance": PartyChart(
        title="Distance per party",
        axis="distance ||w_i - w||",
        caption=(
            "Distance between each party's last local model and the global model, mean over seeds."
        ),
    ),
    "similarity": PartyChart(
        title="Similarity of representations",
        axis="mean cosine of z and z_glob",
        caption=(
            "Mean cosine similarity of the representations of test samples under each party's last "
            "local model and the global model, mean over seeds; 1 means equal directions."
        ),
    ),
}


def height(rows: int) -> float:
    """Return the height of a chart with this many rows, in inches."""
    return 1.35 + 0.27 * rows


def annotate(axes: "Axes", text: str, x: float, row: int) -> None:
    """Write a text to the right of a bar."""
    offset = (6, 0)
    axes.annotate(text, (x, row), offset, textcoords="offset points", va="center", fontsize=8)


def separate_ticks(axes: "Axes") -> None:
    """Draw fewer ticks if values differ only in late digits, so that long labels do not overlap."""
    low, high = axes.get_xlim()
    if high - low < CLOSE * max(abs(low), abs(high)):
        axes.locator_params(axis="x", nbins=3)


def final_score_chart(name: str, groups: list[Group]) -> Picture:
    """Return a chart of the final test score of every group."""
    with figure_style():
        subtitle = describe_setting(groups)
        measure = groups[0].measure
        title = f"Final test {measure.name}"
        unit = ", %" if measure.is_share else ""
        figure, axes = new_figure(title, subtitle, height(len(groups)))
        for k, group in enumerate(groups):
            by_seed = measure.factor * final_scores(group)
            axes.plot(by_seed, [k] * len(by_seed), ls="", marker="|", ms=9, color=INK, alpha=0.5)
            score = final_score(group)
            error = None if score.std is None else measure.factor * score.std
            style = marker_style(group.style)
            axes.errorbar(measure.factor * score.mean, k, xerr=error, capsize=3, ms=7, **style)
        label_rows(axes, [f"{short_label(group, groups)} ({len(group.runs)})" for group in groups])
        axes.set_xlabel(f"test {measure.name} after the last round{unit}")
        axes.margins(x=0.08)
        separate_ticks(axes)
        caption = (
            f"Test {measure.name} after the last round: mean ± standard deviation over seeds "
            "(number of seeds in parentheses). Each short vertical line is one seed."
        )
        values = [f"{group.label} {measure.text(final_score(group).mean)}" for group in groups]
        return render(
            name, figure, caption, f"Dot chart of final test {measure.name}: {', '.join(values)}."
        )


def difference_chart(name: str, comparisons: list[Comparison]) -> Picture:
    """Return a chart of the differences to the baseline, with the intervals of their means."""
    groups = [comparison.group for comparison in comparisons]
    base = comparisons[0].baseline_name
    with figure_style():
        subtitle = describe_setting(groups)
        figure, axes = new_figure(f"Difference to {base}", subtitle, height(len(groups)))
        axes.axvline(0, color=INK, lw=0.8)
        for k, comparison in enumerate(comparisons):
            draw_difference(axes, k, comparison)
        label_rows(axes, [short_label(group, groups) for group in groups])
        measure = groups[0].measure
        unit = ", points" if measure.is_share else ""
        axes.set_xlabel(f"final {measure.name} minus {base}'s{unit}")
        axes.margins(x=0.08)
        caption = (
            f"Final {measure.name} minus {base}'s: mean over seeds with its 95 % interval. Each "
            "short vertical line is one seed. An interval that contains 0 supports no verdict."
        )
        values = [
            f"{comparison.group.label}: {comparison.conclusion.text}" for comparison in comparisons
        ]
        return render(
            name, figure, caption, f"Dot chart of differences to {base}. {'; '.join(values)}."
        )


def draw_difference(axes: "Axes", row: int, comparison: Comparison) -> None:
    """Draw the differences of all seeds, their mean, and its interval if there is one."""
    conclusion = comparison.conclusion
    factor = comparison.group.measure.factor
    by_seed = [factor * difference for difference in conclusion.differences]
    axes.plot(by_seed, [row] * len(by_seed), ls="", marker="|", ms=9, color=INK, alpha=0.5)
    style = marker_style(comparison.group.style)
    axes.plot(float(np.mean(by_seed)), row, ls="", ms=7, **style)
    if conclusion.interval is not None:
        ends = [factor * conclusion.interval.low, factor * conclusion.interval.high]
        axes.plot(ends, [row, row], marker="|", ms=7, lw=1.4, color=style["color"])


def target_chart(name: str, groups: list[Group], target: float) -> Picture | None:
    """Return a chart of the rounds to a target score; None without federated groups."""
    groups = [group for group in groups if group.federated]
    if not groups:
        return None
    with figure_style():
        measure = groups[0].measure
        title = f"Rounds to {measure.text(target)} {measure.name}"
        figure, axes = new_figure(title, describe_setting(groups), height(len(groups)))
        values = []
        for k, group in enumerate(groups):
            rounds = [hit.round for hit in reach_by_seed(group, target) if hit]
            draw_rounds(axes, k, group, rounds)
            values.append(f"{group.label} {', '.join(map(str, rounds)) or 'not reached'}")
        label_rows(axes, [short_label(group, groups) for group in groups])
        longest = max(len(run.rounds) for group in groups for run in group.runs)
        axes.set_xlim(0, longest * 1.04)
        axes.set_xlabel("rounds")
        integer_ticks(axes)
        limit = "least" if measure.higher_is_better else "most"
        caption = (
            f"First round with a test {measure.name} of at {limit} {measure.text(target)}: one "
            "marker per seed; the bar is the mean over the seeds that reach it."
        )
        return render(
            name, figure, caption, f"Bar chart of rounds to the target: {'; '.join(values)}."
        )


def draw_rounds(axes: "Axes", row: int, group: Group, rounds: list[int]) -> None:
    """Draw the rounds to the target of the seeds that reach it, and count the others."""
    if rounds:
        mean = float(np.mean(rounds))
        axes.barh(row, mean, height=0.5, color=colour(group.style), alpha=0.25)
        style = marker_style(group.style)
        axes.plot(rounds, [row] * len(rounds), ls="", ms=6, alpha=0.9, **style)
    missed = len(group.runs) - len(rounds)
    if missed:
        text = f"{missed} of {len(group.runs)} not reached"
        annotate(axes, text, max(rounds, default=0), row)


def cost_chart(name: str, groups: list[Group]) -> Picture | None:
    """Return a chart of CPU seconds per round; None if they were not recorded."""
    costs: list[tuple[Group, MeanStd]] = []
    for group in groups:
        cost = metric_per_round(group, "cpu_seconds") if group.federated else None
        if cost is not None:
            costs.append((group, cost))
    if not costs:
        return None
    with figure_style():
        subtitle = describe_setting(groups)
        figure, axes = new_figure("CPU seconds per round", subtitle, height(len(costs)))
        for k, (group, cost) in enumerate(costs):
            axes.barh(
                k,
                cost.mean,
                height=0.55,
                color=colour(group.style),
                xerr=cost.std,
                ecolor=INK,
                error_kw={"elinewidth": 0.8},
            )
            text = significant_digits(cost.mean) + relative_cost(group, groups, cost)
            annotate(axes, text, cost.mean + (cost.std or 0), k)
        label_rows(axes, [short_label(group, groups) for group, _ in costs])
        axes.set_xlim(0, 1.45 * max(cost.mean for _, cost in costs) or 1)
        axes.set_xlabel("CPU seconds")
        caption = (
            "CPU seconds per round, summed over the parties: mean ± standard deviation over seeds."
        )
        values = [f"{group.label} {significant_digits(cost.mean)} s" for group, cost in costs]
        return render(
            name, figure, caption, f"Bar chart of CPU seconds per round: {', '.join(values)}."
        )


def relative_cost(group: Group, groups: list[Group], cost: MeanStd) -> str:
    """Return the cost relative to the baseline's as text; empty if there is none."""
    base = baseline(group, groups)
    base_cost = metric_per_round(base, "cpu_seconds") if base else None
    if base_cost is None or not base_cost.mean:
        return ""
    return f" = {cost.mean / base_cost.mean:.2f} × {baseline_name(groups)}"


@dataclass(frozen=True)
class Series:
    """The values of one group by the name of a class or party."""

    group: Group
    values: dict[str, float]


def comparison_chart(
    name: str, series: list[Series], *, title: str, axis: str, caption: str
) -> Picture | None:
    """Return a chart with one marker per group and name.

    If there are more than MAX_ROWS names, it shows the sorted values of each group as a line.
    """
    groups = [entry.group for entry in series]
    series = [entry for entry in series if entry.values]
    if not series:
        return None
    names = list(dict.fromkeys(key for entry in series for key in entry.values))
    sort_values = len(names) > MAX_ROWS
    with figure_style():
        tall = 3.4 if sort_values else height(len(names)) + 0.12 * len(series)
        figure, axes = new_figure(title, describe_setting(groups), tall)
        for entry in series:
            label = short_label(entry.group, groups)
            if sort_values:
                draw_sorted(axes, entry, label)
            else:
                draw_markers(axes, entry, names, label)
        if sort_values:
            axes.set(xlabel="rank, from the lowest", ylabel=axis)
            caption += f" The {len(names)} values of each method are sorted."
        else:
            label_rows(axes, names)
            axes.grid(axis="y", visible=True)
            axes.set_xlabel(axis)
            separate_ticks(axes)
        legend(figure, axes)
        ranges = [
            f"{entry.group.label} from {min(entry.values.values()):.3g} "
            f"to {max(entry.values.values()):.3g}"
            for entry in series
        ]
        return render(name, figure, caption, f"Dot chart, {axis}: {', '.join(ranges)}.")


def draw_sorted(axes: "Axes", series: Series, label: str) -> None:
    """Draw the sorted values of a group as a line."""
    values = sorted(series.values.values())
    axes.plot(range(1, len(values) + 1), values, label=label, **line_style(series.group.style))


def draw_markers(axes: "Axes", series: Series, names: list[str], label: str) -> None:
    """Draw a marker for each value of a group in the row of its name."""
    rows = [names.index(key) for key in series.values]
    style = marker_style(series.group.style)
    values = list(series.values.values())
    axes.plot(values, rows, ls="", ms=6, alpha=0.85, label=label, **style)


def class_chart(name: str, groups: list[Group]) -> Picture | None:
    """Return a chart of the test accuracy of every class; None if it was not recorded."""
    series = []
    for group in groups:
        accuracies = class_accuracies(group)
        names = group.class_names(len(accuracies))
        values = {
            name: 100 * accuracy
            for name, accuracy in zip(names, accuracies, strict=True)
            if accuracy is not None
        }
        series.append(Series(group, values))
    return comparison_chart(
        name,
        series,
        title="Accuracy per class",
        axis="test accuracy of the class, %",
        caption=(
            "Percentage of the test samples of each class that the final model classifies "
            "correctly, over all seeds."
        ),
    )


def party_values(group: Group, key: str) -> dict[int, float]:
    """Return the values of a chart of PARTY_CHARTS by party."""
    if key == "held-out":
        return held_out_scores(group)
    if key == "accuracy" and group.measure is not ACCURACY:
        return party_metric(group, "score")
    return party_metric(group, key)


def party_chart(name: str, groups: list[Group], key: str) -> Picture | None:
    """Return the chart `key` of PARTY_CHARTS; None if its values were not recorded."""
    chart = PARTY_CHARTS[key]
    measure = groups[0].measure if groups else ACCURACY
    if chart.in_percent:
        chart = chart.of_measure(measure)
    factor = measure.factor if chart.in_percent else 1
    series = []
    for group in groups:
        values = party_values(group, key)
        named = {group.party_name(party): factor * value for party, value in values.items()}
        series.append(Series(group, named))
    return comparison_chart(name, series, title=chart.title, axis=chart.axis, caption=chart.caption)
