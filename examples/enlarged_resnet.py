"""Trains a ResNet of bottleneck blocks that is enlarged by flags, as in the paper of RaNNC (IPDPS
2021), on the digits that ship with scikit-learn.

    rannc run -n 4 examples/enlarged_resnet.py --wider 2

The paper's largest has a plan without such devices; ResNet-152, eight times as wide, is 3.7 billion
parameters:

    rannc capture examples/enlarged_resnet.py:build_152x8 -o resnet.json --device v100
    rannc plan --graph resnet.json --cluster examples/planner/v100.toml --global-batch 512 -o p.json
"""

import argparse

import torch
from sklearn.datasets import load_digits
from transformers import ResNetConfig, ResNetForImageClassification

import pyrannc


def enlarged(depths, wider, channels, classes):
    widths = [256, 512, 1024, 2048]
    return ResNetForImageClassification(
        ResNetConfig(
            num_channels=channels,
            embedding_size=64 * wider,
            hidden_sizes=[width * wider for width in widths[: len(depths)]],
            depths=depths,
            layer_type="bottleneck",
            num_labels=classes,
        )
    )


def build_152x8():
    """A model of the paper and the inputs of one call, for ``rannc capture``."""
    inputs = {
        "pixel_values": torch.zeros(2, 3, 224, 224),
        "labels": torch.zeros(2, dtype=torch.long),
    }
    return enlarged([3, 8, 36, 3], 8, channels=3, classes=1000), inputs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 2])
    parser.add_argument("--wider", type=int, default=1)
    parser.add_argument("--size", type=int, default=32, help="pixels of a side")
    parser.add_argument("--rows", type=int, default=16, help="of a batch on each rank")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    images = torch.nn.functional.interpolate(images, arguments.size)
    labels = torch.tensor(digits.target)
    torch.manual_seed(0)
    model = enlarged(arguments.depths, arguments.wider, channels=1, classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model = pyrannc.RaNNCModule(model, optimizer)

    rank = pyrannc.get_rank()
    draw = torch.Generator().manual_seed(rank)  # every rank feeds its own rows
    for step in range(arguments.steps):
        rows = torch.randint(len(images), (arguments.rows,), generator=draw)
        optimizer.zero_grad()
        loss = model(pixel_values=images[rows], labels=labels[rows]).loss
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
