"""moonfl.federate: somebody's arrays and modules; and every encoder with every method."""

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
from moonfl import MOON, Experiment, InputError, RunError
from moonfl.algorithms import ALGORITHMS
from moonfl.api.federate import TEST, TRAIN, _read_parties
from moonfl.models import resnet
from moonfl.models.encoders import ENCODERS
from moonfl.task import make_task
from moonfl.types import Params, Party

QUICK: dict[str, Any] = {"rounds": 2, "epochs": 2, "batch_size": 8, "out_dim": 8, "workers": 1}


def clusters(n: int, seed: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Far from 0 and of very different sizes, as measurements are."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return 1000 + 100 * (np.eye(classes, 5)[y] + 0.1 * rng.normal(size=(n, 5))), y


PARTIES = {f"clinic {k}": clusters(40 + k, k) for k in range(3)}


def encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU())


class Both(nn.Module):
    """A module that gives z and logits itself."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.out = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.features((x - 1000) / 100)
        return z, self.out(z)


class Extra(nn.Linear):
    """A module that keeps what is no tensor."""

    def __init__(self) -> None:
        super().__init__(5, 4)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 0}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


class Uncopied(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 4)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Uncopied":
        raise RuntimeError("only one of me")


@dataclass(frozen=True)
class Needs(moonfl.FedAvg):
    much: float


def test_the_callers_random_numbers_stay_as_they_are() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    moonfl.federate(encoder, PARTIES, **QUICK)
    whole = {name: (x.astype(int), y) for name, (x, y) in PARTIES.items()}
    moonfl.federate(encoder, whole, **QUICK)
    assert torch.equal(torch.rand(2), expected)


class RandomFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(5, 30), persistent=False)
        self.layer = nn.Linear(30, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.cos(x @ self.directions))


def test_a_model_is_given_back_with_the_unsaved_buffers_it_was_trained_with() -> None:
    x, y = clusters(300, 9)
    result = moonfl.federate(RandomFeatures, PARTIES, test=(x, y), **QUICK)
    state = torch.random.get_rng_state()
    found = result.model(torch.from_numpy(x).float()).logits.argmax(dim=1).numpy()
    assert result.accuracy == pytest.approx((found == y).mean())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_it_learns_and_gives_history_and_directory(tmp_path: Path) -> None:
    result = moonfl.federate(
        encoder, PARTIES, out=tmp_path / "run", **(QUICK | {"rounds": 8, "epochs": 4})
    )
    assert result.accuracy > 0.95
    assert [fact["round"] for fact in result.rounds] == list(range(1, 9))
    assert result.directory == tmp_path / "run"
    assert result.experiment.algorithm == MOON(mu=1.0)


def test_the_test_set_is_the_users_where_there_is_one() -> None:
    test = clusters(30, 9)
    for given in (test, TensorDataset(torch.from_numpy(test[0]), torch.from_numpy(test[1]))):
        exp_rounds = moonfl.federate(encoder, PARTIES, given, **QUICK).rounds
        assert sum(party["samples"] for party in exp_rounds[0]["parties"]) == 40 + 41 + 42
    per_party = {name: clusters(10, 5 + k) for k, name in enumerate(PARTIES)}
    each = moonfl.federate(encoder, PARTIES, per_party, **QUICK)
    assert sum(party["samples"] for party in each.rounds[0]["parties"]) == 40 + 41 + 42


def test_lists_tensors_and_data_sets_are_the_same() -> None:
    arrays = list(PARTIES.values())
    tensors = [(torch.from_numpy(x).float(), torch.from_numpy(y)) for x, y in arrays]
    sets = [TensorDataset(x, y) for x, y in tensors]
    first, *others = (
        moonfl.federate("mlp", parties, **QUICK).models for parties in (arrays, tensors, sets)
    )
    assert all(same(first, other) for other in others)


def test_a_module_that_gives_both_is_taken_as_it_is() -> None:
    result = moonfl.federate(Both, PARTIES, **QUICK)
    names = {"model.features.weight", "model.features.bias", "model.out.weight", "model.out.bias"}
    assert result.models["global"].keys() == names


def test_a_module_with_weights_starts_from_them() -> None:
    made = Both()
    with torch.no_grad():
        made.out.bias.fill_(7.0)
    result = moonfl.federate(made, PARTIES, **(QUICK | {"rounds": 1, "epochs": 1, "lr": 1e-9}))
    assert torch.allclose(
        result.models["global"]["model.out.bias"], torch.full((3,), 7.0), atol=1e-3
    )


class Tied(nn.Module):
    """Two layers that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.second(torch.tanh(self.first((x - 1000) / 100)))
        return z, self.out(z)


def test_weights_that_layers_share_take_the_servers_step(tmp_path: Path) -> None:
    """Their second name is no buffer: averaged as one, it would undo what server step, clipping and FedDyn make."""
    start, server = Tied(), moonfl.Momentum(momentum=0.9)
    result = moonfl.federate(start, PARTIES, server=server, **(QUICK | {"rounds": 1}))
    plain = moonfl.federate(start, PARTIES, **(QUICK | {"rounds": 1}))
    moved, whole = (r.model.model.model.second.weight - start.first.weight for r in (result, plain))
    assert torch.allclose(moved, 0.1 * whole, rtol=1e-3, atol=1e-7)
    moonfl.export(result, tmp_path / "out")
    x = torch.from_numpy(PARTIES["clinic 0"][0]).float()
    assert torch.equal(moonfl.load_model(tmp_path / "out", start)(x).logits, result.model(x).logits)


def test_whole_numbers_stay_so_for_an_embedding_and_only_for_it() -> None:
    rng = np.random.default_rng(0)
    texts = [(rng.integers(0, 9, (30, 6)), np.arange(30) % 2) for _ in range(2)]

    def embedding() -> nn.Module:
        return nn.Sequential(nn.Embedding(9, 4), nn.Flatten())

    class Given(nn.Module):
        """Takes numbers of any type, to look up or to measure by."""

        def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
            super().__init__()
            self.inner, self.dtype = inner, dtype

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.inner(x.to(self.dtype))
            return made

    def measured() -> nn.Module:
        return nn.Linear(6, 4)

    class Positioned(nn.Module):
        """Measures, and looks up where it is."""

        def __init__(self) -> None:
            super().__init__()
            self.place, self.out = nn.Embedding(6, 4), nn.Linear(1, 4)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = (self.out(x.float()[..., None]) + self.place(torch.arange(6))).flatten(1)
            return made

    for model, standardised in (
        (embedding, False),
        (lambda: Given(embedding(), torch.long), False),
        (measured, True),
        (lambda: Given(measured(), torch.float32), True),
        (Positioned, True),
    ):
        result = moonfl.federate(model, texts, **QUICK)
        assert result.rounds[-1]["loss"] < 5
        assert ("standardise.mean" in result.models["global"]) == standardised


def test_a_model_with_other_buffers_is_not_the_one_that_was_begun_with(tmp_path: Path) -> None:
    class Buffered(nn.Sequential):
        def __init__(self, *sizes: int) -> None:
            super().__init__(nn.Linear(5, 16))
            for k, size in enumerate(sizes):
                self.register_buffer(f"b{k}", torch.zeros(size))

    moonfl.federate(Buffered(1), PARTIES, **QUICK, out=tmp_path / "run")
    for other in (Buffered(), Buffered(1, 1), Buffered(3)):
        with pytest.raises(InputError, match="its weights or buffers have other shapes"):
            moonfl.federate(other, PARTIES, **QUICK, out=tmp_path / "run", resume=True)


def test_a_run_that_could_never_go_on_is_not_begun(tmp_path: Path) -> None:
    class Local(moonfl.FedAvg):
        pass

    assert moonfl.federate(encoder, PARTIES, algorithm=Local(), **QUICK).rounds
    with pytest.raises(
        InputError,
        match=r"could not be resumed: its class is defined inside a function; move it to module level",
    ):
        moonfl.federate(encoder, PARTIES, algorithm=Local(), **QUICK, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_numbers_that_no_file_can_hold_are_told(tmp_path: Path) -> None:
    model = encoder()
    model.register_buffer("odd", torch.zeros(2, dtype=torch.complex128))
    with pytest.raises(moonfl.RunError, match=r"cannot be written: .*complex128"):
        moonfl.federate(model, PARTIES, **QUICK, out=tmp_path / "run")


def test_it_resumes_to_the_same_bits(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(fact: dict[str, Any]) -> None:
        if fact["round"] == 2:
            raise StopError

    settings = QUICK | {"rounds": 4}
    with pytest.raises(StopError):
        moonfl.federate(encoder, PARTIES, out=tmp_path / "run", watch=stop, **settings)
    resumed = moonfl.federate(encoder, PARTIES, out=tmp_path / "run", resume=True, **settings)
    assert same(resumed.models, moonfl.federate(encoder, PARTIES, **settings).models)
    with pytest.raises(InputError, match="other settings"):
        moonfl.federate(
            encoder, PARTIES, out=tmp_path / "run", resume=True, **(settings | {"lr": 0.5})
        )
    with pytest.raises(InputError, match="other shapes"):
        moonfl.federate(
            lambda: nn.Linear(5, 2), PARTIES, out=tmp_path / "run", resume=True, **settings
        )
    with pytest.raises(
        InputError, match="already holds a run; resume=True resumes it, force=True replaces"
    ):
        moonfl.federate(encoder, PARTIES, out=tmp_path / "run", **settings)
    with pytest.raises(InputError, match=r"passed to moonfl\.federate"):
        moonfl.resume(tmp_path / "run")


def test_a_damaged_checkpoint_has_a_way_out(tmp_path: Path) -> None:
    """The one that the message names."""
    out, settings = tmp_path / "run", QUICK | {"rounds": 3}
    whole = moonfl.federate(encoder, PARTIES, out=out, **settings)
    (out / "checkpoint" / "server-3.safetensors").write_bytes(b"")
    with pytest.raises(
        InputError,
        match=rf"moonfl\.federate with out='{out}', resume=True and previous=True resumes",
    ):
        moonfl.federate(encoder, PARTIES, out=out, resume=True, **settings)
    again = moonfl.federate(encoder, PARTIES, out=out, resume=True, previous=True, **settings)
    assert same(again.models, whole.models)
    (out / "partition.json").write_text("")
    with pytest.raises(
        InputError, match=rf"moonfl\.federate with out='{out}' and force=True instead of"
    ):
        moonfl.federate(encoder, PARTIES, out=out, resume=True, **settings)
    assert same(
        moonfl.federate(encoder, PARTIES, out=out, force=True, **settings).models, whole.models
    )


def made(shape: tuple[int, ...], dtype: type) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [((rng.random((12, *shape)) * 200).astype(dtype), np.arange(12) % 2) for _ in range(2)]


class Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, items: list[tuple[Any, Any]]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.items[i]


class Jittered(Pairs):
    """A data set whose transform draws at random, from any of the three generators."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(index)
        return x + torch.rand(1) + np.random.rand() + random.random(), y


def test_what_a_data_set_draws_is_the_same_in_every_run(tmp_path: Path) -> None:
    pairs = (
        [(torch.from_numpy(x).float(), int(y)) for x, y in zip(*of, strict=True)]
        for of in PARTIES.values()
    )
    sets = [Jittered(of) for of in pairs]
    first, again = (
        moonfl.federate(encoder, sets, **QUICK, out=tmp_path / name) for name in ("a", "b")
    )
    assert same(first.models, again.models)
    names, (one, two) = _read_parties([sets[0], sets[0]], "party", TRAIN)
    _, (held,) = _read_parties([sets[0]], "the test set of party", TEST)
    assert names == ("0", "1")
    assert not any(np.array_equal(a.x, b.x) for a, b in ((one, two), (one, held), (two, held)))
    assert same(
        moonfl.federate(encoder, sets, **QUICK, out=tmp_path / "a", resume=True).models,
        first.models,
    )


class Endless(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def test_words_and_arrays_of_objects_are_what_they_hold() -> None:
    """As pandas gives them, and as a data set may."""
    words = {name: (x, np.array(["a", "b", "c"])[y]) for name, (x, y) in PARTIES.items()}
    objects = {name: (x.astype(object), y.astype(object)) for name, (x, y) in words.items()}
    sets = {
        name: Pairs(list(zip(torch.from_numpy(x), y, strict=True)))
        for name, (x, y) in words.items()
    }
    first, *others = (
        moonfl.federate(encoder, of, classes="a, b,c", **QUICK) for of in (words, objects, sets)
    )
    assert first.blueprint.classes == ("a", "b", "c")
    assert all(same(first.models, other.models) for other in others)


class Stream(IterableDataset[Any]):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(5), 0)] * 3)


@dataclass(frozen=True)
class Counts(moonfl.FedAvg):
    """A method that keeps a plain number."""

    def finish(self, party: Party, trained: Params, steps: int) -> Any:
        return {"n": {"steps": steps}}, {}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_method_keeps_is_tensors(workers: int) -> None:
    with pytest.raises(
        RunError, match="finish returns 'n' for the party to store, which is not a dict of tensors"
    ):
        moonfl.federate(encoder, PARTIES, algorithm=Counts(), **QUICK | {"workers": workers})


SHARED, NORM = nn.Linear(5, 8), nn.BatchNorm1d(8, affine=False)
VECTORS = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))


def test_what_is_never_trained_may_be_shared() -> None:
    """Such as vectors that were loaded once, whether or not their gradients would be sparse."""

    def looked_up(vectors: Callable[[], Tensor]) -> nn.Module:
        return nn.Sequential(
            nn.EmbeddingBag.from_pretrained(vectors(), sparse=True), nn.Linear(8, 4)
        )

    parties = made((5,), np.int64)
    once, anew = (
        moonfl.federate(lambda of=of: looked_up(of), parties, **QUICK)
        for of in (lambda: VECTORS, VECTORS.clone)
    )
    assert same(once.models, anew.models)


class Words(nn.Module):
    """Means of word vectors that are cut out of a larger table."""

    def __init__(self, sparse: bool = False, cut: bool = True) -> None:
        super().__init__()
        vectors = torch.randn(1200, 12)[:, :8]
        vectors = vectors if cut else vectors.contiguous()
        self.table = nn.Embedding.from_pretrained(vectors, freeze=False, sparse=sparse)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).mean(dim=1)


def test_a_parameter_cut_out_of_a_larger_tensor_is_trained_as_any_other() -> None:
    parties = made((5,), np.int64)
    cut, whole = (
        moonfl.federate(lambda cut=cut: Words(cut=cut), parties, **QUICK) for cut in (True, False)
    )
    assert same(cut.models, whole.models)
    assert cut.rounds[0]["loss"] != cut.rounds[1]["loss"]


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout())


def test_runs_in_threads_give_what_they_give_one_after_the_other() -> None:
    """They draw from the generators of the process."""

    def trained(seed: int) -> Any:
        return moonfl.federate(dropping, PARTIES, seed=seed, **QUICK).models

    with ThreadPoolExecutor(3) as pool:
        together = [*pool.map(trained, range(3))]
    assert all(same(trained(seed), found) for seed, found in enumerate(together))


WRONG = [
    ({"parties": []}, "there are no parties"),
    ({"parties": {"a": ([], [])}}, "party a has no samples"),
    ({"parties": {"a\n": clusters(9, 0)}}, "a party has the name"),
    ({"model": Both().requires_grad_(False)}, "has no trainable parameter"),
    ({"parties": [np.zeros((3, 2))]}, "party 0 must be \\(x, y\\) or a torch dataset, got ndarray"),
    (
        {"parties": {"a": clusters(9, 0), "b": (np.zeros((4, 7)), np.zeros(4, int))}},
        "party b has samples of shape .7., party a of .5.",
    ),
    ({"parties": {"a": (np.zeros((4, 5)), np.zeros(3, int))}}, "party a: x"),
    (
        {"parties": {"a": (np.full((4, 5), np.nan), np.zeros(4, int))}},
        "party a: x has a value that is not finite",
    ),
    ({"parties": {"a": (np.zeros((4, 5)), np.zeros(4))}}, "party a: y holds float64"),
    (
        {"parties": [(np.zeros((3, 5)), np.array(["a", "b", np.nan], dtype=object))]},
        "party 0: y holds object",
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
    ({"parties": [Endless()]}, "must have a length and return samples by index; Endless does not"),
    ({"parties": [Stream()]}, "must have a length and return samples by index; Stream does not"),
    (
        {"parties": [(np.ma.masked_greater(clusters(9, 0)[0], 1100), clusters(9, 0)[1])]},
        "party 0: some .* are masked",
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
        {"model": lambda: Words(sparse=True), "parties": made((5,), np.int64)},
        "'encoder.table' has sparse gradients",
    ),
    ({"batch_size": 10**19}, "batch_size must be an integer >= 1 and <= 2147483647, got 1"),
    (
        {"parties": made((1, 4, 4), np.uint8), "test": made((1, 4, 4), np.float32)[0]},
        "the test set has samples of type float32, party 0 of uint8",
    ),
    (
        {"parties": [*made((1, 4, 4), np.uint8), *made((1, 4, 4), np.float32)]},
        "party 2 has samples of type float32, party 0 of uint8",
    ),
    (
        {"test": {"clinic 0": clusters(9, 0)}},
        "test has the parties clinic 0, parties are clinic 0, clinic 1",
    ),
    ({"epoch": 3}, "unknown setting 'epoch'; did you mean epochs"),
    ({"beta": 0.1}, "beta has no effect here"),
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
    ({"out": "run", "resume": True, "force": True}, "use one of them"),
    (
        {"model": Both, "standardise": True},
        "a model that returns .z, logits. itself receives samples unchanged",
    ),
    ({"model": Extra}, "has _extra_state, which is not a tensor"),
    ({"model": Extra()}, "has _extra_state, which is not a tensor"),
    (
        {"model": nn.Sequential(Uncopied())},
        "cannot be copied: RuntimeError: only one of me",
    ),
    ({"parties": [(torch.zeros(4, 5, dtype=torch.bfloat16), [0, 1, 0, 1])]}, "party 0: .*BFloat16"),
    ({"algorithm": "test_federate:Needs"}, "algorithm.much has no default and must be set"),
    ({"model": "mlp", "parties": made((8, 9, 3), np.uint8)}, "has its channels last"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_input_gets_a_clear_message(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        moonfl.federate(**({"model": encoder, "parties": PARTIES} | QUICK | change))


SHAPES: dict[str, tuple[tuple[int, ...], type]] = {
    "mlp": ((5,), np.float32),
    "simple-cnn": ((3, 16, 16), np.uint8),
    "resnet18": ((3, 8, 8), np.uint8),
    "resnet50": ((3, 8, 8), np.uint8),
    "cnn1d": ((3, 24), np.float64),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_encoder_with_every_method(
    encoder: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ResNets an eighth as wide: the same blocks; test_cli.py trains a whole one."""
    whole = resnet.conv_bn
    monkeypatch.setattr(
        resnet, "conv_bn", lambda i, o, *more: whole(i if i < 64 else i // 8, o // 8, *more)
    )
    result = moonfl.federate(
        encoder,
        made(*SHAPES[encoder]),
        algorithm=algorithm,
        rounds=1,
        epochs=1,
        batch_size=4,
        out_dim=8,
        workers=1,
    )
    assert np.isfinite(result.rounds[0]["loss"])


def test_signals_with_time_first_or_last_are_the_same_to_the_cnn() -> None:
    parties = made((3, 24), np.float64)
    turned = [(x.transpose(0, 2, 1), y) for x, y in parties]
    first, other = (moonfl.federate("cnn1d", of, **QUICK) for of in (parties, turned))
    assert [fact["loss"] for fact in first.rounds] == pytest.approx(
        [fact["loss"] for fact in other.rounds], rel=1e-5
    )


def test_given_data_cannot_be_read_again() -> None:
    with pytest.raises(InputError, match=r"passed to moonfl\.federate"):
        make_task(Experiment(dataset="given"))


def test_labels_of_two_kinds_do_not_mix() -> None:
    """A 1 and a "1" would be two classes."""
    x = np.zeros((2, 3), dtype=np.float32)
    with pytest.raises(InputError, match="some labels are strings and others are numbers"):
        moonfl.federate("mlp", [(x, np.array([1, 1])), (x, np.array(["1", "2"]))], rounds=1)


def test_a_classifier_does_not_silently_get_a_head(capsys: pytest.CaptureFixture[str]) -> None:
    classifier = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    moonfl.federate(classifier, PARTIES, rounds=1, epochs=1, workers=1)
    assert "returns 3 values per sample, one per class" in capsys.readouterr().err
    moonfl.federate(nn.Linear(5, 8), PARTIES, rounds=1, epochs=1, workers=1)
    assert capsys.readouterr().err == ""
