"""When a run is finished, and which round is selected: decided by the round records alone."""

from collections.abc import Sequence

from .schema import RoundRecord


def selected_round(records: Sequence[RoundRecord]) -> RoundRecord | None:
    """Return the first round with the highest validation accuracy; None without validation."""
    validated = [record for record in records if record.validation_accuracy is not None]
    return max(validated, key=lambda record: record.validation_accuracy or 0.0, default=None)


def is_finished(rounds: int, patience: int | None, records: Sequence[RoundRecord]) -> bool:
    """Return True if all rounds are done or `patience` rounds brought no improvement."""
    if len(records) >= rounds:
        return True
    best = selected_round(records)
    if patience is None or best is None:
        return False
    return len(records) - best.round >= patience
