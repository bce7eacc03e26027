"""Mixture of experts: every second block has many parallel branches of equal size.

Each expert takes a fixed number of words of each sample (its capacity), so that no size depends on
the router's choice; words beyond the capacity are dropped (Lepikhin et al., GShard, ICLR 2021).
"""

import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from gpt import Attention, Feedforward, tokens


class Mixture(nn.Module):
    """One expert per word."""

    def __init__(self, width, inner, experts, words_per_expert):
        super().__init__()
        self.words_per_expert = words_per_expert
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Feedforward(width, inner) for _ in range(experts))

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        weight, chosen = weights.max(-1)
        here = (chosen[..., None] == torch.arange(len(self.experts))).to(x.dtype)
        # Which place in its expert's queue each word of the sample takes.
        place = ((here.cumsum(1) - 1) * here).sum(-1)
        slot = (place[..., None] == torch.arange(self.words_per_expert)).to(x.dtype)
        dispatch = here[..., None] * slot[..., None, :]  # [batch, word, expert, slot]
        taken = torch.einsum("bwes,bwd->ebsd", dispatch, x)
        made = torch.stack([e(t) for e, t in zip(self.experts, taken.unbind(0), strict=True)])
        return torch.einsum("bwes,ebsd->bwd", dispatch * weight[..., None, None], made)


class Block(nn.Module):
    def __init__(self, width, heads, feedforward):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width), feedforward

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Experts(nn.Module):
    """A GPT with experts in every second block; returns the loss."""

    def __init__(self, layers, width, heads, experts, vocabulary=50_304, length=1024):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        capacity = 2 * length // experts
        self.layers = nn.ModuleList(
            Block(
                width,
                heads,
                Mixture(width, 4 * width, experts, capacity)
                if layer % 2
                else Feedforward(width, 4 * width),
            )
            for layer in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def build():
    """7.5 B parameters: 24 layers, 16 experts in every second one."""
    return Experts(layers=24, width=2048, heads=16, experts=16), tokens(1024, 50_304)
