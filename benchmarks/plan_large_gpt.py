"""How long a plan takes for a model that fits no single device.

    python benchmarks/plan_large_gpt.py [--layers 24 --width 2048 --devices 32 --device-model a100]

Captures a GPT of 1.3 B parameters on FakeTensor (no memory, no compute), computes its costs from a
device model, and plans it for 32 devices, all on one core. Budget: 30 s from process start to the
finished plan, of which `import torch` takes several.
"""

import argparse
import json
import os
import time

started = time.perf_counter()
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from pyrannc import _C  # noqa: E402
from pyrannc.capture.model import capture  # noqa: E402
from pyrannc.profiling.operators import trace  # noqa: E402


class GPT(nn.Module):
    """Decoder-only transformer with a tied head and its loss inside."""

    def __init__(self, width, layers, vocabulary=50_304, length=1024):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, width // 128, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens, targets):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.token(tokens) + self.position(torch.arange(length))
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--devices", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--device-model", default="a100")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds = {"import": time.perf_counter() - started}

    def timed(name, work):
        begin = time.perf_counter()
        result = work()
        seconds[name] = time.perf_counter() - begin
        return result

    def build():
        with torch.device("meta"):
            return GPT(options.width, options.layers, length=options.length)

    model = timed("build", build)
    tokens = torch.zeros(2, options.length, dtype=torch.int64)
    captured = timed("trace", lambda: capture(model, (tokens, tokens), {}))
    rows = [1, 2, 4]
    saved = timed("saved", lambda: trace(captured.graph, captured.objects, rows).saved)
    device = _C.cost.device_model(options.device_model)
    table = timed("cost", lambda: _C.cost.estimate(captured.graph, device, rows, saved))

    def plan():
        cluster = _C.cost.Cluster(
            hosts=options.devices // 8,
            devices_per_host=8,
            device_memory_bytes=device.memory_bytes,
            intra_host=_C.cost.Link(bandwidth_bytes_per_s=250e9, latency_ns=5e3),
            inter_host=_C.cost.Link(bandwidth_bytes_per_s=25e9, latency_ns=10e3),
        )
        wanted = {
            "format": "rannc-plan-request",
            "version": 1,
            "global_batch": options.batch,
            "memory_margin": 0.1,
            "schedules": ["gpipe", "1f1b"],
        }
        profile = _C.cost.fold(captured.graph, table, [])
        request = _C.partition.Request.from_json(json.dumps(wanted))
        return _C.partition.make_plan(profile, cluster, request)

    made = timed("plan", plan)
    seconds["total"] = time.perf_counter() - started
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        json.dumps(
            {
                "parameters": parameters,
                "nodes": len(captured.graph.nodes),
                "feasible": made.feasible,
                "stages": [len(stage.ranks) for stage in made.stages],
                "micro_batches": made.micro_batches,
                "iteration_ms": made.iteration_ns / 1e6,
                "seconds": {name: round(value, 2) for name, value in seconds.items()},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
