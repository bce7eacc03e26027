"""The collectives of a job: prints what was right, by rank, as JSON."""

import json
import threading
import time

import numpy as np

from pyrannc import launch, log

log.configure("comm=debug")
world = launch.world()
rank, size = world.rank, world.size
report = {}


def check(name, right):
    report[name] = bool(right)


check("rank and size", (rank, size) == (launch.get_rank(), launch.get_world_size()))
check("host", world.host == world.all_gather(world.host.encode())[0].decode())

# Rank r gives r + 1 + i % 5 at place i.
for kind in (np.float32, np.float64, np.int64, np.int32):
    for count in (0, 1, 3, 1000, 300_001):
        data = (np.arange(count) % 5 + rank + 1).astype(kind)
        world.all_reduce_sum(data)
        expected = np.arange(count) % 5 * size + size * (size + 1) // 2
        check(f"sum of {count} {kind.__name__}", (data == expected).all())

some = np.full(100, 1.0 + rank)
if rank != 1:
    world.all_reduce_sum(some, [r for r in range(size) if r != 1])
check("sum over some ranks", (some == (2 if rank == 1 else size * (size + 1) / 2 - 2)).all())

# Rings of different size that shared a tag took each other's chunks and corrupted the heap.
sums = {}


def repeat(name, count, ranks):
    if rank in ranks:
        for _ in range(20):
            sums[name] = np.full(count, 1.0 + rank)
            world.all_reduce_sum(sums[name], ranks)


sets = {"all": (100_001, list(range(size))), "front": (17, [0, 1]), "ends": (5_000, [0, size - 1])}
if size == 2:  # these three would be one set, and calls on one set need the same order on all ranks
    del sets["front"], sets["ends"]
threads = [threading.Thread(target=repeat, args=(name, *rest)) for name, rest in sets.items()]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
check(
    "sums at the same time",
    all((sums[name] == sum(r + 1 for r in sets[name][1])).all() for name in sums),
)

# Several at once, waited for in another order, while this rank computes.
counts = [1, 300_001, 0, 50_000, 7, 1_000_000]
several = [np.sin(np.arange(count) + 7.0 * rank) for count in counts]
started = [world.start_all_reduce_sum(data) for data in several]
np.linalg.norm(np.ones((300, 300)) @ np.ones((300, 300)))
for handle in reversed(started):
    handle.wait()
for count, data in zip(counts, several, strict=True):
    expected = sum(np.sin(np.arange(count) + 7.0 * r) for r in range(size))
    check(f"started sum of {count}", np.allclose(data, expected, rtol=0, atol=1e-12))
    everywhere = world.all_gather(data.tobytes())
    check(f"bits of the started sum of {count}", len(set(everywhere)) == 1)
# Without a wait: it ends by itself, and keeps its memory.
left_alone = world.start_all_reduce_sum(np.ones(100_000))
world.barrier()
while not left_alone.done():
    time.sleep(0.001)

# Shards: each rank's of the sum, then those of all. Rank r's are marked in between.
for each in (0, 1, 300_001):
    data = np.full(size * each, 1.0 + rank, np.float32)
    world.start_reduce_scatter_sum(data).wait()
    mine = slice(rank * each, (rank + 1) * each)
    check(f"shards of {each}", (data[mine] == size * (size + 1) / 2).all())
    data[:] = np.where(np.arange(size * each) // max(each, 1) == rank, rank, -1)
    world.start_all_gather_shards(data).wait()
    check(f"gathered shards of {each}", (data == np.repeat(np.arange(size), each)).all())

gathered = world.all_gather(b"x" * (rank * 100_000))
check("all_gather", [len(item) for item in gathered] == [100_000 * r for r in range(size)])
for root in range(size):
    plan = world.broadcast(b"plan" if rank == root else b"", root)
    check(f"broadcast from {root}", plan == b"plan")
into = np.full(1_000_000, rank)
world.broadcast_into(into, size - 1)
check("broadcast_into", (into == size - 1).all())
world.barrier()

# Two 4 MiB messages with one tag, received in the order sent.
peer = rank ^ 1
received = []
if peer < size:
    get = threading.Thread(
        target=lambda: received.extend(world.receive(1 << 22, peer, 7) for _ in range(2))
    )
    get.start()
    for k in (1, 2):
        world.send(bytes([10 * rank + k]) * (1 << 22), peer, 7)
    get.join()
    check("order of messages", [item[-1] for item in received] == [10 * peer + 1, 10 * peer + 2])

# One writer: lines of several ranks could be mixed.
reports = world.all_gather(json.dumps(report).encode())
if rank == 0:
    print(json.dumps([json.loads(item) for item in reports]))
