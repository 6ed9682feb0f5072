"""moonfl.federate with user-supplied data and models, and every encoder with every algorithm."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset

import moonfl
from helpers.equality import same
from helpers.interruption import StopError, stop_after
from moonfl import MOON, Experiment, InputError, RunError
from moonfl.algorithms import ALGORITHMS
from moonfl.api.user_data import TEST, TRAIN, federated_data, read_parties
from moonfl.models import resnet
from moonfl.models.encoders import ENCODERS
from moonfl.task import make_task
from moonfl.types import Params, Party

QUICK: dict[str, Any] = {"rounds": 2, "epochs": 2, "batch_size": 8, "out_dim": 8, "workers": 1}


def clusters(n: int, seed: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return clusters with large offsets and scales, as measurements have."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    x = 1000 + 100 * (np.eye(classes, 5)[y] + 0.1 * rng.normal(size=(n, 5)))
    return x, y


PARTIES = {f"clinic {k}": clusters(40 + k, k) for k in range(3)}


def encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU())


class FullModel(nn.Module):
    """A module that returns (z, logits)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(5, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.features((x - 1000) / 100)
        return z, self.out(z)


class ExtraState(nn.Linear):
    """A module with an extra state that is not a tensor."""

    def __init__(self) -> None:
        super().__init__(5, 4)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 0}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


class Uncopyable(nn.Linear):
    """A module that cannot be copied."""

    def __init__(self) -> None:
        super().__init__(5, 4)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Uncopyable":
        raise RuntimeError("copies are not allowed")


@dataclass(frozen=True)
class WithoutDefault(moonfl.FedAvg):
    """An algorithm with a setting that has no default."""

    factor: float


def test_the_callers_random_state_is_unchanged() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    moonfl.federate(encoder, PARTIES, **QUICK)
    integers = {name: (x.astype(int), y) for name, (x, y) in PARTIES.items()}
    moonfl.federate(encoder, integers, **QUICK)
    assert torch.equal(torch.rand(2), expected)


class RandomFeatures(nn.Module):
    """A module with random values in a buffer that is not part of its state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(5, 30), persistent=False)
        self.layer = nn.Linear(30, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.cos(x @ self.directions))


def test_the_returned_model_has_the_non_persistent_buffers_of_training() -> None:
    x, y = clusters(300, 9)
    result = moonfl.federate(RandomFeatures, PARTIES, test=(x, y), **QUICK)
    state = torch.random.get_rng_state()
    predictions = result.model(torch.from_numpy(x)).logits.argmax(dim=1).numpy()
    assert result.accuracy == pytest.approx((predictions == y).mean())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_it_learns_and_returns_round_records_and_directory(tmp_path: Path) -> None:
    settings = QUICK | {"rounds": 8, "epochs": 4}
    result = moonfl.federate(encoder, PARTIES, out=tmp_path / "run", **settings)
    assert result.accuracy > 0.95
    assert [record.round for record in result.rounds] == list(range(1, 9))
    assert result.directory == tmp_path / "run"
    assert result.experiment.algorithm == MOON(mu=1.0)


def test_a_user_supplied_test_set_is_used() -> None:
    test = clusters(30, 9)
    dataset = TensorDataset(torch.from_numpy(test[0]), torch.from_numpy(test[1]))
    per_party = {name: clusters(10, 5 + k) for k, name in enumerate(PARTIES)}
    for test_set in (test, dataset, per_party):
        result = moonfl.federate(encoder, PARTIES, test_set, **QUICK)
        assert sum(party["samples"] for party in result.rounds[0]["parties"]) == 40 + 41 + 42


def test_arrays_tensors_and_datasets_are_bit_identical() -> None:
    arrays = list(PARTIES.values())
    tensors = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in arrays]
    datasets = [TensorDataset(x, y) for x, y in tensors]
    first, *others = (
        moonfl.federate("mlp", parties, **QUICK).models for parties in (arrays, tensors, datasets)
    )
    assert all(same(first, other) for other in others)


def test_a_module_that_returns_z_and_logits_is_used_without_a_head() -> None:
    result = moonfl.federate(FullModel, PARTIES, **QUICK)
    names = {"model.features.weight", "model.features.bias", "model.out.weight", "model.out.bias"}
    assert result.models["global"].keys() == names


def test_training_starts_from_the_weights_of_a_module() -> None:
    model = FullModel()
    with torch.no_grad():
        model.out.bias.fill_(7.0)
    result = moonfl.federate(model, PARTIES, **(QUICK | {"rounds": 1, "epochs": 1, "lr": 1e-9}))
    bias = result.models["global"]["model.out.bias"]
    assert torch.allclose(bias, torch.full((3,), 7.0), atol=1e-3)


class Tied(nn.Module):
    """A model with two layers that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.out = nn.Linear(5, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.second(torch.tanh(self.first((x - 1000) / 100)))
        return z, self.out(z)


def test_the_server_optimizer_updates_shared_weights(tmp_path: Path) -> None:
    """The second name of shared weights must not be averaged as a buffer.

    That would overwrite the result of the server optimizer, of clipping and of FedDyn.
    """
    start = Tied()
    settings = QUICK | {"rounds": 1}
    server = moonfl.Momentum(momentum=0.9)
    result = moonfl.federate(start, PARTIES, server=server, **settings)
    average = moonfl.federate(start, PARTIES, **settings)
    change, average_change = (
        r.model.model.model.second.weight - start.first.weight for r in (result, average)
    )
    assert torch.allclose(change, 0.1 * average_change, rtol=1e-3, atol=1e-7)
    moonfl.export(result, tmp_path / "out")
    x = torch.from_numpy(PARTIES["clinic 0"][0]).float()
    assert torch.equal(moonfl.load_model(tmp_path / "out", start)(x).logits, result.model(x).logits)


def test_integers_are_standardised_unless_the_model_uses_them_as_token_ids() -> None:
    rng = np.random.default_rng(0)
    texts = [(rng.integers(0, 9, (30, 6)), np.arange(30) % 2) for _ in range(2)]

    def embedding() -> nn.Module:
        return nn.Sequential(nn.Embedding(9, 4), nn.Flatten())

    class Cast(nn.Module):
        """A module that casts its inputs, so that it accepts any type."""

        def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
            super().__init__()
            self.inner = inner
            self.dtype = dtype

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.inner(x.to(self.dtype))
            return output

    def linear() -> nn.Module:
        return nn.Linear(6, 4)

    class Columns(nn.Module):
        """A module with an embedding for each column of ids."""

        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(9, 4), nn.Embedding(2, 4)])

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([table(ids) for table, ids in zip(self.tables, x.T, strict=True)], 1)

    class Positioned(nn.Module):
        """A module for numeric features with an embedding of their positions."""

        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Embedding(6, 4)
            self.out = nn.Linear(1, 4)

        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.out(x.float()[..., None]) + self.position(torch.arange(6))
            return z.flatten(1)

    for model, standardised in (
        (embedding, False),
        (lambda: Cast(embedding(), torch.long), False),
        (linear, True),
        (lambda: Cast(linear(), torch.float32), True),
        (Positioned, True),
        (lambda: nn.Sequential(Cast(nn.LayerNorm(6), torch.float32), linear()), True),
    ):
        result = moonfl.federate(model, texts, **QUICK)
        assert result.rounds[-1]["loss"] < 5
        assert ("standardise.mean" in result.models["global"]) == standardised
    pairs = [(np.stack([x[:, 0], x[:, 1] % 2], axis=1), y) for x, y in texts]
    result = moonfl.federate(Columns, pairs, **QUICK)
    assert "standardise.mean" not in result.models["global"]


def test_a_run_is_not_resumed_with_a_model_that_has_other_buffers(tmp_path: Path) -> None:
    class Buffered(nn.Sequential):
        """A module with buffers of these sizes."""

        def __init__(self, *sizes: int) -> None:
            super().__init__(nn.Linear(5, 16))
            for k, size in enumerate(sizes):
                self.register_buffer(f"b{k}", torch.zeros(size))

    moonfl.federate(Buffered(1), PARTIES, **QUICK, out=tmp_path / "run")
    for other in (Buffered(), Buffered(1, 1), Buffered(3)):
        with pytest.raises(
            InputError, match="the weights or buffers of the model have other shapes"
        ):
            moonfl.federate(other, PARTIES, **QUICK, out=tmp_path / "run", resume=True)


def test_a_run_that_could_not_be_resumed_is_refused(tmp_path: Path) -> None:
    class Local(moonfl.FedAvg):
        pass

    assert moonfl.federate(encoder, PARTIES, algorithm=Local(), **QUICK).rounds
    message = (
        "could not be resumed: its class is defined inside a function; move it to module level"
    )
    with pytest.raises(InputError, match=message):
        moonfl.federate(encoder, PARTIES, algorithm=Local(), **QUICK, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_type_that_cannot_be_stored_gets_a_clear_message(tmp_path: Path) -> None:
    model = encoder()
    model.register_buffer("odd", torch.zeros(2, dtype=torch.complex128))
    with pytest.raises(moonfl.RunError, match=r"cannot be written: .*complex128"):
        moonfl.federate(model, PARTIES, **QUICK, out=tmp_path / "run")


def test_a_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = QUICK | {"rounds": 4}
    with pytest.raises(StopError):
        moonfl.federate(encoder, PARTIES, out=out, watch=stop_after(2), **settings)
    resumed = moonfl.federate(encoder, PARTIES, out=out, resume=True, **settings)
    assert same(resumed.models, moonfl.federate(encoder, PARTIES, **settings).models)
    with pytest.raises(InputError, match="other settings"):
        moonfl.federate(encoder, PARTIES, out=out, resume=True, **(settings | {"lr": 0.5}))
    with pytest.raises(InputError, match="other shapes"):
        moonfl.federate(lambda: nn.Linear(5, 2), PARTIES, out=out, resume=True, **settings)
    message = "already holds a run; resume=True resumes it, force=True replaces"
    with pytest.raises(InputError, match=message):
        moonfl.federate(encoder, PARTIES, out=out, **settings)
    with pytest.raises(InputError, match=r"passed to moonfl\.federate"):
        moonfl.resume(out)


def test_the_message_for_a_damaged_checkpoint_has_a_remedy_that_works(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = QUICK | {"rounds": 3}
    expected = moonfl.federate(encoder, PARTIES, out=out, **settings)
    (out / "checkpoint" / "server-3.safetensors").write_bytes(b"")
    message = rf"moonfl\.federate with out='{out}', resume=True and previous=True resumes"
    with pytest.raises(InputError, match=message):
        moonfl.federate(encoder, PARTIES, out=out, resume=True, **settings)
    resumed = moonfl.federate(encoder, PARTIES, out=out, resume=True, previous=True, **settings)
    assert same(resumed.models, expected.models)
    (out / "partition.json").write_text("")
    message = rf"moonfl\.federate with out='{out}' and force=True instead of"
    with pytest.raises(InputError, match=message):
        moonfl.federate(encoder, PARTIES, out=out, resume=True, **settings)
    restarted = moonfl.federate(encoder, PARTIES, out=out, force=True, **settings)
    assert same(restarted.models, expected.models)


def random_parties(shape: tuple[int, ...], dtype: type) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return two parties with random samples of a shape and a type."""
    rng = np.random.default_rng(0)
    return [((rng.random((12, *shape)) * 200).astype(dtype), np.arange(12) % 2) for _ in range(2)]


class Pairs(torch.utils.data.Dataset[Any]):
    """A dataset of a list of pairs (x, y)."""

    def __init__(self, items: list[tuple[Any, Any]]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.items[i]


class Jittered(Pairs):
    """A dataset with random augmentation that uses all three global generators."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(index)
        return x + torch.rand(1) + np.random.rand() + random.random(), y


def test_random_augmentation_of_a_dataset_is_reproducible(tmp_path: Path) -> None:
    datasets = []
    for xs, ys in PARTIES.values():
        pairs = [(torch.from_numpy(x).float(), int(y)) for x, y in zip(xs, ys, strict=True)]
        datasets.append(Jittered(pairs))
    first, second = (
        moonfl.federate(encoder, datasets, **QUICK, out=tmp_path / name) for name in ("a", "b")
    )
    assert same(first.models, second.models)
    names, (one, two) = read_parties([datasets[0], datasets[0]], "party", TRAIN)
    _, (test,) = read_parties([datasets[0]], "the test set of party", TEST)
    assert names == ("0", "1")
    assert not any(np.array_equal(a.x, b.x) for a, b in ((one, two), (one, test), (two, test)))
    resumed = moonfl.federate(encoder, datasets, **QUICK, out=tmp_path / "a", resume=True)
    assert same(resumed.models, first.models)


class WithoutLength(torch.utils.data.IterableDataset[Any]):
    """A dataset without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def test_string_labels_and_object_arrays_are_bit_identical() -> None:
    """Check arrays of objects, as pandas returns, and datasets with string labels."""
    strings = {name: (x, np.array(["a", "b", "c"])[y]) for name, (x, y) in PARTIES.items()}
    objects = {name: (x.astype(object), y.astype(object)) for name, (x, y) in strings.items()}
    datasets = {
        name: Pairs(list(zip(torch.from_numpy(x), y, strict=True)))
        for name, (x, y) in strings.items()
    }
    first, *others = (
        moonfl.federate(encoder, parties, classes="a, b,c", **QUICK)
        for parties in (strings, objects, datasets)
    )
    assert first.blueprint.classes == ("a", "b", "c")
    assert all(same(first.models, other.models) for other in others)


class Stream(IterableDataset[Any]):
    """A dataset with a length that does not return samples by index."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(5), 0)] * 3)


@dataclass(frozen=True)
class Counts(moonfl.FedAvg):
    """An algorithm whose state is not a tensor."""

    def finish(self, party: Party, trained: Params, steps: int) -> Any:
        return {"n": {"steps": steps}}, {}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_state_that_is_not_a_tensor_gets_a_clear_message(workers: int) -> None:
    message = "finish returns 'n' for the party to store, which is not a dict of tensors"
    with pytest.raises(RunError, match=message):
        moonfl.federate(encoder, PARTIES, algorithm=Counts(), **QUICK | {"workers": workers})


@dataclass(frozen=True)
class OnDevice(moonfl.FedAvg):
    """An algorithm that does not move its state to the CPU."""

    def finish(self, party: Party, trained: Params, steps: int) -> Any:
        return {"prev": {"w": torch.zeros(2, device="meta")}}, {}


def test_a_state_on_a_device_gets_a_clear_message() -> None:
    message = r"finish returns 'prev' .* with 'w' on the device meta; call \.cpu\(\)"
    with pytest.raises(RunError, match=message):
        moonfl.federate(encoder, PARTIES, algorithm=OnDevice(), **QUICK)


SHARED = nn.Linear(5, 8)
NORM = nn.BatchNorm1d(8, affine=False)
VECTORS = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))


def test_models_may_share_tensors_that_are_not_trained() -> None:
    """Pretrained vectors may be loaded once, also for layers with sparse gradients."""

    def model(vectors: Callable[[], Tensor]) -> nn.Module:
        embedding = nn.EmbeddingBag.from_pretrained(vectors(), sparse=True)
        return nn.Sequential(embedding, nn.Linear(8, 4))

    parties = random_parties((5,), np.int64)
    shared = moonfl.federate(lambda: model(lambda: VECTORS), parties, **QUICK)
    copied = moonfl.federate(lambda: model(VECTORS.clone), parties, **QUICK)
    assert same(shared.models, copied.models)


class WordVectors(nn.Module):
    """A model that returns the mean of word vectors, which may be a view of a larger tensor."""

    def __init__(self, sparse: bool = False, view: bool = True) -> None:
        super().__init__()
        vectors = torch.randn(1200, 12)[:, :8]
        if not view:
            vectors = vectors.contiguous()
        self.table = nn.Embedding.from_pretrained(vectors, freeze=False, sparse=sparse)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).mean(dim=1)


def test_a_parameter_that_is_a_view_is_trained_like_any_other() -> None:
    parties = random_parties((5,), np.int64)
    view = moonfl.federate(lambda: WordVectors(view=True), parties, **QUICK)
    contiguous = moonfl.federate(lambda: WordVectors(view=False), parties, **QUICK)
    assert same(view.models, contiguous.models)
    assert view.rounds[0]["loss"] != view.rounds[1]["loss"]


def dropout_encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout())


def test_runs_in_threads_are_bit_identical_to_sequential_runs() -> None:
    """All runs use the global generators of the process."""

    def models(seed: int) -> Any:
        return moonfl.federate(dropout_encoder, PARTIES, seed=seed, **QUICK).models

    with ThreadPoolExecutor(3) as pool:
        parallel = [*pool.map(models, range(3))]
    assert all(same(models(seed), result) for seed, result in enumerate(parallel))


INVALID = [
    ({"parties": []}, "there are no parties"),
    ({"parties": {"a": ([], [])}}, "party a has no samples; pass at least one"),
    ({"parties": {"a\n": clusters(9, 0)}}, "a party has the name"),
    ({"model": FullModel().requires_grad_(False)}, "has no trainable parameter"),
    ({"parties": [np.zeros((3, 2))]}, "party 0 must be \\(x, y\\) or a torch dataset, got ndarray"),
    (
        {"parties": {"a": clusters(9, 0), "b": (np.zeros((4, 7)), np.zeros(4, int))}},
        "party b has samples of shape .7., party a of .5.",
    ),
    ({"parties": {"a": (np.zeros((4, 5)), np.zeros(3, int))}}, "party a: x"),
    (
        {"parties": {"a": (np.full((4, 5), np.nan), np.zeros(4, int))}},
        "sample 0 of party a: x has NaN or infinite values; correct or remove it",
    ),
    ({"parties": {"a": (np.zeros((4, 5)), np.zeros(4))}}, "party a: y holds float64"),
    (
        {"parties": [(np.zeros((3, 5)), np.array(["a", "b", np.nan], dtype=object))]},
        "sample 2 of party 0: y has no label; remove",
    ),
    (
        {"parties": None},
        "parties must be a list of \\(x, y\\), or a dict of them by name, got NoneType",
    ),
    (
        {"parties": [Pairs([(torch.zeros(k + 1), 0) for k in range(3)])]},
        "party 0: its samples cannot be stacked",
    ),
    ({"parties": [Pairs([(torch.zeros(5), 0.7)] * 3)]}, "party 0: y has 1 distinct float64 values"),
    (
        {"parties": [Pairs([(torch.zeros(5), torch.eye(3)[0])] * 3)]},
        r"party 0: x .3, 5. and y .3, 3. must be",
    ),
    (
        {"parties": [WithoutLength()]},
        "must have a length and return samples by index; WithoutLength does not",
    ),
    ({"parties": [Stream()]}, "must have a length and return samples by index; Stream does not"),
    (
        {"parties": [(np.ma.masked_greater(clusters(9, 0)[0], 1100), clusters(9, 0)[1])]},
        "party 0: x: some .* are masked",
    ),
    ({"parties": [clusters(9, 0), (np.zeros((4, 5)), np.zeros(4))]}, "party 1: y holds float64"),
    (
        {"model": lambda: nn.Sequential(SHARED, nn.Linear(8, 4))},
        "the same 'encoder.0.weight' every time",
    ),
    ({"model": lambda: nn.Sequential(nn.Linear(5, 8), NORM)}, "the same 'encoder.1' every time"),
    (
        {
            "model": lambda: nn.Sequential(
                nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False)
            )
        },
        "BatchNorm 'encoder.1' has no running statistics",
    ),
    (
        {"model": lambda: WordVectors(sparse=True), "parties": random_parties((5,), np.int64)},
        "'encoder.table' has sparse gradients",
    ),
    (
        {
            "model": lambda: nn.Sequential(nn.Embedding(2, 4), nn.Flatten()),
            "parties": [(np.arange(12).reshape(6, 2), np.arange(6) % 2)],
        },
        "token ids from 0 to 11, which the model does not accept: index out of range",
    ),
    ({"model": torch.jit.trace(encoder(), torch.zeros(1, 5))}, "is a TorchScript module"),
    (
        {"model": "simple-cnn", "parties": random_parties((28, 28), np.uint8)},
        r"needs images with a channel axis.*shape \(28, 28\); use x\[:, None\]",
    ),
    ({"groups": 5}, "groups must be a list .* or a dict of them by name, got int"),
    ({"groups": "ab"}, "groups must be a list .* or a dict of them by name, got str"),
    ({"classes": ["a", "b,c"]}, "classes must be a list of names without commas, got"),
    ({"batch_size": 10**19}, "batch_size must be an integer >= 1 and <= 2147483647, got 1"),
    (
        {
            "parties": random_parties((1, 4, 4), np.uint8),
            "test": random_parties((1, 4, 4), np.float32)[0],
        },
        "the test set has samples of type float32, party 0 of uint8",
    ),
    (
        {"parties": [*random_parties((1, 4, 4), np.uint8), *random_parties((1, 4, 4), np.float32)]},
        "party 2 has samples of type float32, party 0 of uint8",
    ),
    (
        {"test": {"clinic 0": clusters(9, 0)}},
        "test has sets for clinic 0, but the parties are clinic 0, clinic 1.*; use the same names",
    ),
    ({"epoch": 3}, "unknown setting 'epoch'; did you mean epochs"),
    ({"learning_rate": 3}, "unknown setting 'learning_rate'; did you mean lr"),
    (
        {"mu": 1},
        r"mu is a setting of a component; .*: algorithm=moonfl.MOON\(mu=1\) or algorithm=",
    ),
    (
        {"server.momentum": 0.5},
        r"component: server=moonfl.Momentum\(momentum=0.5\)$",
    ),
    ({"dp.epsilon": 8}, r"component: dp=moonfl.privacy.ServerNoise\(epsilon=8\)$"),
    ({"beta": 0.1}, "beta cannot be passed to moonfl.federate: the samples are already"),
    ({"ignore": "ward"}, "ignore cannot be .*: leave these columns out of each party's x"),
    ({"algorithm": "mon"}, "unknown algorithm 'mon'; did you mean moon"),
    ({"model": "ml"}, "unknown model 'ml'; did you mean mlp"),
    ({"model": 3}, "must be a torch.nn.Module, a function that returns one, or a name"),
    ({"model": lambda: 3}, "returns int, not a torch.nn.Module"),
    (
        {"model": nn.Linear},
        r"cannot be built from the shape of a sample, \(5,\): TypeError: .*out_features",
    ),
    ({"model": lambda: nn.Linear(4, 2)}, r"does not accept samples of shape \[5\]"),
    ({"model": lambda: nn.Unflatten(1, (5, 1))}, r"returns \[2, 5, 1\]; it must return features"),
    ({"resume": True}, "resume=True needs out"),
    ({"previous": True}, "previous=True needs resume=True"),
    (
        {"previous": True, "resume": True, "out": "no-such-run"},
        "previous=True resumes a run, and no-such-run holds none",
    ),
    ({"out": "run", "resume": True, "force": True}, "use one of them"),
    (
        {"model": FullModel, "standardise": True},
        "a model that returns .z, logits. itself receives samples unchanged",
    ),
    ({"model": ExtraState}, "has _extra_state, which is not a tensor"),
    ({"model": ExtraState()}, "has _extra_state, which is not a tensor"),
    (
        {"model": nn.Sequential(Uncopyable())},
        "cannot be copied: RuntimeError: copies are not allowed",
    ),
    ({"parties": [(torch.zeros(4, 5, dtype=torch.bfloat16), [0, 1, 0, 1])]}, "party 0: .*BFloat16"),
    (
        {"algorithm": "test_federate:WithoutDefault"},
        "algorithm.factor has no default and must be set",
    ),
    (
        {"parties": [clusters(9, 0), (np.zeros((4, 5)), np.array([0, np.nan, 1, np.nan]))]},
        "sample 1 of party 1: y has no label, and 1 more have none; remove the samples",
    ),
    (
        {"parties": [clusters(9, 0), (np.zeros((2, 5)), np.array(["a", None], dtype=object))]},
        "sample 1 of party 1: y has no label; remove",
    ),
    ({"model": "mlp", "parties": random_parties((8, 9, 3), np.uint8)}, "has its channels last"),
    ({"model": "mlp", "parties": random_parties((8, 9, 3), np.float32)}, "has its channels last"),
]


@pytest.mark.parametrize(("change", "message"), INVALID, ids=[message for _, message in INVALID])
def test_wrong_input_gets_a_clear_message(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        moonfl.federate(**({"model": encoder, "parties": PARTIES} | QUICK | change))


SHAPES: dict[str, tuple[tuple[int, ...], type]] = {
    "mlp": ((5,), np.float32),
    "simple-cnn": ((3, 16, 16), np.uint8),
    "wide-cnn": ((3, 16, 16), np.uint8),
    "resnet18": ((3, 8, 8), np.uint8),
    "resnet50": ((3, 8, 8), np.uint8),
    "cnn1d": ((3, 24), np.float64),
}


REQUIRED = {"fedrep": {"personal": "output", "epochs": 2}, "perfedavg": {"finetune": 1}}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_encoder_with_every_algorithm(
    encoder: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train one round. ResNets have an eighth of their channels; test_cli.py trains a full one."""
    conv_bn = resnet.conv_bn

    def narrow(inputs: int, outputs: int, *args: Any) -> Any:
        return conv_bn(inputs if inputs < 64 else inputs // 8, outputs // 8, *args)

    monkeypatch.setattr(resnet, "conv_bn", narrow)
    result = moonfl.federate(
        encoder,
        random_parties(*SHAPES[encoder]),
        algorithm=algorithm,
        rounds=1,
        batch_size=4,
        out_dim=8,
        workers=1,
        **{"epochs": 1, **REQUIRED.get(algorithm, {})},
    )
    assert np.isfinite(result.rounds[0]["loss"])


def test_the_cnn_accepts_signals_with_time_first_or_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parties = random_parties((3, 24), np.float64)
    transposed = [(x.transpose(0, 2, 1), y) for x, y in parties]
    losses = [record.loss for record in moonfl.federate("cnn1d", parties, **QUICK).rounds]
    assert "time steps" not in capsys.readouterr().err
    result = moonfl.federate("cnn1d", transposed, **QUICK)
    assert "[24, 3] are read as 24 time steps of 3 channels" in capsys.readouterr().err
    assert losses == pytest.approx([record.loss for record in result.rounds], rel=1e-5)


def test_numbers_in_data_frames_of_strings_or_bytes() -> None:
    """A column of strings is read like one of a file, and uint8 means pixels in images only."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    columns = {"a": rng.integers(0, 9, 40), "b": rng.integers(0, 99, 40) / 4}
    frame, y = pandas.DataFrame(columns), np.arange(40) % 2
    integers = frame[["a"]]
    plain = moonfl.federate("mlp", [(frame, y), (frame, y)], **QUICK)
    text = moonfl.federate("mlp", [(frame.astype(str), y), (frame, y)], **QUICK)
    assert same(plain.models, text.models)
    plain = moonfl.federate("mlp", [(integers, y), (integers, y)], **QUICK)
    small = moonfl.federate("mlp", [(integers.astype("uint8"), y), (integers, y)], **QUICK)
    assert same(plain.models, small.models)
    wrong = frame.astype(str)
    wrong.loc[3, "b"] = "high"
    with pytest.raises(InputError, match="party 1, row 3: column 'b' is 'high', not a finite"):
        moonfl.federate("mlp", [(frame, y), (wrong, y)], **QUICK)
    missing = pandas.Series([pandas.NA] * 40, dtype="Int64")
    with pytest.raises(InputError, match="sample 0 of party 0: y has no label, and 39 more"):
        moonfl.federate("mlp", [(frame, missing)], **QUICK)


def test_many_channels_are_possible_and_channels_last_are_not() -> None:
    spectra = random_parties((12, 9, 9), np.float32)
    assert moonfl.federate("mlp", spectra, **QUICK).blueprint.shape == (12, 9, 9)


def test_user_supplied_data_cannot_be_read_again() -> None:
    with pytest.raises(InputError, match=r"passed to moonfl\.federate"):
        make_task(Experiment(dataset="given"))


def test_string_and_integer_labels_are_not_mixed() -> None:
    """The integer 1 and the string "1" would be two classes."""
    x = np.zeros((2, 3), dtype=np.float32)
    with pytest.raises(InputError, match="some labels are strings and others are numbers"):
        moonfl.federate("mlp", [(x, np.array([1, 1])), (x, np.array(["1", "2"]))], rounds=1)


def test_a_classifier_that_gets_a_head_prints_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    classifier = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    moonfl.federate(classifier, PARTIES, rounds=1, epochs=1, workers=1)
    assert "returns 3 values per sample, one per class" in capsys.readouterr().err
    moonfl.federate(nn.Linear(5, 8), PARTIES, rounds=1, epochs=1, workers=1)
    assert capsys.readouterr().err == ""


def test_a_model_that_does_not_fit_float32_samples_is_named() -> None:
    """It was built under torch.set_default_dtype(float64), or with torch.device("meta")."""
    x, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 2
    parties = {"a": (x[:20], y[:20]), "b": (x[20:], y[20:])}
    double = nn.Linear(5, 4).double()
    with pytest.raises(InputError, match=r"float64 parameters \('weight'\).*call model.float\(\)"):
        moonfl.federate(double, parties, rounds=1)
    with torch.device("meta"):
        empty = nn.Linear(5, 4)
    with pytest.raises(InputError, match="'weight' is on the meta device and has no values"):
        moonfl.federate(empty, parties, rounds=1)


def test_a_common_test_set_is_shifted_like_the_parties_that_share_it() -> None:
    """Party i of N multiplies its samples by 1 - level i/N, and its share of the test set too."""
    x, y = clusters(60, seed=9)
    exp = Experiment(
        parties=3, personal="output", shift="scale", shift_level=0.6, algorithm=moonfl.FedAvg()
    )
    names, sets = read_parties(PARTIES, "party", TRAIN)
    data = federated_data("mlp", names, sets, (x, y), exp)
    assert data.test is not None
    assert data.test_party is not None
    scale = 1 - 0.6 * (data.test_party + 1) / 3
    expected = torch.from_numpy(x) * scale[:, None]
    torch.testing.assert_close(data.test.x, expected.to(data.test.x.dtype), rtol=1e-6, atol=0)
    assert data.test_party.unique().tolist() == [0, 1, 2]
