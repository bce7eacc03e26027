"""Floating-point operations of a step, and devices by the names that torch has for them."""

import pytest
import torch
from torch import nn

from pyrannc.capture import model as capture
from pyrannc.report import matrix_work


@pytest.mark.parametrize(
    "theirs, ours",
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", None),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", None),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_devices_of_the_catalogue_are_known(theirs, ours):
    assert matrix_work.known(theirs) == ours


def test_every_name_is_in_the_catalogue():
    from pyrannc import _C

    for _, ours in matrix_work.NAMES:
        assert _C.cost.device_model(ours).name == ours


def test_forward_and_both_products_of_the_backward_count():
    """The input wants no gradient, so the first layer has one product less."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    graph = capture.capture(model, (torch.zeros(2, 8),)).graph
    flops, seconds = matrix_work.of_step(graph, torch.device("cpu"), 10)
    assert flops == 10 * (2 * 2 * 8 * 16 + 3 * 2 * 16 * 4)
    assert seconds is None
