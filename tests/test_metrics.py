"""Evaluation: the formulas of the metrics, selection of a round, and early stopping."""

import itertools
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score

import moonfl
from helpers.equality import same
from helpers.interruption import StopError, results_of, stop_after
from helpers.problems import AS_STORED, gaussians
from moonfl.data.base import Dataset, Examples
from moonfl.experiment import Experiment
from moonfl.objectives.classification import Classification, Tally
from moonfl.runs.rounds import round_record
from moonfl.runs.schema import RoundRecord
from moonfl.runs.stopping import is_finished, selected_round
from moonfl.runs.summary import summarise_result
from moonfl.runs.tensor_files import load
from moonfl.task import make_task

CLASSES = 4
CLASSIFICATION = Classification()
SAMPLES = st.lists(
    st.tuples(*(st.integers(0, CLASSES - 1),) * 2, st.integers(0, 2)), min_size=1, max_size=30
)


def tally_of(samples: list[tuple[int, int, int]]) -> Tally:
    """Return the tally of samples (class, predicted class, party) whose loss is the class."""
    y, predicted, party = torch.tensor(samples).T
    return CLASSIFICATION.tally(
        torch.nn.functional.one_hot(predicted, CLASSES), y, float(y.sum()), party
    )


@given(SAMPLES, st.lists(st.integers(0, 30), max_size=4))
def test_scores_equal_scikit_learn_for_any_chunks(samples: list, cuts: list[int]) -> None:
    edges = sorted({0, *(cut for cut in cuts if cut < len(samples)), len(samples)})
    chunks = [tally_of(samples[a:b]) for a, b in itertools.pairwise(edges)]
    assert CLASSIFICATION.total(chunks) == tally_of(samples)
    scores = CLASSIFICATION.score(CLASSIFICATION.total(chunks))
    y, predicted, party = np.array(samples).T
    with warnings.catch_warnings():  # about classes that are predicted and do not occur
        warnings.simplefilter("ignore")
        assert scores.macro_f1 == pytest.approx(f1_score(y, predicted, average="macro"))
        assert scores.balanced_accuracy == pytest.approx(balanced_accuracy_score(y, predicted))
    assert (scores.accuracy, scores.loss) == (np.mean(y == predicted), y.sum() / len(y))
    assert scores.sites == {
        int(i): (int((y == predicted)[party == i].sum()), int((party == i).sum()))
        for i in np.unique(party)
    }


def test_several_models_have_the_mean_of_each_score() -> None:
    one, other = (
        CLASSIFICATION.score(tally_of(samples), tally_of([(0, k, 0)]))
        for k, samples in enumerate(([(0, 0, 0)], [(1, 2, 0)]))
    )
    record = round_record(0, [], {"party0": one, "party1": other}, seconds=1.0, lr=0.1)
    for key in ("accuracy", "macro_f1", "balanced_accuracy", "validation_accuracy"):
        assert record[key] == 0.5
    assert record.sites == {"0": (1, 1)}  # each model on the samples of its own party


@pytest.mark.parametrize("has_test", [True, False])
def test_every_sample_is_in_exactly_one_set(has_test: bool) -> None:
    """Training, validation and test sets are disjoint and complete; owners are known."""
    rows = torch.arange(200.0).view(200, 1)
    data = Dataset(Examples(rows, torch.arange(200) % 3), None, ("a", "b", "c"), AS_STORED)
    if has_test:
        data = replace(data, test=Examples(rows[:30] + 1000, torch.zeros(30, dtype=torch.long)))
    task = make_task(Experiment(parties=5, model="mlp", validation=0.2, beta=5.0), data)
    assert task.validation is not None
    parts = [*task.parties, task.validation, *([] if has_test else [task.test])]
    samples = torch.cat([part.x for part in parts]).flatten().tolist()
    assert sorted(samples) == rows.flatten().tolist()
    before = make_task(Experiment(parties=5, model="mlp", beta=5.0), data)
    assert torch.equal(before.test.x, task.test.x)
    assert len(task.validation.y) == sum(round(0.2 * len(party.y)) for party in before.parties)
    assert has_test == (task.test_party is None)
    if task.test_party is not None:
        sizes = torch.bincount(task.test_party).tolist()
        assert sizes == [
            round(0.2 * (n + len(party.y))) for n, party in zip(sizes, before.parties, strict=True)
        ]


def records_of(*accuracies: float) -> list[RoundRecord]:
    """Return round records with these validation accuracies."""
    return [
        RoundRecord(round=t, accuracy=0.5, validation_accuracy=a)
        for t, a in enumerate(accuracies, 1)
    ]


@pytest.mark.parametrize(
    ("accuracies", "patience", "stops", "selected"),
    [
        ((0.5, 0.6, 0.7), 1, False, 3),
        ((0.5, 0.4), 1, True, 1),
        ((0.5, 0.5), 1, True, 1),  # an equal accuracy is no improvement
        ((0.5, 0.4), 2, False, 1),
        ((0.5, 0.4, 0.6, 0.6), 2, False, 3),
        ((0.5, 0.4, 0.6, 0.6, 0.1), 2, True, 3),
        ((0.5, 0.4, 0.3, 0.2, 0.1), None, False, 1),
        ((0.1,) * 9, None, True, 1),
    ],
)
def test_a_run_stops_after_rounds_without_improvement(
    accuracies: tuple, patience: int | None, stops: bool, selected: int
) -> None:
    records = records_of(*accuracies)
    assert is_finished(9, patience, records) == stops
    assert selected_round(records) is records[selected - 1]
    assert not is_finished(9, patience, [])


def test_without_validation_samples_no_round_is_selected(tmp_path: Path) -> None:
    records = [RoundRecord(round=t, accuracy=0.5) for t in range(1, 9)]
    assert selected_round(records) is None
    assert not is_finished(9, 1, records)
    result = moonfl.run(
        replace(EARLY, validation=None, patience=None, rounds=1), tmp_path / "run", workers=1
    )
    assert (result.chosen, result.chosen_models) == (None, None)
    assert not (tmp_path / "run" / "best.safetensors").exists()


def test_the_summary_of_a_result() -> None:
    first = RoundRecord(round=1, accuracy=0.5, validation_accuracy=0.3)
    last = {"round": 2, "accuracy": 0.8, "validation_accuracy": 0.2}
    scored = RoundRecord(**last, macro_f1=0.701, balanced_accuracy=0.6)
    result = moonfl.Result(
        experiment=replace(EARLY, rounds=2),
        rounds=[first, scored],
        models={},
        blueprint=gaussians().blueprint(),
        directory=Path("run"),
    )
    lines = [
        "accuracy 80.0 % after round 2 (best 80.0 % in round 2); results in run",
        "macro-F1 70.1 %, balanced accuracy 60.0 %",
        "round 1 has the best validation accuracy; its accuracy on the test set is 50.0 %",
    ]
    assert summarise_result(result).splitlines() == lines
    by_site = RoundRecord(**last, sites={"0": (3, 4), "1": (1, 4), "3": (4, 4)})
    result = replace(result, experiment=EARLY, rounds=[first, by_site])
    by_party = "on the held-out samples of 3 parties: lowest 25.0 % ({}), highest 100.0 % ({})"
    assert summarise_result(result).splitlines()[1:] == [
        by_party.format("party 1", "party 3"),
        f"{lines[2]}; stopped after round 2 because no later round was better",
    ]
    named = replace(result, names=("Bonn", "Lyon", "Oslo", "Pisa"))
    assert by_party.format("Lyon", "Pisa") in summarise_result(named)


EARLY = Experiment(
    parties=4, rounds=30, epochs=1, lr=0.1, validation=0.2, patience=2, sample_fraction=0.5
)
TASK = replace(gaussians(), classes=("a", "b", "c"), validation=gaussians((40,)).parties[0])


@pytest.fixture(scope="module")
def uninterrupted() -> moonfl.Result:
    """Return the result of an uninterrupted run of EARLY."""
    return moonfl.run(EARLY, workers=1, task=TASK)


def test_early_stopping_stores_the_model_of_the_selected_round(
    uninterrupted: moonfl.Result, tmp_path: Path
) -> None:
    accuracies = [record.validation_accuracy for record in uninterrupted.rounds]
    best = accuracies.index(max(accuracies)) + 1
    assert 1 < best == len(uninterrupted.rounds) - 2 < 28, (
        "the run must stop after some of the rounds"
    )
    assert uninterrupted.chosen == uninterrupted.rounds[best - 1]
    alone = moonfl.run(replace(EARLY, rounds=best), workers=1, task=TASK)
    assert uninterrupted.chosen_models is not None
    assert same(uninterrupted.chosen_models, alone.models)
    assert not same(uninterrupted.chosen_models, uninterrupted.models)


@pytest.mark.parametrize(
    ("interrupted", "previous"),
    [(2, False), (-3, False), (-2, False), (-1, True), (0, False), (0, True)],
)
def test_a_resumed_run_stops_at_the_same_round(
    interrupted: int, previous: bool, uninterrupted: moonfl.Result, tmp_path: Path
) -> None:
    """Resume a run that was interrupted after round 2 or after one of its last four rounds.

    0 is the last round, -1 the one before. The best model of a repeated round is not used.
    """
    out = tmp_path / "run"
    last = len(uninterrupted.rounds)
    rounds = interrupted if interrupted > 0 else last + interrupted
    with pytest.raises(StopError):
        moonfl.run(EARLY, out, workers=1, task=TASK, watch=stop_after(rounds))
    if rounds < last or previous:
        (out / "best.safetensors").write_bytes(b"of a repeated round")
    resumed = moonfl.resume(out, previous=previous, workers=1, task=TASK)
    assert same(results_of(resumed), results_of(uninterrupted))
    assert same(resumed.chosen_models, uninterrupted.chosen_models)
    assert same(load(out / "best.safetensors"), uninterrupted.chosen_models)
    assert json.loads((out / "final.json").read_text())["confusion"]


def test_resume_of_a_run_that_stopped_early_does_not_write(
    uninterrupted: moonfl.Result, tmp_path: Path
) -> None:
    moonfl.run(EARLY, tmp_path / "run", workers=1, task=TASK)
    before = contents(tmp_path / "run")
    result = moonfl.resume(
        tmp_path / "run",
        task=TASK,
        engine=None,
        workers=1,
        watch=lambda record: pytest.fail("a round was run"),
    )
    assert same(results_of(result), results_of(uninterrupted))
    assert same(result.chosen_models, uninterrupted.chosen_models)
    assert contents(tmp_path / "run") == before


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the content of every file in a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
