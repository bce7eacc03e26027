"""The models of the runtime's benchmarks, each a list of layers, so that peers can cut it evenly.

Every layer maps one tensor to one tensor; the loss is cross-entropy over the last dimension.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Embedding(nn.Module):
    def __init__(self, words, length, width):
        super().__init__()
        self.token, self.position = nn.Embedding(words, width), nn.Embedding(length, width)

    def forward(self, tokens):
        return self.token(tokens) + self.position(torch.arange(tokens.shape[1]))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Head(nn.Module):
    def __init__(self, width, words):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x):
        return self.linear(self.norm(x))


class Residual(nn.Module):
    """Two convolutions; the second half of the pyramid's levels begin with a stride."""

    def __init__(self, narrow, wide, stride):
        super().__init__()
        self.first = nn.Conv2d(narrow, wide, 3, stride, padding=1)
        self.second = nn.Conv2d(wide, wide, 3, padding=1)
        self.norm_1, self.norm_2 = nn.GroupNorm(8, wide), nn.GroupNorm(8, wide)
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(narrow, wide, 1, stride)

    def forward(self, x):
        return F.relu(self.skip(x) + self.norm_2(self.second(F.relu(self.norm_1(self.first(x))))))


class Pool(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.linear = nn.Linear(width, classes)

    def forward(self, x):
        return self.linear(x.mean((2, 3)))


def gpt_layers(layers, width, length, words):
    return [
        Embedding(words, length, width),
        *(Block(width, max(1, width // 32)) for _ in range(layers)),
        Head(width, words),
    ]


def gpt():
    return gpt_layers(8, 256, 128, 8192)


def head_heavy():
    return gpt_layers(6, 256, 128, 32768)


def cnn():
    widths = [32, 32, 64, 64, 128, 128, 256, 256]
    blocks = [
        Residual(narrow, wide, 1 if narrow == wide else 2)
        for narrow, wide in zip([32, *widths], widths, strict=False)
    ]
    return [nn.Conv2d(3, 32, 3, padding=1), *blocks, Pool(256, 10)]


def tiny():
    return gpt_layers(4, 16, 16, 64)


def tokens(rows, length, words):
    def batch(generator):
        ids = torch.randint(words, (rows, length + 1), generator=generator)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    return batch


def images(rows):
    def batch(generator):
        return torch.randn(rows, 3, 32, 32, generator=generator), torch.randint(
            10, (rows,), generator=generator
        )

    return batch


# name: (layers, batch)
MODELS = {
    "gpt": (gpt, tokens(32, 128, 8192)),
    "head_heavy": (head_heavy, tokens(32, 128, 32768)),
    "cnn": (cnn, images(64)),
    "tiny": (tiny, tokens(8, 16, 64)),
}


def loss_of(scores, targets):
    return F.cross_entropy(scores.flatten(0, -2), targets.flatten())


class WithLoss(nn.Module):
    """The model as a user of RaNNC or of DDP has it: one module that returns its loss."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs, targets):
        return loss_of(self.layers(inputs), targets)
