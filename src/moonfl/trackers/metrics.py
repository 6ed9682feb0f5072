"""The metrics of a round as trackers need them: numbers by name, and values by party.

Every numeric field of a round record is logged, so a new metric needs no change here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..runs.schema import PartyRecord, Record, RoundRecord

NOT_METRICS = ("round", "party")  # numbers that identify a record
ACCURACIES = ("accuracies", "sites", "validation_sites")  # fields with one score per party


@dataclass(frozen=True)
class RoundMetrics:
    """The metrics of one round."""

    values: dict[str, float]
    parties: dict[str, list[float]] = field(default_factory=dict)  # by metric, one per party


def round_metrics(record: RoundRecord) -> RoundMetrics:
    """Return the metrics of a round; those that it lacks are left out."""
    parties = party_values(record.parties or [])
    for key in ACCURACIES:
        scores = shares(record.get(key) or {})
        if scores:
            parties[score_name(key)] = scores
    return RoundMetrics(numbers(record), parties)


def numbers(record: Record) -> dict[str, float]:
    """Return the numeric fields of a record."""
    return {
        key: value for key, value in record.items() if is_number(value) and key not in NOT_METRICS
    }


def party_values(parties: list[PartyRecord]) -> dict[str, list[float]]:
    """Return the values of each metric over the parties that have it."""
    values: dict[str, list[float]] = {}
    for party in parties:
        for key, value in numbers(party).items():
            values.setdefault(key, []).append(value)
    return values


def score_name(key: str) -> str:
    """Return the name of the scores in a field of a round record."""
    return "validation_accuracy" if key.startswith("validation") else "accuracy"


def shares(scores: Mapping[str, object]) -> list[float]:
    """Return one accuracy per party, from accuracies or from (correct, number of samples)."""
    values = []
    for score in scores.values():
        if isinstance(score, tuple | list) and len(score) == 2:
            values.append(score[0] / score[1])
        elif isinstance(score, int | float):
            values.append(float(score))
    return values


def is_number(value: object) -> bool:
    """Return True for an integer or a float."""
    return isinstance(value, int | float) and not isinstance(value, bool)
