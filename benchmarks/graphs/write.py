"""Writes the graph-profiles that the planner's benchmarks read.

    python benchmarks/graphs/write.py [--out benchmarks/data] [NAME ...]

For each model NAME.op.json, with a node for each operator, and NAME.mod.json, with a node for each
call of a module; costs of an A100 in bfloat16. Takes seconds for each model, on one core.
"""

import argparse
import os
import pathlib
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pyrannc import _C
from pyrannc.profiling.graph_profile import graph_profile, load_build

HERE = pathlib.Path(__file__).parent
MODELS = {
    "gpt-1b": "gpt.py:build_1b",
    "gpt-175b": "gpt.py:build_175b",
    "gpt-1t": "gpt.py:build_1t",
    "gpt-heavy-head": "gpt.py:build_heavy_head",
    "bert-5b": "bert.py:build_5b",
    "resnet-152x8": "resnet.py:build_152x8",
    "unet": "unet.py:build",
    "encoder-decoder": "encoder_decoder.py:build",
    "experts": "experts.py:build",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "data")
    parser.add_argument("--device", default="a100")
    parser.add_argument("--dtype", default="bf16")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MODELS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MODELS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{'model':16} {'operators':>9} {'modules':>8} {'seconds':>8}")
    for name in options.names or MODELS:
        started = time.perf_counter()
        build = load_build(str(HERE / MODELS[name]))
        operators = graph_profile(build, device=options.device, dtype=options.dtype)
        modules = _C.cost.fold_modules(operators)
        for level, found in (("op", operators), ("mod", modules)):
            (options.out / f"{name}.{level}.json").write_text(found.to_json())
        seconds = time.perf_counter() - started
        print(
            f"{name:16} {operators.node_count:9} {modules.node_count:8} {seconds:8.1f}", flush=True
        )


if __name__ == "__main__":
    main()
