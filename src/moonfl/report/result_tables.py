"""The tables of results: accuracy, differences to the baseline, rounds to a target, cost, overview.

Where to add a report column: each table below is a tuple of `ResultColumn`, one per column, from
left to right. Add an entry with a header, a function from a `Row` to the value, and a format of
tables.py. A column that some runs do not have is `optional`: it is left out if no run has it.

Where to add a metric: compute it in runs/rounds.py, declare it as a field of `RoundRecord` in
runs/schema.py, and show it here with `final_metric(row.group, "its_name")`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..measures import Measure
from ..runs.schema import rounded_up
from .comparisons import baseline, compare_with_baseline
from .conclusions import Conclusion
from .formats import (
    difference_format,
    difference_unit,
    interval_format,
    value_format,
    with_unit,
)
from .groups import Group, baseline_name, small_scale_mark
from .statistics import (
    Reach,
    best_rounds,
    final_metric,
    final_score,
    mean_std,
    metric_per_round,
    reach_by_seed,
    rounds_and_bytes,
    selected_score,
    target_by_group,
    target_scores,
)
from .tables import (
    Column,
    Interval,
    MeanStd,
    Table,
    byte_size,
    integer,
    percent,
    significant_digits,
)

FURTHER = {  # metrics next to the measure, by its key
    "accuracy": ", macro-F1 and balanced accuracy",
    "rmse": " and R2",
    "mean_average_precision": " and macro-F1",
}
STD_NOTE = "± is the standard deviation over seeds (n - 1 in the denominator)."


@dataclass(frozen=True)
class Row:
    """What the columns of a row are computed from: a group and what it is compared with."""

    group: Group
    baseline: Group | None  # with the same settings; FedAvg, or what the user chose
    target: float  # target score of the group's dataset
    conclusion: Conclusion | None  # None without a baseline on the dataset, or for it
    baseline_name: str

    def reach(self) -> list[Reach | None]:
        """Return for each seed when it reaches the target; nothing without federation."""
        return reach_by_seed(self.group, self.target) if self.group.federated else []

    @property
    def differences(self) -> tuple[float, ...]:
        """Return the differences to the baseline, one per common seed."""
        return self.conclusion.differences if self.conclusion else ()


@dataclass(frozen=True)
class ResultColumn:
    """A column of a table of results."""

    header: str  # {baseline} is replaced by the name of the baseline
    value: Callable[[Row], Any]  # text, a number, a MeanStd, a tuple (by seed), or None
    format: Callable[[Any], str] = str
    optional: bool = False  # left out if no row has a value


def label(row: Row) -> str:
    """Return the label of the method."""
    return row.group.label


def epsilon(row: Row) -> float | None:
    """Return the epsilon of the runs with differential privacy, the largest of the seeds."""
    records = [run.final.privacy for run in row.group.runs]
    values = [record.epsilon for record in records if record is not None]
    return max(values, default=None)


def seeds(row: Row) -> int:
    """Return the number of seeds."""
    return len(row.group.runs)


def rounds(row: Row) -> str:
    """Return the number of rounds; for unfinished runs also how many there should be."""
    group = row.group
    if not group.finished:
        status = ", diverged" if group.diverged else ""
        return f"{group.length} of {group.settings['rounds']}{status}"
    longest = max(len(run.rounds) for run in group.runs)
    return str(longest) if group.length == longest else f"{group.length} to {longest}"


def best_score(row: Row) -> MeanStd | None:
    """Return the best test score of any round."""
    return mean_std(score for score, _ in best_rounds(row.group))


def interval(row: Row) -> Interval | None:
    """Return the 95 % interval of the difference to the baseline."""
    return row.conclusion.interval if row.conclusion else None


def verdict(row: Row) -> str | None:
    """Return the verdict on the difference to the baseline, in words."""
    return row.conclusion.text if row.conclusion else None


def incomplete_rounds(row: Row) -> tuple[str, ...] | None:
    """Return the rounds that were evaluated without all sites, by seed; None without any."""
    absences = [run.absences for run in row.group.runs]
    if not any(absences):
        return None
    return tuple(", ".join(map(str, rounds)) or "none" for rounds in absences)


def std_over_parties(row: Row) -> float | None:
    """Return the standard deviation of accuracy over the models of the parties.

    Under SOLO each is evaluated on all test samples, personal models on those of their party.
    """
    measure = row.group.measure
    over_parties = final_metric(row.group, f"{measure.by_party}_std")
    std = final_metric(row.group, measure.std) or over_parties
    return None if std is None else std.mean


def count_reached(row: Row) -> str:
    """Return how many seeds reach the target."""
    hits = row.reach()
    count = sum(hit is not None for hit in hits)
    return f"{count} of {len(hits)}"


def mean_per_round(row: Row, metric: str) -> float | None:
    """Return a metric's mean over rounds and seeds."""
    mean = metric_per_round(row.group, metric)
    return None if mean is None else mean.mean


def relative_cpu_seconds(row: Row) -> float | None:
    """Return CPU seconds per round relative to the baseline's."""
    if row.baseline is None or not row.group.federated:
        return None
    ours = metric_per_round(row.group, "cpu_seconds")
    base = metric_per_round(row.baseline, "cpu_seconds")
    return ours.mean / base.mean if ours and base and base.mean else None


def total_bytes(row: Row) -> float | None:
    """Return the bytes sent both ways in all rounds, mean over seeds."""
    down = row.group.metric("bytes_down")
    up = row.group.metric("bytes_up")
    total = mean_std(a.sum() + b.sum() for a, b in zip(down, up, strict=True))
    return None if total is None else total.mean


R2 = ResultColumn("R2", lambda row: final_metric(row.group, "r2"), "{:.3f}".format, optional=True)
MACRO_F1 = ResultColumn(
    "macro-F1, %", lambda row: final_metric(row.group, "macro_f1"), percent, optional=True
)
EPSILON = ResultColumn("epsilon", epsilon, rounded_up, optional=True)


def accuracy_columns(measure: Measure) -> tuple[ResultColumn, ...]:
    """Return the columns of the table of final and best values."""
    shown = value_format(measure)
    unit = ", %" if measure.is_share else ""
    return (
        ResultColumn("method", label),
        ResultColumn(f"final {measure.with_unit}", lambda row: final_score(row.group), shown),
        R2,
        MACRO_F1,
        ResultColumn(
            "balanced accuracy, %",
            lambda row: final_metric(row.group, "balanced_accuracy"),
            percent,
            optional=True,
        ),
        ResultColumn(
            f"selected round{unit}", lambda row: selected_score(row.group), shown, optional=True
        ),
        ResultColumn(f"best {measure.with_unit}", best_score, shown),
        ResultColumn(
            "best round, by seed",
            lambda row: tuple(number for _, number in best_rounds(row.group)),
            integer,
        ),
        EPSILON,
        ResultColumn("seeds", seeds, integer),
        ResultColumn("rounds", rounds, integer),
        ResultColumn("incomplete rounds, by seed", incomplete_rounds, str, optional=True),
        ResultColumn(
            f"mean over parties{unit}",
            lambda row: final_metric(row.group, measure.by_party),
            shown,
            optional=True,
        ),
        ResultColumn(f"std over parties{unit}", std_over_parties, shown, optional=True),
        ResultColumn(
            f"worst 10 % of parties{unit}",
            lambda row: final_metric(row.group, f"{measure.by_party}_worst"),
            shown,
            optional=True,
        ),
    )


def difference_columns(measure: Measure) -> tuple[ResultColumn, ...]:
    """Return the columns of the table of differences to FedAvg."""
    shown = difference_format(measure)
    unit = difference_unit(measure)
    return (
        ResultColumn("method", label),
        ResultColumn("minus", lambda row: row.baseline.label if row.baseline else None),
        ResultColumn("common seeds", lambda row: len(row.differences), integer),
        ResultColumn(
            f"difference, {unit or measure.name}", lambda row: mean_std(row.differences), shown
        ),
        ResultColumn("by seed", lambda row: row.differences, shown),
        ResultColumn("95 % interval", interval, interval_format(measure)),
        ResultColumn("verdict", verdict),
    )


def target_columns(measure: Measure) -> tuple[ResultColumn, ...]:
    """Return the columns of the table of rounds and bytes to a target."""
    return (
        ResultColumn("method", label),
        ResultColumn(
            "target, %" if measure.is_share else "target",
            lambda row: row.target,
            value_format(measure),
        ),
        ResultColumn("reached", count_reached, integer),
        ResultColumn("rounds, by seed", lambda row: rounds_and_bytes(row.reach())[0], integer),
        ResultColumn(
            "sent both ways, by seed", lambda row: rounds_and_bytes(row.reach())[1], byte_size
        ),
    )


COST = (
    ResultColumn("method", label),
    ResultColumn(
        "seconds per round", lambda row: metric_per_round(row.group, "seconds"), significant_digits
    ),
    ResultColumn(
        "CPU seconds per round",
        lambda row: metric_per_round(row.group, "cpu_seconds"),
        significant_digits,
    ),
    ResultColumn("CPU time / {baseline}'s", relative_cpu_seconds, "{:.2f}".format),
    ResultColumn(
        "sent to parties per round", lambda row: mean_per_round(row, "bytes_down"), byte_size
    ),
    ResultColumn(
        "sent by parties per round", lambda row: mean_per_round(row, "bytes_up"), byte_size
    ),
    ResultColumn("sent in total", total_bytes, byte_size),
)


def overview_columns(measure: Measure) -> tuple[ResultColumn, ...]:
    """Return the columns of the overview on a terminal."""
    shown = value_format(measure)
    return (
        ResultColumn("method", label),
        ResultColumn("seeds", seeds, integer),
        ResultColumn("rounds", rounds, integer),
        EPSILON,
        ResultColumn(
            "final, %" if measure.is_share else f"final {measure.name}",
            lambda row: final_score(row.group),
            shown,
        ),
        R2,
        MACRO_F1,
        ResultColumn(
            "balanced, %",
            lambda row: final_metric(row.group, "balanced_accuracy"),
            percent,
            optional=True,
        ),
        ResultColumn("best, %" if measure.is_share else "best", best_score, shown),
        ResultColumn(
            "minus {baseline}", lambda row: mean_std(row.differences), difference_format(measure)
        ),
        ResultColumn("rounds to target", lambda row: rounds_and_bytes(row.reach())[0], integer),
        ResultColumn(
            "CPU s/round",
            lambda row: metric_per_round(row.group, "cpu_seconds"),
            significant_digits,
        ),
    )


def accuracy_table(groups: list[Group]) -> Table:
    """Return the table of test accuracy."""
    measure = groups[0].measure
    note = (
        f"Final {measure.name}{FURTHER[measure.key]} are those of the last round. Best "
        f"{measure.name} is the {measure.superlative} of any round; finding it requires the test "
        "set."
    )
    if any(run.absences for group in groups for run in group.runs):
        note += (
            " Incomplete rounds were evaluated without all sites; none is the best round next to "
            "complete ones."
        )
    if any(selected_score(group) for group in groups):
        note += f" The selected round has the {measure.superlative} validation {measure.name}."
    rows = compare_groups(groups, None)
    title = mark_small(f"Test {measure.name}", groups)
    return build_table("accuracy", title, accuracy_columns(measure), rows, f"{note} {STD_NOTE}")


def difference_table(groups: list[Group]) -> Table | None:
    """Return the table of differences to the baseline; None if there is nothing to compare."""
    rows = [row for row in compare_groups(groups, None) if row.conclusion is not None]
    if not rows:
        return None
    base = baseline_name(groups)
    measure = groups[0].measure
    direction = [] if measure.higher_is_better else ["A negative difference is better."]
    title = mark_small(f"Difference to {base}, paired by seed", groups)
    note = " ".join(
        [f"Final {measure.name} minus {base}'s.", *direction, *describe_method(groups), STD_NOTE]
    )
    return build_table("differences", title, difference_columns(measure), rows, note)


def describe_method(groups: list[Group]) -> list[str]:
    """Return how intervals and verdicts are computed and what they hold for, as sentences."""
    comparisons = compare_with_baseline(groups)
    tested = sum(comparison.conclusion.p_value is not None for comparison in comparisons)
    if tested == 0:
        return []
    error = ": if the methods were equal, it would be wrong in 5 % of such comparisons"
    if tested > 1:
        error = (
            f", corrected for {tested} comparisons by Holm's method: if all methods were equal, at "
            "most 5 % of such comparisons would contain a wrong verdict"
        )
    return [
        "Differences are paired by seed; both runs have the same settings, data and partition.",
        "The 95 % interval is that of the mean difference, by Student's t.",
        f"The verdict is that of the two-sided paired t-test at the level 5 %{error}.",
        "It assumes approximately normal differences and a number of seeds that was fixed in "
        "advance, and holds for other seeds with these settings and this partition.",
    ]


def target_table(groups: list[Group], target: float | None) -> Table | None:
    """Return the table of rounds and bytes to the target; None without federated groups."""
    rows = [row for row in compare_groups(groups, target) if row.group.federated]
    if not rows:
        return None
    measure = groups[0].measure
    note = "The target was set by the user."
    if target is None:
        base = baseline_name(groups)
        worst = "lowest" if measure.higher_is_better else "highest"
        note = (
            f"The target is the final {measure.name} of {base}, of the group with most rounds if "
            f"the data have several; without {base} it is the {worst} final {measure.name}."
        )
    title = mark_small(f"Rounds and bytes to a target {measure.name}", groups)
    return build_table("target", title, target_columns(measure), rows, note)


def cost_table(groups: list[Group]) -> Table:
    """Return the table of time and communication."""
    note = f"Bytes are summed over the parties of a round, mean over seeds. {STD_NOTE}"
    rows = compare_groups(groups, None)
    return build_table("cost", mark_small("Cost", groups), COST, rows, note)


def overview_table(groups: list[Group], target: float | None) -> Table:
    """Return everything on one line per group, for a terminal."""
    targets = target_scores(groups, target)
    measure = groups[0].measure
    shown = value_format(measure)
    texts = [f"{name} {with_unit(measure, shown(value))}" for name, value in targets.items()]
    note = f"\nTarget: {'; '.join(texts)}. {STD_NOTE}"
    rows = compare_groups(groups, target)
    return build_table(
        "overview",
        mark_small(f"Test {measure.name}", groups),
        overview_columns(measure),
        rows,
        note,
    )


def compare_groups(groups: list[Group], target: float | None) -> list[Row]:
    """Return a row for each group, with its baseline and target score."""
    targets = target_by_group(groups, target)
    comparisons = compare_with_baseline(groups)
    conclusions = {comparison.group.label: comparison.conclusion for comparison in comparisons}
    return [
        Row(
            group=group,
            baseline=baseline(group, groups),
            target=targets[group.label],
            conclusion=conclusions.get(group.label),
            baseline_name=baseline_name(groups),
        )
        for group in groups
    ]


def build_table(
    name: str, title: str, columns: tuple[ResultColumn, ...], rows: list[Row], note: str
) -> Table:
    """Return a table with the values of the columns, without empty optional columns."""
    base = rows[0].baseline_name
    table = Table(
        name=name,
        title=title,
        columns=tuple(
            Column(c.header.replace("{baseline}", base), c.format, optional=c.optional)
            for c in columns
        ),
        rows=[tuple(column.value(row) for column in columns) for row in rows],
        note=note,
    )
    return table.without_empty_columns()


def mark_small(title: str, groups: list[Group]) -> str:
    """Return the title with a mark if runs are at small scale, so that no table lacks it."""
    mark = small_scale_mark(groups)
    return f"{title} ({mark})" if mark else title
