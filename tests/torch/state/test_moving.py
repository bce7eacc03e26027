"""What an optimizer keeps follows the parameters to another device."""

import pytest
import torch

from pyrannc.state import moving

ELSEWHERE = torch.device("meta")


@pytest.mark.parametrize(
    ("options", "of_count"),
    [({}, "cpu"), ({"fused": True}, "meta"), ({"capturable": True}, "meta")],
)
def test_counts_of_steps_go_along_where_a_kernel_reads_them(options, of_count):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones(3)
    optimizer.step()
    optimizer.param_groups[0].update(options)
    moved = torch.nn.Parameter(torch.empty(3, device=ELSEWHERE))
    optimizer.param_groups[0]["params"] = [moved]
    optimizer.state[moved] = optimizer.state.pop(parameter)
    moving.state_to_parameters(optimizer)
    devices = {name: each.device.type for name, each in optimizer.state[moved].items()}
    assert devices == {"step": of_count, "exp_avg": "meta", "exp_avg_sq": "meta"}
