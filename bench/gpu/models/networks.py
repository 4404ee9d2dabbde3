"""The networks of the GPU benches: ResNet-50, a transformer encoder, a two-tower recommender.

ResNet's layers and names are those of torchvision, so its weights would fit; it is written out here because torchvision
exists for few builds of torch, and because the tests need a small one. Weights are random from a seed. Importing this
module imports torch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Of ImageNet's colours, in units of 1/255.
_MEAN = (123.675, 116.28, 103.53)
_DEVIATION = (58.395, 57.12, 57.375)


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 with a shortcut; the stride is in the 3×3, as torchvision has it."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + shortcut)


class ResNet(nn.Module):
    """``blocks`` (3, 4, 6, 3) of width 64 make ResNet-50. Takes FP16 of (rows, 3, side, side)."""

    def __init__(self, blocks: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for number, count in enumerate(blocks):
            stage = []
            for block in range(count):
                stage.append(Bottleneck(inputs, width << number, 2 if number and not block else 1))
                inputs = 4 * width << number
            self.add_module(f"layer{number + 1}", nn.Sequential(*stage))
        self.stages = len(blocks)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def logits(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for number in range(self.stages):
            x = getattr(self, f"layer{number + 1}")(x)
        return self.fc(x.mean((2, 3)))

    def forward(self, image: Tensor) -> Tensor:
        x = image.to(self.fc.weight.dtype).contiguous(memory_format=torch.channels_last)
        return self.logits(x).float()


class ByteResNet(nn.Module):
    """The same with UINT8 of (rows, side, side, 3), normalised on the device: a quarter of FP32's bytes to send."""

    def __init__(self, resnet: ResNet) -> None:
        super().__init__()
        self.resnet = resnet
        scale = 1 / torch.tensor(_DEVIATION)
        self.register_buffer("scale", scale.reshape(3, 1, 1))
        self.register_buffer("shift", (-torch.tensor(_MEAN) * scale).reshape(3, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        # (rows, side, side, 3) seen as (rows, 3, side, side) is channels_last already: nothing moves.
        x = image.permute(0, 3, 1, 2).to(self.scale.dtype) * self.scale + self.shift
        return self.resnet.logits(x).float()


class Layer(nn.Module):
    """Attention and a feed-forward network, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.forward_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.projection(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.down(functional.gelu(self.up(self.forward_norm(x))))


class Encoder(nn.Module):
    """Token ids in, the mean of the last layer's tokens out."""

    def __init__(self, layers: int, width: int, heads: int, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(tokens, width) * 0.1)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.norm(self.layers(self.words(ids) + self.positions))
        return x.mean(1).float()


class TwoTower(nn.Module):
    """Scores of candidate items for a user: the dot product of what two towers make of each."""

    def __init__(self, users: int, items: int, width: int, dense: int) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)
        self.user_tower = nn.Sequential(
            *(nn.Linear(2 * width + dense, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, width))
        )
        self.item_tower = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, width))

    def forward(self, user: Tensor, history: Tensor, dense: Tensor, candidates: Tensor) -> Tensor:
        seen = self.items(history).mean(1)
        known = torch.cat((self.users(user).squeeze(1), seen, dense.to(seen.dtype)), 1)
        of_user = self.user_tower(known)
        of_items = self.item_tower(self.items(candidates))
        return torch.bmm(of_items, of_user.unsqueeze(2)).squeeze(2).float()


def calibrate(resnet: ResNet, image: Tensor) -> None:
    """Set the statistics of the batch norms by one batch: without, activations grow with every block."""
    norms = [module for module in resnet.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    resnet.train()
    with torch.no_grad():
        resnet(image)
    resnet.eval()
