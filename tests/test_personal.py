"""Personal models: which tensors stay at the party, that they do, and what this gains."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import moonfl
from helpers.equality import same
from helpers.flower_deployment import Deployment, run_simulated
from helpers.flower_grid import unpack
from helpers.interruption import StopError, results_of, stop_after
from helpers.problems import (
    AS_STORED,
    TINY,
    MemoryRecorder,
    gaussians,
    train,
    with_algorithm,
    write_cifar10,
)
from moonfl import tree
from moonfl.algorithms import ALGORITHMS, Algorithm, FedAvg, FedProx, has_own_model
from moonfl.data.base import Dataset, Examples
from moonfl.data.npz import write_npz
from moonfl.engines.embedded import Embedded
from moonfl.errors import InputError, RunError
from moonfl.experiment import Experiment, fingerprint, override
from moonfl.federation import run
from moonfl.local import Workbench, local_update
from moonfl.metrics import Score
from moonfl.models.base import Model, Standardise
from moonfl.personal import LABEL, personal_names, share_test_set
from moonfl.presets import PRESETS
from moonfl.runs.rounds import party_statistics
from moonfl.runs.states import States
from moonfl.task import Task, make_task
from moonfl.types import Batch, Output, Params, Server

OUTPUT = ("output.weight", "output.bias")
BATCH_NORM = tuple(
    f"encoder.2.{name}"
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
)
QUICK = Experiment(parties=3, rounds=3, epochs=1, out_dim=16, sample_fraction=0.67)
SHARING = [  # the methods that take personal tensors
    name for name, cls in ALGORITHMS.items() if cls.federated and not has_own_model(cls())
]
COMPOSED = override(
    PRESETS["digits-moon"].experiment,
    ["algorithm=moon+scaffold", "server=momentum", "rounds=2", "epochs=1", "parties=4"],
)


class NormEncoder(nn.Sequential):
    """A small encoder with BatchNorm, for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU())


def network(head: bool = True) -> Model:
    return Model(NormEncoder(), 32, 10, head=head, out_dim=16)


def with_personal(task: Task, selection: str) -> Task:
    """Return a task whose parties hold out alternating test samples and have personal tensors."""
    owner = torch.arange(len(task.test.y)) % len(task.parties)
    return replace(task, test_party=owner, personal=personal_names(selection, task.build()))


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("output", OUTPUT),
        ("batchnorm", BATCH_NORM),
        (r"output\.bias", ("output.bias",)),
        (r".*running_(mean|var)", BATCH_NORM[2:4]),
        ("head", ("head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias")),
    ],
)
def test_the_setting_selects_tensors_by_name(selection: str, expected: tuple[str, ...]) -> None:
    assert set(personal_names(selection, network())) == set(expected)


def test_the_encoder_includes_its_buffers() -> None:
    names = personal_names("encoder", network())
    assert set(BATCH_NORM) < set(names)
    assert all(name.startswith("encoder.") for name in names)


def test_standardisation_is_never_personal() -> None:
    model = network()
    model.standardise = Standardise((1,))
    assert "standardise.mean" in tree.buffers_of(model)
    names = personal_names(r"output.*|standardise.*", model)
    assert set(names) == set(OUTPUT)


@pytest.mark.parametrize("selection", ["outptu", "head", "bias"])
def test_an_empty_selection_is_refused_with_the_names(selection: str) -> None:
    with pytest.raises(InputError, match=r"selects nothing.*output\.weight"):
        personal_names(selection, network(head=False))


def test_a_model_without_parts_needs_a_regular_expression() -> None:
    whole = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(InputError, match="selects nothing"):
        personal_names("output", whole)
    assert personal_names(r"1\..*", whole) == ("1.weight", "1.bias")


@pytest.mark.parametrize("selection", [".*", ".*(weight|bias)"])
def test_a_selection_of_all_parameters_is_refused(selection: str) -> None:
    with pytest.raises(InputError, match="every trainable parameter"):
        personal_names(selection, network())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["personal=(", "algorithm=fedavg"], "regular expression"),
        (["personal=output", "algorithm=solo", "rounds=1"], "shares nothing"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        override(Experiment(), changes)


def test_the_default_keeps_fingerprints() -> None:
    assert "personal" not in moonfl.experiment.to_dict(Experiment())
    assert fingerprint(replace(Experiment(), personal="output")) != fingerprint(Experiment())
    assert override(Experiment(personal="output"), ["personal=none"]) == Experiment()


def test_the_server_holds_only_shared_tensors() -> None:
    """SCAFFOLD's c, the momentum and the byte counts follow from it."""
    exp = with_algorithm(replace(TINY, personal="output"), "moon+scaffold")
    exp = override(exp, ["server=momentum"])
    task = with_personal(gaussians(batch_norm=True), "output")
    recorder = MemoryRecorder()
    server = run(exp, task, Embedded(exp, task), recorder)
    tensors = [server.params, server.buffers, *server.shared.values(), *server.memory.values()]
    tensors += server.optimizer_state.values()
    for update in recorder.updates[-1]:
        tensors += [update.params, update.buffers, *update.extra.values()]
    assert len(tensors) == 16
    assert not any(name in params for params in tensors for name in OUTPUT)
    shared = tree.num_bytes(server.params) + tree.num_bytes(server.buffers)
    c = tree.num_bytes(server.params)
    assert recorder.records[-1].bytes_up == recorder.records[-1].bytes_down == 4 * (shared + c)


def test_a_party_starts_from_the_initial_weights_and_keeps_its_own() -> None:
    exp = replace(TINY, algorithm=FedAvg(), rounds=2, personal="output")
    task = with_personal(gaussians(), "output")
    params, _ = task.init_model(exp.seed)
    assert same(dict(task.personal_part(None, exp.seed)), {k: params[k] for k in OUTPUT})
    states = States()
    run(exp, task, Embedded(exp, task, states), MemoryRecorder())
    own = [states.load(i, before=9)[LABEL] for i in range(4)]
    assert all(list(tensors) == list(OUTPUT) for tensors in own)
    assert not any(same(own[i], own[j]) for i in range(4) for j in range(i))


@dataclass(frozen=True)
class Witness(Algorithm):
    """A method that checks what it sees of a party with a personal output layer."""

    def init_party(self, params: Params):
        assert not set(OUTPUT) & params.keys()
        return {"count": {"n": torch.zeros(1)}}

    def term(self, party):
        assert set(party.personal) == set(OUTPUT)
        assert set(OUTPUT) < party.global_model.keys()
        assert not set(OUTPUT) & party.global_params.keys()
        assert list(party.state) == ["count"]

        def check(output: Output, batch: Batch, w: Params):
            assert list(w) == list(party.global_params)
            return output.z.sum() * 0

        return check

    def finish(self, party, trained, steps):
        assert trained.keys() == party.global_model.keys()
        return {"count": {"n": party.state["count"]["n"] + 1}}, {}


def test_a_method_sees_the_shared_parameters_and_its_own_state() -> None:
    exp = replace(TINY, algorithm=Witness(), personal="output")
    states = States()
    task = with_personal(gaussians(batch_norm=True), "output")
    run(exp, task, Embedded(exp, task, states), MemoryRecorder())
    assert float(states.load(0, before=9)["count"]["n"]) == exp.rounds


@pytest.mark.parametrize("name", SHARING)
def test_every_method_works_with_personal_tensors(name: str) -> None:
    exp = with_algorithm(replace(TINY, personal="batchnorm"), name)
    task = with_personal(gaussians(batch_norm=True), "batchnorm")
    recorder = MemoryRecorder()
    server = run(exp, task, Embedded(exp, task), recorder)
    params, buffers = task.init_shared(exp.seed)
    assert list(server.params) == list(params)
    assert list(server.buffers) == list(buffers) == []
    assert tree.norm(tree.sub(server.params, params)) > 0
    assert 0 < recorder.records[-1].accuracy <= 1


@dataclass(frozen=True)
class Taker(Algorithm):
    """A method that stores the reserved label."""

    def finish(self, party, trained, steps):
        return {LABEL: {}}, {}


def test_a_method_that_stores_the_reserved_label_is_refused() -> None:
    task = gaussians()
    train(replace(TINY, algorithm=Taker()), task)  # without personal tensors it is free
    with pytest.raises(RunError, match="rename it"):
        train(replace(TINY, algorithm=Taker(), personal="output"), with_personal(task, "output"))


def test_a_party_with_a_single_sample_keeps_its_initial_tensors() -> None:
    exp = replace(TINY, parties=2, algorithm=FedAvg(), personal="batchnorm")
    task = with_personal(gaussians((1, 30), batch_norm=True), "batchnorm")
    server = Server(*task.init_shared(exp.seed))
    update, state = local_update(exp, task, Workbench(task.build), server, state=None, party=0, t=0)
    assert update.num_steps == 0
    assert same(state, {LABEL: task.personal_part(None, exp.seed)})


def test_the_proximal_term_leaves_personal_tensors_alone() -> None:
    """A huge mu freezes the shared parameters; the output layer still learns."""
    exp = replace(TINY, rounds=1, epochs=20, lr=1e-3, momentum=0.0, personal="output")
    exp = replace(exp, algorithm=FedProx(mu=1e3), weight_decay=0.0)
    task = with_personal(gaussians(), "output")
    states = States()
    server = run(exp, task, Embedded(exp, task, states), MemoryRecorder())
    free = train(replace(exp, algorithm=FedAvg()), task)
    start, _ = task.init_shared(exp.seed)
    moved = tree.norm(tree.sub(server.params, start))
    assert moved < 0.1 * tree.norm(tree.sub(free.params, start))
    own = states.load(0, before=9)[LABEL]
    assert tree.norm(tree.sub(own, task.personal_part(None, exp.seed))) > 10 * moved


def test_a_common_test_set_is_shared_by_class_proportions() -> None:
    test = torch.arange(1000) % 4
    counts = {0: [30, 0, 5, 0], 3: [10, 20, 5, 0]}  # nobody has class 3
    labels = {
        i: torch.repeat_interleave(torch.arange(4), torch.tensor(n)) for i, n in counts.items()
    }
    owner = share_test_set(test, labels, seed=0)
    shares = {
        (party, k): int(((owner == party) & (test == k)).sum())
        for party in (0, 3, -1)
        for k in range(4)
    }
    assert [shares[0, k] for k in range(4)] == [187, 0, 125, 0]
    assert [shares[3, k] for k in range(4)] == [63, 250, 125, 0]
    assert [shares[-1, k] for k in range(4)] == [0, 0, 0, 250]
    assert same(owner, share_test_set(test, labels, seed=0))
    assert not same(owner, share_test_set(test, labels, seed=1))


def test_a_test_set_of_other_classes_is_refused() -> None:
    exp = Experiment(dataset="npz", parties=2, personal="output", epochs=1, batch_size=8)
    x = torch.randn(40, 3)
    train, test = Examples(x, torch.arange(40) % 2), Examples(x, torch.full((40,), 2))
    data = Dataset(train, test, ("a", "b", "c"), AS_STORED)
    with pytest.raises(InputError, match="no party has a class of the test set"):
        make_task(exp, data)


def test_the_statistics_over_parties() -> None:
    sites = {i: (i, 20) for i in range(20)}
    scores = {LABEL: Score(1.0, accuracy=0.5, sites=sites)}
    values = party_statistics(scores)
    assert values["party_accuracy"] == pytest.approx(9.5 / 20)
    assert values["party_accuracy_std"] == pytest.approx((399 / 12) ** 0.5 / 20)
    assert values["party_accuracy_worst"] == pytest.approx(0.5 / 20)  # of parties 0 and 1
    assert party_statistics({"global": scores[LABEL]}) == {}


def test_each_party_is_evaluated_with_its_own_model() -> None:
    """The accuracy weights parties by samples; models are put together by hand."""
    exp = replace(QUICK, algorithm=FedAvg(), personal="output", validation=0.2)
    task = make_task(exp)
    result = moonfl.run(exp, workers=1)
    record = result.rounds[-1]
    bench = Workbench(task.build)
    hits = {}
    for name, params in result.models.items():
        party = int(name.removeprefix("party"))
        bench.clear()
        rows = torch.nonzero(task.test_party == party).flatten()
        x = task.preparation.batch(task.test.x, rows)
        predicted = bench.module(params).eval()(x).logits.argmax(dim=1)
        hits[str(party)] = (int((predicted == task.test.y[rows]).sum()), len(rows))
    assert record.sites == hits
    assert record.accuracy == sum(c for c, _ in hits.values()) / sum(n for _, n in hits.values())
    assert sum(n for _, n in hits.values()) == len(task.test.y)
    assert 0 < record.validation_accuracy < 1


Engine = Callable[[Experiment, Path], moonfl.Result]


def resumed(exp: Experiment, folder: Path) -> moonfl.Result:
    with pytest.raises(StopError):
        moonfl.run(exp, folder, workers=2, watch=stop_after(1))
    return moonfl.resume(folder, workers=1)


def without_memory(exp: Experiment, folder: Path) -> moonfl.Result:
    return moonfl.run(exp, workers=2, state_memory=0)


@pytest.mark.parametrize("engine", [without_memory, resumed, run_simulated])
@pytest.mark.parametrize(
    "exp",
    [
        replace(COMPOSED, personal="output"),
        override(QUICK, ["algorithm=moon", "personal=encoder", "validation=0.2"]),
        override(QUICK, ["algorithm=feddyn", "personal=head"]),
        override(QUICK, ["algorithm=fedprox+fedlc", r"personal=.*\.bias", "aggregation=fednova"]),
        override(
            QUICK, ["algorithm=fedavg", f"model={__name__}:NormEncoder", "personal=batchnorm"]
        ),
    ],
    ids=["composed", "moon", "feddyn", "bias", "fedbn"],
)
def test_every_engine_is_bit_identical(exp: Experiment, engine: Engine, tmp_path: Path) -> None:
    expected = moonfl.run(exp, workers=1)
    assert same(results_of(engine(exp, tmp_path / "run")), results_of(expected))


@pytest.mark.parametrize("personal", ["none", "output"])
def test_the_composition_on_images_is_bit_identical(personal: str, tmp_path: Path) -> None:
    """MOON + SCAFFOLD with server momentum, on the network and augmentation of CIFAR."""
    write_cifar10(tmp_path / "data", per_file=40)
    words = ["algorithm=moon+scaffold", "server=momentum", "rounds=2", f"personal={personal}"]
    words += [f"data_dir={tmp_path / 'data'}", "parties=3", "epochs=2", "batch_size=16"]
    exp = override(PRESETS["cifar10-moon"].experiment, words)
    expected = results_of(moonfl.run(exp, workers=1))
    assert same(results_of(moonfl.run(exp, workers=2)), expected)
    assert same(results_of(resumed(exp, tmp_path / "resumed")), expected)
    assert same(results_of(run_simulated(exp, tmp_path / "simulated")), expected)


def test_a_deployment_keeps_personal_tensors_at_the_sites(tmp_path: Path) -> None:
    exp = override(QUICK, ["algorithm=moon+scaffold", "personal=output", "validation=0.2"])
    deployment = Deployment(tmp_path, exp)
    result = deployment.serve()
    expected = moonfl.run(exp, workers=1)
    shared = result.models["shared"]
    assert not set(OUTPUT) & shared.keys()
    for i, name in enumerate(expected.models):
        newest = max(deployment.states(i).items())[1]
        assert same({**shared, **newest[LABEL]}, expected.models[name])
    for message in deployment.grid.sent:
        _, tensors = unpack(message.content)
        assert not any(set(OUTPUT) & params.keys() for params in tensors.values())
    for record, other in zip(result.rounds, expected.rounds, strict=True):
        assert record.sites == other.sites
        assert record.accuracy == other.accuracy
        assert record.party_accuracy_worst == other.party_accuracy_worst
        assert record.validation_accuracy == other.validation_accuracy
    with pytest.raises(InputError, match="keep a part of the model"):
        _ = result.model
    for source in (result, deployment.out):
        with pytest.raises(InputError, match="no complete model to export"):
            moonfl.export(source, tmp_path / "export", party=0)


def test_a_test_set_at_the_server_is_refused(tmp_path: Path) -> None:
    """The server has no complete model that it could evaluate."""
    exp = override(QUICK, ["algorithm=fedavg", "personal=output"])
    task = make_task(exp)
    path = tmp_path / "test.npz"
    write_npz(path, task.test, None, task.classes)
    with pytest.raises(InputError, match="remove --test"):
        Deployment(tmp_path / "federation", exp).serve(test=str(path))


def test_the_model_of_a_party_is_exported(tmp_path: Path) -> None:
    exp = override(QUICK, ["algorithm=moon", "personal=output", "validation=0.2"])
    result = moonfl.run(exp, tmp_path / "run", workers=1)
    for source, name in ((result, "a"), (tmp_path / "run", "b")):
        exported = moonfl.export(source, tmp_path / name, party=1)
        correct, number = result.rounds[-1].sites["1"]
        assert exported.model.startswith("party 1's model after round 3 of 3, accuracy")
        assert f"{100 * correct / number:.1f} %" in exported.model
        weights = moonfl.load_model(tmp_path / name).model.state_dict()
        assert same(dict(sorted(weights.items())), dict(sorted(result.models["party1"].items())))
    with pytest.raises(InputError, match="must be one of 0, 1, 2, got none"):
        moonfl.export(result, tmp_path / "c")
    for source in (result, tmp_path / "run"):
        with pytest.raises(InputError, match="not available with personal=output"):
            moonfl.export(source, tmp_path / "c", party=1, best=True)


def mean_gain(personal: Experiment, plain: Experiment) -> float:
    """Return how much better personal models are than a global one, on the same samples."""
    task = make_task(personal)
    own = MemoryRecorder()
    run(personal, task, Embedded(personal, task), own)
    common_task = replace(task, personal=())
    common = MemoryRecorder()
    run(plain, common_task, Embedded(plain, common_task), common)
    return own.records[-1].accuracy - common.records[-1].accuracy


def test_fedbn_beats_fedavg_under_feature_shift() -> None:
    words = [f"model={__name__}:NormEncoder", "algorithm=fedavg", "partition=iid", "parties=4"]
    words += ["rounds=4", "epochs=2", "batch_size=16", "shift=scale", "shift_level=0.95"]
    fedavg = override(Experiment(), words)
    assert mean_gain(replace(fedavg, personal="batchnorm"), fedavg) > 0.1


def test_fedper_beats_fedavg_under_label_skew() -> None:
    words = ["algorithm=fedavg", "partition=labels", "classes_per_party=2", "parties=10"]
    words += ["rounds=15", "epochs=3", "batch_size=16"]
    fedavg = override(Experiment(), words)
    assert mean_gain(replace(fedavg, personal="output"), fedavg) > 0.1
