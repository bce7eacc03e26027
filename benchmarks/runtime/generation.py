"""Tokens per second of generate() on all ranks, beside one process.

    rannc run -n 2 benchmarks/runtime/generation.py

The model is a Llama with random weights, small enough for one process; prompts of 32 tokens, 64 new
ones, greedy. The first generation on all ranks captures, and is not counted.
"""

import copy
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import pyrannc
from pyrannc import Config, RaNNCModule

ROWS, PROMPT, NEW = 4, 32, 64  # rows of each rank


def main():
    rank, size = pyrannc.get_rank(), pyrannc.get_world_size()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192, hidden_size=512, intermediate_size=1536, num_hidden_layers=8,
        num_attention_heads=8, max_position_embeddings=256, eos_token_id=None,
    )  # fmt: skip
    plain = LlamaForCausalLM(config)
    prompts = torch.randint(0, 8192, (size * ROWS, PROMPT))
    model = RaNNCModule(copy.deepcopy(plain), config=Config(partition_num=size, calibrate=False))
    mine = prompts.chunk(size)[rank]
    model(input_ids=mine, labels=mine)
    plain.eval(), model.eval()
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    found = model.generate(mine, **settings)

    def rate(generate, count):
        begin = time.perf_counter()
        generate()
        return count * NEW / (time.perf_counter() - begin)

    ranks = [rate(lambda: model.generate(mine, **settings), size * ROWS) for _ in range(3)]
    pyrannc.barrier()
    if rank == 0:
        expected = plain.generate(prompts, **settings).chunk(size)[0]
        assert torch.equal(found, expected)
        alone = [rate(lambda: plain.generate(prompts, **settings), size * ROWS) for _ in range(3)]
        print(f"{size} ranks: {max(ranks):.0f} tokens/s; one process: {max(alone):.0f} tokens/s")
    pyrannc.barrier()


if __name__ == "__main__":
    main()
