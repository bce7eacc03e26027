"""A rank that trains over the stand-in NCCL until something goes wrong.

Arguments: where the fault begins ("start", or "step": its calls are counted from the end of the
first step), the plan ("stages" or "replicas"), and the fault, as STANDIN_NCCL_FAULT.
"""

import json
import os
import sys
import time

import nccl
import standin
import torch
from graph_text import GraphText
from pipeline import local_state, make_plan, make_tensors

from pyrannc import _C, launch
from pyrannc.job import process

TIMEOUT_S = 2.0  # of messages
PATIENCE_S = 60.0  # of the rank that TEST_PATIENT says
ROWS = 4  # of each rank


def main(when, shape, fault):
    world = launch.world()
    is_patient = os.environ.get("TEST_PATIENT") == str(world.rank)
    world.timeout_s = PATIENCE_S if is_patient else TIMEOUT_S
    standin.start(delay_us=0)
    process.order_nccl_launches()
    if when == "start":
        os.environ["STANDIN_NCCL_FAULT"] = fault
        say_that_it_begins(world)
    step = make_step(world, shape)
    step()
    world.barrier()
    if when == "step":
        kind, rank, number = fault.split(":")
        calls = nccl.Nccl().functions.standin_nccl_calls(int(rank))
        os.environ["STANDIN_NCCL_FAULT"] = f"{kind}:{rank}:{calls + int(number)},{hanging()}"
        say_that_it_begins(world)
    for _ in range(3):
        step()
    print(f"rank {world.rank} got through", flush=True)


def say_that_it_begins(world):
    world.barrier()
    print(f"process {os.getpid()} begins at {time.time()}", flush=True)


def hanging():
    return os.environ.get("TEST_ALSO", "")


def make_step(world, shape):
    graph = GraphText()
    h = graph.input("x", ("B", 6))
    for layer in range(4):
        h = graph.linear(h, f"layer{layer}", 6)
    text = graph.text([graph.mean(h)])
    ranks = [[0], [1]] if shape == "stages" else [[0, 1]]
    plan = make_plan(graph.node_names, ranks, 2, schedule="1f1b")
    executor = _C.runtime.Executor(
        _C.ir.parse(text),
        [],
        _C.plan.Plan.from_json(json.dumps(plan)),
        _C.runtime.nccl(world, "standin:0", os.environ.get("TEST_LIBRARY", str(nccl.FILE))),
        device="standin:0",
    )
    state = {name: tensor.to("standin:0") for name, tensor in graph.state().items()}
    inputs = [tensor.to("standin:0") for tensor in make_tensors(graph.inputs, ROWS)]

    def step():
        parameters, buffers = local_state(executor, state)
        call = executor.forward(inputs, parameters, buffers, [ROWS] * world.size, True)
        gradients = call.backward([torch.ones((), dtype=torch.float64, device="standin:0")])
        return [gradient.cpu() for gradient in gradients if gradient is not None]

    return step


if __name__ == "__main__":
    main(*sys.argv[1:])
