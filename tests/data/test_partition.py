"""Tests of partitions: the one of the paper, and properties of every kind."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonfl.data.partition import (
    PARTITIONS,
    Partition,
    PartitionRequest,
    by_column,
    dirichlet,
    iid,
    partition_samples,
)
from moonfl.errors import InputError
from moonfl.experiment import Experiment


def labels(classes: int, per_class: int) -> np.ndarray:
    return np.repeat(np.arange(classes), per_class)


def covers(partition: Partition, total: int) -> bool:
    """Return True if every sample is at exactly one party."""
    return np.array_equal(np.sort(np.concatenate(partition.parts)), np.arange(total))


@pytest.mark.parametrize(
    ("classes", "per_class", "mean", "deviation"),
    [(10, 5000, 5000, 1165), (100, 500, 5000, 181), (200, 500, 10_000, 99)],
)
def test_seed_0_is_the_papers_partition(
    classes: int, per_class: int, mean: int, deviation: int
) -> None:
    """Compare with the statistics in Appendix A, which depend on the class sizes only."""
    sizes = dirichlet(PartitionRequest(labels(classes, per_class), 10, beta=0.5, seed=0)).sizes()
    assert round(sizes.mean()) == mean
    assert round(sizes.std()) == deviation


@given(
    classes=st.integers(1, 40),
    per_class=st.integers(1, 60),
    beta=st.floats(1e-4, 1e6),
    parties=st.integers(1, 60),
    seed=st.integers(0, 10),
    least=st.integers(1, 12),
)
def test_dirichlet_always_ends(
    classes: int, per_class: int, *, beta: float, parties: int, seed: int, least: int
) -> None:
    y = labels(classes, per_class)
    request = PartitionRequest(y, parties, beta=beta, seed=seed, min_samples=least)
    if len(y) < parties * least:
        with pytest.raises(InputError, match="parties"):
            dirichlet(request)
        return
    partition = dirichlet(request)
    assert covers(partition, len(y))
    assert partition.sizes().min() >= least
    assert np.array_equal(partition.counts(y, classes).sum(axis=0), np.full(classes, per_class))
    again = dirichlet(request)
    assert all(np.array_equal(a, b) for a, b in zip(partition.parts, again.parts, strict=True))


def test_a_draw_that_underflows() -> None:
    """If numpy draws NaN for all parties, one party gets the whole class, as in the limit."""
    stream = np.random.RandomState(0)
    assert any(np.isnan(stream.dirichlet(np.full(7, 1e-4))).all() for _ in range(100))
    for seed in range(20):
        assert covers(
            dirichlet(PartitionRequest(labels(3, 3), 7, beta=1e-4, seed=seed, min_samples=1)), 9
        )
        y = labels(10, 180)
        parties_of_a_class = (
            dirichlet(PartitionRequest(y, 10, beta=1e-10, seed=seed)).counts(y, 10) > 0
        ).sum(axis=0)
        assert parties_of_a_class.mean() < 2


@pytest.mark.parametrize("parties", [1, 10, 1000])
@pytest.mark.parametrize("beta", [0.01, 0.1, 0.5, 5, 1e6])
def test_dirichlet_of_cifar10_size(parties: int, beta: float) -> None:
    y = labels(10, 5000)
    partition = dirichlet(PartitionRequest(y, parties, beta=beta))
    assert len(partition.parts) == parties
    assert covers(partition, len(y))
    assert partition.sizes().min() >= 10
    filled = partition.note != ""
    assert filled == (parties == 1000 and beta <= 0.1)


def test_small_beta_is_uneven_and_large_beta_is_even() -> None:
    def deviation(beta: float) -> float:
        y = labels(10, 500)
        return float(dirichlet(PartitionRequest(y, 10, beta=beta)).counts(y, 10).std())

    assert deviation(0.1) > deviation(0.5) > deviation(5) > deviation(1e6)
    assert deviation(1e6) < 1


def test_impossible_request_says_why() -> None:
    with pytest.raises(
        InputError,
        match="1000 parties of at least 10 samples need 10000, the data have 100: "
        "set parties to 10",
    ):
        dirichlet(PartitionRequest(labels(10, 10), 1000, beta=0.5))
    with pytest.raises(InputError, match=r"set parties to 10 or less$"):
        dirichlet(PartitionRequest(labels(10, 10), 1000, beta=0.5))
    with pytest.raises(
        InputError, match=r"set parties to 10 or less, or min_samples to 5 or less$"
    ):
        dirichlet(PartitionRequest(labels(10, 10), 20, beta=0.5))


@given(st.integers(1, 300), st.integers(1, 50))
def test_iid_is_equal(total: int, parties: int) -> None:
    request = PartitionRequest(np.zeros(total, dtype=np.int64), parties)
    if total < parties:
        with pytest.raises(InputError, match="parties"):
            iid(request)
        return
    partition = iid(request)
    assert covers(partition, total)
    assert partition.sizes().max() - partition.sizes().min() <= 1


def by_site(parties: int, column: str | None = "site") -> PartitionRequest:
    columns = {"site": np.array(["b", "a", "b", "c"])}
    return PartitionRequest(labels(1, 4), parties, columns=columns, column=column, dataset="t.csv")


def test_by_column() -> None:
    for parties in (0, 3):
        partition = by_column(by_site(parties))
        assert [part.tolist() for part in partition.parts] == [[1], [0, 2], [3]]
        assert partition.names == ("a", "b", "c")
    with pytest.raises(
        InputError, match="column 'site' has 3 values, but parties=10 is set; set parties=3"
    ):
        by_column(by_site(10))
    with pytest.raises(InputError, match=r"unknown column of t\.csv 'sit'; did you mean site"):
        by_column(by_site(3, "sit"))
    with pytest.raises(InputError, match="partition=column needs column=NAME"):
        by_column(by_site(3, None))


def test_a_kind_is_looked_up_in_the_table_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = PartitionRequest(labels(2, 10), 2, min_samples=1)
    for kind, function in (("dirichlet", dirichlet), ("iid", iid)):
        parts = partition_samples(kind, request).parts
        assert [part.tolist() for part in parts] == [p.tolist() for p in function(request).parts]
    with pytest.raises(
        InputError,
        match=r"unknown partition 'dirichlett'; did you mean dirichlet or dirichlet-balanced\?",
    ):
        partition_samples("dirichlett", request)
    everything = np.arange(20)
    monkeypatch.setitem(PARTITIONS, "one", lambda request: Partition([everything]))
    assert partition_samples("one", request).parts == [everything]
    assert Experiment(partition="one").partition == "one"


def test_a_note_names_columns_that_could_be_parties() -> None:
    columns = {"site": np.repeat(["a", "b"], 10), "id": np.arange(20)}
    request = PartitionRequest(labels(2, 10), 2, columns=columns, min_samples=1)
    note = "samples are partitioned at random; column=site would take the parties from the data"
    assert partition_samples("iid", request).note == note
    assert partition_samples("column", replace(request, column="site")).note == ""
