"""What an experiment's settings do to the task: that each of them arrives."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.problems import TINY, gaussians, train, with_algorithm, write_cifar10
from moonfl import tree
from moonfl.data.augment import Preparation
from moonfl.data.cifar import CIFAR10, CIFAR100
from moonfl.data.tiny_imagenet import PREPARATION as TINY_IMAGENET
from moonfl.errors import InputError
from moonfl.experiment import Experiment
from moonfl.federation import init_server
from moonfl.local import Workbench, local_update
from moonfl.task import Task, make_task
from moonfl.types import Batch

DIGITS = Experiment(rounds=1, epochs=1)


def sizes(exp: Experiment) -> list[int]:
    return [len(party.y) for party in make_task(exp).parties]


def test_the_partition_has_a_seed_of_its_own() -> None:
    assert sizes(DIGITS) == sizes(replace(DIGITS, seed=7))
    assert sizes(DIGITS) != sizes(replace(DIGITS, partition_seed=7))


def test_partition_settings_arrive() -> None:
    assert len(sizes(replace(DIGITS, parties=7))) == 7
    assert sizes(DIGITS) != sizes(replace(DIGITS, beta=0.1))
    assert (
        max(sizes(replace(DIGITS, partition="iid"))) - min(sizes(replace(DIGITS, partition="iid")))
        == 1
    )
    assert min(sizes(replace(DIGITS, parties=100, beta=0.05, min_samples=2))) < 10


def test_model_settings_arrive() -> None:
    shapes = {
        k: tuple(v.shape) for k, v in make_task(replace(DIGITS, out_dim=8)).init_model(0)[0].items()
    }
    assert shapes["output.weight"] == (10, 8)
    without = make_task(replace(DIGITS, head=False)).init_model(0)[0]
    assert not any(name.startswith("head") for name in without)
    assert tuple(without["output.weight"].shape) == (10, 64)


def test_the_seed_gives_every_method_the_same_start() -> None:
    task = make_task(DIGITS)
    first, again, other = (
        task.init_model(0)[0],
        make_task(with_algorithm(DIGITS, "scaffold")).init_model(0)[0],
        task.init_model(1)[0],
    )
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not any(torch.equal(first[k], other[k]) for k in first)
    state = torch.random.get_rng_state()
    task.init_model(5)
    assert torch.equal(state, torch.random.get_rng_state())  # the user's own stream is left alone


def test_augmentation_is_on_where_asked_for(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    exp = Experiment(
        dataset="cifar10", data_dir=str(tmp_path), parties=1, rounds=1, epochs=1, batch_size=32
    )
    plain, augmented = (
        train(replace(exp, augment=augment), make_task(exp)).params for augment in (False, True)
    )
    assert not any(torch.equal(plain[k], augmented[k]) for k in plain)


def test_evaluation_reads_a_model_in_eval_mode_and_training_writes_it() -> None:
    task = gaussians(batch_norm=True)
    exp = with_algorithm(TINY, "fedavg")
    server, bench = init_server(exp, task), Workbench(task.build)
    model = bench.module(server.params | server.buffers)
    task.score(task.evaluate_chunks(model.train(), range(len(task.chunks()))))
    assert all(torch.equal(v, server.buffers[k]) for k, v in tree.buffers_of(model).items())
    update, _ = local_update(exp, task, bench, server, state=None, party=0, t=0)
    assert not torch.equal(
        update.buffers["encoder.2.running_mean"], server.buffers["encoder.2.running_mean"]
    )


def test_scores_by_hand() -> None:
    """Accuracy and cross-entropy over several chunks equal those over all at once."""
    task = gaussians()
    many = Task(
        task.build,
        task.parties,
        type(task.test)(task.test.x.repeat(25, 1, 1, 1), task.test.y.repeat(25)),
        task.preparation,
        False,
    )
    model = task.build()
    assert len(many.chunks()) == 3
    score = many.score(many.evaluate_chunks(model, range(3)))
    logits = model(many.test.x).logits
    assert score.accuracy == pytest.approx(float((logits.argmax(1) == many.test.y).float().mean()))
    assert score.loss == pytest.approx(
        torch.nn.functional.cross_entropy(logits, many.test.y).item(), rel=1e-5
    )


def test_preparations_are_the_authors() -> None:
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


def test_frozen_representations_looked_up_equal_those_computed() -> None:
    """Without augmentation MOON's frozen models see every sample once a round and are looked up from then on."""
    task = gaussians()
    params, buffers = task.init_model(0)
    data, bench = task.parties[0], Workbench(task.build)
    rows = torch.tensor([5, 0, 17, 5])
    inputs = task.preparation.batch(data.x, torch.arange(len(data.y))).split(16)
    batch = Batch(task.preparation.batch(data.x, rows), data.y[rows], rows)
    computed, looked_up = (
        bench.frozen(params | buffers)(batch.x, batch.rows),
        bench.cached(params | buffers, lambda: iter(inputs))(batch.x, batch.rows),
    )
    assert torch.allclose(computed.z, looked_up.z, atol=1e-6)
    assert torch.allclose(computed.logits, looked_up.logits, atol=1e-6)


def test_a_modified_batch_never_reads_the_cache() -> None:
    task = gaussians()
    params, buffers = task.init_model(0)
    data, workbench = task.parties[0], Workbench(task.build)
    inputs = task.preparation.batch(data.x, torch.arange(len(data.y)))
    frozen = workbench.cached(params | buffers, lambda: iter(inputs.split(16)))
    modified = inputs[:4] + 1
    assert not torch.allclose(frozen(modified).z, frozen(inputs[:4], torch.arange(4)).z)
    batch = Batch(modified, data.y[:4], torch.arange(4))
    assert torch.equal(frozen(batch).z, frozen(modified).z)


def test_a_device_is_checked_when_training_starts() -> None:
    exp = Experiment(device="tpu")  # of another machine
    with pytest.raises(InputError, match="device=tpu is not available"):
        make_task(exp)
