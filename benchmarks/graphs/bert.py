"""An enlarged BERT, with its attention written out: many small operators per layer."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x, mask):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.value(x)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + mask
        weights = self.dropout(scores.softmax(-1))
        mixed = (weights @ self.split(value)).transpose(1, 2).contiguous()
        return self.out(mixed.view(x.shape))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm2, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)

    def forward(self, x, mask):
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class BERT(nn.Module):
    """Returns the loss of the masked words."""

    def __init__(self, layers, width, heads, vocabulary=30_528, length=512):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.kind, self.norm = nn.Embedding(2, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.dense, self.head_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.token.weight

    def forward(self, tokens, kinds, attended, targets):
        x = self.token(tokens) + self.kind(kinds) + self.position(torch.arange(tokens.shape[1]))
        x = self.norm(x)
        mask = (1 - attended[:, None, None, :].to(x.dtype)) * -10_000
        for layer in self.layers:
            x = layer(x, mask)
        logits = self.head(self.head_norm(F.gelu(self.dense(x))))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build_5b():
    """4.9 B parameters: the largest BERT of the RaNNC paper."""
    model = BERT(layers=96, width=2048, heads=32)
    words, ones = torch.randint(30_528, (4, 512)), torch.ones(4, 512, dtype=torch.int64)
    return model, {"tokens": words, "kinds": ones, "attended": ones, "targets": words}
