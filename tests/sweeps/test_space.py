"""The words of `moonfl sweep`: which keys are swept, and over which values."""

import pytest

from moonfl.cli.experiments import select_experiment
from moonfl.errors import InputError
from moonfl.experiment import Experiment
from moonfl.sweeps.space import Range, Values, count_combinations, grid, read_space


def make(words: list[str]) -> Experiment:
    return select_experiment(words, trust=False)[1]


def test_commas_separate_values() -> None:
    words = ["digits-moon", "mu=0.1,1", "rounds=2", "algorithm=moon,fedprox"]
    common, axes = read_space(words)
    assert common == ["digits-moon", "rounds=2"]
    assert axes == [Values("mu", ("0.1", "1")), Values("algorithm", ("moon", "fedprox"))]
    settings = grid(common, axes, make)
    assert [setting.label for setting in settings] == [
        "mu=0.1 algorithm=moon",
        "mu=0.1 algorithm=fedprox",
        "mu=1 algorithm=moon",
        "mu=1 algorithm=fedprox",
    ]
    assert settings[1].experiment.algorithm.mu == 0.1


def test_a_comma_inside_a_value() -> None:
    r"""`\,` is a comma of the value; keys that take a list are not swept."""
    lists = ["classes=a,b,c", "ignore=x,y", "categorical=site,sex", "label=a,b"]
    words = [r"personal=head\.[0\,2].*,output", *lists]
    common, axes = read_space(words)
    assert axes == [Values("personal", (r"head\.[0,2].*", "output"))]
    assert common == lists


def test_ranges() -> None:
    common, axes = read_space(["lr=log:1e-3..0.1", "mu=0..5", "beta=0.1..1.5", "data_dir=a/../b"])
    assert axes == [
        Range("lr", "1e-3", "0.1", log=True),
        Range("mu", "0", "5"),
        Range("beta", "0.1", "1.5"),
    ]
    assert [axis.is_integer for axis in axes if isinstance(axis, Range)] == [False, True, False]
    assert common == ["data_dir=a/../b"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mu=0.1,1,5"], 3),
        (["mu=1,1", "batch_size=16..64", "algorithm=moon,fedprox"], 98),
        (["mu=1,5", "lr=0.01..1"], None),
    ],
)
def test_the_number_of_combinations(words: list[str], expected: int | None) -> None:
    assert count_combinations(read_space(words)[1]) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits-moon", "mu=1"], "a sweep needs a key with several values"),
        (["mu=1,,5"], "mu=1,,5 has an empty value"),
        (["mu=1,5", "mu=2,3"], "mu is set twice"),
        (["seed=0,1"], "seed cannot be swept; --seeds N"),
        (["lr=0.1..0.01"], "the first number must be smaller"),
        (["lr=log:0..1"], "must begin above 0"),
        (["lr=1.2.3..5"], "is not a range of numbers"),
        (["mu=1,1.0"], "mu=1 and mu=1.0 are the same experiment"),
        (["lr=0.01,ten"], "with lr=ten: lr must be a finite number > 0, got 'ten'"),
        (["lr=0.01..0.1"], "lr has a range; ranges need --trials N"),
        (["algorithm=moon,fedavg", "tau=0.5,1"], "with algorithm=fedavg tau=0.5: tau belongs to"),
    ],
)
def test_wrong_words(words: list[str], message: str) -> None:
    with pytest.raises(InputError) as error:
        grid(*read_space(words), make)
    assert message in str(error.value)
