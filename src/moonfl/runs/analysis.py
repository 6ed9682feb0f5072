"""Final analysis of a run for its report: confusion matrix, parties compared, t-SNE of z.

It is computed after the last round, while the models of the parties are in memory.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import seeds, tree
from ..data.base import Examples
from ..data.targets import CLASSIFICATION
from ..experiment import Experiment
from ..local import Workbench
from ..measures import measure_of
from ..task import EVALUATION_BATCH, Task
from ..types import GLOBAL, Output, Params, Server, Update, party_model_name
from .schema import Embedding, FinalParty, FinalRecord

MAX_PARTIES = 100  # of more parties, this many are compared
PARTY_SAMPLES = 10_000  # training samples, over all parties, for the accuracy of the parties
ROUNDING = 1e-6  # relative to its size, float32 values that vary by less are constant
TINY = 1e-15  # squares of smaller values underflow in float32
POINTS = 400  # test samples in a t-SNE figure and for similarities


@dataclass(frozen=True)
class Subject:
    """What is analysed: the models of a finished run, and a sample of test rows."""

    exp: Experiment
    task: Task
    server: Server
    models: dict[str, Params]  # those that are evaluated
    workbench: Workbench
    rows: Tensor  # sampled test rows

    def model(self, params: Params) -> nn.Module:
        """Return a model with these parameters; it is valid until the next call."""
        self.workbench.clear()
        return self.workbench.module(params).eval()

    def representations(self, params: Params) -> Tensor:
        """Return z of the sampled test rows under a model."""
        return _outputs(self.task, self.model(params), self.task.test, self.rows).z


@torch.no_grad()
def analyse(exp: Experiment, task: Task, server: Server, updates: list[Update]) -> FinalRecord:
    """Return the confusion matrix, accuracy and drift of each party, and a t-SNE of z.

    The t-SNE shows z under the global model and under the last model of the first party. With one
    model per party (SOLO), confusion matrices are summed, each party is evaluated with its own
    model, and the t-SNE is of the first. Of more than MAX_PARTIES parties and models a sample is
    analysed, so that the time is bounded; `sampled_from` says so.
    """
    if len(task.test.y) == 0 or task.personal:  # the round records have the results by party
        return FinalRecord()
    rows = _sample(len(task.test.y), POINTS, exp.seed)
    models = exp.algorithm.deployed(server)
    subject = Subject(
        exp=exp,
        task=task,
        server=server,
        models=models,
        workbench=Workbench(task.build),
        rows=rows,
    )
    trained = [update for update in updates if update.num_steps > 0]
    compared = trained
    if len(trained) > MAX_PARTIES:
        compared = [trained[i] for i in _sample(len(trained), MAX_PARTIES, exp.seed).tolist()]
    with seeds.one_thread(), seeds.seeded(exp.seed, "analysis"):
        evaluated = list(models.values())
        if len(evaluated) > MAX_PARTIES:
            evaluated = [update.model for update in compared]
        confusion = None
        if task.objective.name == CLASSIFICATION:
            confusion = sum(_confusion(task, subject.model(params)) for params in evaluated)
        z = subject.representations(next(iter(models.values())))
        local = subject.representations(trained[0].model) if trained else z
        parties = [_party(subject, update, z) for update in compared] if task.parties else []
    return FinalRecord(
        confusion=None if confusion is None else np.asarray(confusion).tolist(),
        parties=parties,
        sampled_from=len(trained) if len(compared) < len(trained) else None,
        tsne=None
        if confusion is None
        else Embedding(
            points=tsne(z.cpu().numpy()),
            labels=task.test.y[rows].tolist(),
            local=tsne(local.cpu().numpy()),
        ),
    )


def _party(subject: Subject, update: Update, z: Tensor) -> FinalParty:
    """Return a party's score on its own data and the distance of its model to the global one."""
    task = subject.task
    data = task.parties[update.party]
    params = subject.models.get(GLOBAL) or subject.models[party_model_name(update.party)]
    share = PARTY_SAMPLES // min(subject.exp.parties, MAX_PARTIES)
    rows = _sample(len(data.y), share, subject.exp.seed)
    logits = _outputs(task, subject.model(params), data, rows).logits
    counts = task.objective.tally(logits, data.y[rows], loss=0.0, party=None)
    score = task.objective.score(counts)
    record = FinalParty(party=update.party, samples=update.num_samples, accuracy=score.accuracy)
    if score.accuracy is None:
        record.score = getattr(score, measure_of(score).key)
    if GLOBAL in subject.models:
        local = subject.representations(update.model)
        similarity = float(F.cosine_similarity(local, z).mean())
        record.similarity = similarity if math.isfinite(similarity) else None
        record.distance = tree.distance(subject.server.params, update.params)
    return record


def tsne(z: NDArray[np.float32]) -> list[tuple[float, float]]:
    """Return a deterministic two-dimensional t-SNE embedding.

    It uses one thread: OpenMP's threads wait for each other for minutes on a busy machine. Where
    nothing varies (dead units) or squared distances underflow, scikit-learn would divide by 0 and
    end the process.
    """
    from sklearn.manifold import TSNE  # slow to import, and needed once per run
    from threadpoolctl import threadpool_limits

    largest = np.abs(z).max(initial=0)
    is_constant = len(z) < 4 or np.ptp(z, axis=0).max() <= ROUNDING * largest
    if is_constant or not np.isfinite(z).all():
        return [(0.0, 0.0) for _ in z]
    if largest < TINY:
        z = z / largest
    z = np.pad(z, ((0, 0), (0, max(0, 2 - z.shape[1]))))
    perplexity = min(30, (len(z) - 1) // 3)
    with threadpool_limits(1):
        points = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(z)
    return [(round(float(a), 2), round(float(b), 2)) for a, b in points]


def _sample(count: int, size: int, seed: int) -> Tensor:
    """Return up to `size` of `count` rows in ascending order."""
    order = torch.randperm(count, generator=seeds.rng(seed, "analysis"))
    return order[:size].sort().values


def _outputs(task: Task, model: nn.Module, data: Examples, rows: Tensor) -> Output:
    """Return the model's outputs for these rows."""
    chunks = rows.to(data.y.device).split(EVALUATION_BATCH)
    parts = [model(task.preparation.batch(data.x, chunk)) for chunk in chunks]
    z = torch.cat([part.z for part in parts])
    logits = torch.cat([part.logits for part in parts])
    return Output(z, logits)


def _confusion(task: Task, model: nn.Module) -> NDArray[np.int64]:
    """Return the number of test samples by true class (row) and predicted class (column)."""
    classes = len(task.classes)
    counts = np.zeros(classes**2, dtype=np.int64)
    for rows in torch.arange(len(task.test.y)).split(EVALUATION_BATCH):
        predicted = _outputs(task, model, task.test, rows).logits.argmax(dim=1)
        true = task.test.y[rows.to(task.test.y.device)]
        cells = (true * classes + predicted).cpu().numpy()
        counts += np.bincount(cells, minlength=classes**2)
    return counts.reshape(classes, classes)
