"""Selection, augmentation and normalisation of a batch of stored images in one pass."""

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
