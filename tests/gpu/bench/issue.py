"""Whether the device waits for the host: what a step takes to be issued, and to be done."""

import collections
import statistics
import time

import device
import torch

REPEATS = 5
ANNOTATIONS = ("Optimizer.", "ProfilerStep")  # ranges that torch marks, and no work


def times_ms(step):
    """Milliseconds of one step: of the host until it has issued it, and of the device until it has
    done it, from when it had nothing to do.

    A device takes on some thousand kernels and no more: a host that is far ahead waits for it, so
    the host's time is then that of the device, and an upper bound.
    """
    host, on_device = [], []
    for _ in range(REPEATS):
        torch.accelerator.synchronize()
        begin, end = (device.module().Event(enable_timing=True) for _ in range(2))
        start = time.perf_counter()
        begin.record()
        step()
        end.record()
        host.append(1e3 * (time.perf_counter() - start))
        torch.accelerator.synchronize()
        on_device.append(begin.elapsed_time(end))
    return statistics.median(host), statistics.median(on_device)


def idle_share(step, step_s, count=3):
    """Share of a step of ``step_s`` seconds in which no kernel and no copy is under way, by torch's
    profiler."""
    if device.NAME != "cuda":
        raise NotImplementedError("the profiler does not see the stand-in device")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(count):
            step()
        torch.accelerator.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not getattr(event, "is_user_annotation", False)
        and not event.name.startswith(ANNOTATIONS)
    )
    if not spans:
        raise RuntimeError("the profiler has seen no kernel")
    busy_us = covered(spans)
    return max(1 - busy_us / 1e6 / count / step_s, 0.0)


def covered(spans):
    """Length of what sorted ``(begin, end)`` cover together."""
    total, until = 0, float("-inf")
    for begin, end in spans:
        total += max(end - max(begin, until), 0)
        until = max(until, end)
    return total


def operators_beyond(plain, step, most=6):
    """Operators that one call of ``step`` makes more often than one of ``plain``, as text: those
    with the largest differences."""
    before, after = (counts(each) for each in (plain, step))
    more = {name: count - before[name] for name, count in after.items() if count > before[name]}
    largest = sorted(more, key=more.get, reverse=True)[:most]
    return ", ".join(f"{name.removeprefix('aten::')} {more[name]}" for name in largest) or "none"


def counts(step):
    """How often each operator of torch is called in one step."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
        torch.accelerator.synchronize()
    found = collections.Counter()
    for event in profiler.key_averages():
        if event.key.startswith("aten::"):
            found[event.key] += event.count
    return found
