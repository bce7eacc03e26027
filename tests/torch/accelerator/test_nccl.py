"""The nccl backend over the stand-in NCCL, ranks as threads with a device each: random graphs under
random plans equal one process, in the Program's order of communication."""

import ctypes
import json
import os
import subprocess
import sys
import threading

import pytest
import standin
import torch
from nccl import FILE, FLOAT32, Nccl, UniqueId
from norm_models import NORMS
from on_devices import run
from pipeline import make_plan, run_ranks

from pyrannc import _C
from pyrannc.capture.model import capture

pytestmark = [
    pytest.mark.skipif(not FILE.exists(), reason=f"{FILE} was not built"),
    pytest.mark.usefixtures("nccl_environment"),
]
MODES = {
    "as it is": {},
    "one call at a time on a device": {"STANDIN_NCCL_ONE_AT_A_TIME": "1"},
    "messages buffered": {"STANDIN_NCCL_BUFFERED": "1"},
}


def executor_of(captured, plan, comm, device, **settings):
    plan = _C.plan.Plan.from_json(json.dumps(plan))
    return _C.runtime.Executor(
        captured.graph, captured.objects, plan, comm, device=device, **settings
    )


def connect(host, device, one_stream=False):
    return _C.runtime.nccl(host, device, str(FILE), one_stream)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("delay_us", [0, 300])
def test_random_plans_equal_one_process(mode, delay_us):
    standin.set_delay(delay_us)
    os.environ.update(MODES[mode])
    for seed in range(9):
        assert run(seed, connect) == [], f"seed {seed}"


@pytest.mark.all
@pytest.mark.parametrize("hundred", range(3))
def test_three_hundred_random_plans_equal_one_process(hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        assert run(seed, connect) == [], f"seed {seed}"


def test_all_on_one_stream():
    for seed in range(6):
        assert run(seed, lambda host, device: connect(host, device, True)) == [], f"seed {seed}"


def test_nobody_of_the_host_waits_for_messages_and_sums():
    """Who computes reads the gradient of the loss, to see whether it is 1; the test copies."""
    standin.clear_counts()
    for seed in range(6):
        assert run(seed, connect) == [], f"seed {seed}"
    places = {place for _, place in standin.waits()}
    assert places <= {"aten::_local_scalar_dense", "copy to device", "copy to host"}, places


def test_a_stream_that_records_nothing_is_seen():
    standin.set_delay(2000)
    wrong = [seed for seed in range(6) if run(seed, connect, stream=late)]
    assert wrong


def late():
    return _C.comm.LateStream(0.0)


def test_forwards_alone_and_backwards_that_never_come():
    def before(executor, forward):
        with torch.no_grad():
            forward(with_backward=False)
        forward(with_backward=True)  # nobody asks for its gradients

    for seed in range(6):
        assert run(seed, connect, around=before) == [], f"seed {seed}"


def test_gradients_that_are_kept_and_summed_later():
    """Twice the gradients: one call under no_sync, and one that sums both."""

    def before(executor, forward):
        call = forward(with_backward=True, no_sync=True)
        outputs = call.outputs
        call.backward([torch.zeros_like(outputs[0])] + [None] * (len(outputs) - 1))

    for seed in range(6):
        assert run(seed, connect, around=before) == [], f"seed {seed}"


# Collectives of the script's own, on the same devices.


class Script:
    """A communicator of the script's on each rank, as torch.distributed's: of its own id, with a
    stream of its own."""

    def __init__(self):
        self.mine = threading.local()

    def connect(self, host, device):
        comm = connect(host, device)
        library = Nccl(FILE)
        made = library.unique_id() if host.rank == 0 else UniqueId()
        unique_id = UniqueId.from_buffer_copy(host.broadcast(bytes(made)))
        self.mine.nccl = library
        self.mine.rank, self.mine.ranks = host.rank, host.size
        self.mine.comm = library.start(unique_id, host.rank, host.size)
        self.mine.stream = standin.Stream(device)
        self.mine.seen = []
        return comm

    def all_reduce(self, *_):
        """Of what the device has just made; nobody waits for it on the host."""
        mine = self.mine
        data = torch.full((1000,), 1.0 + mine.rank, device=f"standin:{mine.rank}")
        mine.stream.wait_stream(standin.current_stream())
        address, handle = data.data_ptr(), ctypes.c_void_p(mine.stream.native_handle)
        mine.nccl.AllReduce(address, address, 1000, FLOAT32, 0, mine.comm, handle)
        mine.nccl.settle(mine.comm)
        standin.current_stream().wait_stream(mine.stream)
        mine.seen.append(data)

    def check(self, *_):
        """Before a step: what the steps before have summed is right."""
        expected = self.mine.ranks * (self.mine.ranks + 1) / 2
        for data in self.mine.seen:
            assert (data.cpu() == expected).all()
        self.mine.seen = []


@pytest.mark.parametrize("mode", ["as it is", "one call at a time on a device"])
def test_the_scripts_own_collectives_between_calls_and_between_forward_and_backward(mode):
    os.environ.update(MODES[mode])
    script = Script()

    def before(executor, forward):
        script.check()
        script.all_reduce()

    for seed in range(9):
        found = run(seed, script.connect, steps=3, around=before, between=script.all_reduce)
        assert found == [], f"seed {seed}"


# Statistics of the whole batch.

ROWS = [3, 1, 0, 2]  # one rank has none, and takes part in the statistics all the same


def replicas(name, connect, backwards, rows=ROWS, **stage):
    """The model, its inputs, and by rank what each backward of one call gives,
    ``[{name: gradient}, ...]``, and the buffers then. All ranks are replicas of one stage.

    Args:
        backwards: For each backward the output that a rank's loss, its squares, uses; None: none.
    """
    model = NORMS[name].build().double()
    (x,), _ = NORMS[name].inputs(sum(rows))
    x = x.double()
    captured = capture(model, (x,), sync_batch_norm=True)
    placed = _C.ir.depends_on_rows(captured.graph)
    nodes = [
        node.name for node, is_placed in zip(captured.graph.nodes, placed, strict=True) if is_placed
    ]
    plan = make_plan(nodes, [list(range(len(rows)))], 1)
    plan["stages"][0] |= stage
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def one_rank(host):
        device = f"standin:{host.rank}"
        standin.set_device(host.rank)
        executor = executor_of(captured, plan, connect(host, device), device)
        parameters = [state[n].detach().to(device) for n in executor.parameter_names]
        for parameter in parameters:
            parameter.requires_grad_()
        buffers = [state[n].to(device) for n in executor.buffer_names]
        call = executor.forward(
            [x.split(rows)[host.rank].to(device)], parameters, buffers, rows, True
        )
        outputs = [output.clone() for output in call.outputs]
        weight = max(rows[host.rank] / sum(rows), 1e-300)  # a rank's loss counts by its rows
        given = []
        for number, uses in enumerate(backwards):
            seeds = [
                2 * output / weight if uses[host.rank] == index else None
                for index, output in enumerate(outputs)
            ]
            found = call.backward(seeds, number + 1 < len(backwards))
            named = zip(executor.parameter_names, found, strict=False)
            given.append({n: None if g is None else g.cpu() for n, g in named})
        return given, {n: b.cpu() for n, b in zip(executor.buffer_names, buffers, strict=True)}

    return model, x, run_ranks(len(rows), one_rank, 60.0)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_statistics_of_the_whole_batch_are_issued_in_their_place(mode, recompute):
    """Losses of ranks use different outputs, or none, in each of several backwards."""
    os.environ.update(MODES[mode])
    standin.set_delay(300)
    backwards = [[0, 1, 0, 0], [1, None, 1, 1], [None, 1, None, 0], [0, 1, 0, 0]]
    model, x, results = replicas("volume_norms", connect, backwards, recompute=recompute)
    names = [name for name, _ in model.named_parameters()]
    for number, uses in enumerate(backwards):
        model.zero_grad()
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        parts = [output.split(ROWS) for output in model(x)]
        losses = [parts[use][rank] for rank, use in enumerate(uses) if use is not None]
        sum(part.square().sum() for part in losses).backward()
        if number > 0:  # there is one forward
            model.load_state_dict(before, strict=False)
        for rank, (given, _) in enumerate(results):
            for name in names:
                wanted, found = model.get_parameter(name).grad, given[number][name]
                case = f"rank {rank}, backward {number}, {name}"
                if wanted is None or found is None:
                    assert all(t is None or not t.any() for t in (wanted, found)), case
                else:
                    torch.testing.assert_close(found, wanted, msg=case)
    for _, buffers in results:
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffers[name], buffer, msg=name)


# Sums of 16-bit gradients.


class Scale(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1, dtype=dtype))

    def forward(self, x):
        return x * self.scale


def gradient_of_scale(dtype, parts, connect, float32_sums):
    """Rank r's row has the number ``parts[r]``; the gradient on each rank."""
    captured = capture(Scale(dtype), (torch.ones(4, 1, dtype=dtype),))
    nodes = [node.name for node in captured.graph.nodes]
    plan = make_plan(nodes, [list(range(len(parts)))], 1)

    def one_rank(host):
        device = f"standin:{host.rank}"
        standin.set_device(host.rank)
        executor = executor_of(
            captured, plan, connect(host, device), device, float32_sums=float32_sums
        )
        scale = torch.ones(1, dtype=dtype, device=device).requires_grad_()
        row = torch.full((1, 1), parts[host.rank], dtype=dtype, device=device)
        call = executor.forward([row], [scale], [], [1] * len(parts), True)
        # A rank's loss counts by its rows.
        seed = torch.full((1, 1), len(parts), dtype=dtype, device=device)
        return call.backward([seed])[0].item()

    return run_ranks(len(parts), one_rank)


def staged(host, device):
    return _C.runtime.staged(host, device)


@pytest.mark.parametrize(
    ("dtype", "large", "as_they_are", "in_float32"),
    # Numbers from `large` on are 2 apart: large + 1 is rounded back to it, three times, and
    # large + 3, which lies between two of them, to the even one.
    [(torch.bfloat16, 256.0, 256.0, 260.0), (torch.float16, 2048.0, 2048.0, 2052.0)],
)
def test_sums_of_16_bits_are_rounded_once_by_setting(dtype, large, as_they_are, in_float32):
    parts = [large, 1.0, 1.0, 1.0]
    assert gradient_of_scale(dtype, parts, connect, False) == [as_they_are] * 4
    assert gradient_of_scale(dtype, parts, connect, True) == [in_float32] * 4
    for setting in (False, True):  # the host's sums always are
        assert gradient_of_scale(dtype, parts, staged, setting) == [in_float32] * 4


@pytest.mark.parametrize("float32_sums", [False, True])
def test_a_sum_that_is_too_large_for_float16_is_infinite_on_all_ranks(float32_sums):
    """So every rank's gradient scaler sees it, also where no rank's own part was too large."""
    for transport in (connect, staged):
        found = gradient_of_scale(torch.float16, [40000.0, 30000.0], transport, float32_sums)
        assert found == [float("inf")] * 2


# NCCL that others have started without an order of launches: it reads the environment once.

UNORDERED = """
import os
import standin
standin.start(devices=4, memory_bytes=256 << 20, delay_us=50)
from nccl import FILE
from on_devices import run
from pyrannc import _C, errors

def connect(one_stream, order_each):
    return lambda host, device: _C.runtime.nccl(host, device, str(FILE), one_stream, order_each)

def error_of(connect):
    try:
        for seed in range(6):
            run(seed, connect, steps=1)
    except errors.CommError as error:
        return str(error)
    return ""

for seed in range(4):
    assert run(seed, connect(True, False)) == [], seed
    assert run(seed, connect(False, True)) == [], seed
os.environ["STANDIN_NCCL_VERSION"] = "23004"  # which would take the new fields for others
assert "a config of a newer version" in error_of(connect(False, True))
assert "without NCCL_LAUNCH_ORDER_IMPLICIT=1" in error_of(connect(False, False))
print("all right", flush=True)
os._exit(0)  # devices may wait for what was refused
"""


def test_communicators_ask_for_the_order_themselves_or_go_on_one_stream():
    variables = {name: text for name, text in os.environ.items() if "LAUNCH_ORDER" not in name}
    variables["STANDIN_NCCL_VERSION"] = "23100"
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    job = subprocess.run(
        [sys.executable, "-c", UNORDERED],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert job.stdout.endswith("all right\n"), job.stdout + job.stderr
