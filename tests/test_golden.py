"""Golden test losses: five rounds on digits for every method.

`python tests/test_golden.py` writes golden.json; explain in the commit why it changed. CPUs
with other instructions round differently, and training amplifies the difference, hence the
tolerance. Perturbing the initial weights by one rounding stays below half of it, and any two
methods differ by at least five times the tolerance.
"""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moonfl import run
from moonfl.algorithms import (
    MOON,
    Ditto,
    FedAvg,
    FedDecorr,
    FedDyn,
    FedExP,
    FedLC,
    FedNova,
    FedNTD,
    FedProx,
    FedRep,
    FedRS,
    FedSAM,
    PerFedAvg,
    QFedAvg,
    Scaffold,
    Solo,
)
from moonfl.experiment import Experiment
from moonfl.optimizers import Adam as LocalAdam
from moonfl.optimizers import AdamW, Cosine, Step
from moonfl.server_optimizers import Adagrad, Adam, Momentum, Yogi
from moonfl.task import Task
from moonfl.types import Params

FILE = Path(__file__).with_name("golden.json")
TOLERANCE = 0.001  # relative
BASE = Experiment(parties=5, rounds=5, epochs=2, batch_size=32, lr=0.03, algorithm=FedAvg())
RUNS = {
    "fedavg": BASE,
    "fedprox": replace(BASE, algorithm=FedProx(mu=0.3)),
    "scaffold": replace(BASE, algorithm=Scaffold()),
    "moon": replace(BASE, algorithm=MOON(mu=1)),
    "moon, two negatives": replace(BASE, algorithm=MOON(mu=1, negatives=2)),
    "moon, l2": replace(BASE, algorithm=MOON(mu=0.1, contrast="l2")),
    "solo": replace(BASE, algorithm=Solo(), rounds=1),
    "fednova": replace(BASE, algorithm=FedNova()),
    "feddyn": replace(BASE, algorithm=FedDyn()),
    "centralised": replace(BASE, parties=1, epochs=1),
    "fedavgm": replace(BASE, server=Momentum(momentum=0.5)),
    "fedavgm, plain": replace(BASE, server=Momentum(momentum=0.5, damped=False)),
    "moon with fedavgm": replace(BASE, algorithm=MOON(mu=1), server=Momentum(momentum=0.3)),
    "fedadam": replace(BASE, server=Adam(lr=0.05, beta2=0.5)),
    "fedyogi": replace(BASE, server=Yogi(lr=0.05, beta2=0.5)),
    "feddecorr": replace(BASE, algorithm=FedDecorr(weight=1)),
    "fedntd": replace(BASE, algorithm=FedNTD(weight=3)),
    "fedlc": replace(BASE, algorithm=FedLC()),
    "fedrs": replace(BASE, algorithm=FedRS(alpha=0)),
    "fedsam": replace(BASE, algorithm=FedSAM(rho=0.2)),
    "fedexp": replace(BASE, algorithm=FedExP()),
    "fedadagrad": replace(BASE, server=Adagrad(lr=0.03, beta1=0.5, tau=0.01)),
    "qfedavg": replace(BASE, algorithm=QFedAvg(q=0.5)),
    "ditto": replace(BASE, algorithm=Ditto(lam=1)),
    "fedrep": replace(BASE, algorithm=FedRep(head_epochs=3), personal="output"),
    "perfedavg": replace(BASE, algorithm=PerFedAvg(alpha=0.1), finetune=1),
    "finetune": replace(BASE, finetune=2),
    "adam, cosine": replace(BASE, optimizer=LocalAdam(), lr=0.002, schedule=Cosine(final=0.1)),
    "adamw, clipped": replace(
        BASE, optimizer=AdamW(eps=0.001), lr=0.005, weight_decay=1, grad_clip=1
    ),
    "nesterov, warmup": replace(BASE, nesterov=True, schedule=Step(every=2), warmup=2),
    "half the parties": replace(BASE, sample_fraction=0.4),
    "no head": replace(BASE, head=False),
}


def losses(name: str) -> list[float]:
    """Return the rounded test loss of each round."""
    return [round(record["loss"], 5) for record in run(RUNS[name], workers=1).rounds]


@pytest.mark.parametrize("name", RUNS)
def test_golden(name: str) -> None:
    assert losses(name) == pytest.approx(json.loads(FILE.read_text())[name], rel=TOLERANCE)


@pytest.mark.parametrize("name", RUNS)
def test_a_rounding_of_the_initial_weights_stays_below_the_tolerance(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    init_model = Task.init_model
    rng = torch.Generator().manual_seed(1)

    def perturbed(task: Task, seed: int) -> tuple[Params, Params]:
        params, buffers = init_model(task, seed)
        noise = {k: 1 + 6e-8 * torch.randn(v.shape, generator=rng) for k, v in params.items()}
        return {k: v * noise[k] for k, v in params.items()}, buffers

    monkeypatch.setattr(Task, "init_model", perturbed)
    assert losses(name) == pytest.approx(json.loads(FILE.read_text())[name], rel=TOLERANCE / 2)


def test_methods_differ_by_more_than_the_tolerance() -> None:
    for (a, first), (b, second) in itertools.combinations(json.loads(FILE.read_text()).items(), 2):
        gaps = [abs(x - y) / max(x, y) for x, y in zip(first, second, strict=False)]
        assert max(gaps) > 5 * TOLERANCE, (a, b)


if __name__ == "__main__":
    lines = [f"  {json.dumps(name)}: {json.dumps(losses(name))}" for name in RUNS]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
