"""What the catalogue of devices says operators take, against what they take, by their class."""

import collections

import device
import timed_models
import torch
from report import Report

from pyrannc import _C, launch
from pyrannc.capture.model import capture
from pyrannc.job import device_facts
from pyrannc.report import matrix_work

# By the name of an operator; others are pointwise.
CLASSES = {
    "matrix products": ("linear", "addmm", "mm", "bmm", "baddbmm", "matmul", "einsum"),
    "convolutions": ("conv2d", "convolution", "_convolution"),
    "attention": ("scaled_dot_product_attention",),
    "normalisations, sums": (
        "layer_norm", "native_layer_norm", "batch_norm", "softmax", "_softmax", "log_softmax",
        "cross_entropy_loss", "nll_loss", "mean", "sum", "max_pool2d", "max_pool2d_with_indices",
    ),
    "embeddings": ("embedding",),
}  # fmt: skip


def class_of(op):
    name = op.removeprefix("aten::").partition(".")[0]
    found = (each for each, names in CLASSES.items() if name in names)
    return next(found, "pointwise")


def known_device():
    if device.NAME != "cuda":
        return "cpu"
    return matrix_work.known(device.name())


def compare(model, place, report, name):
    """Adds for each class of operators what they take, and what the catalogue says."""
    with torch.autocast(place.type, torch.bfloat16):
        captured = capture(model.on(place), (), model.batch(model.rows, place))
    graph, rows = captured.graph, [model.rows]
    expected = _C.cost.estimate(graph, _C.cost.device_model(known_device()), rows)
    world = _C.comm.make_local(1)[0]
    found, _ = _C.profile.measure(
        graph,
        captured.objects,
        [],
        world,
        rows,
        device=str(place),
        cache_bytes=device_facts.cache_bytes(place),
    )
    sums = collections.defaultdict(lambda: [0, 0])
    for node, ours, theirs in zip(graph.nodes, found.node, expected.node, strict=True):
        says = theirs[0].forward_ns + theirs[0].backward_ns
        if says:  # else no kernel runs
            of_class = sums[class_of(node.op)]
            of_class[0] += ours[0].forward_ns + ours[0].backward_ns
            of_class[1] += says
    for of_class, (measured, says) in sorted(sums.items(), key=lambda each: -each[1][0]):
        report.figures[f"{name}: {of_class}"] = (
            f"{measured / 1e6:.3f} ms, catalogue {says / 1e6:.3f} ms "
            f"({says / measured if measured else 0:.2f} x)"
        )


def main():
    launch.world()
    report = Report()
    place = device.start(deterministic=False)
    report.figures["catalogue's device"] = known_device() or f"none for {device.name()}"
    report.show()
    for name, model in timed_models.MODELS.items() if known_device() else ():
        with report.case(name):
            compare(model, place, report, name)


if __name__ == "__main__":
    main()
