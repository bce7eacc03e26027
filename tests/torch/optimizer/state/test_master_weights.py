"""What masters of weights of 16 bits take."""

import torch
from torch import nn

from pyrannc.optimizer.state import master_weights


def test_memory_counts_masters_and_what_is_as_large():
    short, long = nn.Parameter(torch.zeros(6).half()), nn.Parameter(torch.zeros(6))
    assert [master_weights.bytes_of(p) for p in (short, long)] == [24, 0]
    assert [master_weights.stepped_bytes(p) for p in (short, long)] == [24, 24]
