"""Train MOON or FedAvg on CIFAR-10 with plain PyTorch, to compare moonfl's speed with.

    python benchmarks/plain_loop.py --data-dir data [--method fedavg] [--augment] [--samples 5000]
    python benchmarks/plain_loop.py --data-dir data --party-size 50 --parties 100

One epoch at each of ten parties: a DataLoader with transforms per sample, nn.Conv2d, three forward
passes for MOON with the frozen ones under no_grad, torch on all cores. Only the reader and the
partition are moonfl's. With --party-size, all parties have so many samples, and --parties of them
take part in every round. Prints the seconds of the faster of two rounds after the first, when MOON
has negatives. Without the dataset it uses noise of the same shape.
"""

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from moonfl.bench import cifar10_or_noise
from moonfl.data.partition import PartitionRequest, dirichlet

BATCH = 64
MEAN = torch.tensor([125.3, 123.0, 113.9]).view(3, 1, 1) / 255
STD = torch.tensor([63.0, 62.1, 66.7]).view(3, 1, 1) / 255


class Images(Dataset[tuple[Tensor, int]]):
    """Images with a transform per sample."""

    def __init__(self, x: Tensor, y: Tensor, transform: Callable[[Tensor], Tensor]) -> None:
        self.x = x
        self.y = y.tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.transform(self.x[i]), self.y[i]


def normalize(image: Tensor) -> Tensor:
    """Normalize the pixels by mean and standard deviation."""
    return (image.float().div_(255) - MEAN) / STD


def augment(image: Tensor) -> Tensor:
    """Crop and flip the image at random, then normalize it."""
    padded = F.pad(image.float().div_(255)[None], (4, 4, 4, 4), mode="reflect")[0]
    top, left = random.randrange(9), random.randrange(9)
    cropped = padded[:, top : top + 32, left : left + 32]
    if random.random() < 0.5:
        cropped = cropped.flip(2)
    return (cropped - MEAN) / STD


class Net(nn.Module):
    """The paper's CNN for CIFAR-10 with its projection head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(84, 84), nn.ReLU(), nn.Linear(84, 256))
        self.output = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return z and the logits."""
        z = self.head(self.encoder(x))
        return z, self.output(z)


def train_party(
    state: dict[str, Tensor], previous: dict[str, Tensor] | None, loader: DataLoader, method: str
) -> Net:
    """Train one party for one epoch and return its model."""
    model = Net()
    glob = Net().eval()
    prev = Net().eval()
    model.load_state_dict(state)
    glob.load_state_dict(state)
    if previous is not None:
        prev.load_state_dict(previous)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
    for x, y in loader:
        sgd.zero_grad()
        z, logits = model(x)
        loss = F.cross_entropy(logits, y)
        if method == "moon" and previous is not None:
            with torch.no_grad():
                z_glob = glob(x)[0]
                z_prev = prev(x)[0]
            positive = F.cosine_similarity(z, z_glob)
            negative = F.cosine_similarity(z, z_prev)
            similarities = torch.stack([positive, negative], dim=1) / 0.5
            target = torch.zeros(len(y), dtype=torch.long)
            loss = loss + 5 * F.cross_entropy(similarities, target)
        loss.backward()
        sgd.step()
    return model


def make_parts(labels: Tensor, parties: int, party_size: int | None) -> list[Tensor]:
    """Return the rows of each party: skewed by label, or of equal size and in order."""
    if party_size is not None:
        return list(torch.arange(len(labels)).split(party_size))[:parties]
    parts = dirichlet(PartitionRequest(labels.numpy(), parties, beta=0.5)).parts
    return [torch.from_numpy(part) for part in parts]


def main() -> None:
    """Time three rounds and print the seconds of the faster one of the last two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--method", choices=["moon", "fedavg"], default="moon")
    parser.add_argument("--augment", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--parties", type=int, default=10)
    parser.add_argument("--party-size", type=int)
    args = parser.parse_args()
    data = cifar10_or_noise(Path(args.data_dir), args.samples)
    parts = make_parts(data.train.y, args.parties, args.party_size)
    transform = augment if args.augment else normalize
    loaders = []
    for rows in parts:
        images = Images(data.train.x[rows], data.train.y[rows], transform)
        has_full_batch = len(rows) >= BATCH
        loader = DataLoader(images, batch_size=BATCH, shuffle=True, drop_last=has_full_batch)
        loaders.append(loader)
    total = sum(map(len, parts))
    weights = [len(part) / total for part in parts]
    state = Net().state_dict()
    previous: list[dict[str, Tensor] | None] = [None] * len(parts)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        models = []
        for i, loader in enumerate(loaders):
            model = train_party(state, previous[i], loader, args.method)
            models.append(model.state_dict())
        previous = list(models)
        state = {k: sum(w * m[k] for w, m in zip(weights, models, strict=True)) for k in state}
        seconds.append(time.perf_counter() - start)
    print(min(seconds[1:]))


if __name__ == "__main__":
    main()
