"""Pre-trains a BERT that is enlarged by flags, as in the paper of RaNNC (IPDPS 2021): masked bytes,
and whether the second half of a row follows the first.

    rannc run -n 4 examples/enlarged_bert.py --layers 8 --hidden 128

The paper's sizes have plans without such devices; 96 layers of 2,048 are 4.9 billion parameters:

    rannc capture examples/enlarged_bert.py:build_4_9_billion -o bert.json --device v100
    rannc plan --graph bert.json --cluster examples/planner/v100.toml --global-batch 512 -o p.json

The text is this project's own documentation.
"""

import argparse
from pathlib import Path

import torch
from transformers import BertConfig, BertForPreTraining

import pyrannc

PAGES = Path(__file__).parents[1] / "docs"
CLASS, SEPARATOR, MASK = 256, 257, 258


def enlarged(layers, hidden, length, vocabulary=259):
    return BertForPreTraining(
        BertConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=max(hidden // 64, 2),
            intermediate_size=4 * hidden,
            max_position_embeddings=length,
        )
    )


def build_4_9_billion():
    """A model of the paper and the inputs of one call, for ``rannc capture``."""
    ids = torch.zeros(2, 512, dtype=torch.long)
    inputs = {"input_ids": ids, "labels": ids, "next_sentence_label": ids[:, 0]}
    return enlarged(96, 2048, 512, vocabulary=30522), inputs


def batch_of(text, rows, length, draw):
    """Rows [class, first half, separator, second half], of which half have another second half."""
    half = length // 2 - 1
    firsts = torch.randint(len(text) - 2 * half, (rows,), generator=draw)
    follows = torch.rand(rows, generator=draw) < 0.5
    others = torch.randint(len(text) - half, (rows,), generator=draw)
    seconds = torch.where(follows, firsts + half, others)
    take = torch.arange(half)
    begin, between = torch.full((rows, 1), CLASS), torch.full((rows, 1), SEPARATOR)
    halves = text[firsts[:, None] + take], text[seconds[:, None] + take]
    ids = torch.cat([begin, halves[0], between, halves[1]], dim=1)
    masked = (torch.rand(ids.shape, generator=draw) < 0.15) & (ids < CLASS)
    return {
        "input_ids": ids.masked_fill(masked, MASK),
        "labels": ids.masked_fill(~masked, -100),
        "next_sentence_label": (~follows).long(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=4, help="of a batch on each rank")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()

    text = b"".join(path.read_bytes() for path in sorted(PAGES.glob("*.md")))
    text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    torch.manual_seed(0)
    model = enlarged(arguments.layers, arguments.hidden, arguments.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model = pyrannc.RaNNCModule(model, optimizer)

    rank = pyrannc.get_rank()
    draw = torch.Generator().manual_seed(rank)  # every rank feeds its own rows
    for step in range(arguments.steps):
        optimizer.zero_grad()
        loss = model(**batch_of(text, arguments.rows, arguments.length, draw)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
