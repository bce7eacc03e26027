"""How fast ranks save a model, beside as many plain writers of the same bytes on the same disk.

    rannc run -n 4 benchmarks/runtime/saving.py [--width 2048] [--folder FOLDER]

Each rank holds a stage and the state of AdamW. It saves them with `pyrannc.save()`, or writes the
same tensors with safetensors' `save_file()`, waits until they are on the disk, and replaces what it
wrote before; the two take turns, so that whatever else the machine does meets both. Shown are the
medians of the slowest rank and of the ratios of neighbours. Budget: at least 0.8 of the plain
writers' speed.

On two quiet cores it was 0.95, 0.96 and 0.98; with zlib's checksums in the place of isal's, and
other work on the cores, 0.57 to 0.74.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import pyrannc
from pyrannc import Config, RaNNCModule, launch
from pyrannc.state.released import is_released


class Net(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def held(model, optimizer):
    """What this rank holds, by names that nobody reads."""
    own = [each for each in model.parameters() if not is_released(each)]
    own += [value for each in own for value in optimizer.state[each].values() if value.numel() > 1]
    return {str(number): each.detach() for number, each in enumerate(own)}


def write_plainly(tensors, path):
    """Beside the file that is there, which goes when the new one is complete."""
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk to write to")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    world = launch.world()
    model = Net(arguments.width, 2 * world.size)
    optimizer = torch.optim.AdamW(model.parameters())
    whole = 4 * sum(each.nbytes for each in model.parameters())  # gradients and two moments
    config = Config(
        partition_num=world.size,
        replica_nums=[1] * world.size,
        pipeline_num=1,
        mem_limit_gb=1.5 * whole / world.size / 2**30,  # so that each has a part
        calibrate=False,
    )
    module = RaNNCModule(model, optimizer, config)
    module(torch.ones(1, arguments.width)).backward()
    optimizer.step()
    tensors = held(model, optimizer)
    made = tempfile.mkdtemp(dir=arguments.folder).encode() if world.rank == 0 else b""
    folder = Path(world.broadcast(made, 0).decode())

    def save():
        pyrannc.save(folder / "run", module, optimizer)

    def plain():
        write_plainly(tensors, folder / f"{world.rank}.safetensors")

    seconds = {save: [], plain: []}
    for turn in range(arguments.turns + 1):
        for work, found in seconds.items():
            world.barrier()
            begin = time.perf_counter()
            work()
            mine = time.perf_counter() - begin
            slowest = max(map(float, world.all_gather(repr(mine).encode())))
            if turn:  # the first one makes the files
                found.append(slowest)
    size = sum(each.nbytes for each in tensors.values())
    total = sum(map(int, world.all_gather(str(size).encode())))
    world.barrier()
    if world.rank > 0:
        return
    shutil.rmtree(folder)
    ours, theirs = seconds[save], seconds[plain]
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    print(
        f"{world.size} ranks, {total / 1e6:.0f} MB: saved in {statistics.median(ours):.2f} s, "
        f"written plainly in {statistics.median(theirs):.2f} s; {ratio:.2f} of the speed",
        flush=True,
    )


if __name__ == "__main__":
    main()
