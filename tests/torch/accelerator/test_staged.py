"""Plans of two ranks, each a thread with a stand-in device of its own, against one process.

Their messages and sums go through pinned memory of the host. What a missing step of that does is
tried, too: a suite that cannot see it would prove nothing.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import standin
import torch
from graph_text import GraphText
from pipeline import local_state, make_plan, make_tensors, rows_of_rank, run_directly, run_ranks

from pyrannc import _C, errors

LOCAL_ROWS = [5, 3]
LOSS_GRADIENT = torch.tensor(0.25, dtype=torch.float64)
PLANS = {
    "replicas": ([[0, 1]], "gpipe"),
    "gpipe": ([[0], [1]], "gpipe"),
    "1f1b": ([[0], [1]], "1f1b"),
    "interleaved": ([[0], [1], [0], [1]], "interleaved"),
}
StreamMistake, MessageMistake = _C.comm.StreamMistake, _C.comm.MessageMistake


class Result:
    """Of a run: the largest error of losses and gradients of all ranks, NaN counts as infinite; and
    by whom the device was waited for and given work."""

    def __init__(self, error, waits, issues, threads):
        self.error, self.waits, self.issues, self.threads = error, waits, issues, threads

    def strangers(self):
        """Threads that gave work to a device, although they are neither a rank's, nor autograd's of
        a device, nor that which copies for messages."""
        names = {name for name, _ in self.issues}
        known = ("pt_autograd", "rannc-staged", *(f" {thread}" for thread in self.threads))
        return {n for n in names if not n.startswith(known) and not n.endswith(known)}


def layers(width=6):
    graph = GraphText()
    h = graph.input("x", ("B", width))
    for layer in range(4):
        h = graph.linear(h, f"layer{layer}", width)
    return graph, graph.text([graph.mean(h)])


def large(width=200_000):
    """A message of its one border has several pieces."""
    graph = GraphText()
    h = graph.input("x", ("B", width))
    for layer in range(4):
        scale = graph.parameter(f"scale{layer}", (width,))
        h = graph.call("aten::mul.Tensor", [h, scale], ("B", width))
    return graph, graph.text([graph.mean(h)])


def run(
    name,
    stream=None,
    message=None,
    micro_batches=4,
    model=layers,
    pinned_bytes=1 << 28,
    before=None,
    connect=None,
):
    """Under plan ``name``; ``stream`` and ``message``: mistakes that are planted; ``before`` is
    called once before the forward; ``connect``: see on_devices.run()."""
    ranks, schedule = PLANS[name]
    graph, text = model()
    plan = make_plan(graph.node_names, ranks, micro_batches, schedule=schedule)
    plan["interleave"] = max(len(ranks) // 2, 1)
    plan = _C.plan.Plan.from_json(json.dumps(plan))
    state, x = graph.state(), make_tensors(graph.inputs, sum(LOCAL_ROWS))
    standin.keep_to(1, 2)

    def one_rank(communicator):
        index = communicator.rank + 1
        device = f"standin:{index}"
        standin.set_device(index)
        if connect is None:
            staged = _C.runtime.staged(communicator, device, pinned_bytes)
        else:
            staged = connect(communicator, device)
        order = _C.runtime.device_stream(device)
        executor = _C.runtime.Executor(
            _C.ir.parse(text),
            [],
            plan,
            staged if message is None else _C.comm.careless(staged, message),
            device=device,
            stream=order if stream is None else _C.comm.careless(order, stream),
        )
        # Not the first stream: whoever takes another one is seen.
        torch.accelerator.set_stream(standin.Stream(index))
        on_device = {name: tensor.to(device) for name, tensor in state.items()}
        parameters, buffers = local_state(executor, on_device)
        own = [
            tensor.to(device) for tensor in rows_of_rank(communicator.rank, graph, x, LOCAL_ROWS)
        ]
        gradient = LOSS_GRADIENT.to(device)
        communicator.barrier()
        standin.clear_counts()
        if before is not None and communicator.rank == 0:
            before()
        communicator.barrier()
        call = executor.forward(own, parameters, buffers, LOCAL_ROWS, True)
        loss = call.outputs[0]
        gradients = call.backward([gradient])[: len(parameters)]
        communicator.barrier()
        waits, issues = standin.waits(), standin.issues()
        communicator.barrier()
        gradients = [gradient.cpu() for gradient in gradients]
        thread = threading.get_native_id()
        return loss.cpu(), dict(zip(executor.parameter_names, gradients, strict=True)), (
            waits, issues, thread,
        )  # fmt: skip

    direct = run_directly(text, state, x, sum(LOCAL_ROWS), [LOSS_GRADIENT])
    errors, counted = [], []
    for loss, gradients, counts in run_ranks(2, one_rank):
        counted.append(counts)
        errors.append((loss - direct.outputs[0]).abs().max())
        errors += [(found - direct.gradients[k]).abs().max() for k, found in gradients.items()]
    waits, issues, _ = counted[0]
    error = torch.stack(errors).nan_to_num(torch.inf).max().item()
    return Result(error, waits, issues, [thread for *_, thread in counted])


@pytest.mark.parametrize("delay_us", [0, 300])
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_on_two_devices_equals_one_process(name, delay_us):
    standin.set_delay(delay_us)
    result = run(name)
    assert result.error < 1e-12
    assert result.strangers() == set()


@pytest.mark.parametrize("name", PLANS)
def test_only_the_thread_that_copies_for_messages_waits_for_the_device(name):
    result = run(name)
    assert {thread.split()[0] for thread, _ in result.waits} == {"rannc-staged"}, result.waits


# Mistakes. Each plan has messages, or a sum.


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("mistake", ["records_nothing", "waits_for_nothing", "of_another_thread"])
def test_a_mistake_in_the_order_of_a_stream_is_seen(name, mistake):
    standin.set_delay(2000)
    assert not run(name, stream=getattr(StreamMistake, mistake)).error < 1e-3


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved"])
def test_a_tensor_that_is_dropped_before_its_message_has_gone_is_seen(name):
    def is_seen(delay):  # long beside what a busy host takes to hand the memory out again
        standin.set_delay(delay)
        return not run(name, message=MessageMistake.forgets_sends).error < 1e-3

    assert any(map(is_seen, (30_000, 100_000, 300_000)))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved"])
def test_a_second_thread_that_issues_is_seen(name):
    assert run(name, message=MessageMistake.issues_elsewhere).strangers()


# Each in a process of its own, which nothing of a device has run in yet.
POINTERS = """
import os
import signal
import standin
import test_staged

def signal_of(name):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # against hangs
        standin.start(devices=4, memory_bytes=256 << 20, delay_us=0)
        test_staged.run(name, connect=lambda host, device: host)
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])

print(signal_of("gpipe"), signal_of("replicas"))
"""


def test_an_address_of_the_device_that_the_host_reads_is_seen():
    """The ranks' own communicator sends and sums what it is handed: memory of the host."""
    paths = [os.path.dirname(__file__), *sys.path]
    job = subprocess.run(
        [sys.executable, "-c", POINTERS],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=200,
    )
    seen = f"{signal.SIGSEGV.value} {signal.SIGSEGV.value}"
    assert job.stdout.splitlines()[-1:] == [seen], job.stdout + job.stderr


# Memory of the host.


def test_a_message_travels_in_pieces_through_bounded_pinned_memory():
    bound = 6 << 20
    result = run("gpipe", micro_batches=1, model=large, pinned_bytes=bound)
    assert result.error < 1e-12
    message = sum(LOCAL_ROWS) * 200_000 * 8
    # Both ranks are in this process.
    assert 4 << 20 <= standin.most_pinned_bytes() <= 2 * bound < message


@pytest.mark.parametrize("name", PLANS)
def test_without_pinned_memory_messages_go_through_ordinary_memory(name, capfd):
    before = []
    assert (
        run(name, pinned_bytes=0, before=lambda: before.append(standin.most_pinned_bytes())).error
        < 1e-12
    )
    assert before == [standin.most_pinned_bytes()]


def test_memory_that_cannot_be_pinned_is_replaced_and_said_once(capfd):
    standin.fail("pinned")
    assert run("gpipe").error < 1e-12
    standin.fail("pinned")
    assert run("gpipe").error < 1e-12
    err = capfd.readouterr().err
    assert err.count("no pinned memory for messages of standin:") == 1, err


# What fails.


@pytest.mark.parametrize("nth", [1, 6, 15])  # in forward, in backward
def test_memory_that_runs_out_on_one_rank_ends_both(nth):
    def refuse(*_):
        standin.fail("allocation", nth)

    begin = time.monotonic()
    with pytest.raises((RuntimeError, errors.CommError), match="memory"):
        run("gpipe", before=refuse)
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("nth", [1, 3, 5, 7])
def test_a_copy_that_fails_is_an_error_of_the_operation_that_names_it(nth):
    # Of the message; the device itself does nothing any more, as CUDA's would not. The rank may be
    # waiting meanwhile for one that waits for this message.
    with pytest.raises((errors.CommError, RuntimeError), match=r"a copy of \d+ bytes failed"):
        run("gpipe", before=lambda: standin.fail("copy", nth))


def test_a_device_that_does_not_come_to_a_copy_ends_at_the_deadline():
    def one_rank(communicator):
        communicator.timeout_s = 1.0
        device = f"standin:{communicator.rank + 1}"
        standin.set_device(communicator.rank + 1)
        staged = _C.runtime.staged(communicator, device)
        graph, text = layers()
        plan = make_plan(graph.node_names, [[0], [1]], 1)
        executor = _C.runtime.Executor(
            _C.ir.parse(text), [], _C.plan.Plan.from_json(json.dumps(plan)), staged, device=device
        )
        state = {name: tensor.to(device) for name, tensor in graph.state().items()}
        parameters, buffers = local_state(executor, state)
        own = [
            tensor.to(device)
            for tensor in rows_of_rank(
                communicator.rank, graph, make_tensors(graph.inputs, 8), [5, 3]
            )
        ]
        try:
            if communicator.rank == 0:
                with standin.held():
                    begin = time.monotonic()
                    try:
                        executor.forward(own, parameters, buffers, LOCAL_ROWS, True)
                    finally:
                        assert time.monotonic() - begin < 30
            else:
                executor.forward(own, parameters, buffers, LOCAL_ROWS, True)
        except errors.CommError as error:
            return str(error)
        return ""

    texts = run_ranks(2, one_rank)
    assert "waited 1 s for its device to copy the" in texts[0], texts
    assert "waited 1 s for the activation" in texts[1], texts


def test_a_rank_that_ends_while_another_one_waits_is_an_error_there():
    def one_rank(communicator):
        communicator.timeout_s = 60.0
        device = f"standin:{communicator.rank + 1}"
        standin.set_device(communicator.rank + 1)
        if communicator.rank == 1:
            communicator.abort("rank 1 is gone")
            return ""
        staged = _C.runtime.staged(communicator, device)
        graph, text = layers()
        plan = make_plan(graph.node_names, [[0], [1]], 1)
        executor = _C.runtime.Executor(
            _C.ir.parse(text), [], _C.plan.Plan.from_json(json.dumps(plan)), staged, device=device
        )
        state = {name: tensor.to(device) for name, tensor in graph.state().items()}
        own = [t.to(device) for t in rows_of_rank(0, graph, make_tensors(graph.inputs, 8), [5, 3])]
        try:
            executor.forward(own, *local_state(executor, state), LOCAL_ROWS, True)
        except errors.CommError as error:
            return str(error)
        return "no error"

    begin = time.monotonic()
    texts = run_ranks(2, one_rank)
    assert time.monotonic() - begin < 30
    assert "rank 1 is gone" in texts[0]
