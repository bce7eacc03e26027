"""How long the two front ends take to capture a GPT of 24 layers, and one of transformers.

    python benchmarks/capture_times.py [--layers 24 --repeats 5]

Narrow models, one core. Prints the median of each and torch.export's over the tracer's:
the first capture of a process, which imports a compiler for torch.export, is left out.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent / "graphs"))

import torch
import transformers
from gpt import GPT

from pyrannc.capture.model import capture

FRONT_ENDS = ("torchscript", "export")


def models(layers):
    """By name: a model and the arguments of a call."""
    ids = torch.zeros(4, 128, dtype=torch.int64)
    config = transformers.GPT2Config(n_layer=layers, use_cache=False)
    yield "GPT", GPT(layers, 256, 4, length=128), ((ids, ids), {})
    model = transformers.GPT2LMHeadModel(config)
    yield "transformers' GPT-2", model, ((), {"input_ids": ids, "labels": ids})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, model, (args, kwargs) in models(options.layers):
        seconds = {each: [] for each in FRONT_ENDS}
        for repeat in range(options.repeats + 1):
            for each in FRONT_ENDS:
                begin = time.perf_counter()
                capture(model, args, kwargs, front_end=each)
                if repeat:
                    seconds[each].append(time.perf_counter() - begin)
        tracer, export = (statistics.median(seconds[each]) for each in FRONT_ENDS)
        print(f"{name}: tracer {tracer:.2f} s, torch.export {export:.2f} s, {export / tracer:.2f}")


if __name__ == "__main__":
    main()
