"""Tests of the networks of the paper."""

import pytest
import torch
from torch import nn

from moonfl.errors import InputError
from moonfl.models.base import has_batch_norm
from moonfl.models.encoders import ENCODERS, build_model

SHAPES = {
    "mlp": (1, 8, 8),
    "simple-cnn": (3, 32, 32),
    "wide-cnn": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "resnet50": (3, 32, 32),
    "cnn1d": (3, 32),
}


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_cnn_has_92626_parameters() -> None:
    """Compare with the sum over the layers.

    456 + 2,416 (convolutions) + 48,120 + 10,164 (120 and 84 units) + 7,140 + 21,760 (head)
    + 2,570 (output).
    """
    assert parameters(build_model("simple-cnn", (3, 32, 32), 10, head=True, out_dim=256)) == 92_626


def test_wide_cnn_has_304106_parameters() -> None:
    """Compare with the sum over the layers.

    1,216 + 12,832 (convolutions) + 205,056 + 32,896 (256 and 128 units) + 16,512 + 33,024 (head)
    + 2,570 (output).
    """
    assert parameters(build_model("wide-cnn", (3, 32, 32), 10, head=True, out_dim=256)) == 304_106


@pytest.mark.parametrize(("name", "encoder"), [("resnet18", 11_168_832), ("resnet50", 23_500_352)])
def test_resnets_have_the_published_encoders(name: str, encoder: int) -> None:
    """Compare with ResNet-18 and -50 for ImageNet, which have 11,176,512 and 23,508,032 parameters.

    These are without the output layer. A 3x3 stem of 64 channels has 7,680 fewer than the 7x7 one.
    """
    assert parameters(ENCODERS[name]((3, 32, 32))) == encoder


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("name", ENCODERS)
def test_z_and_logits(name: str, head: bool) -> None:
    model = build_model(name, SHAPES[name], 7, head, 32).eval()
    x = torch.randn(2, *SHAPES[name])
    z, logits = model(x)
    assert z.shape == (2, 32) if head else z.shape[0] == 2
    assert logits.shape == (2, 7)
    assert torch.allclose(logits, model.output(z), atol=1e-6)
    if not head:
        assert torch.allclose(z, model.encoder(x), atol=1e-6)
    assert model(x[:1]).z.shape == (1, z.shape[1])  # a batch of one keeps its axis


@pytest.mark.parametrize("name", ENCODERS)
def test_the_head_is_the_only_difference(name: str) -> None:
    """Same stem with and without the projection head."""
    with_head, without = (build_model(name, SHAPES[name], 10, head, 256) for head in (True, False))
    assert str(with_head.encoder) == str(without.encoder)
    assert has_batch_norm(with_head) == name.startswith("resnet")


def test_resnet_keeps_the_resolution_of_its_stem() -> None:
    stem = ENCODERS["resnet18"]((3, 32, 32))[:2]
    assert stem(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 32, 32)


@pytest.mark.parametrize("name", ["simple-cnn", "wide-cnn", "resnet18", "cnn1d"])
def test_misfit_of_data_and_model_is_named(name: str) -> None:
    with pytest.raises(InputError, match=name):
        build_model(name, (6,), 10, True, 256)
    with pytest.raises(InputError, match="at least 16x16"):
        build_model("simple-cnn", (1, 8, 8), 10, True, 256)


def test_simple_cnn_takes_64x64() -> None:
    assert build_model("simple-cnn", (3, 64, 64), 200, True, 256)(
        torch.zeros(2, 3, 64, 64)
    ).logits.shape == (2, 200)
