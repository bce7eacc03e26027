"""A linear layer's weight gradient, added to the sum of earlier micro-batches in two ways.

    python benchmarks/runtime/weight_gradients.py

By torch: a product, which is then added. By RaNNC (src/ops/linear.cpp): a product into the sum. One
thread, float32; of each the shortest of 15 calls, in turns, and the ratio.
"""

import time

import torch

from pyrannc.job import process

# Outputs and inputs of the layer; rows of the micro-batch.
SIZES = [
    (32768, 256, 128),
    (32768, 256, 512),
    (8192, 256, 256),
    (4096, 1024, 128),
    (4096, 1024, 512),
    (1024, 256, 256),
    (768, 256, 256),
]


def shortest_ms(calls, rounds=15):
    """Of each call."""
    best = [float("inf")] * len(calls)
    for _ in range(1 + rounds):
        for index, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - begin)
    return [1e3 * seconds for seconds in best]


def main():
    torch.set_num_threads(1)
    process.keep_freed_memory()  # as RaNNC does: else torch's way also pays for new pages
    print("outputs inputs rows | product, then added | into the sum | ratio")
    for outputs, inputs, rows in SIZES:
        gradient, x = torch.randn(rows, outputs), torch.randn(rows, inputs)
        total = torch.zeros(outputs, inputs)
        apart, into = shortest_ms(
            [
                lambda total=total, g=gradient, x=x: total.add_(g.t().mm(x)),
                lambda total=total, g=gradient, x=x: total.addmm_(g.t(), x),
            ]
        )
        sizes = f"{outputs:7} {inputs:6} {rows:4}"
        print(f"{sizes} | {apart:16.2f} ms | {into:9.2f} ms | {apart / into:.2f}")


if __name__ == "__main__":
    main()
