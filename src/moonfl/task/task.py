"""Task: the data of the parties, the held-out samples, the model, and how a model is evaluated."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import seeds, tree
from ..data.augment import Preparation
from ..data.base import Examples
from ..data.images import Images
from ..errors import notify
from ..experiment import Experiment
from ..metrics import Counts, Score
from ..models.base import INPUT_STATISTICS
from ..objectives import Classification, Objective
from ..personal import LABEL
from ..runs.schema import EncodingRecord, PartitionRecord
from ..trained_model import SAMPLES, Blueprint
from ..types import Batch, Params, State
from .federated_data import hash_examples
from .network import in_float32

EVALUATION_BATCH = 500
CLASSIFICATION = Classification()
Chunk = tuple[str, Tensor]  # a held-out set, and some of its rows


@dataclass(frozen=True)
class Task:
    """What an engine needs to train and evaluate: parties, held-out samples and the model."""

    build: Callable[[], nn.Module]  # returns a model with arbitrary weights
    parties: Sequence[Examples] | Mapping[int, Examples]  # training samples; a site has one party
    test: Examples
    preparation: Preparation
    batch_norm: bool  # whether the model has BatchNorm, which cannot train on a single sample
    classes: tuple[str, ...] = ()
    partition_note: str = ""
    names: tuple[str, ...] = ()  # of the parties, if they have any
    test_party: Tensor | None = None  # owner of each test sample, if parties hold them
    validation: Examples | None = None  # held out to select a round
    scales: tuple[Tensor, Tensor] | None = None  # federation-wide mean and std, if standardised
    features: tuple[str, ...] = ()  # column names of a table, in their order in x
    validation_party: Tensor | None = None  # owner of each validation sample
    personal: tuple[str, ...] = ()  # names of the tensors that stay at the parties
    objective: Objective[Any] = CLASSIFICATION  # loss, counts and scores
    experiment: Experiment | None = None  # that the task was built for; None: a custom task

    def init_model(self, seed: int) -> tuple[Params, Params]:
        """Return the initial weights w^0 and buffers: the same for every algorithm."""
        with seeds.seeded(seed, "weights"):
            model = self.build()
        buffers = dict(tree.copy(tree.buffers_of(model)))
        if self.scales is not None:
            for name, values in zip(INPUT_STATISTICS, self.scales, strict=True):
                buffers[name] = values.to(buffers[name])
        for name, values in self.objective.statistics.items():
            buffers[name] = values.to(buffers[name])
        return tree.copy(tree.params_of(model)), buffers

    def init_shared(self, seed: int) -> tuple[Params, Params]:
        """Return the initial weights and buffers without those that stay at the parties."""
        params, buffers = self.init_model(seed)
        shared_params = {name: params[name] for name in params if name not in self.personal}
        shared_buffers = {name: buffers[name] for name in buffers if name not in self.personal}
        return shared_params, shared_buffers

    def personal_part(self, state: State | None, seed: int) -> Params:
        """Return the personal tensors in a party's state; before its first round, those of w^0."""
        if not self.personal:
            return {}
        if state is not None:
            return state[LABEL]
        if seed not in self._initial_personal:
            params, buffers = self.init_model(seed)
            tensors = {**params, **buffers}
            self._initial_personal[seed] = tree.copy({k: tensors[k] for k in self.personal})
        return self._initial_personal[seed]

    @functools.cached_property
    def _initial_personal(self) -> dict[int, Params]:
        """Return the initial personal tensors that were computed so far, by seed."""
        return {}

    def supervised(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the supervised loss."""
        return self.objective.supervised(logits, batch.y)

    @property
    def held_out(self) -> dict[str, Examples]:
        """Return the sets that models are evaluated on, by name."""
        if self.validation is None:
            return {"test": self.test}
        return {"test": self.test, "validation": self.validation}

    def chunks(self, party: int | None = None) -> list[Chunk]:
        """Split the held-out sets into chunks of rows that processes can share.

        With `party`, only the samples that this party holds out.
        """
        owners = {"test": self.test_party, "validation": self.validation_party}
        chunks = []
        for name, examples in self.held_out.items():
            selected = torch.arange(len(examples.y))
            owner = owners[name]
            if party is not None and owner is not None:
                selected = selected[owner == party]
            for rows in selected.split(EVALUATION_BATCH):
                if len(rows) > 0:
                    chunks.append((name, rows))
        return chunks

    def evaluate_chunks(self, model: nn.Module, numbers: range) -> list[Counts]:
        """Count the model's predictions on each of these chunks."""
        return self._evaluate(model, self.chunks(), numbers)

    def evaluate_party(self, model: nn.Module, party: int) -> dict[str, Counts]:
        """Count the predictions of a party's model on each set of samples that it holds out."""
        chunks = self.chunks(party)
        tallies = self._evaluate(model, chunks, range(len(chunks)), party)
        return self._sum_by_set(chunks, tallies)

    @torch.no_grad()
    def _evaluate(
        self, model: nn.Module, chunks: list[Chunk], numbers: range, owner: int | None = None
    ) -> list[Counts]:
        """Count the model's predictions on the chunks with these numbers.

        With `owner`, all samples of the test set count as those of this party.
        """
        model.eval()
        hidden_state = tree.hidden_state_of(model)
        tallies = []
        for number in numbers:
            name, rows = chunks[number]
            owners = self.test_party if name == "test" else None
            party = None if owners is None else owners[rows]
            if owner is not None and name == "test":
                party = torch.full((len(rows),), owner)
            examples = self.held_out[name]
            rows = rows.to(self.test.y.device)
            batch = Batch(self.preparation.batch(examples.x, rows), examples.y[rows], rows)
            tree.restore_hidden_state(model, hidden_state)  # independent of earlier chunks
            with seeds.seeded(0, "evaluation", number):  # for models that use random numbers
                logits = model(batch.x).logits
            loss = float(self.supervised(logits, batch)) * len(rows)
            tallies.append(self.objective.tally(logits, batch.y, loss, party))
        return tallies

    def tallies(self, parts: list[Counts]) -> dict[str, Counts]:
        """Sum the counts of all chunks, by the set they belong to."""
        return self._sum_by_set(self.chunks(), parts)

    def score_parties(self, parties: Sequence[Mapping[str, Counts]]) -> Score:
        """Return the score of the parties' models from the counts of each, in party order."""
        sets = {name: [part[name] for part in parties if name in part] for name in self.held_out}
        totals = {name: self.objective.total(parts) for name, parts in sets.items() if parts}
        return self.objective.score(**totals)

    def score(self, parts: list[Counts]) -> Score:
        """Return the score of a model from the counts of all chunks."""
        return self.objective.score(**self.tallies(parts))

    def _sum_by_set(self, chunks: list[Chunk], parts: list[Counts]) -> dict[str, Counts]:
        """Sum the counts of chunks, by the set they belong to."""
        by_set: dict[str, list[Counts]] = {}
        for (name, _), part in zip(chunks, parts, strict=True):
            by_set.setdefault(name, []).append(part)
        return {name: self.objective.total(counts) for name, counts in by_set.items()}

    def check_images(self) -> None:
        """Decode every image file once, so that a damaged one is found before the first round."""
        for examples in (*self.all_parties(), *self.held_out.values()):
            if isinstance(examples.x, Images):
                examples.x.check()

    def all_parties(self) -> list[Examples]:
        """Return the training samples of each party that is here."""
        by_number = self.parties.values() if isinstance(self.parties, Mapping) else self.parties
        return list(by_number)

    @functools.cached_property
    def duplicates(self) -> dict[str, int]:
        """Return how many samples of each held-out set are identical to a training sample."""
        training: set[int] = set()
        for examples in self.all_parties():
            training.update(sample_hashes(examples))
        counts = {}
        for name, examples in self.held_out.items():
            counts[name] = sum(value in training for value in sample_hashes(examples))
        return counts

    def notify_duplicates(self) -> None:
        """Print how many held-out samples are identical to training samples, if there are any."""
        measure = self.objective.measure
        effect = "high" if measure.higher_is_better else "low"
        for name, count in self.duplicates.items():
            if count > 0:
                notify(
                    f"moonfl: {count} of {len(self.held_out[name].y)} {name} samples are identical "
                    f"to training samples, so {measure.name} may be too {effect}; remove them "
                    "from a test set of your own, or hold out whole groups with holdout_by=COLUMN "
                    "(groups= in moonfl.federate)"
                )

    def partition_record(self) -> PartitionRecord:
        """Return which party has which samples, and a hash that detects changed data."""
        parties = [self.parties[i] for i in range(len(self.parties))]
        first = parties[0].x
        return PartitionRecord(
            classes=list(self.classes),
            counts=[self.counts(party) for party in parties],
            samples=self.sample_counts(parties),
            names=list(self.names) or None,
            features=list(self.features) or None,
            shape=list(first.shape[1:]),
            dtype=str(first.dtype).removeprefix("torch."),
            encoding=self.encoding_record(),
            sha256=self.sha256,
            duplicates=self.duplicates,
        )

    @functools.cached_property
    def sha256(self) -> str:
        """Return the hash that detects changed data."""
        return hash_examples(
            *self.all_parties(), *self.held_out.values(), encoding=self.encoding_record()
        )

    def encoding_record(self) -> EncodingRecord | None:
        """Return the encoding of a table as plain values."""
        encoding = self.preparation.encoding
        return None if encoding is None else encoding.to_record()

    def blueprint(self) -> Blueprint:
        """Return what turns weights into a model after the run, with a few test samples."""
        rows = torch.arange(min(SAMPLES, len(self.test.y)))
        x = self.test.take(rows).x
        return Blueprint(
            build=in_float32(self.build),
            shape=tuple(x.shape[1:]),
            dtype=x.dtype,
            classes=self.classes,
            preparation=self.preparation,
            samples=x if len(x) > 0 else None,
            features=self.features,
            task=self.objective.name,
        )

    def sample_counts(self, parties: Sequence[Examples]) -> list[int] | None:
        """Return the samples of each party; None if every sample has one class."""
        if self.objective.name == CLASSIFICATION.name:
            return None
        return [len(party.y) for party in parties]

    def counts(self, examples: Examples) -> list[int]:
        """Return the number of samples of each class."""
        counts: list[int] = self.objective.counts(examples.y, len(self.classes)).tolist()
        return counts


def sample_hashes(examples: Examples) -> Iterator[int]:
    """Yield a hash of each sample, without its label. It differs between processes."""
    x = examples.x
    if isinstance(x, Images):
        yield from map(hash, x.contents())
        return
    for rows in x.cpu().flatten(1).split(EVALUATION_BATCH):
        for row in rows.numpy():
            yield hash(row.tobytes())
