"""Properties of every kind of partition, and what each kind promises."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonfl.data.descriptions import TITLES, describe_data
from moonfl.data.partition import (
    PARTITIONS,
    Partition,
    PartitionRequest,
    by_labels,
    by_quantity,
    by_shards,
    dirichlet_balanced,
    partition_samples,
)
from moonfl.data.skew import measure_skew
from moonfl.errors import InputError

DRAWN = [kind for kind in PARTITIONS if kind not in ("iid", "column")]  # kinds with min_samples
CIFAR10 = np.repeat(np.arange(10), 5000)


def same(first: Partition, second: Partition) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first.parts, second.parts, strict=True))


@st.composite
def requests(draw: st.DrawFn) -> PartitionRequest:
    """Draw requests with classes of different sizes in random order; some cannot be fulfilled."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return PartitionRequest(
        labels=np.random.RandomState(draw(st.integers(0, 9))).permutation(labels),
        parties=draw(st.integers(1, 25)),
        beta=draw(st.floats(1e-6, 1e6)),
        seed=draw(st.integers(0, 2**32 - 1)),
        min_samples=draw(st.integers(1, 8)),
        classes_per_party=draw(st.integers(1, 12)),
        shards_per_party=draw(st.integers(1, 12)),
    )


def is_refused(kind: str, wanted: PartitionRequest) -> bool:
    """Return True if a partition is refused for the numbers of classes or shards."""
    try:
        partition_samples(kind, wanted)
    except InputError:
        return True
    return False


@pytest.mark.parametrize("kind", [*DRAWN, "iid"])
@given(wanted=requests())
def test_every_request_is_fulfilled_or_refused(kind: str, wanted: PartitionRequest) -> None:
    """A partition is disjoint, complete, has its parties and minimum size, and can be repeated."""
    least = 1 if kind == "iid" else wanted.min_samples
    fits = len(wanted.labels) >= wanted.parties * least
    if not fits:
        with pytest.raises(InputError, match="parties"):
            partition_samples(kind, wanted)
        return
    if kind in ("labels", "shards") and is_refused(kind, wanted):
        return
    partition = partition_samples(kind, wanted)
    assert len(partition.parts) == wanted.parties
    samples = np.concatenate(partition.parts)
    assert np.array_equal(np.sort(samples), np.arange(len(wanted.labels)))
    assert all(np.array_equal(part, np.sort(part)) for part in partition.parts)
    assert partition.sizes().min() >= least
    assert same(partition, partition_samples(kind, wanted))


@pytest.mark.parametrize("kind", DRAWN)
def test_the_seed_changes_the_partition(kind: str) -> None:
    first, second = (
        partition_samples(kind, PartitionRequest(CIFAR10, 10, seed=seed)) for seed in (0, 1)
    )
    assert not same(first, second)


def test_no_two_kinds_share_a_random_stream() -> None:
    """Otherwise the parties of one kind would predict those of another."""
    permutations = {}
    for kind, function in (("quantity", by_quantity), ("shards", by_shards)):
        one_class = PartitionRequest(np.zeros(100, dtype=np.int64), 2, beta=1e6, shards_per_party=1)
        permutations[kind] = set(function(one_class).parts[0].tolist())
    assert permutations["quantity"] != permutations["shards"]


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("parties", [1, 10, 1000])
def test_large_requests_take_seconds(kind: str, parties: int) -> None:
    """Partition as many samples as CIFAR-10 has, with very uneven shares."""
    per_party = 10 if parties == 1 else 2
    wanted = PartitionRequest(CIFAR10, parties, beta=0.01, classes_per_party=per_party)
    start = time.process_time()
    assert partition_samples(kind, wanted).sizes().sum() == 50_000
    assert time.process_time() - start < 20


def test_two_labels_of_cifar10_give_every_party_two_classes() -> None:
    """CIFAR-10 has 5,000 samples of each class, in random order."""
    for seed in range(20):
        labels = np.random.RandomState(seed).permutation(CIFAR10)
        partition = by_labels(PartitionRequest(labels, 10, classes_per_party=2, seed=seed))
        counts = partition.counts(labels, 10)
        assert ((counts > 0).sum(axis=1) == 2).all()
        assert ((counts > 0).sum(axis=0) == 2).all()  # every class is at two parties
        assert set(counts[counts > 0]) == {2500}


@given(classes=st.integers(1, 12), parties=st.integers(1, 30), k=st.integers(1, 12))
def test_labels_has_k_classes_per_party_and_uses_every_class(
    classes: int, parties: int, k: int
) -> None:
    y = np.repeat(np.arange(classes), 60)
    wanted = PartitionRequest(y, parties, classes_per_party=k, min_samples=1)
    if k > classes:
        with pytest.raises(InputError, match=f"set classes_per_party to {classes} or less"):
            by_labels(wanted)
        return
    if parties * k < classes:
        with pytest.raises(InputError, match=r"set classes_per_party to .* or parties to"):
            by_labels(wanted)
        return
    has_class = by_labels(wanted).counts(y, classes) > 0
    assert (has_class.sum(axis=1) == k).all()
    parties_of_a_class = has_class.sum(axis=0)
    assert parties_of_a_class.min() >= 1
    assert parties_of_a_class.max() - parties_of_a_class.min() <= 1


def test_labels_counts_the_classes_that_occur() -> None:
    y = np.repeat([3, 7], 50)
    counts = by_labels(PartitionRequest(y, 2, classes_per_party=1)).counts(y, 10)
    assert sorted(map(tuple, counts[:, [3, 7]].tolist())) == [(0, 50), (50, 0)]


def test_labels_refuses_classes_and_parties_that_are_too_small() -> None:
    y = np.array([0] * 100 + [1] * 3)
    with pytest.raises(InputError, match=r"up to 5 parties share a class, but the smallest .* 3"):
        by_labels(PartitionRequest(y, 10, classes_per_party=1))
    with pytest.raises(InputError, match="smallest party would have 3 samples, and min_samples"):
        by_labels(PartitionRequest(y, 2, classes_per_party=1))


def test_shards_have_equal_size_and_few_classes() -> None:
    partition = by_shards(PartitionRequest(CIFAR10, 100, shards_per_party=2))
    assert set(partition.sizes()) == {500}
    classes = (partition.counts(CIFAR10, 10) > 0).sum(axis=1)
    assert classes.max() == 2  # 250 samples divide a class, so no shard has two
    assert classes.min() == 1
    with pytest.raises(InputError, match="2 parties with 30 shards each need 60 shards"):
        by_shards(PartitionRequest(np.zeros(40, dtype=np.int64), 2, shards_per_party=30))


def test_quantity_changes_sizes_and_not_labels() -> None:
    partition = by_quantity(PartitionRequest(CIFAR10, 10, beta=0.5))
    skew = measure_skew(partition.counts(CIFAR10, 10))
    assert skew.imbalance > 0.5
    assert skew.distance < 0.05
    even = by_quantity(PartitionRequest(CIFAR10, 10, beta=1e6))
    assert measure_skew(even.counts(CIFAR10, 10)).imbalance < 0.01


def test_quantity_fills_up_small_parties_and_says_so() -> None:
    partition = by_quantity(PartitionRequest(np.zeros(200, dtype=np.int64), 15, beta=0.01))
    assert partition.sizes().min() == 10
    assert "parties had under 10 samples after 100 draws and were filled up" in partition.note


def test_dirichlet_balanced_has_equal_sizes_and_uneven_labels() -> None:
    distances = []
    for beta in (0.1, 0.5, 5, 1e6):
        partition = dirichlet_balanced(PartitionRequest(CIFAR10, 7, beta=beta))
        assert partition.sizes().max() - partition.sizes().min() <= 1
        distances.append(measure_skew(partition.counts(CIFAR10, 10)).distance)
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.5
    assert distances[-1] < 0.05


def test_dirichlet_balanced_draws_the_proportions_from_dirichlet() -> None:
    """If no class runs out, the variance of a share is that of Dir_K(beta).

    The variance is (1/K)(1 - 1/K) / (K beta + 1), plus that of the multinomial draw.
    """
    beta, classes, parties = 2.0, 4, 400
    y = np.repeat(np.arange(classes), 40_000)
    counts = dirichlet_balanced(PartitionRequest(y, parties, beta=beta)).counts(y, classes)
    binomial = (1 / classes) * (1 - 1 / classes)
    dirichlet_variance = binomial / (classes * beta + 1)
    expected = dirichlet_variance + (binomial - dirichlet_variance) / 400
    assert (counts / 400).var() == pytest.approx(expected, rel=0.15)


def test_measures_of_skew() -> None:
    iid = measure_skew(np.array([[10, 10], [20, 20]]))
    assert iid.distance == 0
    assert iid.effective_classes == pytest.approx(2)
    assert iid.imbalance == pytest.approx(1 / 3)  # sizes 20 and 40: mean 30, deviation 10
    disjoint = measure_skew(np.array([[10, 0], [0, 30]]))
    assert disjoint.distance == pytest.approx((3 / 4 + 1 / 4) / 2)
    assert disjoint.effective_classes == pytest.approx(1)
    three_to_one = measure_skew(np.array([[3, 1]]))
    assert three_to_one.effective_classes == pytest.approx((3 / 4) ** -0.75 * (1 / 4) ** -0.25)
    with_empty_party = measure_skew(np.array([[10, 0], [0, 30], [0, 0]]))
    assert with_empty_party[:2] == disjoint[:2]
    assert measure_skew(np.zeros((2, 3), dtype=np.int64)) == (0, 0, 0)


def test_descriptions_name_the_settings() -> None:
    assert describe_data({"partition": "dirichlet", "beta": 0.1}) == "Dirichlet, beta 0.1"
    assert describe_data({"partition": "labels"}) == "2 classes per party"
    three = {"partition": "shards", "shards_per_party": 3}
    assert describe_data(three) == "3 shards per party"
    assert describe_data(three | {"shift": "noise"}) == "3 shards per party, noise up to 0.1"
    assert describe_data({"partition": "column", "column": "site"}) == "by site"
    assert TITLES.keys() == PARTITIONS.keys()
