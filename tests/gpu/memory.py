"""Memory on one device over many steps: allocated and reserved bytes stay as they are."""

import json
import os

import bench
import device
import torch

import pyrannc
from pyrannc import launch

STEPS = 6 if os.environ.get("TEST_SMALL") else 200


def allocated(place):
    return torch.accelerator.memory_stats(place).get("allocated_bytes.all.current", 0)


def run(place):
    model = bench.language_model(place)
    optimizer = torch.optim.AdamW(model.parameters())
    config = pyrannc.Config(recompute="always", calibrate=False)
    wrapped = pyrannc.RaNNCModule(model, optimizer, config)
    step = bench.step_of(wrapped, optimizer, place)
    after = []
    for _ in range(STEPS):
        step()
        torch.accelerator.synchronize()
        after.append(allocated(place))
    late = after[STEPS // 2 :]
    figures = {"steps": STEPS, "MiB": round(after[-1] / 2**20, 1)}
    if "allocated_bytes.all.peak" in torch.accelerator.memory_stats(place):
        peak = torch.accelerator.memory_stats(place)["allocated_bytes.all.peak"]
        figures["peak MiB"] = round(peak / 2**20, 1)
    predicted = [stage.get("peak_bytes") for stage in json.loads(wrapped.plan.to_json())["stages"]]
    if predicted[0]:
        figures["predicted peak MiB"] = round(predicted[0] / 2**20, 1)
    grows = max(late) - min(late)
    return {"figures": figures, "failures": [f"{grows} bytes more or less"] if grows else []}


if __name__ == "__main__":
    launch.world()
    print(json.dumps(run(device.start())))
