"""Speed on one device: ceilings, GPT-2 in bf16 wrapped against eager, predicted against measured.

TEST_SMALL=1 takes a model of two layers, to try the script.
"""

import json
import os
import time

import device
import torch

import pyrannc
from pyrannc import launch

SMALL = bool(os.environ.get("TEST_SMALL"))
STEPS, WARM_UP = (2, 1) if SMALL else (20, 5)


def seconds(work, steps=STEPS, warm_up=WARM_UP):
    for _ in range(warm_up):
        work()
    torch.accelerator.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        work()
    torch.accelerator.synchronize()
    return (time.perf_counter() - begin) / steps


def ceilings(place):
    size = 256 if SMALL else 8192
    matrix = torch.randn(size, size, device=place, dtype=torch.bfloat16)
    other = torch.empty_like(matrix)
    copy_s, product_s = seconds(lambda: other.copy_(matrix)), seconds(lambda: matrix @ matrix)
    return {
        "copy GB/s": round(2 * matrix.nbytes / copy_s / 1e9),
        "matrix TFLOP/s": round(2 * size**3 / product_s / 1e12, 1),
    }


def language_model(place):
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = (
        {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 128, "n_positions": 16}
        if SMALL
        else {"n_layer": 24, "n_embd": 1024, "n_head": 16}
    )
    config = GPT2Config(**shape, use_cache=False, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    return GPT2LMHeadModel(config).to(place)


def step_of(model, optimizer, place):
    rows, length = (4, 16) if SMALL else (8, 512)
    tokens = torch.randint(128, (rows, length), device=place)

    def step():
        optimizer.zero_grad()
        with torch.autocast(place.type, torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()

    return step


def run(place):
    figures = ceilings(place)
    eager = language_model(place)
    figures["eager ms"] = 1e3 * seconds(
        step_of(eager, torch.optim.AdamW(eager.parameters()), place)
    )
    del eager
    for micro_batches in (1, 2) if SMALL else (1, 4, 8):
        model = language_model(place)
        optimizer = torch.optim.AdamW(model.parameters())
        config = pyrannc.Config(pipeline_num=micro_batches, calibrate=micro_batches == 1)
        wrapped = pyrannc.RaNNCModule(model, optimizer, config)
        measured_ms = 1e3 * seconds(step_of(wrapped, optimizer, place))
        figures[f"wrapped ms, {micro_batches} micro-batches"] = measured_ms
        predicted = json.loads(wrapped.plan.to_json()).get("predicted", {}).get("iteration_ns")
        if predicted:
            figures[f"predicted ms, {micro_batches} micro-batches"] = predicted / 1e6
        wrapped.undeploy()
        del wrapped, model, optimizer
    figures["wrapped over eager"] = figures["wrapped ms, 1 micro-batches"] / figures["eager ms"]
    rounded = {name: round(value, 3) for name, value in figures.items()}
    slow = device.NAME == "cuda" and figures["wrapped over eager"] > 1.02
    return {"figures": rounded, "failures": ["wrapped is slower than 1.02 x eager"] if slow else []}


if __name__ == "__main__":
    launch.world()
    print(json.dumps(run(device.start(deterministic=False))))
