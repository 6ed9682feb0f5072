"""The metrics of a round as trackers need them: numbers by name, and values by party.

Every numeric field of a round record is logged, so a new metric needs no change here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..measures import MEASURES
from ..runs.schema import PartyRecord, Record, RoundRecord

NOT_METRICS = ("round", "party")  # numbers that identify a record


@dataclass(frozen=True)
class RoundMetrics:
    """The metrics of one round."""

    values: dict[str, float]
    parties: dict[str, list[float]] = field(default_factory=dict)  # by metric, one per party


def round_metrics(record: RoundRecord) -> RoundMetrics:
    """Return the metrics of a round; those that it lacks are left out."""
    parties = party_values(record.parties or [])
    for measure in MEASURES:
        if record.get(measure.key) is None:
            continue
        by_model: Mapping[str, float] = record.get(measure.by_model) or {}
        if by_model:
            parties[measure.key] = list(by_model.values())
        for key, sums in (
            (measure.key, record.sites),
            (measure.validation, record.validation_sites),
            ("global_score", record.global_sites),
        ):
            if sums:
                parties[key] = [measure.from_sums([party]) for party in sums.values()]
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


def is_number(value: object) -> bool:
    """Return True for an integer or a float."""
    return isinstance(value, int | float) and not isinstance(value, bool)
