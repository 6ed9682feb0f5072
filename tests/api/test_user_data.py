"""Data frames and lists in moonfl.federate: columns and rows are matched, or refused."""

from typing import Any

import numpy as np
import pytest

import moonfl
from moonfl import InputError

pandas = pytest.importorskip("pandas")
QUICK: dict[str, Any] = {"rounds": 3, "epochs": 3, "batch_size": 16, "lr": 0.05, "workers": 1}


def party(seed: int) -> tuple[Any, Any]:
    """Return a data frame with shuffled row labels, and the sign of its first column."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(60, 3))
    frame = pandas.DataFrame(values, columns=list("abc"), index=rng.permutation(60))
    return frame, pandas.Series(values[:, 0] > 0, index=frame.index).astype(int)


A, B, T = party(1), party(2), party(3)


def targets(frame: Any) -> Any:
    """Return a data frame with two numbers to predict."""
    return pandas.DataFrame({"cost": 1000 * frame.a + 9000, "days": frame.b})


def test_columns_may_have_another_order() -> None:
    expected = moonfl.federate("mlp", [A, B], test=T, **QUICK)
    permuted = (B[0][list("cab")], B[1])
    result = moonfl.federate("mlp", [A, permuted], test=T, **QUICK)
    assert result.rounds[-1].loss == expected.rounds[-1].loss
    assert result.accuracy == expected.accuracy


def test_targets_may_have_another_order() -> None:
    settings = QUICK | {"task": "regression"}
    first, second, test = ((x, targets(x)) for x, _ in (A, B, T))
    expected = moonfl.federate("mlp", [first, second], test=test, **settings)
    assert expected.model.classes == ("cost", "days")
    permuted = (second[0], second[1][["days", "cost"]])
    result = moonfl.federate("mlp", [first, permuted], test=test, **settings)
    assert result.rounds[-1].loss == expected.rounds[-1].loss


def test_rows_that_are_labelled_alike_may_have_any_labels() -> None:
    frame, y = A
    expected = moonfl.federate("mlp", [A, B], **QUICK)
    plain = (frame.reset_index(drop=True), y.to_numpy())
    result = moonfl.federate("mlp", [plain, B], **QUICK)
    assert result.rounds[-1].loss == expected.rounds[-1].loss


def test_a_column_with_the_classes_is_one_label_per_sample() -> None:
    expected = moonfl.federate("mlp", [A, B], **QUICK)
    result = moonfl.federate("mlp", [(A[0], A[1].to_frame("ill")), B], **QUICK)
    assert result.rounds[-1].loss == expected.rounds[-1].loss


FIRST, SECOND = (A[0], targets(A[0])), (B[0], targets(B[0]))
SHUFFLED = A[1].sample(frac=1, random_state=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"parties": [A, B], "test": (T[0].to_numpy(), T[1])},
            "party 0 has samples as a data frame and the test set as an array; columns",
        ),
        ({"parties": [A, (B[0].to_numpy(), B[1])]}, "and party 1 as an array"),
        (
            {"parties": [FIRST, (B[0], SECOND[1].to_numpy())], "task": "regression"},
            "party 0 has y as a data frame and party 1 as an array",
        ),
        (
            {"parties": [FIRST, (B[0], SECOND[1].add_suffix("2"))], "task": "regression"},
            "party 1 has y with the columns cost2, days2; they must be cost, days",
        ),
        ({"parties": [(A[0], SHUFFLED), B]}, "party 0: x and y have different indexes"),
        (
            {"parties": [A, B], "groups": [SHUFFLED, B[1]]},
            "the samples and groups of party 0 have different indexes",
        ),
        (
            {"parties": [(A[0], [float("nan"), "ill", "ok"] * 20), B]},
            "sample 0 of party 0: y has no label, and 19 more have none",
        ),
        ({"parties": [(A[0], ["", "ill", "ok"] * 20)]}, "sample 0 of party 0: y has no label"),
        ({"parties": [(A[0], [1, "ill", "ok"] * 20)]}, "party 0: y holds object; labels must be"),
        (
            {"parties": [A, B], "groups": [[float("nan"), "p", "q"] * 20, ["p"] * 60]},
            "the groups of party 0 must be 60 integers or strings",
        ),
        ({"parties": [A, B], "test": (A, B)}, "the test set is a pair of pairs; pass several"),
        ({"parties": [([[1, 2], [3]], [0, 1])]}, "party 0: x: its samples have different shapes"),
        ({"parties": [(A[0], np.eye(2)[A[1]])]}, r"use y\.argmax\(1\) for one-hot classes"),
        ({"parties": [(A[0], A[1].to_numpy()[:, None])]}, r"N >= 1; use y\.ravel\(\)"),
    ],
)
def test_what_cannot_be_matched_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        moonfl.federate("mlp", **QUICK | arguments)


def test_a_sparse_matrix_is_refused() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(InputError, match=r"party 0: x is a sparse matrix.* use \.toarray\(\)"):
        moonfl.federate("mlp", [(sparse.csr_matrix(A[0].to_numpy()), A[1])], **QUICK)


def test_samples_of_a_single_channel_that_is_last_are_refused() -> None:
    images = np.zeros((8, 9, 9, 1), np.float32)
    with pytest.raises(InputError, match="has its channels last"):
        moonfl.federate("mlp", [(images, np.arange(8) % 2)], **QUICK)
    sensors = np.zeros((8, 12, 30, 1), np.float32)
    moonfl.federate("mlp", [(sensors, np.arange(8) % 2)], **QUICK | {"rounds": 1, "epochs": 1})


def test_predictions_of_frames_and_pixels_need_the_kind_of_the_training_samples() -> None:
    arrays = moonfl.federate("mlp", [(A[0].to_numpy(), A[1])], **QUICK | {"rounds": 1})
    with pytest.raises(InputError, match="was trained on arrays, got a data frame; pass frame"):
        moonfl.predict(arrays, A[0])
    with pytest.raises(InputError, match="are predicted without labels, got tuple; pass x alone"):
        moonfl.predict(arrays, (A[0].to_numpy(), A[1]))
    mixed = A[0].astype(object).to_numpy()
    assert np.array_equal(
        moonfl.predict(arrays, mixed).probabilities,
        moonfl.predict(arrays, A[0].to_numpy()).probabilities,
    )
    images = np.random.default_rng(0).random((12, 1, 8, 8)).astype(np.float32)
    model = moonfl.federate("mlp", [(images, np.arange(12) % 2)], **QUICK | {"rounds": 1})
    with pytest.raises(InputError, match="trained on float32 samples, got pixels of type uint8"):
        moonfl.predict(model, (255 * images).astype(np.uint8))
