"""Tests of augmentation and normalisation against a reference that works image by image."""

import numpy as np
import pytest
import torch
from PIL import Image

from moonfl.data.augment import PAD, Preparation, crop_and_flip
from moonfl.data.cifar import CIFAR10, CIFAR100
from moonfl.kernels.batch import rotate


def images(count: int, side: int = 32) -> torch.Tensor:
    return torch.randint(
        0,
        256,
        (count, 3, side, side),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )


@pytest.mark.parametrize(("crop", "mode"), [("reflect", "reflect"), ("zero", "constant")])
def test_crop_and_flip_table_is_pad_crop_flip(crop: str, mode: str) -> None:
    image = images(1)[0].numpy()
    padded = np.pad(image, ((0, 0), (PAD, PAD), (PAD, PAD)), mode=mode)
    pixels = np.concatenate([image.reshape(3, -1), np.zeros((3, 1), np.uint8)], axis=1)
    row = 0
    for down in range(2 * PAD + 1):
        for right in range(2 * PAD + 1):
            expected = padded[:, down : down + 32, right : right + 32]
            for flipped in (expected, expected[:, :, ::-1]):
                got = pixels[:, crop_and_flip(32, 32, crop)[row].numpy()].reshape(3, 32, 32)
                assert np.array_equal(got, flipped)
                row += 1
    assert row == len(crop_and_flip(32, 32, crop))


@pytest.mark.parametrize("degrees", [-15.0, -3.3, 0.0, 7.7, 15.0])
def test_rotation_is_pillows(degrees: float) -> None:
    image = images(1)[0]
    expected = np.asarray(
        Image.fromarray(image.permute(1, 2, 0).numpy()).rotate(degrees, Image.Resampling.NEAREST)
    )
    pixels = torch.cat([image.flatten(1), torch.zeros(3, 1, dtype=torch.uint8)], dim=1)
    angle = torch.tensor([degrees]).deg2rad()
    index = rotate(crop_and_flip(32, 32, None), torch.tensor([0]), angle, 32, 32)[0]
    got = pixels[:, index].view(3, 32, 32).permute(1, 2, 0).numpy()
    assert (got != expected).any(
        axis=2
    ).mean() < 0.01  # a pixel whose source is on an edge may round either way


@pytest.mark.parametrize("preparation", [CIFAR10, CIFAR100])
def test_augmentation_is_random_per_image_and_fixed_by_its_stream(preparation: Preparation) -> None:
    x, rows = images(1), torch.zeros(200, dtype=torch.long)
    out = preparation.batch(x, rows, torch.Generator().manual_seed(3))
    assert out.shape == (200, 3, 32, 32)
    assert len({image.numpy().tobytes() for image in out}) > 100
    assert torch.equal(out, preparation.batch(x, rows, torch.Generator().manual_seed(3)))


def test_without_augmentation_a_batch_is_the_normalised_rows() -> None:
    x, rows = images(9), torch.tensor([3, 0, 3, 8])
    assert torch.equal(CIFAR10.batch(x, rows), CIFAR10.normalise(x[rows]))
    floats = x.float() / 7
    assert torch.equal(
        CIFAR10.batch(floats, rows, torch.Generator()), floats[rows]
    )  # floats are not images


def test_flips_half_of_the_images() -> None:
    flip_only = Preparation(mean=(0.0,) * 3, std=(1.0,) * 3, flip=True)
    x, rows = images(1), torch.zeros(2000, dtype=torch.long)
    out = flip_only.batch(x, rows, torch.Generator().manual_seed(0))
    flipped = (out != flip_only.normalise(x)).flatten(1).any(dim=1)
    assert 0.45 < float(flipped.float().mean()) < 0.55
    assert torch.equal(out[flipped][0], flip_only.normalise(x)[0].flip(2))


def test_normalise() -> None:
    got = CIFAR10.normalise(
        torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 1, 1)
    )
    for channel, (mean, std) in enumerate([(125.3, 63.0), (123.0, 62.1), (113.9, 66.7)]):
        assert got[:, channel, 0, 0].tolist() == pytest.approx(
            [(0 - mean) / std, (255 - mean) / std], rel=1e-5
        )
