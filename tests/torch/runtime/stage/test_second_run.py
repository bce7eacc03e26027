"""A model that is too large for one device by its activations trains there in segments."""

import copy

import pytest
import torch
from torch import nn

import pyrannc
from pyrannc import _C

MIB = 2**20
ROWS, WIDTH, LAYERS = 512, 64, 12


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    """Whose embedding is its head, too."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))

    def forward(self, tokens, labels):
        logits = nn.functional.linear(self.layers(self.embedding(tokens)), self.embedding.weight)
        return nn.functional.cross_entropy(logits, labels)


def trained(model, **config):
    """Losses and parameters of two steps, the plan, and the peak beside parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"schedule": "gpipe", "calibrate": False, "self_check": False, **config}
    wrapped = pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(**settings))
    generator = torch.Generator().manual_seed(5)
    batch = [torch.randint(32, (ROWS,), generator=generator) for _ in range(2)]
    losses, peak = [], 0
    for step in range(2):
        torch.manual_seed(step)
        optimizer.zero_grad()
        with _C.runtime.MemoryRecorder() as memory:
            loss = wrapped(*batch)
            loss.backward()
            peak = memory.peak_bytes
        optimizer.step()
        losses.append(loss.detach())
    return losses, [p.detach().clone() for p in wrapped.parameters()], wrapped.plan, peak


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture(scope="module")
def never(model):
    return trained(copy.deepcopy(model), pipeline_num=1, recompute="never")


def test_a_third_of_the_memory_is_enough_and_gives_the_same_bits(model, never):
    losses, parameters, plan, _ = never
    needed = plan.step.peak_bytes[0]
    limited = trained(copy.deepcopy(model), pipeline_num=1, mem_limit_gb=needed / 3 / 2**30)
    assert limited[2].stages[0].segments
    assert limited[2].step.peak_bytes[0] <= needed / 3
    held = sum(parameter.nbytes for parameter in parameters)
    assert limited[3] + held <= 1.03 * needed / 3, (limited[3] / MIB, needed / MIB)
    assert all(map(torch.equal, losses, limited[0]))
    assert all(map(torch.equal, parameters, limited[1]))


@pytest.mark.parametrize("pipeline_num", [1, 2])
def test_what_a_step_in_segments_holds_is_predicted(model, pipeline_num):
    *_, plan, peak = trained(copy.deepcopy(model), pipeline_num=pipeline_num, recompute="segments")
    held = sum(p.nbytes for p in model.parameters())
    assert plan.step.peak_bytes[0] == pytest.approx(peak + held, rel=0.03)
    assert plan.stages[0].predicted.peak_bytes == pytest.approx(peak + held, rel=0.03)


@pytest.mark.parametrize("autocast", [False, True])
def test_micro_batches_in_segments_give_the_same_bits(model, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = [
            trained(copy.deepcopy(model), pipeline_num=4, recompute=recompute)
            for recompute in ("never", "segments")
        ]
    (losses, parameters, _, _), (again, found_again, plan, _) = found
    assert len(plan.stages[0].segments) > 1
    assert all(map(torch.equal, losses, again))
    assert all(map(torch.equal, parameters, found_again))
