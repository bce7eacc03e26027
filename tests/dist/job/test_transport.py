"""How messages between devices travel is chosen alike on all ranks, and says why.

On the stand-in device with the stand-in NCCL.
"""

import mpi
import nccl
import pytest

pytestmark = pytest.mark.skipif(not nccl.FILE.exists(), reason=f"{nccl.FILE} was not built")
BEFORE = """
import os
import torch
import nccl, standin
import pyrannc
from pyrannc import _C, comm_utils, launch
from pyrannc.config import Config
from pyrannc.job import transport
from pyrannc.job import nccl as chosen
world = launch.world()
if standin._library is None:
    standin.start(delay_us=20)
device = torch.device("standin", 0)
FILE = str(nccl.FILE)
os.environ["STANDIN_NCCL_VERSION"] = "23004"
"""

# Without a library that somebody names, NCCL is of CUDA's devices alone.
AUTOMATIC = """
found = transport._automatic(world, device, Config())
assert found == ("staged", "as NCCL is not for standin"), found
found = transport._automatic(world, device, Config(nccl_library=FILE))
assert found == ("nccl", "as every rank has a device"), found
assert transport.in_order(world, device, Config(nccl_library=FILE))
assert not transport.in_order(world, device, Config(device_transport="staged"))
assert not transport.in_order(world, torch.device("cpu"), Config())
assert transport.of_messages(world, torch.device("cpu"), Config()) is world
"""

VERSIONS = """
os.environ["STANDIN_NCCL_VERSION"] = str(23004 + world.rank)
reason = chosen.refusal(world, device, Config(nccl_library=FILE))
assert reason == "rank 0 has NCCL 2.30.4, and rank 1 has NCCL 2.30.5", reason
os.environ["STANDIN_NCCL_VERSION"] = "22503" if world.rank == 1 else "23004"
wanted, why = transport._automatic(world, device, Config(nccl_library=FILE))
assert wanted == "staged" and "because rank 1: NCCL 2.25.3" in why, why
try:
    transport.of_messages(world, device, Config(nccl_library=FILE, device_transport="nccl"))
except pyrannc.ConfigError as error:
    assert "device_transport is nccl, but rank 1: NCCL 2.25.3" in str(error)
    assert "staged" in str(error)
else:
    raise AssertionError("an NCCL that is too old was taken")
"""

SHARED = """
one = torch.device("standin:0")
standin.share_devices()
reason = chosen.refusal(world, one, Config(nccl_library=FILE))
assert reason == f"ranks 0 and 1 compute on one device of host {world.host}", reason
try:
    transport.of_messages(world, one, Config(nccl_library=FILE, device_transport="nccl"))
except pyrannc.ConfigError as error:
    assert "device_transport is nccl, but ranks 0 and 1 compute on one device" in str(error)
    assert "Config(device_transport='staged') needs none" in str(error)
else:
    raise AssertionError("two ranks took NCCL on one device")
finally:
    standin._owner = ""
"""

MISSING = """
file = FILE if world.rank == 0 else "/none/libnccl.so.2"
reason = chosen.refusal(world, device, Config(nccl_library=file))
assert reason.startswith("rank 1: NCCL cannot be opened: /none/libnccl.so.2"), reason
"""

# Losses of three steps, and on rank 0 the parameters then.
TRAIN = """
def train(device_transport, between=lambda: None, half=True, **plan):
    torch.manual_seed(5)
    layers = [torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = Config(
        device_transport=device_transport, nccl_library=FILE, calibrate=False, self_check=False,
        pipeline_num=2, **plan,
    )
    wrapped = pyrannc.RaNNCModule(model, optimizer, config)
    batch = torch.randn(8, 8).to(device)
    found = []
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("standin", torch.bfloat16, enabled=half):
            loss = wrapped(batch[4 * world.rank : 4 * world.rank + 4]).square().mean()
        loss.backward()
        found.append(loss.detach().cpu())
        optimizer.step()
        between()
    state = wrapped.state_dict()
    found += [tensor.cpu() for tensor in state.values()] if world.rank == 0 else []
    wrapped.undeploy()
    return found
"""
AMP = (
    TRAIN
    + """
for plan in ({"partition_num": 2, "replica_nums": [1, 1]}, {"partition_num": 1}):
    ours, theirs = train("nccl", **plan), train("staged", **plan)
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2**-6, atol=1e-3)  # bfloat16 has 8 bits
"""
)
RECREATE = (
    TRAIN
    + """
made = 0
def anew():
    global made
    comm_utils.recreate_all_communicators()
    made += 1
plan = {"partition_num": 2, "replica_nums": [1, 1]}
ours, theirs = train("nccl", anew, half=False, **plan), train("staged", half=False, **plan)
assert made == 3
for mine, other in zip(ours, theirs, strict=True):
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
"""
)


LINKS = """
import tempfile
from types import SimpleNamespace
from pyrannc.profiling import links
hosts = [world.host] * world.size
folder = world.broadcast(tempfile.mkdtemp().encode() if world.rank == 0 else b"", 0).decode()
measure, found = transport.measure_links, []
for by in ("staged", "nccl"):
    config = Config(device_transport=by, nccl_library=FILE, profile_cache=folder)
    task = SimpleNamespace(world=world, device=device, config=config)
    found.append(links.measure_links(task, hosts))
    transport.measure_links = None
    assert links.measure_links(task, hosts) == found[-1]
    transport.measure_links = measure
assert found[0] != found[1]
assert all(each.intra_host and not each.inter_host for each in found), found
assert len(set(world.all_gather(repr(found).encode()))) == 1
"""


@pytest.mark.ranks(AUTOMATIC, before=BEFORE)
def test_automatic_takes_nccl_where_all_ranks_can_use_it(done):
    pass


@pytest.mark.ranks(VERSIONS, before=BEFORE)
def test_other_versions_are_everybodys_reason(done):
    pass


@pytest.mark.ranks(SHARED, before=BEFORE)
def test_nccl_on_a_device_that_two_ranks_share_is_everybodys_error(done):
    pass


@pytest.mark.ranks(MISSING, before=BEFORE)
def test_one_rank_without_a_library_is_everybodys_reason(done):
    pass


@pytest.mark.ranks(AMP, before=BEFORE)
def test_bfloat16_under_autocast_over_nccl_equals_staged(done):
    pass


@pytest.mark.ranks(RECREATE, before=BEFORE)
def test_communicators_made_anew_in_the_middle_of_training(done):
    pass


# After those that have to find no communicator of NCCL yet.
@pytest.mark.ranks(LINKS, before=BEFORE)
def test_links_of_each_transport_are_measured_once_and_the_same_on_all_ranks(done):
    pass


# What goes wrong in the middle of training, by a plan of two stages or of two replicas.

STEPS = (
    BEFORE
    + """
import standin
transport_name, plan, fault, nth = os.environ["TEST_CASE"].split()
layers = [torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh()]
torch.manual_seed(5)
model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config = Config(
    device_transport=transport_name, nccl_library=FILE, calibrate=False, self_check=False,
    comm_timeout_s=3, pipeline_num=1, partition_num=2 if plan == "stages" else 1,
    replica_nums=[1, 1] if plan == "stages" else [2],
)
wrapped = pyrannc.RaNNCModule(model, optimizer, config)
batch = torch.randn(8, 8).to(device)[4 * world.rank : 4 * world.rank + 4]
def step():
    optimizer.zero_grad()
    loss = wrapped(batch).square().mean()
    loss.backward()
    optimizer.step()
    torch.accelerator.synchronize()
step()
step()
world.barrier()
torch.accelerator.empty_cache()
"""
)
FAIL = """
if world.rank == 0:
    standin.fail(fault, int(nth))
step()
step()
print("got through", flush=True)
"""


def failure(case):
    """What is printed, where rank 0 fails as ``transport plan fault nth`` says."""
    job = mpi.run(STEPS + FAIL, 2, timeout=60, env={"TEST_CASE": case})
    assert job.returncode != 0, job.stdout + job.stderr
    assert "got through" not in job.stdout, case
    assert "rank 0 ends the job" in job.stderr, job.stderr
    return job.stderr


@pytest.mark.parametrize("case", ["nccl stages allocation 1", "staged stages allocation 1"])
def test_what_fails_in_a_call_ends_the_job_with_its_cause_first(case):
    text = failure(case)
    assert "memory" in text.split("rank 0 ends the job")[0], text


@pytest.mark.parametrize("nth", [1, 2])  # of the rank itself, and of its message
def test_a_copy_that_fails_ends_the_job_with_its_cause(nth):
    assert "bytes failed" in failure(f"staged stages copy {nth}")


@pytest.mark.all
@pytest.mark.parametrize("nth", [2, 5, 9, 14])  # in the forward, the backward, the bucket
@pytest.mark.parametrize("plan", ["stages", "replicas"])
@pytest.mark.parametrize("transport", ["nccl", "staged"])
def test_memory_that_runs_out_anywhere_ends_the_job(transport, plan, nth):
    text = failure(f"{transport} {plan} allocation {nth}")
    assert "memory" in text.split("rank 0 ends the job")[0], text


LEFT = """
if world.rank == 0:
    standin.fail(fault, int(nth))
for attempt in range(3):
    try:
        wrapped(batch)
    except (pyrannc.RaNNCError, RuntimeError) as error:
        text = str(error)
        if attempt == 0:
            assert world.rank == 0 and "memory" in text, text
            continue
        assert "a call failed on rank 0" in text, text
    else:
        assert world.rank == 1 and attempt == 0, attempt
print("all right", flush=True)
os._exit(0)  # rank 1's device waits for what never comes
"""


def test_after_a_call_that_failed_on_one_rank_no_other_takes_its_messages():
    """Rank 1 has issued what it receives, and goes on: nothing of the host waits for the device.
    NCCL's messages have no tags, so rank 0's next call would be taken for the one that failed."""
    job = mpi.run(STEPS + LEFT, 2, timeout=60, env={"TEST_CASE": "nccl stages allocation 1"})
    assert job.stdout.count("all right") == 2, job.stdout + job.stderr
