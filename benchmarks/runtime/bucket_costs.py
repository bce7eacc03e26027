"""What a bucket costs beyond its bytes: one array, summed as more and more of them.

    rannc run -n 2 benchmarks/runtime/bucket_costs.py

The ranks compute for a while, one thread each, and start a bucket after every part of it, as a
backward does; then they wait. All numbers of buckets take turns. Where there are many, each more
costs about 2 (r - 1) times the latency of the link and partition::kBucketWakeNs, for r ranks.
"""

import argparse
import os
import statistics
import time

import torch

from pyrannc import _C, launch

PARTS = 64
BUCKETS = (0, 1, 2, 4, 8, 16, 32, PARTS)  # a call for one purpose may have 256 under way


def step(world, buckets, matrix, products):
    """Seconds of a computation, beside which ``buckets`` are summed."""
    world.barrier()
    begin = time.perf_counter()
    sums = []
    for part in range(PARTS):
        for _ in range(products // PARTS):
            matrix @ matrix
        due = len(buckets) * (part + 1) // PARTS
        sums += [world.start_all_reduce_sum(bucket) for bucket in buckets[len(sums) : due]]
    for each in sums:
        each.wait()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="size of the array")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    world = launch.world()
    link = _C.comm.measure_links(world)
    link = link.inter_host or link.intra_host
    matrix = torch.randn(384, 384)
    array = torch.zeros(arguments.mib << 18).numpy()
    split = {count: array.reshape(count, -1) if count else () for count in BUCKETS}
    times = {count: [] for count in BUCKETS}
    for _ in range(arguments.rounds):
        for count in BUCKETS:
            times[count].append(step(world, split[count], matrix, 256))
    if world.rank > 0:
        return
    print(
        f"{world.size} ranks, {os.cpu_count()} cores; link: {link.latency_ns / 1e3:.0f} us, "
        f"{link.bandwidth_bytes_per_s / 1e9:.1f} GB/s"
    )
    alone, *_ = medians = [1e3 * statistics.median(times[count]) for count in BUCKETS]
    print(f"computing alone: {alone:.1f} ms")
    for count, ms in zip(BUCKETS[1:], medians[1:], strict=True):
        print(f"{count:4} x {arguments.mib / count:5.1f} MiB: {ms - alone:+7.1f} ms")


if __name__ == "__main__":
    main()
