"""Trains a small BERT to fill in masked bytes, as scripts in the field do: accumulated gradients,
clipping, a schedule of learning rates, bfloat16, evaluation after each epoch, checkpoints.

The same script runs in one process, with DistributedDataParallel, and with RaNNC; they differ in
the line of `wrap` that is taken, and have the same curves:

    python examples/masked_lm.py
    torchrun --nproc-per-node 2 examples/masked_lm.py --with ddp
    torchrun --nproc-per-node 2 examples/masked_lm.py --with rannc
    rannc run -n 2 examples/masked_lm.py --with rannc

The text is this project's own documentation. Each row has as many masked bytes as every other, so
that the mean over a rank's bytes, which DDP takes, is a part of the mean over all.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from transformers import BertConfig, BertForMaskedLM

import pyrannc

PAGES = Path(__file__).parents[1] / "docs"
MASK, PAD = 256, 257
LENGTH = 64


class MaskedBytes(Dataset):
    """Rows of bytes of which 15 % are masked, in each epoch others."""

    def __init__(self, held_out):
        pages = [path.read_bytes() for path in sorted(PAGES.glob("*.md"))]
        text = torch.frombuffer(bytearray(b"".join(pages)), dtype=torch.uint8).long()
        rows = [row for row in text.split(LENGTH - 1) if len(row) > LENGTH // 2]
        self.rows = rows[::10] if held_out else [row for i, row in enumerate(rows) if i % 10]
        self.epoch = 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(self.epoch * len(self) + index)
        places = torch.randperm(len(self.rows[index]), generator=draw)[: LENGTH * 15 // 100]
        inputs, labels = self.rows[index].clone(), torch.full_like(self.rows[index], -100)
        labels[places], inputs[places] = inputs[places], MASK
        return inputs, labels


def batch_of(rows):
    inputs = pad_sequence([inputs for inputs, _ in rows], batch_first=True, padding_value=PAD)
    labels = pad_sequence([labels for _, labels in rows], batch_first=True, padding_value=-100)
    return {"input_ids": inputs, "attention_mask": (inputs != PAD).long(), "labels": labels}


def wrap(model, optimizer, how):
    if how == "ddp":
        return DistributedDataParallel(model)
    if how == "rannc":
        return pyrannc.RaNNCModule(model, optimizer)
    return model


def mean_over_ranks(value):
    if dist.is_initialized():
        dist.all_reduce(value)
        value = value / dist.get_world_size()
    return value.item()


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        losses = [model(**batch).loss for batch in loader]
    model.train()
    return mean_over_ranks(torch.stack(losses).mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--with", dest="how", choices=["plain", "ddp", "rannc"], default="plain")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--until", type=int, help="ends before this epoch, as a job's time does")
    parser.add_argument("--updates", type=int, default=20, help="of each epoch, at most")
    parser.add_argument("--batch", type=int, default=32, help="rows of an update, of all ranks")
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--checkpoint", type=Path, help="written after each epoch; read if there")
    arguments = parser.parse_args()

    if arguments.how == "ddp":
        dist.init_process_group("gloo")
    elif arguments.how == "rannc":
        pyrannc.init()  # before a sampler asks for ranks
    rank = dist.get_rank() if dist.is_initialized() else 0
    world = dist.get_world_size() if dist.is_initialized() else 1

    torch.manual_seed(0)
    plain = BertForMaskedLM(
        BertConfig(
            vocab_size=258,
            hidden_size=arguments.width,
            num_hidden_layers=arguments.layers,
            num_attention_heads=4,
            intermediate_size=4 * arguments.width,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    optimizer = torch.optim.AdamW(plain.parameters(), lr=2e-3)
    total = arguments.epochs * arguments.updates
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total, pct_start=0.2)
    first_epoch = 0
    if arguments.checkpoint and arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint)
        plain.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        first_epoch = saved["epochs"]
    model = wrap(plain, optimizer, arguments.how)

    def loader(rows):
        sampler = DistributedSampler(rows, world, rank, drop_last=True)
        size = arguments.batch // arguments.accumulate // world
        return DataLoader(rows, size, sampler=sampler, collate_fn=batch_of, drop_last=True)

    training, held_out = MaskedBytes(held_out=False), MaskedBytes(held_out=True)
    for epoch in range(first_epoch, arguments.until or arguments.epochs):
        batches = loader(training)
        batches.sampler.set_epoch(epoch)
        training.epoch = epoch
        batches = iter(batches)
        for update in range(arguments.updates):
            loss = 0.0
            for _ in range(arguments.accumulate):
                with torch.autocast(
                    "cpu", torch.bfloat16, enabled=arguments.precision == "bfloat16"
                ):
                    part = model(**next(batches)).loss / arguments.accumulate
                part.backward()
                loss += part.detach()
            norm = clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            loss = mean_over_ranks(loss)
            if rank == 0:
                numbers = {"epoch": epoch, "update": update, "loss": loss, "norm": norm.item()}
                print(json.dumps(numbers), flush=True)
        loss = evaluate(model, loader(held_out))
        if rank == 0:
            print(json.dumps({"epoch": epoch, "held_out": loss}), flush=True)
        if arguments.checkpoint:  # of RaNNC, whole on rank 0 alone, so that every rank asks
            weights, moments = model.state_dict(), optimizer.state_dict()
            if rank == 0:
                torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(weights, "module.")
                saved = {"model": weights, "optimizer": moments, "epochs": epoch + 1}
                torch.save(saved | {"schedule": schedule.state_dict()}, arguments.checkpoint)


if __name__ == "__main__":
    main()
    if dist.is_initialized():  # after the model, with which DDP's reducer ends
        dist.destroy_process_group()
