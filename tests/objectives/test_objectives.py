"""Regression and multi-label classification: metrics against scikit-learn, and whole runs."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, mean_squared_error, r2_score
from torch import Tensor, nn

import moonfl
from helpers.equality import same
from moonfl.algorithms.table import ALGORITHMS
from moonfl.data.moments import target_moments
from moonfl.errors import InputError
from moonfl.measures import MEAN_AVERAGE_PRECISION, RMSE, measure_of
from moonfl.objectives.multilabel import LIMIT, RESOLUTION, MultiLabel
from moonfl.objectives.regression import Regression

TASKS = ("regression", "multilabel")
METHODS = [name for name, method in ALGORITHMS.items() if not method.needs_classes]


def chunks_of(n: int, cuts: list[int]) -> list[slice]:
    edges = sorted({0, n, *(cut for cut in cuts if cut < n)})
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


CUTS = st.lists(st.integers(1, 60), max_size=4)


@given(st.integers(0, 10**6), CUTS, st.sampled_from([1e-12, 1.0, 1e9]), st.integers(1, 3))
def test_regression_equals_scikit_learn_for_any_chunks(
    seed: int, cuts: list[int], unit: float, targets: int
) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 60))
    y = torch.from_numpy(unit * (100 + rng.normal(size=(n, targets))))
    predicted = y + unit * torch.from_numpy(rng.normal(size=(n, targets)))
    party = torch.from_numpy(rng.integers(0, 3, n))
    objective = Regression().fit([target_moments(y)])
    parts = [
        objective.tally(predicted[rows], y[rows], 0.5, party[rows]) for rows in chunks_of(n, cuts)
    ]
    whole = objective.tally(predicted, y, 0.5 * len(parts), party)
    assert objective.total(parts) == whole  # exactly: the sums are integers
    assert objective.total(parts[::-1])._replace(parties={}) == whole._replace(parties={})
    score = objective.score(whole)
    expected = mean_squared_error(y.numpy(), predicted.numpy()) ** 0.5
    assert score.rmse == pytest.approx(expected, rel=1e-9)
    assert score.r2 == pytest.approx(r2_score(y.numpy(), predicted.numpy()), rel=1e-6, abs=1e-9)
    assert score.sites is not None
    assert RMSE.from_sums(list(score.sites.values())) == pytest.approx(score.rmse, rel=1e-12)
    one = int(party[0])
    rows = party == one
    expected = mean_squared_error(y[rows].numpy(), predicted[rows].numpy()) ** 0.5
    assert RMSE.from_sums([score.sites[one]]) == pytest.approx(expected, rel=1e-9)


def test_the_loss_of_a_regression_is_in_standardised_units() -> None:
    y = torch.tensor([[1.0, 100.0], [3.0, 300.0]], dtype=torch.float64)
    objective = Regression().fit(map(target_moments, (y[:1], y[1:])))
    assert objective.mean is not None
    assert objective.mean.tolist() == [2, 200]
    assert objective.std is not None
    assert objective.std.tolist() == [1, 100]
    loss = objective.supervised(y + torch.tensor([2.0, 100.0]), y)
    assert float(loss) == pytest.approx((4 + 1) / 2)


def test_r2_of_a_constant_target() -> None:
    y = torch.full((5, 1), 0.3, dtype=torch.float64)
    objective = Regression().fit([target_moments(torch.rand(9, 1, dtype=torch.float64))])
    exact = objective.score(objective.tally(y, y, 0.0, None))
    wrong = objective.score(objective.tally(y + 1, y, 0.0, None))
    assert (exact.r2, exact.rmse, wrong.r2) == (1, 0, 0)
    assert wrong.rmse == pytest.approx(1)


def test_a_diverged_regression_has_no_finite_loss() -> None:
    y = torch.rand(9, 1, dtype=torch.float64)
    objective = Regression().fit([target_moments(y)])
    for value in (float("nan"), float("inf"), 1e200):
        assert np.isnan(objective.tally(torch.full_like(y, value), y, 1.0, None).loss)


@given(st.integers(0, 10**6), CUTS, st.integers(1, 4))
def test_multilabel_equals_scikit_learn_for_any_chunks(
    seed: int, cuts: list[int], labels: int
) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    y = torch.from_numpy((rng.random((n, labels)) < 0.3).astype(np.float32))
    logits = torch.from_numpy(rng.normal(size=(n, labels)) * 3).float()
    party = torch.from_numpy(rng.integers(0, 3, n))
    objective = MultiLabel()
    parts = [
        objective.tally(logits[rows], y[rows], 0.5, party[rows]) for rows in chunks_of(n, cuts)
    ]
    whole = objective.tally(logits, y, 0.5 * len(parts), party)
    assert objective.total(parts) == whole
    score = objective.score(whole)
    occurs = y.any(dim=0).numpy()
    rounded = (logits.double().clamp(-LIMIT, LIMIT) * RESOLUTION).round().numpy()
    expected = [average_precision_score(y[:, k], rounded[:, k]) for k in np.flatnonzero(occurs)]
    assert score.mean_average_precision == pytest.approx(np.mean(expected) if expected else 0)
    predicted = logits > 0
    shown = np.flatnonzero(occurs | predicted.any(dim=0).numpy())
    f1_scores = [f1_score(y[:, k], predicted[:, k]) for k in shown]
    assert score.macro_f1 == pytest.approx(np.mean(f1_scores) if f1_scores else 0)


def test_the_resolution_of_average_precision() -> None:
    """With 5000 samples the rounding of logits changes mAP by less than 0.001."""
    rng = np.random.default_rng(0)
    y = (rng.random((5000, 5)) < [0.01, 0.05, 0.2, 0.5, 0.9]).astype(np.float32)
    logits = torch.from_numpy(rng.normal(size=y.shape) + y).float()
    objective = MultiLabel()
    score = objective.score(objective.tally(logits, torch.from_numpy(y), 0.0, None))
    exact = average_precision_score(y, logits.numpy(), average="macro")
    assert score.mean_average_precision == pytest.approx(exact, abs=1e-3)


class Linear(nn.Module):
    """A linear model that returns its inputs as z."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.layer(x)


def linear_problem() -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray, np.ndarray]:
    """Return parties of different sizes with a noisy linear target in large units."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3)).astype(np.float32)
    y = 5000 + 300 * (x @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=90))
    parties = [(x[a:b], y[a:b]) for a, b in ((0, 20), (20, 40), (40, 90))]
    return parties, x, y


def test_one_full_batch_step_is_centralised_gradient_descent() -> None:
    parties, x, y = linear_problem()
    model = Linear()
    result = moonfl.federate(
        model,
        parties,
        test=(x, y),
        algorithm="fedavg",
        rounds=5,
        task="regression",
        epochs=1,
        batch_size=100,
        lr=0.1,
        momentum=0,
        weight_decay=0,
        seed=3,
        workers=1,
    )
    target = torch.from_numpy((y - y.mean()) / y.std()).float()[:, None]
    for _ in range(5):
        loss = (model(torch.from_numpy(x))[1] - target).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for param, gradient in zip(model.parameters(), gradients, strict=True):
                param -= 0.1 * gradient
    trained = result.models["global"]
    assert torch.allclose(trained["model.layer.weight"], model.layer.weight, atol=1e-5)
    assert torch.allclose(trained["model.layer.bias"], model.layer.bias, atol=1e-5)


def test_fedavg_converges_to_least_squares_in_the_units_of_the_data() -> None:
    parties, x, y = linear_problem()
    result = moonfl.federate(
        Linear(),
        parties,
        test=(x, y),
        algorithm="fedavg",
        rounds=80,
        task="regression",
        epochs=1,
        batch_size=100,
        lr=0.2,
        momentum=0,
        weight_decay=0,
        workers=1,
    )
    design = np.c_[x, np.ones(len(x))].astype(float)
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    with torch.no_grad():
        _, predicted = result.model(torch.from_numpy(x))
    assert predicted.dtype == torch.float64
    assert predicted[:, 0].numpy() == pytest.approx(design @ solution, abs=0.05)
    assert result.score == pytest.approx(np.sqrt(np.mean((y - design @ solution) ** 2)), rel=1e-4)
    assert result.rounds[-1].r2 == pytest.approx(r2_score(y, design @ solution), abs=1e-4)
    assert result.best.rmse == min(record.rmse for record in result.rounds)


def parties_of(task: str) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(72, 4)).astype(np.float32)
    scores = x @ rng.normal(size=(4, 2))
    y = scores if task == "regression" else (scores > 0.3).astype(int)
    return [(x[a:b], y[a:b]) for a, b in ((0, 16), (16, 40), (40, 72))]


QUICK = {"epochs": 1, "batch_size": 8, "out_dim": 8}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_without_classes_trains(method: str, task: str) -> None:
    rounds = 2 if ALGORITHMS[method].federated else 1
    further = {"fedrep": {"personal": "output", "epochs": 2}, "perfedavg": {"finetune": 1}}
    keys = {**QUICK, **further.get(method, {})}
    result = moonfl.federate(
        "mlp", parties_of(task), algorithm=method, rounds=rounds, task=task, workers=1, **keys
    )
    record = result.rounds[-1]
    assert measure_of(record) == (RMSE if task == "regression" else MEAN_AVERAGE_PRECISION)
    assert record.accuracy is None
    assert len(record.sites or record.scores or ()) == 3
    with pytest.raises(InputError, match=r"no accuracy; result\.score is its"):
        _ = result.accuracy


@pytest.mark.parametrize("task", TASKS)
def test_workers_disk_and_resume_do_not_change_a_run(task: str, tmp_path: Path) -> None:
    keys = {**QUICK, "algorithm": "moon", "task": task, "validation": 0.2}
    parties = parties_of(task)
    one = moonfl.federate("mlp", parties, rounds=3, workers=1, **keys)
    two = moonfl.federate("mlp", parties, rounds=3, workers=2, state_memory=0, **keys)

    def interrupt(record: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        moonfl.federate(
            "mlp", parties, rounds=3, workers=1, out=tmp_path / "run", watch=interrupt, **keys
        )
    resumed = moonfl.federate(
        "mlp", parties, rounds=3, workers=1, out=tmp_path / "run", resume=True, **keys
    )
    for other in (two, resumed):
        for a, b in zip(one.rounds, other.rounds, strict=True):
            for key in ("loss", *one.summary().keys() & {"rmse", "mean_average_precision"}):
                assert a[key] == b[key]
            assert (a.sites, a.validation_score) == (b.sites, b.validation_score)
        assert same(one.models["global"], other.models["global"])
    assert one.chosen is not None


@pytest.mark.parametrize("task", TASKS)
def test_bfloat16_does_not_depend_on_workers(task: str) -> None:
    keys = {**QUICK, "algorithm": "moon", "task": task, "rounds": 2}
    parties = parties_of(task)
    one, two = (
        moonfl.federate("mlp", parties, precision="bfloat16", workers=workers, **keys)
        for workers in (1, 2)
    )
    assert same(one.models, two.models)
    assert one.score == two.score
    float32 = moonfl.federate("mlp", parties, workers=1, **keys)
    assert not same(one.models, float32.models)
    assert one.rounds[-1].loss == pytest.approx(float32.rounds[-1].loss, rel=0.05)


@pytest.mark.parametrize("task", TASKS)
def test_personal_models_share_a_common_test_set(task: str) -> None:
    x, y = parties_of(task)[0]
    result = moonfl.federate(
        "mlp",
        parties_of(task),
        test=(x, y),
        algorithm="fedavg",
        rounds=1,
        task=task,
        personal="output",
        workers=1,
        **QUICK,
    )
    record = result.rounds[-1]
    assert sum(number for _, number in record.sites.values()) == len(x)
    assert record.party_score is not None
    worse = record.party_score_worst >= record.party_score
    assert worse == (task == "regression")


@pytest.mark.parametrize(
    ("task", "y", "message"),
    [
        ("regression", [1.0, float("nan"), 2.0, 3.0], "sample 1 of .* has the target nan; targets"),
        ("regression", [1.0, 2.0, 1e39, 3.0], r"sample 2 of .* has the target 1e\+39"),
        ("regression", ["a", "b", "c", "d"], "needs numbers"),
        ("multilabel", [[0, 1], [1, 2], [0, 0], [1, 1]], "sample 1 of .* has the label 2; labels"),
        ("multilabel", [0, 1, 1, 0], r"must be \[N, labels\]"),
        ("classification", [[0, 1]] * 4, "several labels per sample need task=multilabel"),
        ("classification", [0.5, 1.5, 2.5, 2.25], "to predict numbers, set task=regression"),
        ("classification", [0.0, 1.0, 2.0, 2.0], "to predict numbers, set task=regression"),
    ],
)
def test_wrong_targets_are_refused(task: str, y: list, message: str) -> None:
    x = np.eye(4, dtype=np.float32)
    with pytest.raises(InputError, match=message):
        moonfl.federate("mlp", [(x, np.array(y)), (x, np.array(y))], task=task, rounds=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"dataset": "digits"},
            "dataset=digits has classes, got task=regression; use dataset=csv, npz, hub, sites, or",
        ),
        ({"dataset": "csv"}, "partition=dirichlet splits samples by their class"),
        (
            {"dataset": "csv", "partition": "iid", "algorithm": moonfl.MOON() + moonfl.FedLC()},
            "algorithm=fedlc needs one class per sample, because it calibrates",
        ),
        ({"dataset": "npz", "partition": "iid", "classes": "a,b"}, "classes=a,b,c belongs"),
    ],
)
def test_what_needs_classes_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        moonfl.Experiment(task="regression", **settings)


def test_the_output_of_a_complete_model_is_checked() -> None:
    parties, _, _ = linear_problem()
    several = [(x, np.c_[y, y]) for x, y in parties]
    with pytest.raises(InputError, match=r"\(z, logits\), \[2, D\] and \[2, 2\]"):
        moonfl.federate(Linear(), several, rounds=1, task="regression")


def test_fingerprints_of_classification_do_not_contain_the_task() -> None:
    from moonfl.experiment import to_dict

    assert "task" not in to_dict(moonfl.Experiment())
    assert to_dict(moonfl.Experiment(task="regression", dataset="npz", partition="iid"))["task"]
