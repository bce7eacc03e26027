"""Models with normalisations that have running statistics, of the batch or of each row."""

import torch
from models import Entry, floats
from torch import nn
from torch.nn import functional


class Flat(nn.Module):
    """With all options of nn.BatchNorm1d; the first one normalises the argument itself."""

    def __init__(self):
        super().__init__()
        self.first = nn.BatchNorm1d(8)
        self.body = nn.Sequential(
            nn.Linear(8, 8), nn.BatchNorm1d(8, affine=False), nn.Tanh(),
            nn.Linear(8, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Tanh(),
            nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=0.5, eps=0.1), nn.Tanh(),
        )  # fmt: skip
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.body(self.first(x)))


class Losing(nn.Module):
    """Returns its loss; one module is called twice, on (rows, channels, length)."""

    def __init__(self):
        super().__init__()
        self.widen = nn.Conv1d(3, 6, 3)
        self.norm = nn.BatchNorm1d(6)
        self.between = nn.Conv1d(6, 6, 3)
        self.last_norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.widen(x)))
        hidden = torch.tanh(self.norm(self.between(hidden)))
        scores = self.head(self.last_norm(hidden.mean(2)))
        return (1 + scores.sin() + scores.square()).mean(), scores


class Volume(nn.Module):
    """Two outputs, so that a loss may use one of them on some ranks and the other on others."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv3d(2, 4, 2)
        self.norm = nn.BatchNorm3d(4)
        self.heads = nn.ModuleList([nn.Conv3d(4, 4, 2) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm3d(4) for _ in range(2)])

    def forward(self, x):
        hidden = functional.gelu(self.norm(self.convolution(x)))
        return tuple(norm(head(hidden)) for head, norm in zip(self.heads, self.norms, strict=True))


class Instances(nn.Module):
    """Statistics of each row, whose mean over the batch goes into buffers; one module is called
    twice."""

    def __init__(self):
        super().__init__()
        self.widen = nn.Conv1d(3, 4, 3)
        self.norm = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
        self.between = nn.Conv1d(4, 4, 3)
        self.last_norm = nn.InstanceNorm1d(4, momentum=0.4, track_running_stats=True)
        self.head = nn.Conv1d(4, 4, 3)

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.widen(x)))
        hidden = torch.tanh(self.norm(self.between(hidden)))
        return self.last_norm(self.head(hidden))


NORMS = {
    "instance_norms": Entry(Instances, floats(3, 12)),
    "flat_norms": Entry(Flat, floats(8)),
    "losing_norms": Entry(Losing, floats(3, 9)),
    "volume_norms": Entry(Volume, floats(2, 4, 4, 4)),
}
