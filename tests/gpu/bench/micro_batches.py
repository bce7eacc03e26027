"""Predicted against measured steps of GPT-2 medium in several micro-batches, whose numbers are
the arguments."""

import sys

import device
import steps
import timed_models
from report import Report

from pyrannc import launch

LARGEST_ERROR = 0.05


def compare(count, place, report):
    step, module = steps.wrapped(timed_models.MODELS["GPT-2 medium"], place, pipeline_num=count)
    steps.warm_up(step)
    measured, predicted = 1e3 * steps.seconds(step), steps.predicted_ms(module)
    error = predicted / measured - 1
    report.figures[f"{count}: measured ms"] = round(measured, 3)
    report.figures[f"{count}: predicted ms"] = round(predicted, 3)
    report.figures[f"{count}: prediction"] = f"{error:+.1%}"
    report.expect(
        device.NAME != "cuda" or abs(error) <= LARGEST_ERROR,
        f"{count} micro-batches: the prediction is off by {error:+.1%}, more than "
        f"{LARGEST_ERROR:.0%}",
    )
    module.undeploy()


def main(*counts):
    launch.world()
    report = Report()
    place = device.start(deterministic=False)
    for count in map(int, counts):
        with report.case(f"{count} micro-batches"):
            compare(count, place, report)
        steps.forget()


if __name__ == "__main__":
    main(*sys.argv[1:])
