"""q-FedAvg: its aggregation compared with the formula of the paper, and the fair fixed point."""

from dataclasses import replace

import pytest
import torch

from helpers.problems import quadratics, train
from moonfl import tree
from moonfl.algorithms import QFedAvg
from moonfl.engines.embedded import Embedded
from moonfl.experiment import Experiment
from moonfl.federation import init_server
from moonfl.types import Server, Update

ONE_STEP = Experiment(
    parties=2, rounds=400, epochs=1, batch_size=8, lr=0.05, momentum=0.0, weight_decay=0.0
)


def update(party: int, w: float, samples: int, loss: float, smoothness: float) -> Update:
    def number(value: float) -> torch.Tensor:
        return torch.tensor([value], dtype=torch.float64)

    return Update(
        party=party,
        params={"w": number(w)},
        buffers={},
        num_samples=samples,
        num_steps=1,
        extra={"fairness": {"F": number(loss), "L": number(smoothness)}},
    )


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_the_formula(q: float) -> None:
    """Algorithm 2 of the paper, with parties weighted by their numbers of samples."""
    start = 1.0
    models = [3.0, -0.5]
    samples = [10, 30]
    losses = [2.0, 0.4]
    smoothness = 20.0
    numerator = 0.0
    denominator = 0.0
    for w, n, loss in zip(models, samples, losses, strict=True):
        d = smoothness * (start - w)
        h = q * loss ** (q - 1) * d**2 + smoothness * loss**q
        numerator += n / 40 * loss**q * d
        denominator += n / 40 * h
    updates = [update(i, models[i], samples[i], losses[i], smoothness) for i in range(2)]
    server = Server(params={"w": torch.tensor([start], dtype=torch.float64)})
    after = QFedAvg(q=q).combine(server, updates, 2, tree.mean)
    assert float(after.params["w"]) == pytest.approx(start - numerator / denominator)


@pytest.mark.parametrize("q", [0.5, 2.0])
@pytest.mark.parametrize("loss", [0.0, -1.0])
def test_a_loss_of_zero_or_below_is_no_error(q: float, loss: float) -> None:
    updates = [update(0, 1.0, 10, loss, 20.0), update(1, 2.0, 10, 0.5, 20.0)]
    server = Server(params={"w": torch.zeros(1, dtype=torch.float64)})
    after = QFedAvg(q=q).combine(server, updates, 2, tree.mean)
    assert bool(torch.isfinite(after.params["w"]).all())


def test_a_party_sends_the_loss_of_the_global_model() -> None:
    """The loss before training, over all samples: a/2 (0 - b)^2; L is (1 - momentum) / lr."""
    task = quadratics([2.0, 4.0], [3.0, 1.0], [8, 13])
    exp = replace(ONE_STEP, algorithm=QFedAvg(q=1.0), epochs=3, momentum=0.75)
    updates = Embedded(exp, task).train(init_server(exp, task), [0, 1], 0)
    sent = [u.extra["fairness"] for u in updates]
    assert [float(numbers["F"]) for numbers in sent] == pytest.approx([9.0, 2.0])
    assert [float(numbers["L"]) for numbers in sent] == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize("q", [1.0, 5.0])
def test_the_fixed_point_minimises_the_fair_objective(q: float) -> None:
    """With one step per round it is the minimum of sum F_i^(q+1).

    F_1 = w^2/2 and F_2 = 2 (w - 1)^2 give w/(1 - w) = (4 * 4^q)^(1/(2q + 1)). As q grows, w tends
    to 2/3, where both losses are equal.
    """
    task = quadratics([1.0, 4.0], [0.0, 1.0], [8, 8])
    ratio = (4 * 4**q) ** (1 / (2 * q + 1))
    w = float(train(replace(ONE_STEP, algorithm=QFedAvg(q=q)), task).params["w"])
    assert w == pytest.approx(ratio / (1 + ratio), abs=1e-3)
    assert abs(w - 0.8) > 0.05  # the optimum of the mean of the losses
