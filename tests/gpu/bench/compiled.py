"""torch.compile beside eager: printed, for a look at what fusing would give; it may be impossible
here, as without a compiler."""

import device
import steps
import timed_models
from report import Report

from pyrannc import launch


def compare(model, place, figures, name):
    import torch

    plain = steps.eager(model, place)
    fused = steps.eager(model, place, around=torch.compile)
    steps.warm_up(plain, 3)
    steps.warm_up(fused, 5)
    (eager_s, fused_s), (_, quotient) = steps.in_turns(plain, fused)
    figures[f"{name}: eager ms"] = round(1e3 * eager_s, 3)
    figures[f"{name}: torch.compile ms"] = round(1e3 * fused_s, 3)
    figures[f"{name}: torch.compile over eager"] = round(quotient, 3)


def main():
    launch.world()
    report = Report()
    place = device.start(deterministic=False)
    for name, model in timed_models.MODELS.items():
        with report.optional(f"{name}: torch.compile"):
            compare(model, place, report.figures, name)
        steps.forget()


if __name__ == "__main__":
    main()
