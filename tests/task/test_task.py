"""The task of an experiment: the effects of its settings, evaluation, and frozen models."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import moonfl
from helpers.problems import TINY, gaussians, train, with_algorithm, write_cifar10
from moonfl import tree
from moonfl.data.augment import Preparation
from moonfl.data.base import Examples
from moonfl.data.cifar import CIFAR10, CIFAR100
from moonfl.data.tiny_imagenet import PREPARATION as TINY_IMAGENET
from moonfl.errors import InputError
from moonfl.experiment import Experiment, override
from moonfl.federation import init_server
from moonfl.local import Workbench, local_update
from moonfl.settings import names
from moonfl.task import Task, check_task, make_task
from moonfl.task.build import UNUSED
from moonfl.types import Batch, Params, Party, State

DIGITS = Experiment(rounds=1, epochs=1)


def sizes(exp: Experiment) -> list[int]:
    """Return the number of training samples of each party."""
    return [len(party.y) for party in make_task(exp).parties]


def test_the_partition_depends_on_the_partition_seed_only() -> None:
    assert sizes(DIGITS) == sizes(replace(DIGITS, seed=7))
    assert sizes(DIGITS) != sizes(replace(DIGITS, partition_seed=7))


BUILT_FOR = replace(DIGITS, parties=3, beta=0.5)


@pytest.mark.parametrize(
    "change",
    [
        "beta=0.1",
        "partition=iid",
        "model=simple-cnn",
        "head=false",
        "validation=0.1",
        "personal=output",
        "standardise=true",
        "parties=2",
        "parties=5",
        "algorithm=ditto",
        "data_dir=elsewhere",
        "finetune=1",
        "precision=bfloat16",
    ],
)
def test_the_task_of_another_experiment_is_refused(change: str) -> None:
    other = override(BUILT_FOR, [change])
    key = change.partition("=")[0]
    with pytest.raises(InputError, match=f"the task was made for {key}=.* experiment has {key}="):
        moonfl.run(other, task=make_task(BUILT_FOR), workers=1)


def test_a_task_whose_test_samples_are_shifted_by_party_is_refused_without_party_models() -> None:
    shifted = override(BUILT_FOR, ["shift=rotation", "algorithm=fedavg"])
    with pytest.raises(InputError, match="the task was made for algorithm=Ditto"):
        check_task(shifted, make_task(replace(shifted, algorithm=moonfl.Ditto())))
    check_task(replace(shifted, seed=1), make_task(shifted))


def test_a_task_with_held_out_samples_of_each_party_serves_methods_with_party_models(
    tmp_path: Path,
) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(60) % 2)
    changes = ["dataset=npz", f"data_dir={tmp_path / 'x.npz'}", "model=mlp", "shift=scale"]
    exp = override(BUILT_FOR, [*changes, "algorithm=fedavg", "partition=iid"])
    check_task(replace(exp, algorithm=moonfl.Ditto()), make_task(exp))


def test_a_task_with_batch_norm_is_refused_for_batches_of_one_sample() -> None:
    task = replace(gaussians(batch_norm=True), experiment=BUILT_FOR)
    assert task.batch_norm
    with pytest.raises(InputError, match="its BatchNorm needs at least 2 samples"):
        check_task(replace(BUILT_FOR, batch_size=1), task)


def test_a_run_is_not_resumed_with_the_task_of_another_experiment(tmp_path: Path) -> None:
    exp = replace(BUILT_FOR, algorithm=moonfl.Ditto())
    task = make_task(exp)
    moonfl.run(exp, tmp_path / "run", task=task, workers=1)
    with pytest.raises(InputError, match="the task was made for algorithm=MOON"):
        moonfl.resume(tmp_path / "run", task=make_task(BUILT_FOR), workers=1)
    elsewhere = replace(task, experiment=replace(exp, data_dir="elsewhere"))
    assert moonfl.resume(tmp_path / "run", task=elsewhere, workers=1).score > 0


@pytest.mark.parametrize("key", ["task", "engine"])
def test_a_task_or_an_engine_of_another_type_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{key} must be .*, got 3"):
        moonfl.run(DIGITS, **{key: 3})
    moonfl.run(DIGITS, tmp_path / "run", workers=1)
    with pytest.raises(InputError, match=f"{key} must be .*, got 3"):
        moonfl.resume(tmp_path / "run", **{key: 3})


class Counting(moonfl.FedAvg):
    """Sends something that differential privacy does not cover."""

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        return {}, {"count": {"n": torch.tensor(1.0)}}

    def extra_like(self, params: Params, effective_steps: float) -> State:
        return {"count": {"n": torch.tensor(1.0)}}


def test_a_task_does_not_spare_another_method_the_checks_of_privacy_and_personal_tensors() -> None:
    private = override(BUILT_FOR, ["clip=1", "dp=server", "dp.noise=1", "standardise=false"])
    task = make_task(replace(private, algorithm=moonfl.FedAvg()))
    with pytest.raises(InputError, match="the task was made for algorithm="):
        moonfl.run(replace(private, algorithm=Counting()), task=task, workers=1)
    personal = override(BUILT_FOR, ["personal=output"])
    with pytest.raises(InputError, match="the task was made for algorithm="):
        moonfl.run(replace(personal, algorithm=moonfl.FedRep()), task=make_task(personal))


def test_a_task_serves_experiments_that_train_differently() -> None:
    changes = ["seed=1", "lr=0.02", "batch_size=32", "algorithm=moon", "server=momentum"]
    other = override(BUILT_FOR, [*changes, "optimizer=adamw", "rounds=2", "warmup=1", "clip=1"])
    task = make_task(BUILT_FOR)
    check_task(other, task)
    check_task(replace(BUILT_FOR, parties=2, beta=0.1), replace(task, experiment=None))
    assert set(UNUSED) < set(names(Experiment))


def test_partition_settings_take_effect() -> None:
    assert len(sizes(replace(DIGITS, parties=7))) == 7
    assert sizes(DIGITS) != sizes(replace(DIGITS, beta=0.1))
    iid = sizes(replace(DIGITS, partition="iid"))
    assert max(iid) - min(iid) == 1
    assert min(sizes(replace(DIGITS, parties=100, beta=0.05, min_samples=2))) < 10


def test_model_settings_take_effect() -> None:
    params, _ = make_task(replace(DIGITS, out_dim=8)).init_model(0)
    assert tuple(params["output.weight"].shape) == (10, 8)
    without_head, _ = make_task(replace(DIGITS, head=False)).init_model(0)
    assert not any(name.startswith("head") for name in without_head)
    assert tuple(without_head["output.weight"].shape) == (10, 64)


def test_the_initial_weights_depend_on_the_seed_only() -> None:
    task = make_task(DIGITS)
    params, _ = task.init_model(0)
    of_scaffold, _ = make_task(with_algorithm(DIGITS, "scaffold")).init_model(0)
    of_other_seed, _ = task.init_model(1)
    assert all(torch.equal(params[k], of_scaffold[k]) for k in params)
    assert not any(torch.equal(params[k], of_other_seed[k]) for k in params)
    state = torch.random.get_rng_state()
    task.init_model(5)
    assert torch.equal(state, torch.random.get_rng_state())  # the user's generator is unchanged


def test_the_setting_augment_takes_effect(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    exp = Experiment(
        dataset="cifar10", data_dir=str(tmp_path), parties=1, rounds=1, epochs=1, batch_size=32
    )
    plain, augmented = (
        train(replace(exp, augment=augment), make_task(exp)).params for augment in (False, True)
    )
    assert not any(torch.equal(plain[k], augmented[k]) for k in plain)


def test_evaluation_does_not_change_buffers_and_training_does() -> None:
    task = gaussians(batch_norm=True)
    exp = with_algorithm(TINY, "fedavg")
    server = init_server(exp, task)
    bench = Workbench(task.build)
    model = bench.module(server.params | server.buffers)
    task.score(task.evaluate_chunks(model.train(), range(len(task.chunks()))))
    assert all(torch.equal(v, server.buffers[k]) for k, v in tree.buffers_of(model).items())
    update, _ = local_update(exp, task, bench, server, state=None, party=0, t=0)
    name = "encoder.2.running_mean"
    assert not torch.equal(update.buffers[name], server.buffers[name])


def test_scores_of_several_chunks_equal_those_of_one() -> None:
    """Compare accuracy and cross-entropy over chunks with those over all samples at once."""
    task = gaussians()
    test = Examples(task.test.x.repeat(25, 1, 1, 1), task.test.y.repeat(25))
    many = Task(
        build=task.build,
        parties=task.parties,
        test=test,
        preparation=task.preparation,
        batch_norm=False,
    )
    model = task.build()
    assert len(many.chunks()) == 3
    score = many.score(many.evaluate_chunks(model, range(3)))
    logits = model(test.x).logits
    accuracy = (logits.argmax(1) == test.y).float().mean()
    loss = torch.nn.functional.cross_entropy(logits, test.y)
    assert score.accuracy == pytest.approx(float(accuracy))
    assert score.loss == pytest.approx(loss.item(), rel=1e-5)


def test_the_preparation_of_each_dataset_is_that_of_the_authors() -> None:
    assert (
        Preparation(
            mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
            std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
            crop="reflect",
            flip=True,
            rotation=0.0,
        )
        == CIFAR10
    )
    assert (
        Preparation(
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
            crop="zero",
            flip=True,
            rotation=15.0,
        )
        == CIFAR100
    )
    assert (
        Preparation(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), crop=None, flip=False, rotation=0.0)
        == TINY_IMAGENET
    )


def test_cached_outputs_of_frozen_models_equal_computed_ones() -> None:
    """Without augmentation, frozen models are computed once per sample and round, then cached."""
    task = gaussians()
    params, buffers = task.init_model(0)
    data = task.parties[0]
    bench = Workbench(task.build)
    rows = torch.tensor([5, 0, 17, 5])
    inputs = task.preparation.batch(data.x, torch.arange(len(data.y))).split(16)
    batch = Batch(task.preparation.batch(data.x, rows), data.y[rows], rows)
    computed = bench.frozen(params | buffers)(batch.x, batch.rows)
    cached = bench.cached(params | buffers, lambda: iter(inputs))(batch.x, batch.rows)
    assert torch.allclose(computed.z, cached.z, atol=1e-6)
    assert torch.allclose(computed.logits, cached.logits, atol=1e-6)


def test_a_modified_batch_never_reads_the_cache() -> None:
    task = gaussians()
    params, buffers = task.init_model(0)
    data = task.parties[0]
    workbench = Workbench(task.build)
    inputs = task.preparation.batch(data.x, torch.arange(len(data.y)))
    frozen = workbench.cached(params | buffers, lambda: iter(inputs.split(16)))
    modified = inputs[:4] + 1
    assert not torch.allclose(frozen(modified).z, frozen(inputs[:4], torch.arange(4)).z)
    batch = Batch(modified, data.y[:4], torch.arange(4))
    assert torch.equal(frozen(batch).z, frozen(modified).z)


def test_a_device_is_checked_when_training_starts() -> None:
    exp = Experiment(device="tpu")  # exists on other machines only
    with pytest.raises(InputError, match="device=tpu is not available"):
        make_task(exp)


def test_convolutions_keep_the_memory_layout_of_published_runs(tmp_path: Path) -> None:
    """The layout decides which elements torch's SGD rounds once and which twice."""
    write_cifar10(tmp_path)
    exp = Experiment(dataset="cifar10", data_dir=str(tmp_path), parties=2, min_samples=1)
    task = make_task(exp)
    model = Workbench(task.build).module({**task.init_model(0)[0]})
    kernels = [p for p in model.parameters() if p.dim() == 4]
    assert len(kernels) == 2
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)
    assert not any(kernel.is_contiguous() for kernel in kernels)
