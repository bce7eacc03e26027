"""What operators, steps and links cost on a device: by its clock, and apart by the host's."""

import itertools
import json
import os
import time
from types import SimpleNamespace

import pytest
import standin
import torch
from nccl import FILE
from pipeline import run_ranks
from torch.utils._python_dispatch import TorchDispatchMode

from pyrannc import _C, Config, InfeasibleError, RaNNCModule
from pyrannc.capture.model import capture
from pyrannc.job import transport
from pyrannc.planning import planner_inputs
from pyrannc.profiling import operators, step_costs
from pyrannc.trial import measured_runs

DEVICE = "standin:0"
LONG_US = 20_000  # many times what a kernel or its issue takes, on a busy machine, too
LONG_NS = 1000 * LONG_US
ROWS = [2, 4]
ROUND, MOST_ROUNDS = 5, 4


@pytest.fixture(autouse=True)
def kernels_begin_at_once():
    if standin.is_available():  # in the process of these tests
        standin.set_delay(0)


standin.make_slow_operator("standin_costs", LONG_US, 2 * LONG_US)


def graph_of(node, width=8):
    return _C.ir.parse(
        f"""graph g(%x) -> (%y)
  input x: float32[B, {width}] apart(0)
  node own = {node}
    result y: float32[B, {width}] apart(0)
"""
    )


def measured(node, objects=(), width=8, **options):
    world = _C.comm.make_local(1)[0]
    graph = graph_of(node, width)
    table, _ = _C.profile.measure(graph, [*objects], [], world, ROWS, device=DEVICE, **options)
    return table.node[0][-1]


def own(function, **options):
    return measured("Own(%x) -> %y python #0", [function], **options)


class Seen(TorchDispatchMode):
    """Calls of operators, with the address and the bytes of their first tensor."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is not None and first.device.type == "standin":
            name = function.overloadpacket.__name__
            self.calls.append((name, first.data_ptr(), first.nbytes, first.dtype))
        return function(*args, **(kwargs or {}))

    def rounds(self, name):
        """Addresses in the calls of each round, before which the cache is filled."""
        found, filled = [], False
        for called, address, *_ in self.calls:
            if called == name and filled:
                found.append([])
            if called == name and found and len(found[-1]) < ROUND:  # the next one is of no round
                found[-1].append(address)
            filled = called == "add_" or (filled and called != name)
        first, *rounds = found  # the first call is of none
        assert len(first) == 1 and rounds
        return rounds


CACHE_BYTES = 4 << 20


def test_no_call_finds_its_operands_in_the_devices_cache():
    with Seen() as seen:
        measured("aten::tanh(%x) -> %y", cache_bytes=CACHE_BYTES)
    for train in seen.rounds("tanh"):
        assert len(train) == len({*train}) == ROUND
    fills = {size for name, _, size, _ in seen.calls if name == "add_"}
    assert min(fills) >= 2 * CACHE_BYTES


def test_operands_that_are_larger_than_the_cache_are_not_copied():
    with Seen() as seen:
        measured("aten::tanh(%x) -> %y", width=CACHE_BYTES // 4, cache_bytes=CACHE_BYTES)
    assert all(len({*train}) == 1 for train in seen.rounds("tanh"))


def test_a_device_without_room_for_its_cache_times_operators_all_the_same(capfd):
    standin.synchronize()
    torch.accelerator.empty_cache()
    standin.set_per_process_memory_fraction(40 / 256)
    try:
        assert measured("aten::tanh(%x) -> %y", cache_bytes=32 << 20).forward_ns > 0
    finally:
        standin.set_per_process_memory_fraction(1.0)
    assert "standin:0 has no room for 64.0 MiB, twice what its cache" in capfd.readouterr().err


def test_libraries_have_their_workspaces_before_the_first_operator():
    with Seen() as seen:
        measured("aten::tanh(%x) -> %y")
    names = [name for name, *_ in seen.calls]
    before = seen.calls[: names.index("tanh")]
    assert {dtype for name, _, _, dtype in before if name in ("mm", "linear", "t")} >= {
        torch.float32,
        torch.bfloat16,
    }


def test_the_device_is_not_charged_for_what_the_host_takes():
    def issued_slowly(x):
        time.sleep(LONG_NS / 1e9)
        return x + 1

    cost = own(issued_slowly)
    assert cost.forward_host_ns >= LONG_NS
    assert cost.forward_ns < LONG_NS / 2


def test_the_host_is_not_charged_for_what_the_device_takes():
    def computed_slowly(x):
        standin.busy(LONG_US)
        return x + 1

    cost = own(computed_slowly)
    assert cost.forward_ns >= LONG_NS
    assert cost.forward_host_ns < LONG_NS / 2


def calls_that_take(*us):
    """How often an operator was called that takes these times in turn."""
    calls = 0

    def function(x):
        nonlocal calls
        standin.busy(us[calls % len(us)])
        calls += 1
        return x + 1

    own(function)
    return calls


def test_rounds_that_differ_are_repeated_and_others_are_not():
    """For each number of rows there is a call before the first round."""
    assert calls_that_take(2_000, 6_000, 6_000) == len(ROWS) * (1 + MOST_ROUNDS * ROUND)
    assert calls_that_take(3 * LONG_US) == len(ROWS) * (1 + ROUND)


def test_the_host_waits_once_for_all_calls_of_a_round():
    """Beside the first call of an operator, which says how long the rounds will take."""
    waits = []

    def function(x):
        waits.append(sum(standin.waits().values()))
        return x + 1

    standin.clear_counts()
    own(function)
    waits = waits[: 1 + ROUND]
    assert len({*waits[1:]}) == 1, waits


def test_an_operator_that_cannot_be_timed_costs_what_others_take_on_this_device(capfd):
    """By the model of a CPU both are alike, two microseconds; the one that runs takes longer."""
    graph = _C.ir.parse(
        """graph g(%x) -> (%z)
  input x: float32[B, 8] apart(0)
  node slow = standin_costs::slow(%x) -> %y
    result y: float32[B, 8] apart(0)
  node wrong = Own(%y) -> %z python #0
    result z: float32[B, 8] apart(0)
"""
    )

    def refuses_random_numbers(y):
        raise ValueError("these are no lengths")

    ranks = _C.comm.make_local(1)
    table, known = _C.profile.measure(
        graph, [refuses_random_numbers], [], ranks[0], ROWS, device=DEVICE
    )
    slow, wrong = (costs[-1] for costs in table.node)
    assert wrong.forward_ns >= 0.9 * LONG_NS
    assert wrong.forward_ns == pytest.approx(slow.forward_ns, rel=0.2)
    hosts = [cost.forward_host_ns for cost in table.node[0]]
    assert wrong.forward_host_ns == pytest.approx(sum(hosts) / len(hosts), abs=1)
    assert (wrong.backward_ns, wrong.backward_host_ns) == (0, 0)
    assert len(known) == 1
    printed = capfd.readouterr().err
    assert "cannot time node 'wrong'" in printed
    assert "times what the model of a CPU says, as with 1 operator that could be timed" in printed


# An executor of one rank, whose device takes its time while the host does not.

TEXT = """graph g(%x) -> (%loss)
  input x: float32[B] apart(0) grad
  node n0 = standin_costs::slow(%x) -> %a
    result a: float32[B] apart(0) grad
  node n1 = aten::mean(%a, none) -> %loss
    result loss: float32[] mean grad
"""
PLAN = {
    "format": "rannc-plan", "version": 1, "schedule": "gpipe", "micro_batches": 1,
    "stages": [{"nodes": ["n0", "n1"], "ranks": [0], "recompute": False}],
}  # fmt: skip


def one_rank():
    return _C.runtime.Executor(
        _C.ir.parse(TEXT),
        [],
        _C.plan.Plan.from_json(json.dumps(PLAN)),
        _C.comm.make_local(1)[0],
        device=DEVICE,
    )


def program():
    plan = _C.plan.Plan.from_json(json.dumps(PLAN))
    return _C.plan.lower(plan, _C.ir.parse(TEXT), [2], True)


def inputs():
    return [torch.ones(2, device=DEVICE, requires_grad=True)]


def longest(spans):
    """In ns, of forward and backward, which are the longest of their phases."""
    actions = json.loads(program().to_json())["actions"][0]
    kinds = {index: action[0] for index, action in enumerate(actions)}
    return {kinds.get(span.action): span.end_ns - span.begin_ns for span in spans}


def test_a_timeline_and_shares_are_by_the_devices_clock_and_nobody_waits_for_them():
    executor = one_rank()
    x, one = inputs(), torch.ones((), device=DEVICE)
    standin.synchronize()
    standin.clear_counts()
    call = executor.forward(x, [], [], [2], True)
    call.backward([one])
    assert standin.waits() == {}
    taken = longest(executor.timeline)
    assert taken["forward"] >= LONG_NS
    assert taken["backward"] >= 2 * LONG_NS
    assert executor.times.compute_ns >= 3 * LONG_NS
    assert executor.times.idle_ns < LONG_NS


def test_a_calibration_counts_what_the_device_takes():
    found = measured_runs.measure(
        one_rank(),
        (inputs(), [], []),
        [True],
        program(),
        [2],
        _C.comm.make_local(1)[0],
        patience=measured_runs.Patience(least=2, most=2, enough_s=0),
        device=torch.device(DEVICE),
    )
    actions = json.loads(program().to_json())["actions"][0]
    taken = {
        action[0]: spent.work_ns for action, spent in zip(actions, found.actions[0], strict=True)
    }
    assert LONG_NS <= taken["forward"] < 2 * LONG_NS <= taken["backward"]
    assert found.run_ns >= 3 * LONG_NS


def test_pages_of_the_host_are_no_time_of_the_device(monkeypatch):
    usages = itertools.count()

    def usage(who):
        seconds = float(next(usages))
        return SimpleNamespace(ru_minflt=int(seconds), ru_stime=seconds)

    monkeypatch.setattr(measured_runs.resource, "getrusage", usage)
    world = _C.comm.make_local(1)[0]
    rank = [one_rank(), (inputs(), [], []), [True], [2], world, None, torch.device(DEVICE)]
    assert measured_runs._run(*rank)["paging_seconds"] == 0
    assert next(usages) == 2


def test_what_a_step_takes_beyond_its_operators_is_by_events_over_trains_of_calls():
    calls = []
    standin.synchronize()
    standin.clear_counts()

    def call():
        calls.append(sum(standin.waits().values()))
        standin.busy(1000)

    assert step_costs._median_ns(call, torch.device(DEVICE)) >= 1e6
    assert {*calls} == {0}


# Memory.


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.of_all = torch.nn.Linear(16, 48)
        self.out = torch.nn.Linear(16, 16)

    def forward(self, x):
        parts = self.of_all(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        attended = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


def kept_in_eager(model, x):
    """Bytes that autograd keeps, each storage once, without the parameters'."""
    kept = {parameter.untyped_storage()._cdata: 0 for parameter in model.parameters()}
    held = []

    def pack(tensor):
        storage = tensor.untyped_storage()
        held.append(storage)
        kept.setdefault(storage._cdata, storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    return sum(kept.values())


def test_saved_bytes_are_those_of_the_devices_own_kernels():
    model, x = Attention().to("standin"), torch.ones(4, 6, 16, device=DEVICE)
    captured = capture(model, (x,), {})
    traced = operators.trace(captured.graph, captured.objects, [4, 6], DEVICE)
    # The stand-in's kernel of attention leaves out seed and offset, of eight bytes each.
    assert sum(node[0] for node in traced.saved) == kept_in_eager(model, x) + 16
    attention = [size[0] for nodes, size in traced.storages if nodes == [5]]
    assert 4 * (4 * 2 * 6) in attention  # a number for each query: no matrix of probabilities


class OnTheHost(torch.nn.Module):
    """Computes with its positions, and in the middle of its layers, on the host."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.register_buffer("positions", torch.arange(8.0))

    def forward(self, x, lengths):
        kept = (self.positions < lengths[:, None]).to(x.device)
        x = self.first(x).cpu().square()
        return self.second(x.to(kept.device)) * kept


def test_what_the_model_keeps_on_the_host_is_no_memory_of_a_plan():
    model = OnTheHost()
    model.first.to(DEVICE)
    model.second.to(DEVICE)
    captured = capture(model, (torch.ones(4, 8, device=DEVICE), torch.arange(4)), {})
    graph = captured.graph
    traced = operators.trace(graph, captured.objects, [4, 6], DEVICE)
    table = _C.cost.estimate(graph, _C.cost.device_model("h100"), [4, 6], traced.saved)
    saved = [_C.cost.SavedStorage(*storage) for storage in traced.storages]
    profile = json.loads(_C.cost.fold(graph, table, [], saved).to_json())
    on_host = {value.name for value in graph.values if value.on_host}
    taken = {each["id"]: each["bytes"] for each in profile["params"]}
    assert {"positions"} == on_host & taken.keys() == {n for n in taken if not taken[n]}
    empty = [each["name"] for each in profile["inputs"] if not each.get("bytes_per_row")]
    assert empty == ["lengths"]
    on_device = {
        node["name"]: bool(node["outputs"][0].get("bytes_per_row")) for node in profile["nodes"]
    }
    for node in graph.nodes:
        (output,) = node.outputs
        assert on_device.get(node.name, True) != graph.values[output].on_host, node
    # For the backward it keeps x, what the second layer computes with, and what is kept: the square
    # is of the host's own.
    assert sum(size[0] for _, size in traced.storages) == 4 * (4 * 8 + 4 * 16) + 4 * 8


def test_a_recorder_counts_one_devices_memory():
    with (
        _C.runtime.MemoryRecorder(DEVICE) as first,
        _C.runtime.MemoryRecorder("standin:1") as second,
        _C.runtime.MemoryRecorder("cpu") as host,
        _C.runtime.MemoryRecorder() as everywhere,
    ):
        kept = [torch.empty(size << 20, dtype=torch.uint8, device=place) for size, place in (
            (1, DEVICE), (2, "standin:1"), (4, "cpu"),
        )]  # fmt: skip
    counted = [each.peak_bytes >> 20 for each in (first, second, host, everywhere)]
    assert counted == [1, 2, 4, 7]
    del kept


def test_what_an_operator_keeps_on_the_host_is_no_memory_of_the_device():
    def with_large_host_memory(x):
        torch.empty(64 << 20, dtype=torch.uint8)
        return x + 1

    assert own(with_large_host_memory).workspace_bytes < 1 << 20


def test_the_margin_has_room_for_what_is_reserved_beyond_what_is_allocated():
    """A weight, its gradient and what an optimizer keeps of it take 180 MiB, of 256."""
    standin.synchronize()
    torch.accelerator.empty_cache()
    inputs = torch.ones(2, 1024, device=DEVICE)

    def first_call(margin):
        linear = torch.nn.Linear(1024, 45 * 256, bias=False)
        settings = {"self_check": False, "calibrate": False, "pipeline_num": 1}
        config = Config(device="standin", mem_margin=margin, **settings)
        RaNNCModule(linear, config=config)(inputs)

    with pytest.raises(InfeasibleError, match="after the safety margin"):
        first_call(0.35)
    first_call(0.2)


def test_what_libraries_keep_from_their_first_product_on_is_no_memory_of_a_plan(monkeypatch):
    task = SimpleNamespace(
        world=_C.comm.make_local(1)[0],
        device=torch.device(DEVICE),
        config=Config(),
        model=torch.nn.Module(),
        optimizers=[],
    )
    before = planner_inputs.memory_bytes(task, ranks_on_host=1)
    kept, product = [], torch.nn.functional.linear

    def linear(*operands):
        if not kept:
            kept.append(torch.empty(64 << 20, dtype=torch.uint8, device=DEVICE))
        return product(*operands)

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    assert planner_inputs.memory_bytes(task, ranks_on_host=1) == before - (64 << 20)


# Links.

SLOW_BYTES_PER_S = 2e8


def speed_over(by):
    config = Config(device_transport=by, nccl_library=str(FILE))

    def one_rank(world):
        standin.set_device(world.rank)
        return transport.measure_links(world, torch.device("standin", world.rank), config)

    first, second = run_ranks(2, one_rank, 60.0)
    speed = first.intra_host
    assert first.inter_host is None
    assert speed.bandwidth_bytes_per_s == second.intra_host.bandwidth_bytes_per_s
    return speed.bandwidth_bytes_per_s


def test_links_are_measured_through_pinned_memory_where_messages_go_there():
    standin.slow_links(bytes_per_s=SLOW_BYTES_PER_S)
    assert speed_over("staged") <= 1.05 * SLOW_BYTES_PER_S


@pytest.mark.skipif(not FILE.exists(), reason=f"{FILE} was not built")
@pytest.mark.usefixtures("nccl_environment")
def test_links_are_measured_over_nccl_where_messages_go_there():
    os.environ["STANDIN_NCCL_BYTES_PER_S"] = str(SLOW_BYTES_PER_S)
    standin.slow_links(bytes_per_s=SLOW_BYTES_PER_S / 4)  # NCCL copies nothing by the host
    assert SLOW_BYTES_PER_S / 2 < speed_over("nccl") <= 1.05 * SLOW_BYTES_PER_S
