"""Interrupt a run after a round, and extract the results that must be bit-identical."""

from collections.abc import Callable

from moonfl.runs.result import Result
from moonfl.runs.schema import RoundRecord


class StopError(Exception):
    """Raised by `stop_after`."""


def stop_after(round: int) -> Callable[[RoundRecord], None]:
    """Return a callback `watch` that raises StopError after a round."""

    def watch(record: RoundRecord) -> None:
        if record.round == round:
            raise StopError

    return watch


def results_of(result: Result) -> dict:
    """Return the models and the round records of a result, without times."""
    records = [without_times(record) for record in result.rounds]
    models = {name: dict(params) for name, params in result.models.items()}
    return {"models": models, "records": records}


def without_times(record: RoundRecord) -> dict:
    """Return a round record without its times and its records of parties, which contain times."""
    return {k: v for k, v in record.items() if "seconds" not in k and k != "parties"}
