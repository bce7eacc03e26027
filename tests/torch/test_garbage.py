"""What a step leaves to Python's garbage collector: nothing.

Cycles of objects hold their tensors until the collector comes by, and it counts objects, not bytes.
"""

import gc
import weakref

import pytest
import torch
from torch import nn

import pyrannc
from pyrannc import Config, RaNNCModule


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, batch):
        return {"loss": self.layers(batch["x"]).square().mean()}


@pytest.fixture
def without_collector():
    gc.collect()
    gc.freeze()  # what other tests have left is not gone through again and again
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("train", [True, False])
def test_a_step_leaves_no_cycles_and_frees_its_batch(schedule, train, without_collector):
    model = WithLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model = RaNNCModule(model, optimizer, Config(schedule=schedule, pipeline_num=2))
    model.train(train)
    batches = []

    def step():
        batch = {"x": torch.randn(6, 8)}
        batches.append(weakref.ref(batch["x"]))
        optimizer.zero_grad()
        with torch.set_grad_enabled(train):
            loss = model(batch)["loss"]
        if train:
            loss.backward()
            optimizer.step()

    for _ in range(
        pyrannc.report.training_steps.REPORT_AFTER + 2
    ):  # up to there steps are measured, too
        step()
        found = gc.collect()
        if len(batches) > 2:  # the first captures, and torch builds up caches
            assert found == 0
    step()
    assert batches[-1]() is None


# torch keeps the nodes of its last export, and what they refer to.
@pytest.mark.parametrize("frontend", ["torchscript", "export"])
def test_a_model_that_nobody_holds_is_gone(frontend):
    model = WithLoss()
    held = [weakref.ref(each) for each in (model, *model.parameters())]
    batch = {"x": torch.randn(6, 8)}
    held.append(weakref.ref(batch["x"]))
    model = RaNNCModule(model, None, Config(frontend=frontend))
    model(batch)["loss"].backward()
    del model, batch
    gc.collect()
    assert [each() for each in held] == [None] * len(held)
