"""Speed of one model in bf16: ceilings of the device, wrapped against eager, predicted against
measured, and how much of a step the device idles.

    python tests/gpu/bench/speed.py MODEL
"""

import sys
import time

import device
import issue
import steps
import timed_models
import torch
from report import Report

from pyrannc import launch

MOST_OVER_EAGER = 1.02
LARGEST_ERROR = 0.05


def ceilings(place, report):
    size = 256 if device.SMALL else 8192
    matrix = torch.randn(size, size, device=place, dtype=torch.bfloat16)
    other = torch.empty_like(matrix)
    for work in (lambda: other.copy_(matrix), lambda: matrix @ matrix):
        steps.warm_up(work, 3)
    copy_s = steps.seconds(lambda: other.copy_(matrix))
    product_s = steps.seconds(lambda: matrix @ matrix)
    report.figures["copy GB/s"] = round(2 * matrix.nbytes / copy_s / 1e9)
    report.figures["matrix TFLOP/s"] = round(2 * size**3 / product_s / 1e12, 1)


def speed(model, place, report):
    plain = steps.eager(model, place)
    step, module = steps.wrapped(model, place, pipeline_num=1)
    begin = time.perf_counter()
    steps.warm_up(step, 1)
    report.figures["first step s"] = round(time.perf_counter() - begin, 1)
    for each in (plain, step):
        steps.warm_up(each)
    (eager_s, wrapped_s), (_, quotient) = steps.in_turns(plain, step)
    figures = report.figures
    figures["eager ms"], figures["wrapped ms"] = round(1e3 * eager_s, 3), round(1e3 * wrapped_s, 3)
    figures["wrapped over eager"] = round(quotient, 4)
    real = device.NAME == "cuda"
    report.expect(
        not real or quotient <= MOST_OVER_EAGER,
        f"wrapped takes {quotient:.3f} x eager, more than {MOST_OVER_EAGER}",
    )
    predicted = steps.predicted_ms(module)
    error = predicted / (1e3 * wrapped_s) - 1
    figures["predicted ms"], figures["prediction"] = round(predicted, 3), f"{error:+.1%}"
    report.expect(
        not real or abs(error) <= LARGEST_ERROR,
        f"the predicted step is off by {error:+.1%}, more than {LARGEST_ERROR:.0%}",
    )
    report.show()
    for name, each, each_s in (("eager", plain, eager_s), ("wrapped", step, wrapped_s)):
        with report.optional(f"{name}: host against device"):
            host_ms, device_ms = issue.times_ms(each)
            figures[f"{name}: host ms to issue a step"] = round(host_ms, 3)
            figures[f"{name}: device ms"] = round(device_ms, 3)
        with report.optional(f"{name}: device idles"):
            share = issue.idle_share(each, each_s)
            figures[f"{name}: device idles"] = f"{share:.1%}"
    with report.optional("operators beyond eager"):
        figures["operators beyond eager"] = issue.operators_beyond(plain, step)
    with report.optional("share of the device's peak"):
        share = module.metrics().get("flops_share")
        if share is not None:
            figures["share of the device's peak"] = f"{share:.1%}"


def main(name):
    launch.world()
    report = Report()
    place = device.start(deterministic=False)
    with report.case("ceilings"):
        ceilings(place, report)
    with report.case(name):
        speed(timed_models.MODELS[name], place, report)


if __name__ == "__main__":
    main(*sys.argv[1:])
