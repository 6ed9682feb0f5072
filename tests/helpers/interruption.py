"""Runs that stop after a given round, and what of their results must be repeated exactly."""

from moonfl.runs.recorder import Result


class StopError(Exception):
    pass


def stop_after(round: int):
    def watch(fact: dict) -> None:
        if fact["round"] == round:
            raise StopError

    return watch


def results_of(result: Result) -> dict:
    timeless = [
        {k: v for k, v in fact.items() if "seconds" not in k and k != "parties"}
        for fact in result.rounds
    ]
    return {"models": result.models, "facts": timeless}
