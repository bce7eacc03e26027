"""A U-Net: skips as long as the model, so that a pipeline sends values past several stages."""

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels, outer):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, channels), nn.Conv2d(channels, outer, 3, 1, 1)
        self.norm2, self.conv2 = nn.GroupNorm(32, outer), nn.Conv2d(outer, outer, 3, 1, 1)
        self.shortcut = nn.Conv2d(channels, outer, 1) if channels != outer else nn.Identity()

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class UNet(nn.Module):
    """Predicts the noise of an image; returns the loss."""

    def __init__(self, width, multiples, depth):
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, 1, 1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        channels, skips = width, []
        for level, multiple in enumerate(multiples):
            blocks = nn.ModuleList()
            for _ in range(depth):
                blocks.append(Residual(channels, width * multiple))
                channels = width * multiple
                skips.append(channels)
            self.down.append(blocks)
            last = level == len(multiples) - 1
            self.shrink.append(nn.Identity() if last else nn.Conv2d(channels, channels, 3, 2, 1))
        self.middle = nn.Sequential(Residual(channels, channels), Residual(channels, channels))
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for level, multiple in reversed(list(enumerate(multiples))):
            blocks = nn.ModuleList()
            for _ in range(depth):
                blocks.append(Residual(channels + skips.pop(), width * multiple))
                channels = width * multiple
            self.up.append(blocks)
            self.grow.append(nn.Conv2d(channels, channels, 3, 1, 1) if level else nn.Identity())
        self.leave = nn.Conv2d(channels, 3, 3, 1, 1)

    def forward(self, noisy, noise):
        x, skips = self.enter(noisy), []
        for level, (blocks, shrink) in enumerate(zip(self.down, self.shrink, strict=True)):
            for block in blocks:
                x = block(x)
                skips.append(x)
            x = shrink(x) if level < len(self.down) - 1 else x
        x = self.middle(x)
        for level, (blocks, grow) in enumerate(zip(self.up, self.grow, strict=True)):
            for block in blocks:
                x = block(torch.cat([x, skips.pop()], 1))
            if level < len(self.up) - 1:
                x = grow(F.interpolate(x, scale_factor=2.0))
        return F.mse_loss(self.leave(F.silu(x)), noise)


def build():
    """0.8 B parameters, images of 256 x 256."""
    noisy, noise = (torch.randn(4, 3, 256, 256) for _ in range(2))
    return UNet(width=256, multiples=(1, 2, 4, 6), depth=4), (noisy, noise)
