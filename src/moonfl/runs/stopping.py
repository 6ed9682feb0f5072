"""When a run is finished, and which round is best: decided by the round records alone.

Over Flower sites a round may be evaluated without some of them. Its accuracy is then that of other
samples, often easier ones. Such a round is never preferred to one that more sites evaluated, and
rounds are compared over the sites that both have.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..measures import Measure, is_evaluated, measure_of
from .schema import PartySum, RoundRecord


class Evaluation(NamedTuple):
    """The value of a round on the test or the validation samples."""

    measure: Measure
    value: float
    sites: Mapping[str, PartySum] | None  # by party; None if samples are not evaluated at sites

    def lacks_sites_of(self, other: "Evaluation") -> bool:
        """Return True if the other evaluation covers all sites of this one, and more."""
        if self.sites is None or other.sites is None:
            return False
        return self.sites.keys() < other.sites.keys()

    def is_comparable(self, best: "Evaluation") -> bool:
        """Return True if this evaluation can improve on the best one, or fail to."""
        if self.sites is None or best.sites is None:
            return True
        return not self.lacks_sites_of(best) and bool(self.sites.keys() & best.sites.keys())

    def is_better(self, best: "Evaluation") -> bool:
        """Return True if more sites evaluated, or the value on the sites in common is better."""
        if best.lacks_sites_of(self):
            return True
        if not self.is_comparable(best):
            return False
        return self.measure.is_better(self.value_at(best.sites), best.value_at(self.sites))

    def value_at(self, sites: Mapping[str, PartySum] | None) -> float:
        """Return the value on the samples of those of these sites that evaluated."""
        if self.sites is None or sites is None or self.sites.keys() == sites.keys():
            return self.value
        return self.measure.from_sums([self.sites[i] for i in self.sites if i in sites])


def evaluated(records: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Return the records of the rounds after which models were evaluated (`evaluate_every`)."""
    return [record for record in records if is_evaluated(record)]


def evaluation_of(record: RoundRecord) -> Evaluation:
    """Return how a round was evaluated on the test samples."""
    measure = measure_of(record)
    return Evaluation(measure, measure.value(record), record.sites)


def validation_of(record: RoundRecord) -> Evaluation | None:
    """Return how a round was evaluated on the validation samples; None if it was not."""
    if not is_evaluated(record):
        return None
    measure = measure_of(record)
    value = measure.validation_value(record)
    return None if value is None else Evaluation(measure, value, record.validation_sites)


def best_round(records: Sequence[RoundRecord]) -> RoundRecord:
    """Return the first round that is best on the test samples, of those that were evaluated."""
    best, *others = evaluated(records)
    for record in others:
        if evaluation_of(record).is_better(evaluation_of(best)):
            best = record
    return best


def selected_round(records: Sequence[RoundRecord]) -> RoundRecord | None:
    """Return the first round that is best on the validation samples; None without validation.

    A further record either becomes the selected one or changes nothing: models are stored when
    their round is selected.
    """
    selected: RoundRecord | None = None
    best: Evaluation | None = None
    for record in records:
        evaluation = validation_of(record)
        if evaluation is not None and (best is None or evaluation.is_better(best)):
            selected, best = record, evaluation
    return selected


def is_finished(rounds: int, patience: int | None, records: Sequence[RoundRecord]) -> bool:
    """Return True if all rounds are done or `patience` rounds brought no improvement.

    A round that fewer sites evaluated than the best one does not count as one without improvement.
    Rounds between two evaluations count, but a run ends only with a round that was evaluated.
    """
    if len(records) >= rounds:
        return True
    if records and not is_evaluated(records[-1]):
        return False
    if patience is None:
        return False
    selected = selected_round(records)
    if selected is None:
        return False
    best = validation_of(selected)
    later = [validation_of(record) for record in records[selected.round :]]
    return sum(best is None or e is None or e.is_comparable(best) for e in later) >= patience


def absences(records: Sequence[RoundRecord]) -> dict[int, list[int]]:
    """Return the rounds that were evaluated without test samples of some parties, and these.

    Records of version 0.1.0 do not name them: these are the parties that evaluated other rounds.
    """
    everyone = {party for record in records for party in record.sites or {}}
    parties_by_round = {}
    for record in records:
        absent = set(record.absent or {})
        if record.sites is not None:
            absent |= everyone - record.sites.keys()
        if absent:
            parties_by_round[record.round] = sorted(map(int, absent))
    return parties_by_round
