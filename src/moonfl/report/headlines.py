"""What the runs show, in sentences: the headline of a report, and the verdicts of a comparison.

No sentence claims more than the verdicts of conclusions.py. Sentences start with a word of their
own, so that labels, which may contain the name of a user's class, are shown as written.
"""

from ..errors import first_names
from ..measures import Measure
from .comparisons import Comparison, compare_with_baseline
from .conclusions import Conclusion, Verdict
from .curves import seed_count
from .formats import (
    difference_format,
    difference_unit,
    interval_format,
    value_format,
    with_unit,
)
from .groups import Group, baseline_name, by_dataset
from .statistics import final_score
from .tables import Column

MAX_NAMED = 5  # comparisons that a headline names for each verdict
INTERVAL = "95 % interval {}"
STARTS = {  # of the sentence on all comparisons with a verdict and a baseline
    Verdict.BETTER: "Better than {}",
    Verdict.WORSE: "Worse than {}",
    Verdict.OPEN: "Not distinguishable from {}",
    Verdict.EQUAL: "Equal to {}",
    Verdict.NONE: "No verdict on",
}


def headlines(groups: list[Group]) -> list[str]:
    """Return a headline for each dataset: which methods are better or worse than the baseline."""
    comparisons = compare_with_baseline(groups)
    parts = by_dataset(groups)
    texts = []
    for part in parts:
        start = f"{part[0].dataset}: " if len(parts) > 1 else ""
        labels = [group.label for group in part]
        members = [comparison for comparison in comparisons if comparison.group.label in labels]
        text = describe_verdicts(members) or describe_highest(part, baseline_name(groups))
        texts.append(start + text)
    return texts


def describe_verdicts(comparisons: list[Comparison]) -> str:
    """Return one sentence for each verdict that occurs; empty if there are no comparisons."""
    brief = len(comparisons) > 1
    sentences = []
    for verdict, start in STARTS.items():
        named = [
            f"{comparison.group.label} ({describe_difference(comparison, brief)})"
            for comparison in comparisons
            if comparison.conclusion.verdict is verdict
        ]
        if named:
            start = start.format(comparisons[0].baseline_name)
            sentences.append(f"{start}: {first_names(named, MAX_NAMED)}.")
    return " ".join(sentences)


def describe_difference(comparison: Comparison, brief: bool) -> str:
    """Return the mean difference with its interval, and why there is no verdict.

    If it is `brief`, the number of seeds that would be needed is left to the table.
    """
    conclusion = comparison.conclusion
    measure = comparison.group.measure
    parts = []
    if conclusion.mean is not None and conclusion.verdict is not Verdict.EQUAL:
        difference = difference_format(measure)(conclusion.mean.mean)
        parts.append(f"{difference} {difference_unit(measure) or measure.name}")
    if conclusion.interval is not None:
        parts.append(
            INTERVAL.format(Column("", interval_format(measure)).text(conclusion.interval))
        )
    if conclusion.verdict is Verdict.OPEN and brief:
        parts.append(f"{len(conclusion.differences)} seeds")
    elif conclusion.detail:
        parts.append(conclusion.detail)
    return ", ".join(parts)


def describe_highest(groups: list[Group], baseline: str) -> str:
    """Return the sentence on a dataset without baseline: the highest mean, which is no verdict."""
    federated = [group for group in groups if group.federated] or groups
    measure = groups[0].measure
    sign = 1 if measure.higher_is_better else -1
    best = max(federated, key=lambda group: sign * final_score(group).mean)
    value = Column("", value_format(measure)).text(final_score(best))
    is_finished = all(group.finished for group in federated)
    start = f"Final {measure.name}" if is_finished else f"{measure.title} so far"
    result = f"{best.label}, {with_unit(measure, value)} over {seed_count(best)}"
    if len(federated) == 1:
        return f"{start}: {result}."
    return (
        f"{start}, {measure.superlative} mean of {len(federated)}: {result}. "
        f"Without runs of {baseline} there is no verdict."
    )


def verdict_lines(groups: list[Group]) -> list[str]:
    """Return the comparisons with the baseline, two lines each, for a terminal."""
    lines = []
    for comparison in compare_with_baseline(groups):
        conclusion = comparison.conclusion
        base = comparison.baseline.label if comparison.baseline else comparison.baseline_name
        lines.append(f"{comparison.group.label} compared with {base}: {conclusion.text}")
        if conclusion.mean is not None:
            lines.append(f"  {describe_seeds(conclusion, comparison.group.measure)}")
    return lines


def describe_seeds(conclusion: Conclusion, measure: Measure) -> str:
    """Return the mean difference, its interval, and the difference of each seed."""
    column = Column("", difference_format(measure))
    parts = [f"{column.text(conclusion.mean)} {difference_unit(measure) or measure.name}"]
    if conclusion.interval is not None:
        parts.append(
            INTERVAL.format(Column("", interval_format(measure)).text(conclusion.interval))
        )
    return f"{', '.join(parts)}; by seed {column.text(conclusion.differences)}"
