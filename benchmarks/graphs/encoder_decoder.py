"""An encoder and a decoder with one embedding for both and for the head, like T5."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Of ``x`` to ``memory``, which is ``x`` itself unless it is given."""

    def __init__(self, width, heads, size):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (
            nn.Linear(width, heads * size, bias=False) for _ in range(3)
        )
        self.out = nn.Linear(heads * size, width, bias=False)

    def forward(self, x, memory, bias):
        query, key, value = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.query(x), self.key(memory), self.value(memory))
        )
        scores = query @ key.transpose(-1, -2)
        scores = scores if bias is None else scores + bias
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Feedforward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(inner, width, bias=False),
        )

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


class Layer(nn.Module):
    def __init__(self, width, heads, size, inner, crossed):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width), Attention(width, heads, size)
        if crossed:
            self.norm2, self.cross = nn.RMSNorm(width), Attention(width, heads, size)
        self.norm3, self.mlp = nn.RMSNorm(width), Feedforward(width, inner)

    def forward(self, x, bias, memory=None):
        y = self.norm1(x)
        x = x + self.attention(y, y, bias)
        if memory is not None:
            x = x + self.cross(self.norm2(x), memory, None)
        return x + self.mlp(self.norm3(x))


class Stack(nn.Module):
    def __init__(self, layers, width, heads, size, inner, causal):
        super().__init__()
        self.causal = causal
        self.bias = nn.Embedding(32, heads)  # of the distance of two words, for all layers
        self.layers = nn.ModuleList(
            Layer(width, heads, size, inner, crossed=causal) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width)

    def forward(self, x, memory=None):
        place = torch.arange(x.shape[1])
        distance = (place[None, :] - place[:, None]).clamp(-16, 15) + 16
        bias = self.bias(distance).permute(2, 0, 1)[None]
        if self.causal:
            bias = bias.masked_fill(place[None, :] > place[:, None], -1e9)
        for layer in self.layers:
            x = layer(x, bias, memory)
        return self.norm(x)


class EncoderDecoder(nn.Module):
    """Returns the loss."""

    def __init__(self, layers, width, heads, size, inner, vocabulary=32_128):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = Stack(layers, width, heads, size, inner, causal=False)
        self.decoder = Stack(layers, width, heads, size, inner, causal=True)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words, translation, targets):
        memory = self.encoder(self.embedding(words))
        x = self.decoder(self.embedding(translation), memory)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def build():
    """2.9 B parameters: the shape of T5-3B."""
    model = EncoderDecoder(layers=24, width=1024, heads=32, size=128, inner=16_384)
    return model, tuple(torch.randint(32_128, (4, 512)) for _ in range(3))
