"""Time FedAvg in pfl-research on moonfl's workload of many small parties (benchmarks/peers.md).

    pip install pfl
    python benchmarks/pfl_research.py --data-dir data
    torchrun --nproc-per-node 2 benchmarks/pfl_research.py --data-dir data

1,000 parties with 50 images of CIFAR-10 each, 100 parties per round, one epoch, batches of 64, the
paper's CNN, no augmentation and no evaluation. Prints the median seconds of a round.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from plain_loop import MEAN, STD, Net
from torch import Tensor

from moonfl.bench import cifar10_or_noise

ROUNDS = 12
SAMPLES = 50  # of a party


class Network(Net):
    """The paper's CNN with the interface of pfl-research."""

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        """Return the supervised loss of a batch."""
        self.train(not eval)
        return F.cross_entropy(self(x)[1], y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, object]:
        """Return no metrics."""
        return {}


class Clock(TrainingProcessCallback):
    """Stores when each round ends."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_central_iteration(self, *args: object, **kwargs: object) -> tuple[bool, Metrics]:
        """Store the time and continue."""
        self.times.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    """Train and print the median seconds of a round after the first two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default="data")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = cifar10_or_noise(Path(args.data_dir), 50_000)
    x = (data.train.x.float().div_(255) - MEAN) / STD
    y = data.train.y
    parties = len(y) // SAMPLES

    def party(number: int) -> Dataset:
        rows = slice(SAMPLES * number, SAMPLES * (number + 1))
        return Dataset([x[rows], y[rows]], eval_kwargs={"eval": True})

    sampler = get_user_sampler("random", list(range(parties)))
    training_data = FederatedDataset(party, sampler)
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    model = PyTorchModel(network, local_optimizer_create=local_sgd, central_optimizer=optimizer)
    clock = Clock()
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data, training_data),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=10 * ROUNDS,
            train_cohort_size=100,
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=0.01, local_batch_size=64
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=500),
        callbacks=[clock],
    )
    seconds = [b - a for a, b in zip(clock.times[1:], clock.times[2:], strict=False)]
    if os.environ.get("RANK", "0") == "0":
        print(f"{statistics.median(seconds):.3f} s per round, best {min(seconds):.3f}")


def local_sgd(params: object, lr: float) -> torch.optim.Optimizer:
    """Return the local optimizer of the paper."""
    return torch.optim.SGD(params, lr=lr, momentum=0.9, weight_decay=1e-5)


if __name__ == "__main__":
    main()
