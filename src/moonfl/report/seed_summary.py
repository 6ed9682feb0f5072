"""The summary of an experiment with several seeds: mean, standard deviation and interval."""

from typing import Any

from ..measures import measure_of, value_of
from .conclusions import NO_VARIANCE, mean_interval
from .formats import value_format, with_unit
from .runs import Run
from .statistics import mean_std
from .tables import Column

ONE_SEED = (
    "One seed: there is no standard deviation. Whether another method is better, or this result "
    "typical, cannot be concluded; --seeds 3 or more is needed."
)


def seeds_summary(runs: list[Run], diverged: list[int]) -> dict[str, Any]:
    """Return the final accuracies of runs that differ in their seed, as plain values for JSON."""
    accuracies = [value_of(run.rounds[-1]) for run in runs]
    measure = measure_of(runs[0].rounds[-1])
    mean = mean_std(accuracies)
    assert mean is not None
    interval = mean_interval(accuracies)
    return {
        measure.key: mean.mean,
        "std_over_seeds": mean.std,
        "interval": None if interval is None else [interval.low, interval.high],
        "runs": [
            {"seed": run.seed, measure.key: accuracy, "directory": str(run.path)}
            for run, accuracy in zip(runs, accuracies, strict=True)
        ],
        "diverged": diverged,
    }


def summarise_seeds(runs: list[Run]) -> str:
    """Return a few lines about the final accuracies of runs that differ in their seed."""
    accuracies = tuple(value_of(run.rounds[-1]) for run in runs)
    measure = measure_of(runs[0].rounds[-1])
    column = Column("", value_format(measure))
    mean = with_unit(measure, column.text(mean_std(accuracies)))
    folder = runs[0].path.parent
    if len(runs) == 1:
        lines = [f"final {measure.name} {mean}, with seed {runs[0].seed}", ONE_SEED]
    else:
        interval = mean_interval(accuracies)
        ends = with_unit(measure, column.text(interval))
        if interval is None:
            ends = f"none; {NO_VARIANCE.format(measure.name)}"
        lines = [
            f"final {measure.name} {mean}: mean and standard deviation over {len(runs)} seeds; "
            f"by seed {column.text(accuracies)}",
            f"95 % interval of the mean, by Student's t: {ends}",
        ]
    return "\n".join([*lines, f"runs in {folder}; `moonfl compare {folder}` compares them"])
