"""The result of a run, and functions that watch its rounds."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..errors import InputError
from ..experiment import Experiment, to_dict
from ..measures import Measure, measure_of
from ..personal import SHARED
from ..trained_model import Blueprint, TrainedModel
from ..types import GLOBAL, Params
from .html import result_html
from .rounds import METRICS
from .schema import RoundRecord
from .stopping import best_round, selected_round

GLOBAL_FIELDS = (  # of a round record, about the global model next to those of the parties
    "global_score",
    "global_party_score",
    "global_party_score_std",
    "global_party_score_worst",
)
Watch = Callable[[RoundRecord], None]


def ignore(record: RoundRecord) -> None:
    """Do nothing with a round."""


@dataclass(frozen=True)
class Result:
    """The result of a run. `score` is that of the last round; `best` is the best round."""

    experiment: Experiment
    rounds: list[RoundRecord]
    # "global": w^T with its buffers; one per party under SOLO, with personal tensors, and in
    # addition to the global one for methods that train one for each party; models that do not fit
    # into memory are read from the run directory at each access
    models: dict[str, Params]
    blueprint: Blueprint  # turns them into modules
    directory: Path | None = None
    chosen_models: dict[str, Params] | None = None  # of the round that is best on validation data
    names: tuple[str, ...] = ()  # of the parties, if they have any

    @property
    def model(self) -> TrainedModel:
        """Return the trained model in eval mode; it takes samples as they are stored."""
        if SHARED in self.models:
            raise InputError(
                f"the sites keep a part of the model (personal={self.experiment.personal}), so "
                "there is no complete model here; result.models['shared'] is what they share"
            )
        if GLOBAL not in self.models:
            raise InputError(
                f"every party has its own model ({', '.join(self.models)}); "
                "result.blueprint.deployed(result.models[NAME]) is the module of one"
            )
        return self.blueprint.deployed(self.models[GLOBAL])

    @property
    def measure(self) -> Measure:
        """Return the metric by which rounds are compared: accuracy, RMSE or mAP."""
        return measure_of(self.rounds[-1])

    @property
    def score(self) -> float:
        """Return the measure on the test set after the last round."""
        return self.measure.value(self.rounds[-1])

    @property
    def accuracy(self) -> float:
        """Return the test accuracy after the last round; other tasks have a `score`."""
        accuracy = self.rounds[-1].accuracy
        if accuracy is None:
            raise InputError(f"this run has no accuracy; result.score is its {self.measure.name}")
        return accuracy

    @property
    def best(self) -> RoundRecord:
        """Return the first round that is best on the test set.

        A round that was evaluated without some sites is not the best if others have more sites.
        """
        return best_round(self.rounds)

    @property
    def chosen(self) -> RoundRecord | None:
        """Return the first round that is best on validation data, if rounds are validated."""
        return selected_round(self.rounds)

    def __repr__(self) -> str:
        """Return the method, the score and the directory, on one line."""
        last, measure = self.rounds[-1], self.measure
        score = f"{measure.name} {measure.text(self.score)} after round {last.round}"
        stored = "" if self.directory is None else f", stored in {self.directory}"
        return f"<Result of {self.experiment.algorithm.label}: {score}{stored}>"

    def _repr_html_(self) -> str:
        """Return a small table and the curve of the run, which notebooks show."""
        return result_html(self.experiment, self.rounds, self.directory)

    def summary(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        last = self.rounds[-1]
        measure = self.measure
        values: dict[str, Any] = {measure.key: self.score}
        party = measure.by_party
        over_parties = (measure.std, party, f"{party}_std", f"{party}_worst")
        others = (*GLOBAL_FIELDS, *METRICS, "sites", "absent")
        for key in (*over_parties, *others):
            if key in last:
                values[key] = last[key]
        values |= {f"best_{measure.key}": measure.value(self.best), "best_round": self.best.round}
        if self.chosen is not None:
            values[f"chosen_{measure.key}"] = measure.value(self.chosen)
            values["chosen_round"] = self.chosen.round
        if self.directory is not None:
            values["directory"] = str(self.directory)
        values["settings"] = to_dict(self.experiment)
        values["rounds"] = msgspec.to_builtins(self.rounds)
        return values
