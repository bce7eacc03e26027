"""A residual network, widened: costs and sizes change from layer to layer."""

import torch
import torch.nn.functional as F
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, channels, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.downsample = None
        if stride != 1 or channels != outer:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """Returns the loss; ``width`` multiplies all channels."""

    def __init__(self, depths, width, classes=1000):
        super().__init__()
        channels = 64 * width
        self.conv1 = nn.Conv2d(3, channels, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        for stage, depth in enumerate(depths):
            inner = 64 * width * 2**stage
            blocks = []
            for i in range(depth):
                stride = 2 if i == 0 and stage > 0 else 1
                blocks.append(Bottleneck(channels, inner, 4 * inner, stride))
                channels = 4 * inner
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, classes)

    def forward(self, images, labels):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return F.cross_entropy(self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1)), labels)


def build_152x8():
    """3.7 B parameters: 152 layers, 8 times as wide."""
    images, labels = torch.randn(4, 3, 224, 224), torch.randint(1000, (4,))
    return ResNet((3, 8, 36, 3), width=8), (images, labels)
