"""Selection, augmentation and normalisation of a batch of stored images."""

import torch
from torch import Tensor

from .library import library


def gather(images: Tensor, rows: Tensor, maps: Tensor, choice: Tensor, table: Tensor) -> Tensor:
    """Return out[b, c, p] = table[c, images[rows[b], c, maps[choice[b], p]]], channels last.

    images: uint8 [N, C, H, W]
    maps: int32 [M, HW], the source of every pixel; HW means black
    choice: the map of each image of the batch, [B]
    table: the float32 value of each byte in each channel, [C, 256]
    """
    _, channels, height, width = images.shape
    batch = len(rows)
    pixels = height * width
    native = library()
    if native is None or images.device.type != "cpu" or not images.is_contiguous():
        return _gather_in_torch(images, rows, maps, choice, table)
    out = torch.empty(
        (batch, channels, height, width), dtype=torch.float32, memory_format=torch.channels_last
    )
    tensors = (images, rows.contiguous(), maps, choice.contiguous(), table, out)
    addresses = [tensor.data_ptr() for tensor in tensors]
    native.moonfl_batch(*addresses, batch, channels, pixels)
    return out


def _gather_in_torch(
    images: Tensor, rows: Tensor, maps: Tensor, choice: Tensor, table: Tensor
) -> Tensor:
    """Return the result of `gather` for images on any device."""
    _, channels, height, width = images.shape
    batch = len(rows)
    device = images.device
    index = maps.to(device)[choice.to(device)].long()
    index = index[:, None].expand(batch, channels, height * width)
    black = images.new_zeros(batch, channels, 1)
    pixels = torch.cat([images[rows].flatten(2), black], dim=2).gather(2, index)
    offset = 256 * torch.arange(channels, device=device)[:, None]
    values = table.flatten().to(device)[pixels.long() + offset]
    out = values.view(batch, channels, height, width)
    return out.contiguous(memory_format=torch.channels_last)


def rotate(maps: Tensor, choice: Tensor, radians: Tensor, height: int, width: int) -> Tensor:
    """Return the maps of images that are moved by maps[choice] and then rotated, int32 [B, HW].

    maps: int32 [M, HW], the source of every pixel; HW means black
    choice: the map of each image of the batch, [B]
    radians: the angle of each image, [B]; pixels with a source outside of the image are black
    """
    y = torch.arange(height, dtype=torch.float32) + 0.5 - height / 2
    x = torch.arange(width, dtype=torch.float32) + 0.5 - width / 2
    cos = radians.float().cos()[:, None]
    sin = radians.float().sin()[:, None]
    products = (cos * x, sin * y, sin * x, cos * y)
    native = library()
    if native is None:
        return _rotate_in_torch(maps, choice, products, height, width)
    out = torch.empty((len(choice), height * width), dtype=torch.int32)
    tensors = (maps, choice.contiguous(), *products, out)
    addresses = [tensor.data_ptr() for tensor in tensors]
    native.moonfl_rotate(*addresses, len(choice), height, width)
    return out


def _rotate_in_torch(
    maps: Tensor, choice: Tensor, products: tuple[Tensor, ...], height: int, width: int
) -> Tensor:
    """Return the result of `rotate`, given cos x, sin y, sin x and cos y of every image."""
    cos_x, sin_y, sin_x, cos_y = products
    column = (cos_x[:, None, :] - sin_y[:, :, None] + width / 2).floor().long()
    row = (sin_x[:, None, :] + cos_y[:, :, None] + height / 2).floor().long()
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    source = (row * width + column).masked_fill(~inside, height * width).flatten(1)
    black = maps.new_full((len(choice), 1), height * width)
    return torch.cat([maps[choice], black], dim=1).gather(1, source)
