"""A model with batch normalisation on devices, over each transport: as one process on the CPU."""

import nccl
import pytest

pytestmark = pytest.mark.skipif(not nccl.FILE.exists(), reason=f"{nccl.FILE} was not built")
BEFORE = """
import copy
import os
import nccl, standin
import torch
import pyrannc
from pyrannc import launch

world = launch.world()
if standin._library is None:
    standin.start(delay_us=20)
device = torch.device("standin", 0)
TOLERANCE = {"rtol": 1e-9, "atol": 1e-10}  # float64


class Block(torch.nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.first = torch.nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm = torch.nn.BatchNorm2d(out)
        self.second = torch.nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.last_norm = torch.nn.BatchNorm2d(out)
        self.skip = torch.nn.Conv2d(channels, out, 1, stride)

    def forward(self, x):
        y = self.norm(self.first(x)).relu()
        return (self.last_norm(self.second(y)) + self.skip(x)).relu()


class ResNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = torch.nn.Sequential(Block(4, 4, 1), Block(4, 8, 2), Block(8, 8, 1))
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def build():
    torch.manual_seed(0)
    return ResNet().double()


def batch(step):
    whole = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(step)).double()
    rows = 8 // world.size
    return whole, whole[rows * world.rank : rows * (world.rank + 1)].to(device)


def differing(wrapped, twin):
    ours = wrapped.state_dict(rank0_only=False)
    for name, expected in twin.state_dict().items():
        torch.testing.assert_close(ours[name].cpu(), expected, msg=name, **TOLERANCE)


def train(transport, **plan):
    twin = build()
    model = copy.deepcopy(twin).to(device)
    before = {name: tensor.clone() for name, tensor in twin.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    config = pyrannc.Config(
        device_transport=transport, nccl_library=str(nccl.FILE), calibrate=False,
        self_check=False, pipeline_num=1, sync_batch_norm=True, **plan,
    )
    wrapped = pyrannc.RaNNCModule(model, optimizer, config)
    for step in range(4):
        if step == 2:  # back to where it began, but for the optimizer
            wrapped.load_state_dict(before)
            twin.load_state_dict(before)
        whole, mine = batch(step)
        others, other = batch(step + 10)
        with wrapped.no_sync():
            loss = wrapped(mine).square().mean()
            loss.backward()
        wrapped(other).square().mean().backward()
        expected = twin(whole).square().mean()
        expected.backward()
        twin(others).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        plain.step()
        plain.zero_grad()
        differing(wrapped, twin)
    wrapped.undeploy()
"""


@pytest.mark.ranks('train("nccl", partition_num=1, replica_nums=[2])', before=BEFORE)
def test_replicas_over_nccl(done):
    pass


@pytest.mark.ranks('train("nccl", partition_num=2, replica_nums=[1, 1])', before=BEFORE)
def test_stages_over_nccl(done):
    pass


@pytest.mark.ranks('train("staged", partition_num=1, replica_nums=[2])', before=BEFORE)
def test_replicas_over_pinned_memory(done):
    pass


SHARDED = """
def steps(zero, dtype, float32_sums):
    torch.manual_seed(3)
    layers = [torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8)]
    model = torch.nn.Sequential(*layers).to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    wrapped = pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(
        device_transport="nccl", nccl_library=str(nccl.FILE), calibrate=False, self_check=False,
        pipeline_num=1, partition_num=1, replica_nums=[2], float32_sums=float32_sums,
    ), zero=zero)
    for step in range(3):
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(step)).to(dtype)
        mine = x.split(4)[world.rank].to(device)
        wrapped(mine).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = {name: tensor.cpu() for name, tensor in wrapped.state_dict(rank0_only=False).items()}
    held = sum(each.numel() for state in optimizer.state.values() for each in state.values())
    wrapped.undeploy()
    return found, held


for dtype in (torch.float32, torch.bfloat16):
    for float32_sums in (True, False):
        whole, of_all = steps(False, dtype, float32_sums)
        sharded, of_some = steps(True, dtype, float32_sums)
        assert of_some < 0.7 * of_all, (of_some, of_all)
        for name, expected in whole.items():
            torch.testing.assert_close(sharded[name], expected, rtol=1e-6, atol=1e-7, msg=name)
"""


@pytest.mark.ranks(SHARDED, before=BEFORE)
def test_sharded_steps_over_nccl_are_those_of_whole_replicas(done):
    pass


SCALER = """
scaler = pyrannc.GradScaler("standin", init_scale=1024.0)
torch.manual_seed(5)
layers = [torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)]
model = torch.nn.Sequential(*layers).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
wrapped = pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(
    device_transport="nccl", nccl_library=str(nccl.FILE), calibrate=False, self_check=False,
    pipeline_num=1, partition_num=1, replica_nums=[2],
))
x = (torch.randn(4, 8) + world.rank).to(device)
scales, changed = [], []
for step in range(4):
    loss = wrapped(x).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    before = [each.cpu() for each in wrapped.parameters(from_global=False)]
    if step == 1 and world.rank == 0:
        next(iter(model.parameters())).grad[0, 0] = float("inf")
    standin.synchronize(0)
    standin.clear_counts()
    scaler.step(optimizer)
    scaler.update()
    waits = {place: count for (thread, place), count in standin.waits().items() if thread == "main"}
    if step > 0:
        assert sum(waits.values()) <= 1, waits
    scales.append(scaler.get_scale())
    after = [each.cpu() for each in wrapped.parameters(from_global=False)]
    changed.append(not all(map(torch.equal, before, after)))
assert scales == [1024.0, 512.0, 512.0, 512.0], scales
assert changed == [True, False, True, True], changed
"""


@pytest.mark.ranks(SCALER, before=BEFORE)
def test_an_overflow_on_one_rank_is_skipped_by_all_with_one_wait_for_the_device(done):
    pass


IN_GROUPS = (
    BEFORE
    + """
from groups import *

def over(transport, code, *modes):
    "Runs ``code`` once as it is, and once in each mode of the stand-in NCCL."
    compute_on(device, device_transport=transport, nccl_library=str(nccl.FILE), calibrate=False,
               self_check=False)
    for mode in ("", *modes):
        if mode:
            os.environ[mode] = "1"
        try:
            code()
        finally:
            os.environ.pop(mode, None)

ONE_AT_A_TIME = "STANDIN_NCCL_ONE_AT_A_TIME"
"""
)
GROUPS = {
    "a group over NCCL": (
        2,
        """over("nccl", lambda: trains_alike(GPT, batches(tokens, 4), tensor_parallel=2),
                ONE_AT_A_TIME)""",
    ),
    "a group over pinned memory": (
        2,
        'over("staged", lambda: trains_alike(GPT, batches(tokens, 4), tensor_parallel=2))',
    ),
    "recompute and uneven batches": (
        2,
        """over("nccl", lambda: trains_alike(GPT, batches(tokens, 5), [4, 1], tensor_parallel=2,
                checkpointing=True, pipeline_num=2), ONE_AT_A_TIME)""",
    ),
    "two replicas": (
        4,
        """over("nccl", lambda: trains_alike(GPT, batches(tokens, 8), tensor_parallel=2,
                partition_num=1, replica_nums=[2], pipeline_num=2), ONE_AT_A_TIME)""",
    ),
    "a replica without rows": (
        4,
        """
def few():
    found = trains_alike(GPT, batches(tokens, 4), tensor_parallel=2, partition_num=1,
                         replica_nums=[2], pipeline_num=2)
    model, optimizer, twin, its = found
    for batch in batches(tokens, 3):
        same(step(model, optimizer, own(batch, [1, 1, 1, 0]))[0], step(twin, its, batch)[0])
    equal_state(model, twin)

over("nccl", few)
""",
    ),
    "two replicas that share the optimizer's state": (
        4,
        """over("nccl", lambda: trains_alike(GPT, batches(tokens, 8), tensor_parallel=2,
                partition_num=1, replica_nums=[2], wrap={"zero": True}))""",
    ),
    "statistics of the whole batch": (
        4,
        """over("nccl", lambda: trains_alike(Normalised,
                batches(lambda r: torch.randn(r, 3, 6, 6).double(), 4), tensor_parallel=2,
                partition_num=1, replica_nums=[2], sync_batch_norm=True), ONE_AT_A_TIME)""",
    ),
    "two stages": (
        4,
        """over("nccl", lambda: trains_alike(large, batches(tokens, 8), tensor_parallel=2,
                partition_num=2, pipeline_num=4), ONE_AT_A_TIME)""",
    ),
    "two stages, 1F1B, recompute": (
        4,
        """over("nccl", lambda: trains_alike(large, batches(tokens, 8), tensor_parallel=2,
                partition_num=2, pipeline_num=4, schedule="1f1b", checkpointing=True),
                ONE_AT_A_TIME)""",
    ),
    "two stages over pinned memory": (
        4,
        """over("staged", lambda: trains_alike(large, batches(tokens, 8), tensor_parallel=2,
                partition_num=2, pipeline_num=4, schedule="1f1b"))""",
    ),
    "gradients that are kept": (
        4,
        """
def kept():
    model, optimizer, twin, its = begun(GPT, tensor_parallel=2, partition_num=1, replica_nums=[2])
    adds_up(model, optimizer, twin, its, batches(tokens, 8, 2))

over("nccl", kept)
""",
    ),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(name, marks=pytest.mark.ranks(code, number=number, before=IN_GROUPS))
        for name, (number, code) in GROUPS.items()
    ],
)
def test_groups_of_ranks_that_compute_layers_together(done, case):
    pass


WAITS = """
def waits():
    model, optimizer, _, _ = begun(GPT, tensor_parallel=2)
    found = []
    for batch in batches(tokens, 4, 4):
        mine = own(batch)
        standin.synchronize(0)
        standin.clear_counts()
        optimizer.zero_grad()
        model(mine).backward()
        found.append({place: n for (thread, place), n in standin.waits().items()
                      if thread == "main"})
    print(found)
    assert all(sum(each.values()) <= 1 for each in found[1:]), found

over("nccl", waits)
"""


@pytest.mark.ranks(WAITS, before=IN_GROUPS)
def test_nobody_of_the_host_waits_for_a_groups_collectives(done):
    pass
