"""A batch of images in one pass: picked, moved about and normalised, straight from the stored bytes."""

import torch
from torch import Tensor

from .library import library


def gather(images: Tensor, rows: Tensor, maps: Tensor, choice: Tensor, table: Tensor) -> Tensor:
    """out[b, c, p] = table[c, images[rows[b], c, maps[choice[b], p]]], [B, C, H, W], channels last in memory.

    images: uint8 [N, C, H, W]; maps: int32 [M, HW], where every pixel comes from, HW meaning black; table: [C, 256].
    """
    (_, channels, height, width), batch = images.shape, len(rows)
    pixels = height * width
    native = library()
    if native is None or images.device.type != "cpu" or not images.is_contiguous():
        index = (
            maps.to(images.device)[choice.to(images.device)]
            .long()[:, None]
            .expand(batch, channels, pixels)
        )
        picked = images[rows].flatten(2)
        picked = torch.cat([picked, picked.new_zeros(batch, channels, 1)], dim=2).gather(2, index)
        offset = 256 * torch.arange(channels, device=images.device)[:, None]
        out = (
            table.flatten()
            .to(images.device)[picked.long() + offset]
            .view(batch, channels, height, width)
        )
        return out.contiguous(memory_format=torch.channels_last)
    out = torch.empty(
        (batch, channels, height, width), dtype=torch.float32, memory_format=torch.channels_last
    )
    tensors = (images, rows.contiguous(), maps, choice.contiguous(), table, out)
    native.moonfl_batch(*(t.data_ptr() for t in tensors), batch, channels, pixels)
    return out
