"""What a report wants to know of the models at the end of a run, computed while they are at hand."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import seeds, tree
from ..data.base import Examples
from ..experiment import Experiment
from ..local import Workbench
from ..seeds import one_thread
from ..task import EVALUATION_BATCH, Task
from ..types import Output, Params, Server, Update

LOOKED_AT = 10_000  # training samples of all parties together that their accuracy is taken over
ROUNDING = 1e-6  # of float32: what varies by less, relative to its size, does not vary
TINY = 1e-15  # squares of what is smaller are 0 in float32, or have lost digits
POINTS = 400  # test samples in a t-SNE figure, and behind a similarity


@torch.no_grad()
def analyse(exp: Experiment, task: Task, server: Server, updates: list[Update]) -> dict[str, Any]:
    """Confusion on the test set, each party's accuracy and drift, and a t-SNE of z under the global model and under
    the first party's last one.

    Where there is one model per party (SOLO), confusions are summed, a party is judged by its own model, and the t-SNE
    is of the first.
    """
    if (
        len(task.test.y) == 0
    ):  # the sites judge the model, and what they say is in the facts of each round
        return {}
    models, bench = exp.algorithm.deployed(server), Workbench(task.build)
    some = _sample(len(task.test.y), POINTS, exp.seed)
    with one_thread(), seeds.seeded(exp.seed, "analysis"):
        confusion = sum(_confusion(task, _model(bench, params)) for params in models.values())
        first = _model(bench, next(iter(models.values())))
        z = _run(task, first, task.test, some).z
        trained = [update for update in updates if update.num_steps > 0]
        local = (
            z if not trained else _run(task, _model(bench, _whole(trained[0])), task.test, some).z
        )
        parties = [
            _party(exp, task, bench, server, update, some, z) for update in trained if task.parties
        ]
    return {
        "confusion": np.asarray(confusion).tolist(),
        "parties": parties,
        "tsne": {
            "points": tsne(z.cpu().numpy()),
            "labels": task.test.y[some].tolist(),
            "local": tsne(local.cpu().numpy()),
        },
    }


def _party(
    exp: Experiment,
    task: Task,
    bench: Workbench,
    server: Server,
    update: Update,
    some: Tensor,
    z: Tensor,
) -> dict[str, Any]:
    """The party's accuracy on its own data; how far its last model is from the global one, in weights and in z."""
    models, data = exp.algorithm.deployed(server), task.parties[update.party]
    fact: dict[str, Any] = {
        "party": update.party,
        "samples": update.num_samples,
        "similarity": None,
        "distance": None,
    }
    model = _model(bench, models.get("global") or models[f"party{update.party}"])
    rows = _sample(len(data.y), max(1, LOOKED_AT // exp.parties), exp.seed)
    fact["accuracy"] = float(
        (_run(task, model, data, rows).logits.argmax(dim=1) == data.y[rows]).cpu().double().mean()
    )
    if "global" in models:
        local = _run(task, _model(bench, _whole(update)), task.test, some).z
        similarity = float(F.cosine_similarity(local, z).mean())
        fact["similarity"] = similarity if math.isfinite(similarity) else None
        fact["distance"] = tree.norm(tree.sub(server.params, update.params))
    return fact


def tsne(z: NDArray[np.float32]) -> list[list[float]]:
    """Two dimensions that keep neighbours together; the same points every time.

    In one thread: few points need no more, and on a busy machine OpenMP's threads wait for each other for minutes.
    Where nothing varies, as when all units are dead, or squares of distances are 0, scikit-learn divides by 0 and ends
    the process.
    """
    from sklearn.manifold import TSNE  # slow to import, and needed once in a run
    from threadpoolctl import threadpool_limits

    if (
        len(z) < 4
        or not np.isfinite(z).all()
        or np.ptp(z, axis=0).max() <= ROUNDING * np.abs(z).max()
    ):
        return [[0.0, 0.0] for _ in z]
    if np.abs(z).max() < TINY:
        z = z / np.abs(z).max()
    z = np.pad(z, ((0, 0), (0, max(0, 2 - z.shape[1]))))
    with threadpool_limits(1):
        made = TSNE(
            perplexity=min(30, (len(z) - 1) // 3), init="pca", random_state=0
        ).fit_transform(z)
    return [[round(float(a), 2) for a in point] for point in made]


def _whole(update: Update) -> Params:
    return {**update.params, **update.buffers}


def _model(bench: Workbench, params: Params) -> nn.Module:
    bench.clear()
    return bench.module(params).eval()


def _sample(count: int, most: int, seed: int) -> Tensor:
    """Up to `most` of `count` rows, ascending."""
    return torch.randperm(count, generator=seeds.rng(seed, "analysis"))[:most].sort().values


def _run(task: Task, model: nn.Module, data: Examples, rows: Tensor) -> Output:
    rows = rows.to(data.y.device)
    parts = [model(task.preparation.batch(data.x, part)) for part in rows.split(EVALUATION_BATCH)]
    return Output(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _confusion(task: Task, model: nn.Module) -> NDArray[np.int64]:
    """Test samples by true class (row) and predicted class (column)."""
    classes, counts = len(task.classes), np.zeros(len(task.classes) ** 2, dtype=np.int64)
    for predicted, true in _predictions(task, model):
        counts += np.bincount((true * classes + predicted).cpu().numpy(), minlength=classes**2)
    return counts.reshape(classes, classes)


def _predictions(task: Task, model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    for rows in torch.arange(len(task.test.y)).split(EVALUATION_BATCH):
        yield (
            _run(task, model, task.test, rows).logits.argmax(dim=1),
            task.test.y[rows.to(task.test.y.device)],
        )
