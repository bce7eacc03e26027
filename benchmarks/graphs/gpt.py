"""Decoder-only transformers: 1.3 B to 1 T parameters, and one whose vocabulary head weighs most."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(x.transpose(1, 2).reshape(batch, length, width))


class Feedforward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width), Feedforward(width, 4 * width)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Returns the loss; head and token embedding are tied unless ``tied`` is false."""

    def __init__(self, layers, width, heads, vocabulary=50_304, length=2048, tied=True):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.token.weight

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tokens(length, vocabulary):
    return tuple(torch.randint(vocabulary, (4, length)) for _ in range(2))


def build_1b():
    """1.3 B parameters."""
    return GPT(layers=24, width=2048, heads=16), tokens(2048, 50_304)


def build_175b():
    """175 B parameters: the shape of GPT-3."""
    return GPT(layers=96, width=12_288, heads=96), tokens(2048, 50_304)


def build_1t():
    """1 T parameters: the largest model of Narayanan et al., SC 2021."""
    return GPT(layers=128, width=25_600, heads=160, vocabulary=51_200), tokens(2048, 51_200)


def build_heavy_head():
    """0.7 B parameters, of which the untied embedding and head for 256 k words are 0.52 B."""
    model = GPT(layers=12, width=1024, heads=16, vocabulary=256_000, length=1024, tied=False)
    return model, tokens(1024, 256_000)
