"""The parties' own models: evaluation next to the global model, fine-tuning, every engine."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import moonfl
from helpers.equality import same
from helpers.flower_deployment import Deployment, run_simulated
from helpers.flower_grid import unpack
from helpers.interruption import StopError, results_of, stop_after
from helpers.problems import TINY, MemoryRecorder, gaussians, quadratics, with_algorithm
from moonfl import party_models, tree
from moonfl.algorithms import Ditto, FedAvg, PerFedAvg
from moonfl.data.npz import write_npz
from moonfl.engines.embedded import Embedded
from moonfl.errors import InputError, RunError
from moonfl.experiment import Experiment, fingerprint, override, to_dict
from moonfl.federation import run
from moonfl.local import Workbench
from moonfl.party_models import fine_tune
from moonfl.runs.schema import RoundRecord
from moonfl.task import make_task
from moonfl.types import Params, Server

QUICK = Experiment(parties=3, rounds=3, epochs=1, out_dim=16, sample_fraction=0.67)
EXPERIMENTS = {
    "ditto": override(QUICK, ["algorithm=ditto", "validation=0.2"]),
    "moon+scaffold+ditto": override(
        QUICK, ["algorithm=moon+scaffold+ditto", "server=momentum", "evaluate_every=2"]
    ),
    "fedrep": override(QUICK, ["algorithm=fedrep", "personal=output", "head_epochs=2"]),
    "moon+fedrep": override(QUICK, ["algorithm=moon+fedrep", "personal=head", "head_epochs=1"]),
    "perfedavg": override(QUICK, ["algorithm=perfedavg", "finetune=1", "validation=0.2"]),
    "finetune": override(
        QUICK,
        [
            "algorithm=moon",
            "finetune=2",
            "evaluate_every=2",
            "partition=labels",
            "classes_per_party=4",
        ],
    ),
    "fedper, fine-tuned": override(QUICK, ["algorithm=fedavg", "personal=output", "finetune=1"]),
}
Engine = Callable[[Experiment, Path], moonfl.Result]


@dataclass(frozen=True)
class Evaluated(FedAvg):
    """A method that evaluates another model than the aggregated one."""

    def deployed(self, server: Server) -> dict[str, Params]:
        return {"global": {name: 2 * value for name, value in server.model.items()}}


def resumed(exp: Experiment, folder: Path) -> moonfl.Result:
    with pytest.raises(StopError):
        moonfl.run(exp, folder, workers=2, watch=stop_after(1))
    return moonfl.resume(folder, workers=1)


def without_memory(exp: Experiment, folder: Path) -> moonfl.Result:
    return moonfl.run(exp, workers=2, state_memory=0)


@pytest.mark.parametrize("engine", [without_memory, resumed, run_simulated])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_engine_is_bit_identical(name: str, engine: Engine, tmp_path: Path) -> None:
    exp = EXPERIMENTS[name]
    expected = moonfl.run(exp, workers=1)
    assert same(results_of(engine(exp, tmp_path / "run")), results_of(expected))


def test_the_global_model_is_evaluated_on_the_same_samples() -> None:
    """The accuracies are computed by hand from the models of the result."""
    exp = EXPERIMENTS["ditto"]
    task = make_task(exp)
    result = moonfl.run(exp, workers=1)
    record = result.rounds[-1]
    bench = Workbench(task.build)
    sites = {}
    global_sites = {}
    for party in range(3):
        rows = torch.nonzero(task.test_party == party).flatten()
        x = task.preparation.batch(task.test.x, rows)
        hits = []
        for name in (f"party{party}", "global"):
            bench.clear()
            predicted = bench.module(result.models[name]).eval()(x).logits.argmax(dim=1)
            hits.append(int((predicted == task.test.y[rows]).sum()))
        sites[str(party)] = (hits[0], len(rows))
        global_sites[str(party)] = (hits[1], len(rows))
    assert record.sites == sites
    assert record.global_sites == global_sites
    assert record.accuracy == sum(c for c, _ in sites.values()) / len(task.test.y)
    shares = sorted(c / n for c, n in global_sites.values())
    assert record.global_party_score == pytest.approx(sum(shares) / 3)
    assert record.global_party_score_worst == shares[0]
    assert record.global_score == sum(c for c, _ in global_sites.values()) / len(task.test.y)
    plain = moonfl.run(replace(exp, algorithm=FedAvg()), workers=1).rounds[-1]
    assert record.global_score == plain.accuracy


def test_an_incomplete_global_model_is_not_evaluated() -> None:
    record = moonfl.run(EXPERIMENTS["fedrep"], workers=1).rounds[-1]
    assert record.party_accuracy is not None
    assert record.global_score is None
    assert record.global_sites is None


@pytest.mark.parametrize("name", ["ditto", "moon+fedrep"])
def test_models_that_do_not_fit_into_memory_stay_in_files(name: str, tmp_path: Path) -> None:
    exp = EXPERIMENTS[name]
    in_memory = moonfl.run(exp, tmp_path / "memory", workers=1).models
    in_files = moonfl.run(exp, tmp_path / "files", workers=1, state_memory=0).models
    assert same(in_memory, {model: dict(params) for model, params in in_files.items()})
    owners = [model for model in in_files if model.startswith("party")]
    assert owners
    for model in owners:
        assert isinstance(in_memory[model], dict)
        assert isinstance(in_files[model], tree.Lazy)
        first, second = (in_files[model]["head.0.weight"] for _ in range(2))
        assert first.data_ptr() != second.data_ptr()  # read at each access
    resumed = moonfl.resume(tmp_path / "files", workers=1).models
    assert same(resumed, in_memory)
    moonfl.run(replace(exp, seed=1), tmp_path / "files", workers=1, force=True)
    with pytest.raises(RunError, match="was changed or removed after it was opened"):
        in_files[owners[0]]["head.0.weight"]
    assert isinstance(resumed[owners[0]], dict)


def test_fine_tuning_changes_evaluation_only() -> None:
    task = gaussians(batch_norm=True)
    exp = with_algorithm(TINY, "moon")
    plain = MemoryRecorder()
    tuned = MemoryRecorder()
    server = run(exp, task, Embedded(exp, task), plain)
    exp = replace(exp, finetune=3)
    engine = Embedded(exp, task)
    assert same(run(exp, task, engine, tuned), server)
    assert tuned.records[-1].global_score is not None
    assert tuned.records[-1].accuracy != plain.records[-1].accuracy
    for mine, other in zip(tuned.updates[-1], plain.updates[-1], strict=True):
        assert same(mine.params, other.params)


def test_fine_tuning_takes_the_local_steps() -> None:
    """E steps move w to b + (1 - lr a)^E (w - b)."""
    task = quadratics([1.0, 4.0], [0.0, 1.0], [8, 8])
    exp = Experiment(parties=2, batch_size=8, lr=0.05, momentum=0.0, weight_decay=0.0, finetune=7)
    start = {"w": torch.tensor([3.0])}
    tuned = fine_tune(exp, task, Workbench(task.build), start, party=1, t=0)
    assert float(tuned["w"]) == pytest.approx(1 + (1 - 0.05 * 4) ** 7 * 2, abs=1e-6)
    assert float(start["w"]) == 3.0
    assert fine_tune(replace(exp, finetune=None), task, Workbench(task.build), start, party=1, t=0)


def test_fine_tuning_uses_the_learning_rate_of_the_evaluated_round() -> None:
    task = quadratics([1.0, 4.0], [0.0, 1.0], [8, 8])
    exp = Experiment(parties=2, batch_size=8, lr=0.05, momentum=0.0, weight_decay=0.0, finetune=7)
    exp = override(exp, ["schedule=exponential", "schedule.gamma=0.5"])
    start = {"w": torch.tensor([3.0])}
    for t in range(3):
        tuned = fine_tune(exp, task, Workbench(task.build), start, party=1, t=t)
        expected = 1 + (1 - 0.05 * 0.5**t * 4) ** 7 * 2
        assert float(tuned["w"]) == pytest.approx(expected, abs=1e-6)


def test_the_last_round_is_fine_tuned_with_its_own_learning_rate(tmp_path: Path) -> None:
    """After a resume with two workers, too."""
    exp = override(EXPERIMENTS["finetune"], ["schedule=step", "schedule.every=1"])
    expected = moonfl.run(exp, workers=1)
    with pytest.raises(StopError):
        moonfl.run(exp, tmp_path / "run", workers=1, watch=stop_after(1))
    resumed = moonfl.resume(tmp_path / "run", workers=2)
    assert same(results_of(resumed), results_of(expected))


def test_parties_without_held_out_samples_are_not_fine_tuned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = quadratics([1.0, 4.0], [0.0, 1.0], [8, 8])
    task = replace(task, test_party=torch.zeros(len(task.test.y), dtype=torch.long))
    exp = replace(TINY, parties=2, algorithm=FedAvg(), finetune=1)
    tuned = []

    def record(*args, party: int, **kwargs):
        tuned.append(party)
        return fine_tune(*args, party=party, **kwargs)

    monkeypatch.setattr(party_models, "fine_tune", record)
    recorder = MemoryRecorder()
    run(exp, task, Embedded(exp, task), recorder)
    assert set(tuned) == {0}
    assert recorder.records[-1].global_score is not None


def test_a_single_sample_cannot_be_fine_tuned_with_batch_norm() -> None:
    task = gaussians((1, 30), batch_norm=True)
    exp = replace(TINY, parties=2, algorithm=FedAvg(), finetune=1)
    params, buffers = task.init_model(0)
    start = {**params, **buffers}
    assert fine_tune(exp, task, Workbench(task.build), start, party=0, t=0) is start


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["finetune=0"], "finetune must be"),
        (["evaluate_every=0"], "evaluate_every must be"),
        (["algorithm=solo", "rounds=1", "finetune=1"], "no global model, got finetune=1"),
        (["algorithm=moon+ditto", "personal=output"], "remove personal"),
        (["algorithm=test_party_models:Evaluated", "personal=output"], "remove personal"),
        (["algorithm=test_party_models:Evaluated", "finetune=1"], "remove finetune"),
        (["algorithm=test_party_models:Evaluated+ditto"], "defines only one of the two"),
    ],
)
def test_settings_that_make_no_sense_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        override(Experiment(), words)


def test_the_defaults_keep_fingerprints() -> None:
    assert {"finetune", "evaluate_every"}.isdisjoint(to_dict(Experiment()))
    for changes in ({"finetune": 1}, {"evaluate_every": 2}):
        assert fingerprint(replace(Experiment(), **changes)) != fingerprint(Experiment())


def without_times(record: RoundRecord) -> dict:
    timed = ("seconds", "cpu_seconds", "parties")
    return {key: value for key, value in record.items() if key not in timed}


def test_rounds_without_evaluation_change_nothing_else() -> None:
    exp = override(QUICK, ["algorithm=moon", "rounds=5", "validation=0.2"])
    every = moonfl.run(exp, workers=1)
    some = moonfl.run(replace(exp, evaluate_every=2), workers=1)
    assert [record.accuracy is not None for record in some.rounds] == [
        False,
        True,
        False,
        True,
        True,
    ]
    for record, other in zip(some.rounds, every.rounds, strict=True):
        if record.accuracy is None:
            assert record.validation_accuracy is None
            assert record.bytes_up == other.bytes_up
        else:
            assert without_times(record) == without_times(other)
    assert same(some.models, every.models)
    best = max((r for r in some.rounds if r.accuracy is not None), key=lambda r: r.accuracy)
    assert some.best.accuracy == best.accuracy


def test_patience_ends_a_run_with_an_evaluated_round() -> None:
    words = ["algorithm=fedavg", "rounds=40", "validation=0.2", "patience=3", "lr=1e-9"]
    exp = override(QUICK, [*words, "evaluate_every=2"])
    result = moonfl.run(exp, workers=1)
    # Nothing improves on round 2. Three rounds later is round 5, and the next evaluation round 6.
    assert len(result.rounds) == 6
    assert result.rounds[-1].accuracy is not None
    assert result.chosen.round == 2


def test_a_deployment_keeps_the_second_model_at_the_sites(tmp_path: Path) -> None:
    exp = override(QUICK, ["algorithm=scaffold+ditto", "validation=0.2", "evaluate_every=2"])
    deployment = Deployment(tmp_path, exp)
    result = deployment.serve()
    expected = moonfl.run(exp, workers=1)
    assert same(result.models, {"global": expected.models["global"]})
    for i in range(3):
        newest = max(deployment.states(i).items(), default=(0, {}))[1]
        if f"party{i}" in expected.models:
            assert same(dict(newest["ditto/v"]), dict(expected.models[f"party{i}"]))
    own = {
        name: {tuple(value.flatten()[:4].tolist()) for value in params.values()}
        for name, params in expected.models.items()
        if name != "global"
    }
    for message in deployment.grid.sent:
        _, tensors = unpack(message.content)
        assert not any("ditto" in label for label in tensors)
        for params in tensors.values():
            sent = {tuple(value.flatten()[:4].tolist()) for value in params.values()}
            assert not any(sent & values for values in own.values())
    for record, other in zip(result.rounds, expected.rounds, strict=True):
        assert record.sites == other.sites
        assert record.global_sites == other.global_sites
        assert record.accuracy == other.accuracy
        assert record.global_score == other.global_score
        assert record.validation_accuracy == other.validation_accuracy


@pytest.mark.parametrize("words", [["algorithm=ditto"], ["algorithm=fedavg", "finetune=1"]])
def test_a_test_set_at_the_server_is_refused(words: list[str], tmp_path: Path) -> None:
    exp = override(QUICK, words)
    task = make_task(exp)
    path = tmp_path / "test.npz"
    write_npz(path, task.test, None, task.classes)
    with pytest.raises(InputError, match="remove --test"):
        Deployment(tmp_path / "federation", exp).serve(test=str(path))


def test_both_models_of_a_party_are_exported(tmp_path: Path) -> None:
    exp = replace(EXPERIMENTS["ditto"], sample_fraction=1)
    result = moonfl.run(exp, tmp_path / "run", workers=1)
    for source, name in ((result, "a"), (tmp_path / "run", "b")):
        for party, model in ((1, "party1"), (None, "global")):
            out = tmp_path / f"{name}-{model}"
            exported = moonfl.export(source, out, party=party)
            weights = moonfl.load_model(out).model.state_dict()
            assert same(dict(sorted(weights.items())), dict(sorted(result.models[model].items())))
            record = result.rounds[-1]
            accuracy = record.global_score if party is None else None
            correct, number = record.sites["1"]
            share = correct / number if accuracy is None else accuracy
            assert f"{100 * share:.1f} %" in exported.model
        with pytest.raises(InputError, match="must be one of 0, 1, 2, got 9"):
            moonfl.export(source, tmp_path / "c", party=9)
        for party in (1, None):
            with pytest.raises(InputError, match="only those of the last round are stored"):
                moonfl.export(source, tmp_path / "c", party=party, best=True)


def test_a_fine_tuned_model_is_not_stored(tmp_path: Path) -> None:
    result = moonfl.run(EXPERIMENTS["finetune"], tmp_path / "run", workers=1)
    assert list(result.models) == ["global"]
    with pytest.raises(InputError, match="only a global model"):
        moonfl.export(tmp_path / "run", tmp_path / "out", party=0)


LABEL_SKEW = override(
    Experiment(),
    ["algorithm=fedavg", "partition=labels", "rounds=15", "epochs=3", "batch_size=16"],
)


@pytest.mark.parametrize(
    "changes",
    [{"algorithm": Ditto(lam=0.1)}, {"finetune": 3}, {"algorithm": PerFedAvg(), "finetune": 3}],
    ids=["ditto", "finetune", "perfedavg"],
)
def test_party_models_beat_the_global_model_under_label_skew(changes: dict) -> None:
    record = moonfl.run(replace(LABEL_SKEW, evaluate_every=15, **changes)).rounds[-1]
    assert record.accuracy > record.global_score + 0.1


def test_the_norm_of_v_minus_w_decreases_with_lam() -> None:
    task = gaussians()
    distances = []
    for lam in (0.0, 1.0, 10.0):
        exp = replace(TINY, algorithm=Ditto(lam=lam), rounds=4, momentum=0.0, lr=0.02)
        engine = Embedded(exp, task)
        server = run(exp, task, engine, MemoryRecorder())
        own = engine.states.load(0, before=exp.rounds)["v"]
        distances.append(tree.norm(tree.sub(server.params, own)))
    assert distances[0] > distances[1] > distances[2]


def own_accuracy(exp: Experiment) -> float:
    """Return the accuracy of the parties' models, each on the samples of its party."""
    sites = moonfl.run(exp).rounds[-1].sites.values()
    return sum(correct for correct, _ in sites) / sum(number for _, number in sites)


def test_fine_tuning_beats_local_training() -> None:
    """Twenty small parties learn more together; SOLO trains for as many epochs in all."""
    gains = []
    for seed in range(2):
        words = ["algorithm=fedavg", "parties=20", "rounds=40", "epochs=2", "batch_size=16"]
        exp = override(Experiment(), [*words, "lr=0.03", f"seed={seed}"])
        tuned = own_accuracy(replace(exp, finetune=2, evaluate_every=40))
        alone = override(exp, ["algorithm=solo", "rounds=1", "epochs=82"])
        gains.append(tuned - own_accuracy(alone))
    assert min(gains) > 0
