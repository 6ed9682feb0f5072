"""Task: the model builder, the parties' data, the test set, and how a model is judged."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import seeds, tree
from .data import directory, load
from .data.augment import Preparation
from .data.base import Dataset, Examples
from .data.partition import Partition, by_column, dirichlet, iid
from .errors import InputError, unknown
from .experiment import Experiment
from .models import build_model
from .models.base import has_batch_norm, laid_out
from .types import Batch, Params

EVALUATION_BATCH = 500


class Score(NamedTuple):
    accuracy: float
    loss: float
    sites: dict[int, tuple[int, int]] | None = None  # where parties judged it on their own data: right, of how many


@dataclass(frozen=True)
class Task:
    build: Callable[[], nn.Module]  # a model with weights of no importance
    parties: Sequence[Examples] | dict[int, Examples]  # each party's own data; a site has one party's alone
    test: Examples
    preparation: Preparation
    batch_norm: bool  # whether the model has BatchNorm, which a batch of one sample must not meet
    classes: tuple[str, ...] = ()
    partition_note: str = ""

    def init_model(self, seed: int) -> tuple[Params, Params]:
        """w^0 and its buffers: the same for every algorithm."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds.number(seed, "weights"))
            model = self.build()
        return tree.copy(tree.params_of(model)), tree.copy(tree.buffers_of(model))

    def supervised(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(logits, batch.y)

    def num_chunks(self) -> int:
        """The test set is evaluated in chunks, which several processes may share."""
        return -(-len(self.test.y) // EVALUATION_BATCH)

    @torch.no_grad()
    def evaluate_chunks(self, model: nn.Module, chunks: range) -> list[tuple[int, float]]:
        """For each chunk of the test set: how many are right, and the sum of their losses."""
        model.eval()
        found = []
        for k in chunks:
            end = min(EVALUATION_BATCH * (k + 1), len(self.test.y))
            rows = torch.arange(EVALUATION_BATCH * k, end, device=self.test.y.device)
            batch = Batch(self.preparation.batch(self.test.x, rows), self.test.y[rows], rows)
            logits = model(batch.x).logits
            found.append(
                (int((logits.argmax(dim=1) == batch.y).sum()), float(self.supervised(logits, batch)) * len(rows))
            )
        return found

    def dealt(self) -> dict[str, Any]:
        """Who has which samples, and a hash that tells whether the data are still the same."""
        parties = [self.parties[i] for i in range(len(self.parties))]
        counts = [self.counts(party) for party in parties]
        return {"classes": list(self.classes), "counts": counts, "sha256": hash_of(*parties, self.test)}

    def counts(self, examples: Examples) -> list[int]:
        """Samples of each class."""
        counts: list[int] = np.bincount(examples.y.cpu().numpy(), minlength=len(self.classes)).tolist()
        return counts

    def score(self, chunks: list[tuple[int, float]]) -> Score:
        """Accuracy and loss from all chunks, summed in their order."""
        right, loss = (sum(column) for column in zip(*chunks, strict=True))
        return Score(right / len(self.test.y), loss / len(self.test.y))


def hash_of(*parts: Examples) -> str:
    hashed = hashlib.sha256()
    for tensor in (tensor for examples in parts for tensor in examples):
        hashed.update(tensor.cpu().contiguous().numpy().data)
    return hashed.hexdigest()


def make_partition(exp: Experiment, data: Dataset) -> Partition:
    labels = data.train.y.cpu().numpy()
    if exp.partition == "iid":
        return iid(len(labels), exp.parties, exp.partition_seed)
    if exp.column is not None:
        if exp.column not in data.columns:
            raise unknown(f"column of {exp.dataset}", exp.column, data.columns)
        return by_column(data.columns[exp.column], exp.parties, exp.column)
    return dirichlet(labels, exp.parties, exp.beta, exp.partition_seed, exp.min_samples)


def make_task(exp: Experiment, data: Dataset | None = None) -> Task:
    """Read the data (unless given), deal it out, and get the model ready."""
    data = data or load(exp.dataset, directory(exp.data_dir))
    partition = make_partition(exp, data)
    train, test = (Examples(x.to(exp.device), y.to(exp.device)) for x, y in (data.train, data.test))
    build, batch_norm = make_builder(exp, tuple(train.x.shape[1:]), len(data.classes))
    parts = [torch.from_numpy(part).to(exp.device) for part in partition.parts]
    parties = [Examples(train.x[part], train.y[part]) for part in parts]
    return Task(build, parties, test, data.preparation, batch_norm, data.classes, partition.note)


def make_builder(exp: Experiment, shape: tuple[int, ...], classes: int) -> tuple[Callable[[], nn.Module], bool]:
    """What makes the model for samples of this shape, and whether it has BatchNorm."""

    def build() -> nn.Module:
        model = build_model(str(exp.model), shape, classes, exp.head, exp.out_dim)
        return laid_out(model.to(exp.device), torch.channels_last)

    batch_norm = has_batch_norm(build())
    if batch_norm and exp.batch_size == 1:
        raise InputError(f"batch_size=1 cannot train model={exp.model}: its BatchNorm needs at least 2 samples")
    return build, batch_norm
