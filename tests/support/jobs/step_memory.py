"""One rank of predict/test_step_memory.py: steps of several plans, predicted and measured."""

import json
import statistics

import torch
import torch.nn.functional as F
from torch import nn

import pyrannc
from pyrannc import launch

MIB = 2**20

#: name -> (schedule, stages, micro-batches, recompute)
PLANS = {
    "interleaved, 12 stages": ("interleaved", 12, 16, "never"),
    "interleaved, 12 stages, recomputed": ("interleaved", 12, 16, "always"),
    "interleaved, 8 stages": ("interleaved", 8, 16, "never"),
    "1f1b": ("1f1b", 4, 16, "never"),
    "gpipe": ("gpipe", 4, 8, "never"),
}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """That of examples/train_gpt.py."""

    def __init__(self, width=192, layers=4, heads=6, length=128):
        super().__init__()
        self.token, self.position = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.token(tokens) + self.position(positions))
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def train(schedule, stages, micro_batches, recompute):
    """MiB of each stage's ranks: predicted, by the account of section 7 of docs/planner-files.md,
    and measured."""
    torch.manual_seed(0)
    plain = GPT()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    model = pyrannc.RaNNCModule(
        plain,
        optimizer,
        pyrannc.Config(
            partition_num=stages,
            replica_nums=[1] * stages,
            pipeline_num=micro_batches,
            schedule=schedule,
            recompute=recompute,
            calibrate=False,
            self_check=False,
        ),
    )
    tokens = torch.randint(256, (4, 128), generator=torch.Generator().manual_seed(1))

    def step():
        optimizer.zero_grad()
        model(tokens, tokens).backward()
        optimizer.step()

    for _ in range(2):
        step()
    # What else runs on the machine makes single messages late, so of several times the median.
    peaks = []
    for _ in range(7):
        with pyrannc.measure(model, optimizer) as measured:
            for _ in range(2):
                step()
        peaks.append(measured.peak_mib)
    return {
        "ranks": [stage.ranks[0] for stage in model.plan.stages],
        "predicted": [peak / MIB for peak in model.plan.step.peak_bytes],
        "account": [stage.predicted.peak_bytes / MIB for stage in model.plan.stages],
        "measured": [statistics.median(stage) for stage in zip(*peaks, strict=True)],
        "least": [min(stage) for stage in zip(*peaks, strict=True)],
        "most": [max(stage) for stage in zip(*peaks, strict=True)],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {name: train(*plan) for name, plan in PLANS.items()}
    if launch.get_rank() == 0:
        print(json.dumps(found))
