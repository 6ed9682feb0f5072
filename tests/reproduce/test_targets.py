"""The targets have the paper's settings, and the options change them as documented."""

from dataclasses import replace
from pathlib import Path

import pytest

from moonfl.reproduce import targets
from moonfl.reproduce.options import Options, apply_options, distinct, seed_count
from moonfl.reproduce.targets import TARGETS


def test_settings_of_the_paper() -> None:
    l2 = TARGETS["loss"].entries("cifar10")[1]
    assert l2.row == "l2 norm"
    assert [exp.algorithm.mu for exp in l2.trials.values()] == [0.001, 0.01, 0.1, 1, 5, 10]
    scalability = TARGETS["scalability"].entries("cifar100")[:4]
    assert [entry.at_round for entry in scalability] == [100, 200, 250, 500]
    assert {entry.trials[""].parties_per_round() for entry in scalability} == {50, 20}
    slow = TARGETS["curves"].entries("cifar10")[-1]
    assert (slow.row, slow.trials[""].algorithm.mu) == ("FedProx, mu 1", 1)
    for entry in TARGETS["negatives"].entries("cifar10"):
        assert [exp.algorithm.mu for exp in entry.trials.values()] == [0.1, 1, 5, 10]
    fedavgm = TARGETS["fedavgm"].entries("cifar10")[-1]
    assert [exp.server.momentum for exp in fedavgm.trials.values()] == [0.1, 0.7, 0.9]
    solo = TARGETS["table1"].entries("cifar10")[-1].trials[""]
    assert (solo.rounds, solo.epochs) == (1, 300)
    assert all(not entry.trials[""].head for entry in TARGETS["head"].entries("cifar10")[:5])


def test_best_values_that_the_paper_names_without_a_number() -> None:
    best = []
    for name in ("temperature", "dimension"):
        for dataset in targets.DATASETS:
            best.append([e.row for e in TARGETS[name].entries(dataset) if e.best])
    assert best == [["tau 0.5"], ["tau 1"], ["tau 0.5"], ["128"], ["256"], ["128"]]


@pytest.mark.parametrize(
    ("method", "rounds", "epochs"),
    [("fedavg", 10, 5), ("solo", 1, 30), ("centralised", 30, 1)],
)
def test_small_scale(method: str, rounds: int, epochs: int) -> None:
    small = targets.shrink(targets.preset("cifar10", method))
    assert (small.dataset, small.scale, small.rounds, small.epochs) == (
        "digits",
        "small",
        rounds,
        epochs,
    )


def test_paper_number_of_a_round_that_is_not_run_is_left_out() -> None:
    options = Options(Path("nowhere"), rounds=100)
    entries = [apply_options(e, options) for e in TARGETS["scalability"].entries("cifar100")]
    papers = {e.column: e.paper for e in distinct(entries) if e.row == "FedAvg"}
    assert papers == {
        "50 parties, 100 rounds": "51.9",
        "100 parties, 20 per round, 100 rounds": "",
    }


def test_tsne_runs_one_seed() -> None:
    assert seed_count(TARGETS["tsne"], Options(Path("x"), seeds=3)) == 1
    assert seed_count(replace(TARGETS["tsne"], max_seeds=None), Options(Path("x"), seeds=3)) == 3
