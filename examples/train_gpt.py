"""Trains a byte-level GPT on the source files of Python's standard library.

    rannc run -n 4 examples/train_gpt.py

The memory limit is one that a single rank could not meet: parameters, gradients and AdamW's state
of the whole model alone are larger. It is an ordinary PyTorch script; the line with RaNNCModule is
the one that is added.
"""

import argparse
import math
import os
import sys
import sysconfig
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

import pyrannc


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
    def __init__(self, width=192, layers=4, heads=6, length=128):
        super().__init__()
        self.length = length
        self.token, self.position = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.token.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("project.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers if residual else 1))

    def logits(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position(positions))))

    def forward(self, tokens, targets):
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())


def load_text():
    """The standard library's sources; every twentieth file is held out."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    read = [torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8) for file in files]
    train = [data for index, data in enumerate(read) if index % 20 and len(data)]
    held_out = [data for index, data in enumerate(read) if index % 20 == 0 and len(data)]
    return torch.cat(train).long(), torch.cat(held_out).long()


def batch_of(text, rows, length, generator):
    starts = torch.randint(len(text) - length - 1, (rows,), generator=generator).tolist()
    rows = torch.stack([text[start : start + length + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def sample(model, prompt, count):
    tokens = torch.tensor(list(prompt.encode()))[None]
    for _ in range(count):
        logits = model.logits(tokens[:, -model.length :])[0, -1]
        tokens = torch.cat([tokens, torch.multinomial(F.softmax(logits / 0.8, -1), 1)[None]], 1)
    return bytes(tokens[0].tolist()).decode(errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rows", type=int, default=4, help="rows of a batch on each rank")
    parser.add_argument("--mem-limit-gb", type=float, default=0.026)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    plain = GPT()
    size = sum(parameter.nbytes for parameter in plain.parameters())
    optimizer = torch.optim.AdamW(plain.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, arguments.steps, pct_start=0.1)
    config = pyrannc.Config(mem_limit_gb=arguments.mem_limit_gb, log_level="info")
    model = pyrannc.RaNNCModule(plain, optimizer, config)

    rank = pyrannc.get_rank()
    if rank == 0:
        print(
            f"{size / 4e6:.2f} M parameters: with gradients and AdamW's state "
            f"{4 * size / 2**20:.1f} MiB, a rank may use {arguments.mem_limit_gb * 1024:.1f} MiB"
        )
    text, held_out = load_text()
    generator = torch.Generator().manual_seed(1 + rank)
    bytes_per_step = arguments.rows * plain.length * pyrannc.get_world_size()
    columns = (BarColumn(), TextColumn("{task.completed}/{task.total} {task.description}"),
               TimeRemainingColumn())  # fmt: skip
    interactive = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    with Progress(*columns, disable=rank != 0 or not interactive) as progress:
        bar = progress.add_task("", total=arguments.steps)

        def train(first, last):
            for step in range(first, last):
                start = perf_counter()
                tokens, targets = batch_of(text, arguments.rows, plain.length, generator)
                optimizer.zero_grad()
                loss = model(tokens, targets)
                loss.backward()
                model.clip_grad_norm(1.0)
                optimizer.step()
                schedule.step()
                bits, speed = loss.item() / math.log(2), bytes_per_step / (perf_counter() - start)
                line = f"loss {bits:.2f} bits per byte, {speed:,.0f} bytes/s"
                progress.update(bar, advance=1, description=line)
                if rank == 0 and progress.disable and (step + 1) % 50 == 0:
                    print(f"step {step + 1}: {line}", flush=True)

        warm_up = min(10, arguments.steps // 2)
        train(0, warm_up)
        with pyrannc.measure(model, optimizer) as measured:
            train(warm_up, arguments.steps)

    model.eval()
    with torch.no_grad():
        batches = (batch_of(held_out, arguments.rows, plain.length, generator) for _ in range(20))
        losses = [model(*batch).item() for batch in batches]
    weights = model.state_dict()  # complete on rank 0; every rank takes part
    if rank == 0:
        print(measured)
        whole = GPT()
        whole.load_state_dict(weights)
        print("--- sample ---", sample(whole, "def ", 200), "--------------", sep="\n")
        print(
            f"held-out loss: {sum(losses) / len(losses) / math.log(2):.2f} bits per byte "
            "(bigrams 3.49, single bytes 4.54)"
        )


if __name__ == "__main__":
    main()
