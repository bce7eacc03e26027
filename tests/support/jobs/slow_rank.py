"""One rank of tests/dist/report/test_training_steps.py: after the first step rank 1 computes many
times as long."""

import re
import sys

import torch

import pyrannc
from pyrannc import launch

ROWS, WIDTH = 64, 1024
products = 20  # that a call of Work computes


class Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        for _ in range(products):
            x @ x.T
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        for _ in range(products):
            gradient @ gradient.T
        return gradient.clone()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return Work.apply(x * self.scale).square().mean()


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = pyrannc.RaNNCModule(
        Model(),
        config=pyrannc.Config(partition_num=1, replica_nums=[2], pipeline_num=1),
    )
    batch = torch.randn(ROWS, WIDTH)
    model(batch).backward()
    if launch.get_rank() == 1:
        products *= 5
    with pyrannc.measure(model) as measured:
        for _ in range(5):
            model(batch).backward()
    text = " ".join(str(measured).split())
    faster, slower = re.search(r"ranks compute ([\d.]+) to ([\d.]+) x", text).groups()
    sys.stdout.write(f"{faster} {slower}\n")  # in one piece, or lines of two ranks mix
    sys.stdout.flush()
    for _ in range(10):  # the report after the tenth step
        model(batch).backward()
