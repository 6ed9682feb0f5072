"""Tables that a new task or metric needs an entry in, see docs/architecture.md."""

import typing

import moonfl
from helpers.problems import gaussians
from moonfl import Experiment
from moonfl.data import targets
from moonfl.exports.artifact import DECISIONS
from moonfl.flower.init import DATA_COMMENTS
from moonfl.measures import MEASURES
from moonfl.metrics import Score
from moonfl.objectives.table import OBJECTIVES
from moonfl.report import result_tables
from moonfl.runs import summary
from moonfl.runs.rounds import METRICS
from moonfl.runs.schema import MEASURE_KEYS, RoundRecord

KEYS = {measure.key for measure in MEASURES}


def test_every_task_is_in_all_tables() -> None:
    tasks = OBJECTIVES.keys()
    assert tasks == set(typing.get_args(typing.get_type_hints(Experiment)["task"]))
    assert tasks == {targets.CLASSIFICATION, targets.REGRESSION, targets.MULTILABEL}
    assert tasks == DECISIONS.keys()
    assert tasks == DATA_COMMENTS.keys()
    assert all(objective.name == task for task, objective in OBJECTIVES.items())


def test_every_measure_is_in_all_tables() -> None:
    assert {objective.measure.key for objective in OBJECTIVES.values()} == KEYS
    assert set(MEASURE_KEYS) == KEYS
    assert result_tables.FURTHER.keys() == KEYS


def test_every_metric_is_stored_and_described() -> None:
    numbers = {name for name, hint in Score.__annotations__.items() if hint == float | None}
    assert set(METRICS) == numbers
    assert set(METRICS) <= set(RoundRecord.__struct_fields__)
    assert summary.FURTHER.keys() == set(METRICS) - KEYS
    record = RoundRecord(round=1, **dict.fromkeys(METRICS, 0.5))
    blueprint = gaussians().blueprint()
    result = moonfl.Result(Experiment(), rounds=[record], models={}, blueprint=blueprint)
    assert set(METRICS) <= result.summary().keys()
