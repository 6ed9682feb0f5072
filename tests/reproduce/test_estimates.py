"""`moonfl reproduce --list`: the targets and estimates of their time."""

from dataclasses import replace

import pytest

from moonfl.algorithms import MOON
from moonfl.cli import main
from moonfl.reproduce import estimates, targets
from moonfl.reproduce.targets import TARGETS


def test_list_names_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", "--scale", "small", "--seeds", "3"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name} " in out for name in TARGETS)
    assert "estimate" in out
    (tsne,) = (line for line in out.splitlines() if line.startswith("tsne "))
    assert tsne.split()[1] == "3", "three networks with one seed each"


@pytest.mark.parametrize(
    ("negatives", "share", "rounds", "models"),
    [
        (1, 1.0, 100, 0.99 * 2),
        (100, 1.0, 100, 49.5 + 0.99),
        (5, 1.0, 100, (0 + 1 + 2 + 3 + 4 + 5 * 95) / 100 + 0.99),
    ],
)
def test_estimate_counts_the_negatives_that_parties_have(
    negatives: int, share: float, rounds: int, models: float
) -> None:
    moon = MOON(negatives=negatives)
    exp = replace(targets.preset("cifar10", "moon"), algorithm=moon, rounds=rounds)
    assert estimates.frozen_models(exp, share) == pytest.approx(models)
    assert estimates.frozen_models(replace(exp, algorithm=MOON(contrast="l2")), share) == 1
    assert estimates.frozen_models(targets.preset("cifar10", "fedavg"), share) == 0
    cost = {("cifar10", "simple-cnn"): estimates.Cost(step=2e-6, frozen=1e-6)}
    assert estimates.estimate(exp, cost) == pytest.approx((2 + models) * 0.05 * 10 * rounds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "1 s"), (119, "119 s"), (120, "2 min"), (1e5, "28 h"), (2e5, "2 days")],
)
def test_duration(seconds: float, text: str) -> None:
    assert estimates.duration(seconds) == text
