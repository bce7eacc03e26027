"""One rank that goes on from the checkpoint in FOLDER and saves again and again.

Every tensor of a checkpoint holds its number, so one that is mixed of two is found. What the rank
does it says in FOLDER-RANK, a line each with the time: "begin" of a save by its number, and "end".
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn

import pyrannc

RANKS = 3
TIMEOUT_S = 30


def build():
    model = nn.Sequential(*(nn.Linear(60, 60) for _ in range(6)))
    return model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)


def put(number, parameters, optimizer):
    """``number`` everywhere."""
    with torch.no_grad():
        for parameter in parameters:
            parameter.fill_(number)
            optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, number)


def check(number, parameters, optimizer):
    for parameter in parameters:
        assert (parameter == number).all(), (number, parameter)
        assert (optimizer.state[parameter]["momentum_buffer"] == number).all(), number


def config():
    """A stage on each rank."""
    return pyrannc.Config(
        partition_num=RANKS, replica_nums=[1] * RANKS, pipeline_num=1, schedule="gpipe",
        calibrate=False, self_check=False, comm_timeout_s=TIMEOUT_S,
    )  # fmt: skip


def main(folder):
    plain, optimizer = build()
    model = pyrannc.RaNNCModule(plain, optimizer, config())
    model(torch.ones(RANKS, 60)).sum().backward()
    mine = [*model.parameters(from_global=False)]
    number = 0
    if (folder / "rannc.json").exists():
        number = pyrannc.load(folder, model, optimizer)
        check(number, mine, optimizer)
    with open(f"{folder}-{pyrannc.get_rank()}", "w", buffering=1) as told:
        while True:
            number += 1
            put(number, mine, optimizer)
            told.write(f"begin {number} {time.monotonic()}\n")
            pyrannc.save(folder, model, optimizer, extra=number)
            told.write(f"end {number} {time.monotonic()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
