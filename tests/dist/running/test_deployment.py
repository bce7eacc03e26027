"""Training steps on stand-in devices: who waits for them."""

import pytest
import standin

pytestmark = pytest.mark.skipif(not standin.built(), reason="the stand-in device was not built")

CODE = """
import standin
import torch

import pyrannc
from pyrannc import launch

rank = launch.world().rank
if not standin.device_count():
    standin.start(devices=2, delay_us=20)
standin.keep_to(rank)
standin.set_device(rank)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
        self.dropout, self.second = torch.nn.Dropout(0.5), torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.second(self.dropout(self.norm(self.first(x)))).square().mean()


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model = pyrannc.RaNNCModule(
    model,
    optimizer,
    pyrannc.Config(
        device="standin", calibrate=False, sync_batch_norm=True, deterministic_dropout=True, {plan}
    ),
)
x = torch.randn(4, 8, device=f"standin:{{rank}}")
for step in range(3):
    standin.synchronize()  # what is read of the step before is there
    standin.clear_counts()
    loss = model(x)
    forward = standin.waits()
    standin.clear_counts()
    loss.backward()
    backward = standin.waits()
    standin.clear_counts()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    clipping = standin.waits()
    optimizer.step()
    optimizer.zero_grad()


def by_computing_threads(waits):
    return {{key: n for key, n in waits.items() if not key[0].startswith("rannc-staged")}}


print("forward", by_computing_threads(forward), "backward", by_computing_threads(backward))
print("clipping", sum(by_computing_threads(clipping).values()))
"""


@pytest.mark.parametrize(
    "plan",
    [
        "partition_num=1, replica_nums=[2]",
        "partition_num=2, schedule='1f1b'",
        "partition_num=2, schedule='gpipe'",
    ],
)
@pytest.mark.ranks(lambda plan: CODE.format(plan=plan))
def test_threads_that_compute_do_not_wait_in_forward_and_backward(plan, done):
    assert done.stdout.count("forward {} backward {}") == 2, done.stdout
    clipping = [line for line in done.stdout.splitlines() if line.startswith("clipping")]
    assert len(clipping) == 2 and set(clipping) <= {"clipping 0", "clipping 1"}, clipping


@pytest.mark.ranks(
    """
import standin
import torch

import pyrannc
from pyrannc import launch

rank = launch.world().rank
if not standin.device_count():
    standin.start(devices=2, delay_us=20)
standin.keep_to(rank)
standin.set_device(rank)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
config = pyrannc.Config(
    device="standin", partition_num=1, replica_nums=[2], self_check=False, calibrate=False
)
model = pyrannc.RaNNCModule(model, optimizer, config)
x = torch.randn(4, 8, device=f"standin:{rank}")
for step in range(5):
    try:
        model(x).square().mean().backward()
    except pyrannc.RaNNCError as error:
        print(f"step {step}: {error}")
        break
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 and rank == 1:
        with torch.no_grad():
            model.module[1].bias.add_(0.5)
"""
)
def test_replicas_that_came_apart_on_devices_are_told_with_the_next_call(done):
    # Compared after two steps, in the third call; told in the fourth.
    assert done.stdout.count("step 3: parameter '1.bias' is not the same on ranks 0 and 1") == 2
