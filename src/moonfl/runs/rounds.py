"""The metrics of a round: from the scores of its models and the updates of its parties."""

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ..errors import DivergenceError, RunError
from ..measures import Measure, measure_of
from ..metrics import Score
from ..personal import LABEL
from ..types import GLOBAL, Update, party_model_name
from .schema import PartyRecord, RoundRecord

T = TypeVar("T")
WORST_SHARE = 0.1  # of the parties, for the accuracy of the worst ones
METRICS = (  # fields of a score and of a record
    "accuracy",
    "macro_f1",
    "balanced_accuracy",
    "rmse",
    "r2",
    "mean_average_precision",
)


def round_record(
    t: int, updates: list[Update], scores: dict[str, Score] | None, *, lr: float, seconds: float
) -> RoundRecord:
    """Return the record of round t; `lr` is the learning rate of the parties in this round.

    `scores` is None if models are not evaluated after this round.
    """
    return RoundRecord(
        round=t + 1,
        **({} if scores is None else evaluation_fields(t, scores)),
        bytes_down=sum_of("bytes_down", updates),
        bytes_up=sum_of("bytes_up", updates),
        cpu_seconds=sum_of("cpu_seconds", updates),
        seconds=seconds,
        lr=lr,
        parties=[party_record(update) for update in updates],
    )


def evaluation_fields(t: int, scores: Mapping[str, Score]) -> dict[str, Any]:
    """Return the fields of a round record that come from evaluation.

    With one model the metrics are its score. With several (SOLO) they are means, and of the measure
    also the standard deviation and every single value. The parties' own models have one score;
    their distribution over the parties is added, and that of the global model.
    """
    if not scores:
        raise RunError(
            "no party could train: each has a single sample, and the model has BatchNorm; "
            "use fewer parties, or a model without BatchNorm"
        )
    check_finite(t, scores.values())
    over_parties = party_statistics(scores)
    if LABEL in scores:
        scores = {LABEL: scores[LABEL]}
    values = list(scores.values())
    several = len(values) > 1
    first = values[0]
    measure = measure_of(first)
    by_model = {name: getattr(score, measure.key) for name, score in scores.items()}
    validations = [score.validation for score in values if score.validation is not None]
    validation = first.validation
    metrics: dict[str, Any] = {
        key: mean_or_none(getattr(score, key) for score in values) for key in METRICS
    }
    if several:
        metrics[measure.std] = statistics.pstdev(by_model.values())
        metrics[measure.by_model] = by_model
    metrics |= over_parties
    metrics[measure.validation] = mean_or_none(getattr(s, measure.key) for s in validations)
    return {
        **metrics,
        "sites": by_key(own_samples(scores) if several else first.sites),
        "absent": by_key(absence_reasons(values)),
        "loss": statistics.fmean(score.loss for score in values),
        "validation_loss": mean_or_none(score.loss for score in validations),
        "validation_sites": None if several or validation is None else by_key(validation.sites),
        "validation_absent": by_key(absence_reasons(validations)),
    }


def own_samples(scores: Mapping[str, Score]) -> dict[int, tuple[float, int]]:
    """Return the counts of each party's model (SOLO) on the samples that this party holds out."""
    sites = {}
    for name, score in scores.items():
        for party, counts in (score.sites or {}).items():
            if name == party_model_name(party):
                sites[party] = counts
    return sites


def party_statistics(scores: Mapping[str, Score]) -> dict[str, Any]:
    """Return the distribution over parties that have their own models.

    The fields that start with `global_` are of the global model on the same samples.
    """
    measure = measure_of(next(iter(scores.values())))
    if LABEL not in scores:
        sites = own_samples(scores) if len(scores) > 1 else None
        return distribution(measure, sites, measure.by_party)
    fields: dict[str, Any] = distribution(measure, scores[LABEL].sites, measure.by_party)
    if GLOBAL in scores:
        reference = scores[GLOBAL]
        fields["global_score"] = getattr(reference, measure.key)
        fields |= distribution(measure, reference.sites, "global_party_score")
        fields["global_sites"] = by_key(reference.sites)
    return fields


def distribution(
    measure: Measure, sites: Mapping[int, tuple[float, int]] | None, key: str
) -> dict[str, float]:
    """Return mean, standard deviation and worst 10 % of the measure over the parties."""
    if not sites:
        return {}
    values = sorted(
        (measure.from_sums([part]) for part in sites.values()),
        reverse=not measure.higher_is_better,
    )
    worst = values[: math.ceil(WORST_SHARE * len(values))]
    return {
        key: statistics.fmean(values),
        f"{key}_std": statistics.pstdev(values),
        f"{key}_worst": statistics.fmean(worst),
    }


def absence_reasons(scores: Iterable[Score]) -> dict[int, str]:
    """Return the parties whose samples are missing in any of the scores, and why."""
    return {i: reason for score in scores for i, reason in score.absent.items()}


def by_key(values: Mapping[int, T] | None) -> dict[str, T] | None:
    """Return values with the parties as JSON keys; None if there are none."""
    return {str(i): values[i] for i in sorted(values)} if values else None


def party_record(update: Update) -> PartyRecord:
    """Return the record of one party in a round."""
    metrics = update.metrics
    return PartyRecord(
        loss=metrics.get("loss"),
        drift=metrics.get("drift"),
        seconds=metrics.get("seconds"),
        cpu_seconds=metrics.get("cpu_seconds"),
        bytes_down=metrics.get("bytes_down"),
        bytes_up=metrics.get("bytes_up"),
        party=update.party,
        samples=update.num_samples,
        steps=update.num_steps,
        missing=update.missing or None,
    )


def check_finite(t: int, scores: Iterable[Score]) -> None:
    """Check that every loss is finite."""
    for score in scores:
        for part in (score, score.validation):
            if part is not None and not math.isfinite(part.loss):
                raise DivergenceError(
                    f"the loss of the aggregated model is not finite after round {t + 1}: training "
                    "has diverged; lower lr, the weight of the method's own term, or the learning "
                    "rate of the server optimizer"
                )


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if numbers else None


def sum_of(metric: str, updates: list[Update]) -> float:
    """Return the sum of a metric over the parties."""
    return sum(update.metrics.get(metric, 0) for update in updates)
