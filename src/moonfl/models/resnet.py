"""ResNet-18 and ResNet-50 with a stem for small images: 3x3 convolution, stride 1, no pooling.

He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition, CVPR 2016.
https://arxiv.org/abs/1512.03385
"""

from torch import Tensor, nn

from ..errors import InputError


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution without bias, followed by BatchNorm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)); the shortcut is the identity if the shapes agree."""

    def __init__(self, body: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = inputs == outputs and stride == 1
        self.shortcut: nn.Module = nn.Identity() if same else conv_bn(inputs, outputs, 1, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        out: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out


def basic_block(inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
    """Return a block of two 3x3 convolutions, and the number of its output channels."""
    body = nn.Sequential(conv_bn(inputs, width, 3, stride), nn.ReLU(), conv_bn(width, width, 3))
    return Residual(body, inputs, width, stride), width


def bottleneck(inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
    """Return a block of 1x1, 3x3 and 1x1 convolutions, and the number of its output channels.

    The last convolution is four times as wide as the others.
    """
    body = nn.Sequential(
        conv_bn(inputs, width, 1),
        nn.ReLU(),
        conv_bn(width, width, 3, stride),
        nn.ReLU(),
        conv_bn(width, 4 * width, 1),
    )
    return Residual(body, inputs, 4 * width, stride), 4 * width


def resnet(shape: tuple[int, ...], depth: int) -> nn.Module:
    """Return the encoder of depth 18 or 50."""
    block, repeats = {18: (basic_block, (2, 2, 2, 2)), 50: (bottleneck, (3, 4, 6, 3))}[depth]
    if len(shape) != 3:
        raise InputError(
            f"model resnet{depth} needs images [channels, height, width], "
            f"the data have shape {shape}; try model=mlp"
        )
    layers: list[nn.Module] = [conv_bn(shape[0], 64, 3), nn.ReLU()]
    channels = 64
    for stage, (width, count) in enumerate(zip((64, 128, 256, 512), repeats, strict=True)):
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            layer, channels = block(channels, width, stride)
            layers.append(layer)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def resnet18(shape: tuple[int, ...]) -> nn.Module:
    """Return ResNet-18 without its output layer."""
    return resnet(shape, 18)


def resnet50(shape: tuple[int, ...]) -> nn.Module:
    """Return ResNet-50 without its output layer."""
    return resnet(shape, 50)
