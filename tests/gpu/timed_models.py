"""The models that are timed, of torch alone: GPT-2 and ResNet-50; both return their loss."""

import dataclasses
from collections.abc import Callable

import device
import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        rows, length, width = x.shape
        parts = self.inputs(x).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(rows, length, width))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class Gpt2(nn.Module):
    """GPT-2 (Radford et al., 2019) without dropout; scores are made by the embedding's weights."""

    def __init__(self, layers=24, width=1024, heads=16, vocabulary=50257, length=1024):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens, labels):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for layer in self.layers:
            x = layer(x)
        scores = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        sizes = [(channels, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        parts = [normalised(*size) for size in sizes]
        self.body = nn.Sequential(parts[0], nn.ReLU(), parts[1], nn.ReLU(), parts[2])
        same = stride == 1 and channels == 4 * width
        self.skip = nn.Identity() if same else normalised(channels, 4 * width, 1, stride)

    def forward(self, x):
        return functional.relu(self.body(x) + self.skip(x))


def normalised(channels, width, size, stride):
    convolution = nn.Conv2d(channels, width, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width))


class ResNet(nn.Module):
    """ResNet (He et al., 2015), by default that of 50 layers."""

    def __init__(self, counts=(3, 4, 6, 3), width=64, classes=1000):
        super().__init__()
        self.stem = nn.Sequential(normalised(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks, channels = [], width
        for stage, count in enumerate(counts):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(channels, width << stage, stride))
                channels = 4 * (width << stage)
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(channels, classes)

    def forward(self, images, labels):
        features = self.blocks(self.stem(images)).mean((2, 3))
        return functional.cross_entropy(self.head(features), labels)


@dataclasses.dataclass(frozen=True)
class Model:
    """What is built, and its batch of a number of rows, on a device."""

    build: Callable[[], nn.Module]
    batch: Callable[[int, torch.device], dict]
    rows: int
    make_optimizer: Callable

    def on(self, place):
        torch.manual_seed(0)
        return self.build().to(place)


def words(vocabulary, length):
    def make(rows, place):
        tokens = torch.randint(vocabulary, (rows, length)).to(place)
        return {"tokens": tokens, "labels": tokens}

    return make


def pictures(size, classes):
    def make(rows, place):
        images, labels = torch.randn(rows, 3, size, size), torch.randint(classes, (rows,))
        return {"images": images.to(place), "labels": labels.to(place)}

    return make


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


LARGE = {
    "GPT-2 medium": Model(Gpt2, words(50257, 512), 16, adamw),
    "ResNet-50": Model(ResNet, pictures(224, 1000), 128, sgd),
}
SMALL = {
    "GPT-2 medium": Model(lambda: Gpt2(2, 32, 2, 128, 16), words(128, 16), 8, adamw),
    "ResNet-50": Model(lambda: ResNet((1, 1), 8, 10), pictures(32, 10), 8, sgd),
}
MODELS = SMALL if device.SMALL else LARGE
