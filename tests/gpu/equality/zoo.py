"""Architectures of transformers on the device: some steps of each one wrapped, on one rank, beside
those of the plain model there. Costs of operators are estimated: which plan is made of them does
not matter here, and timing them on a device that other parts use takes most of the time.

    python tests/gpu/equality/zoo.py NUMBER OF     every OF-th one, from that number on
"""

import collections
import importlib.util
import os
import re
import sys
import warnings
from pathlib import Path

import device
import torch
from report import Report, in_words

from pyrannc import _C, launch
from pyrannc.profiling import operators

sys.path.append(str(Path(__file__).resolve().parents[2] / "zoo"))


def estimated(graph, objects, traced, world, rows, *_, **__):
    return _C.cost.estimate(graph, _C.cost.device_model("cpu"), rows)


def short(reason):
    return re.sub(r"\S*/site-packages/", "", reason.splitlines()[0])[:150]


def unbuilt(name):
    """Why this transformers cannot train the plain model of these sizes; empty if it can."""
    import architectures

    kind = architectures.kind_of(name)
    try:
        model = architectures.model_of(kind, name)
        architectures.loss_of(kind, model(**architectures.call_of(kind, model, 4))).backward()
    except Exception as error:
        return in_words(error)
    return ""


def trained(names, place, report):
    """Trains each of ``names``, and counts in the report what became of it."""
    import train

    verdicts, comm = collections.Counter(), launch.world()
    for name in names:
        verdict, reason = "unbuilt", unbuilt(name)
        if not reason:
            try:
                verdict, reason, _ = train.train("free", name, comm, place)
            except Exception as error:
                verdict, reason = "failed", in_words(error)
        verdicts[verdict] += 1
        report.figures["architectures"] = ", ".join(f"{n} {kind}" for kind, n in verdicts.items())
        if verdict in ("refused", "unbuilt"):
            report.figures[f"{name} {verdict}"] = short(reason)
        elif verdict != "equal":
            report.failures.append(f"{name} {verdict}: {short(reason)}")
        report.show()


def main(number, of):
    os.environ.setdefault("RANNC_PROFILE_CACHE", "off")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    report = Report()
    launch.world()
    place = device.start()
    operators.time_operators = estimated
    if importlib.util.find_spec("transformers") is None:
        report.figures["architectures"] = "none: transformers is not installed"
        report.show()
        return
    import architectures

    names = [name for _, name in architectures.names()]
    trained(names[: 2 * of if device.SMALL else None][number::of], place, report)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
