"""precision=bfloat16: autocast in every forward pass, and float32 everywhere else."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import moonfl
from helpers.equality import same
from helpers.interruption import StopError, results_of, stop_after
from helpers.problems import with_algorithm, write_cifar10
from moonfl.algorithms import ALGORITHMS, MOON, FedAvg
from moonfl.errors import InputError
from moonfl.experiment import Experiment, override
from moonfl.federation import init_server
from moonfl.kernels import library
from moonfl.kernels.convpool import ConvReluPool
from moonfl.local import Workbench, local_update
from moonfl.models.base import Model, with_autocast
from moonfl.task import make_task

QUICK = Experiment(parties=4, rounds=3, epochs=2, sample_fraction=0.5, precision="bfloat16")


def test_a_forward_pass_is_autocast_and_its_outputs_are_float32() -> None:
    torch.manual_seed(0)
    model = Model(nn.Linear(6, 8), 8, 3, out_dim=5)
    x = torch.randn(4, 6)
    expected = model(x)
    seen: list[torch.dtype] = []
    model.encoder.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    actual = with_autocast(model, torch.bfloat16)(x)
    assert seen == [torch.bfloat16]
    assert actual.z.dtype == actual.logits.dtype == torch.float32
    assert not torch.equal(actual.logits, expected.logits)
    assert torch.allclose(actual.logits, expected.logits, atol=0.02)
    with torch.autocast("cpu", torch.bfloat16):
        z = model.head(model.encoder(x))
        assert torch.equal(model.output(z).float(), actual.logits)
    F.cross_entropy(actual.logits, torch.tensor([0, 1, 2, 0])).backward()
    assert all(param.grad.dtype == torch.float32 for param in model.parameters())


def test_training_frozen_models_and_evaluation_use_autocast() -> None:
    exp = replace(QUICK, algorithm=MOON(mu=1))
    task = make_task(exp)
    dtypes: dict[tuple[bool, bool], set[torch.dtype]] = {}
    build = task.build

    def observed() -> nn.Module:
        model = build()

        def record(module: nn.Module, args: object, output: Tensor) -> None:
            key = (module.training, torch.is_grad_enabled())
            dtypes.setdefault(key, set()).add(output.dtype)

        model.output.register_forward_hook(record)
        return model

    task = replace(task, build=observed)
    server = init_server(exp, task)
    workbench = Workbench(task.build)
    update, state = local_update(exp, task, workbench, server, state=None, party=0, t=0)
    update, state = local_update(exp, task, workbench, server, state=state, party=0, t=1)
    task.evaluate_chunks(workbench.module({**server.params, **server.buffers}), range(1))
    assert dtypes == {(True, True): {torch.bfloat16}, (False, False): {torch.bfloat16}}
    tensors = [*update.params.values(), *state["prev0"].values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


def test_a_run_is_close_to_float32_and_not_equal() -> None:
    exp = replace(QUICK, algorithm=FedAvg(), rounds=5, sample_fraction=1.0)
    bfloat16 = moonfl.run(exp, workers=1)
    float32 = moonfl.run(replace(exp, precision="float32"), workers=1)
    assert not same(bfloat16.models, float32.models)
    assert bfloat16.rounds[-1].loss == pytest.approx(float32.rounds[-1].loss, rel=0.05)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_method_is_bit_identical_with_workers(algorithm: str) -> None:
    exp = with_algorithm(replace(QUICK, rounds=2, epochs=1), algorithm)
    expected = moonfl.run(exp, workers=1)
    assert same(results_of(moonfl.run(exp, workers=2)), results_of(expected))


def test_images_are_bit_identical_with_workers_and_after_an_interruption(tmp_path: Path) -> None:
    """The paper's CNN, with training options that change every step."""
    write_cifar10(tmp_path)
    words = ["optimizer=adamw", "lr=0.001", "schedule=cosine", "grad_clip=1", "min_samples=1"]
    exp = override(QUICK, ["dataset=cifar10", f"data_dir={tmp_path}", "batch_size=8", *words])
    expected = moonfl.run(exp, workers=1)
    assert same(results_of(moonfl.run(exp, workers=2)), results_of(expected))
    with pytest.raises(StopError):
        moonfl.run(exp, tmp_path / "run", workers=2, watch=stop_after(1))
    resumed = moonfl.resume(tmp_path / "run", workers=1)
    assert same(results_of(resumed), results_of(expected))


@pytest.mark.skipif(library.library() is None, reason="there is no native code here")
def test_native_layers_are_not_used_and_this_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_task(replace(QUICK, precision="float32")).build().native_chain is not None
    assert "bfloat16" not in capsys.readouterr().err
    task = make_task(QUICK)
    assert task.build().native_chain is None
    assert capsys.readouterr().err.count("precision=bfloat16 is computed by torch") == 1
    images = override(QUICK, ["dataset=cifar10", f"data_dir={tmp_path}", "min_samples=1"])
    write_cifar10(tmp_path)
    layers = [*make_task(images).build().modules()]
    assert [layer.native for layer in layers if isinstance(layer, ConvReluPool)] == [False, False]


def test_trained_and_exported_models_compute_in_float32(tmp_path: Path) -> None:
    result = moonfl.run(QUICK, tmp_path / "run", workers=1)
    x = result.blueprint.samples[:5]
    logits = result.model(x).logits
    float32 = make_task(replace(QUICK, precision="float32")).blueprint()
    assert torch.equal(logits, float32.deployed(result.models["global"])(x).logits)
    for source, folder in ((tmp_path / "run", "a"), (result, "b")):
        moonfl.export(source, tmp_path / folder)
        assert torch.equal(moonfl.load_model(tmp_path / folder)(x).logits, logits)


def test_a_wrong_precision_is_refused() -> None:
    with pytest.raises(InputError, match="precision must be float32 or bfloat16, got 'float16'"):
        override(Experiment(), ["precision=float16"])
