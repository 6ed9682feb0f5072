"""When a run is at its end, and which of its rounds is chosen: by its facts alone, so that all readers agree."""

from collections.abc import Sequence
from typing import Any


def chosen(facts: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The first round with the highest accuracy on the validation samples; None where there are none."""
    judged = [fact for fact in facts if "validation_accuracy" in fact]
    return max(judged, key=lambda fact: float(fact["validation_accuracy"]), default=None)


def finished(rounds: int, patience: int | None, facts: Sequence[dict[str, Any]]) -> bool:
    """All rounds are done, or the last `patience` of them were not better than the one chosen before."""
    best = chosen(facts)
    in_vain = 0 if best is None else len(facts) - int(best["round"])
    return len(facts) >= rounds or (patience is not None and in_vain >= patience)
