"""What a training step costs beyond its operators, measured on this machine in milliseconds."""

import dataclasses
import itertools
import statistics
import time

import torch

from pyrannc import _C
from pyrannc.job import elapsed, process, transport
from pyrannc.optimizer import steps_on_copies
from pyrannc.optimizer.state import master_weights
from pyrannc.ranks import gathered

#: Elements of the two parameters by which an optimizer's step is timed: the large one leaves the
#: cache and is still quick; the most bytes of one parameter of its trial, whose temporaries are as
#: large; and repetitions, of which the median counts.
#: tuned by: `benchmarks/predicted_and_measured.py` (the optimizer's part of a step).
#: without it: an optimizer in the cache is predicted several times too fast.
_LARGE = 1 << 20
_SMALL = 16
_MOST_BYTES_OF_ONE = 4 << 20
_REPEATS = 5
#: Calls between two events of an accelerator.
#: tuned by: no measurement is known.
#: without it: what an event costs, and a device that is idle at first, count as the optimizer's.
_TRAIN = 4


@dataclasses.dataclass
class Costs:
    """What a step takes and holds beyond its operators."""

    time: object  # _C.predict.StepCosts
    optimizer: object  # _C.predict.OptimizerMemory


@dataclasses.dataclass
class Measured:
    """What a rank has measured, whatever part of the parameters it holds."""

    accumulate_ns_per_byte: float
    lines: list  # of each parameter group; see _optimizer_lines()
    cores: int = 1  # of the host with the fewest, on which its ranks run


def measure(parameters, task, ranks, hosts) -> Measured:
    """Every rank measures, and the median of ``ranks`` counts, which are equally fast.

    Args:
        parameters: All tensors of the model, by name.
        task: Whose optimizers are not touched.
        ranks: Of the fastest hosts.
        hosts: Name of each rank's host.
    """
    optimizers, world = task.optimizers, task.world
    world.barrier()  # side by side, as in a step: ranks of a host share its memory's bandwidth
    trained = sum(parameter.nbytes for parameter in parameters.values() if parameter.requires_grad)
    lines = [line for optimizer in optimizers for line in _optimizer_lines(optimizer, task.device)]
    mine = {"accumulate": _accumulate_ns_per_byte(trained, task.device), "groups": lines}
    all_ranks = gathered(world, mine)
    everyone = [all_ranks[rank] for rank in ranks]
    lines = [
        [statistics.median(values) for values in zip(*group, strict=True)]
        for group in zip(*(each["groups"] for each in everyone), strict=True)
    ]
    cores = min(map(len, process.cores_of_hosts(world, hosts).values()))
    return Measured(statistics.median(each["accumulate"] for each in everyone), lines, cores)


def of_parts(measured, held, parameters, task, ways=1) -> Costs:
    """Of what a rank holds.

    Args:
        held: What :func:`pyrannc.planning.groups.held` found.
        parameters: All tensors of the model, by name.
        ways: Ranks that compute layers together, and with them share the cores.
    """
    optimizers, world = task.optimizers, task.world
    group_of = {}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    for index, group in enumerate(groups):
        group_of.update({id(parameter): index for parameter in group["params"]})

    def of_optimizer(value, mine, whole):
        """Time of its step; bytes that it computes with, alone and beside those of others."""
        parameter = parameters.get(value.name) if value.kind == "parameter" else None
        if parameter is None or id(parameter) not in group_of or not value.requires_grad:
            return (0.0, 0.0, 0.0)
        fixed, *per_byte = measured.lines[group_of[id(parameter)]]
        stepped, longer = parameter.nbytes, 0
        if task.master_weights and master_weights.has_master(parameter):
            stepped = longer = master_weights.bytes_of(parameter)  # of the gradient, for a while
        stepped, longer = (each * mine // whole for each in (stepped, longer))
        ns, largest, every = (factor * stepped for factor in per_byte)
        every += longer
        return (fixed + ns, largest, every)

    # In the order of the profile's parameters, which are those of the graph.
    of_each = [of_optimizer(*each) for each in held]
    return Costs(
        _C.predict.StepCosts(
            cores=max(1.0, measured.cores / max(torch.get_num_threads(), 1)) / ways,
            accumulate_ns_per_byte=measured.accumulate_ns_per_byte,
            optimizer_ns=[ns for ns, _, _ in of_each],
            in_order=transport.in_order(world, task.device, task.config),
        ),
        _C.predict.OptimizerMemory(
            largest_bytes=[largest for _, largest, _ in of_each],
            all_bytes=[every for _, _, every in of_each],
        ),
    )


def _median_ns(call, device, *, warm_up=1):
    """Median time of ``call()``; that of this thread where it is the only one that computes. On an
    accelerator that of one in a train of calls, which keeps it from waiting for the host."""
    if device.type != "cpu":
        for _ in range(warm_up):
            call()
        marks = [elapsed.now(device, may_wait=True)]
        for _ in range(_REPEATS):
            for _ in range(_TRAIN):
                call()
            marks.append(elapsed.now(device, may_wait=True))
        return statistics.median(
            elapsed.ns_between(begin, end) / _TRAIN for begin, end in itertools.pairwise(marks)
        )
    clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    times = []
    for _ in range(warm_up + _REPEATS):
        begin = clock()
        call()
        times.append(clock() - begin)
    return statistics.median(times[warm_up:])


def _accumulate_ns_per_byte(trained_bytes, device):
    """``trained_bytes``: of the gradients; those of a large model are further out of the caches."""
    size = min(max(trained_bytes // 4, _LARGE), steps_on_copies.MOST_COPIED_BYTES // 4)
    total, summand = torch.zeros(size, device=device), torch.zeros(size, device=device)
    pool = torch.zeros(_LARGE, device=device)

    def add():
        total.add_(summand)

    ns = _median_ns(lambda: (pool.sum(), add()), device) - _median_ns(pool.sum, device)
    return max(ns, 0) / total.nbytes


def _optimizer_lines(optimizer, device):
    """For each parameter group the time of one step as (fixed per parameter, per byte), and the
    bytes that it computes with, per byte of the largest parameter and of all of them."""
    try:
        return [_group_line(optimizer, group, device) for group in optimizer.param_groups]
    except Exception as error:
        steps_on_copies.failed(optimizer, error)
        return [(0.0,) * 4] * len(optimizer.param_groups)


def _group_line(optimizer, group, device):
    sizes = [parameter.nbytes for parameter in group["params"]]
    one = min(max(sizes, default=0), _MOST_BYTES_OF_ONE) // 4
    one = max(one, 2 * _SMALL)
    # A smaller model stays cached.
    count = max(min(sum(sizes), steps_on_copies.MOST_COPIED_BYTES) // (4 * one), 1)
    small, large = (
        _median_ns(_trial(optimizer, group, [size] * count, device), device, warm_up=2) / count
        for size in (_SMALL, one)
    )
    per_byte = max(large - small, 0) / (4 * (one - _SMALL))
    return small, per_byte, *_optimizer_bytes(optimizer, group, sizes, device)


def _optimizer_bytes(optimizer, group, sizes, device):
    """What a step computes with, per byte of the largest parameter and of all of them."""
    sizes = [max(size // 4, 1) for size in sizes]
    if not sizes:
        return 0.0, 0.0
    scale = min(1, steps_on_copies.MOST_COPIED_BYTES / (4 * sum(sizes)))
    sizes = [max(int(size * scale), 1) for size in sizes]
    # Whether parameters are updated one after the other, or all together.
    few, many = (
        _peak_bytes(_trial(optimizer, group, sizes * times, device), device) for times in (1, 2)
    )
    every = max(many - few, 0) / sum(sizes)
    return max(few - every * sum(sizes), 0) / (4 * max(sizes)), every / 4


def _trial(optimizer, group, sizes, device):
    """A step of an optimizer of the same class and options over parameters of ``sizes``."""
    parameters = [torch.zeros(size, requires_grad=True, device=device) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    groups = [parameters if each is group else [] for each in optimizer.param_groups]
    held = [
        list(itertools.islice(itertools.cycle(each["params"]), len(tensors)))
        for each, tensors in zip(optimizer.param_groups, groups, strict=True)
    ]
    trial = steps_on_copies.trial(optimizer, groups, held)
    return lambda: steps_on_copies.step(optimizer, trial)


def _peak_bytes(step, device):
    step()  # makes the state
    with _C.runtime.MemoryRecorder(str(device)) as memory:
        step()
    return memory.peak_bytes
