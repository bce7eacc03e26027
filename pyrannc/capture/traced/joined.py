"""The graph of a model by torch's tracer: what several traces have in common.

The model runs on tensors without data, at several numbers of rows; an integer that differs between
the traces depends on the rows.
"""

import torch

from pyrannc import _C, progress
from pyrannc.capture import hook_probes
from pyrannc.capture.arguments import pytree
from pyrannc.capture.attributes import second_calls
from pyrannc.capture.attributes.caches import UserCaches
from pyrannc.capture.captured import Capture
from pyrannc.capture.explained import SizeUnknown
from pyrannc.capture.fake_mode import FakeMode, fake_like
from pyrannc.capture.rows.whole_batch import OF_NO_ROWS, Alone, Traced
from pyrannc.capture.torch_private import FakeTensorMode
from pyrannc.capture.traced.one_trace import one_trace
from pyrannc.errors import TraceError

# In torch 2.11 built for CUDA, where there is no GPU, the first fake mode of a process leaves a
# pointer to something that dies with its thread: that must not be the thread of a capture.
with FakeTensorMode():
    pass

# Numbers of rows to trace at; three prove that what depends on them does so linearly.
_ROWS = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
_TRACES = 3


def captured(*of_call) -> Capture:
    """See :func:`pyrannc.capture.model.capture`."""
    mode = FakeMode(allow_non_fake_inputs=True)
    with UserCaches() as mode.user_caches:
        return _joined(mode, *of_call)


def _joined(mode, model, call, names, dims, states, choices, places, batch):
    """One graph of the traces at several numbers of rows, or of one for ``batch.rows`` alone."""
    with torch.inference_mode(False), mode:
        fakes = {id(tensor): fake_like(tensor, places) for _, tensor, _ in states}
    replaced = set()  # ids of buffers
    whole = set()  # paths of modules
    watched = choices.hooks and choices.hooks.watched

    def trace(rows, probes):
        def once():
            while True:
                try:
                    return one_trace(
                        model, call, names, dims, states, mode, fakes, rows, replaced, whole,
                        choices.hooks, probes,
                    )  # fmt: skip
                except SizeUnknown as error:  # at most once for each module
                    if not error.module or error.module in whole:
                        raise
                    whole.add(error.module)

        traced = once()
        if not traced.replaced <= replaced:  # only the end of a trace tells
            replaced.update(traced.replaced)
            traced = once()
        return traced

    def of_any_rows():
        numbers, probes = trace_rows(call, dims), []
        if watched:
            seen = [trace(rows, None).watching.seen for rows in numbers[:2]]
            probes = hook_probes.find(*seen, *numbers[:2])
        if batch.rows not in (None, 1, *numbers):
            numbers = [*numbers[:2], batch.rows]
        found = []
        for rows in numbers:
            found.append(trace(rows, probes))
            progress.advance(len(found), len(numbers))
        outputs = pytree.of_rows([each.shape for each in found], numbers)
        traces, last = [each.trace for each in found], found[-1]
        joined = _C.frontend.join(traces)
        if batch.rows == 1:  # of which it is another layout in memory, but no other result
            one = trace(1, probes)
            whole = Traced(joined.graph, joined.objects, outputs)
            if why := whole.difference(_plain(one.trace, one.shape), 1):
                raise TraceError(why)
        for again in last.again:
            try:
                _C.frontend.join([*traces[:-1], again])
            except TraceError as error:
                raise second_calls.computes_otherwise(last.changes) from error
        return Capture(joined, call, dims, outputs, states, choices, probes, last)

    def of_these_rows(why):
        traced = trace(batch.rows, [])
        others = [trace(batch.rows, []).trace, *traced.again]
        own = _plain(traced.trace, traced.shape)
        for other in others:
            if found := own.difference(_plain(other, traced.shape), batch.rows):
                raise second_calls.computes_otherwise(traced.changes) from TraceError(found)
        graph = _C.ir.for_rows_alone(own.graph, batch.rows)
        made = _C.frontend.Capture(graph, own.objects)
        alone = Alone(batch.rows, why)
        return Capture(made, call, dims, own.shape, states, choices, [], traced, alone)

    if batch.known is not None:
        traced = trace(batch.rows, batch.known.probes)
        own = _plain(traced.trace, traced.shape)
        why = batch.known.traced().difference(own, batch.rows)
        if why and watched:
            raise TraceError(f"the model computes otherwise at {batch.rows} rows: {why}")
        return of_these_rows(why) if why else batch.known
    try:
        return of_any_rows()
    except TraceError as error:
        if not batch.may_be_alone or watched or isinstance(error, OF_NO_ROWS):
            raise
        refused = error
    try:
        return of_these_rows(str(refused))
    except TraceError:
        raise refused from refused.__cause__
    finally:
        del refused


def _plain(trace, shape):
    return Traced(trace.graph, trace.objects, shape)


def trace_rows(call, dims):
    """Batch sizes to trace at, away from the other sizes that the model sees."""
    taken = {
        size
        for tensor, dim in zip(call.tensors, dims, strict=True)
        for d, size in enumerate(tensor.shape)
        if d != dim
    }
    free = [rows for rows in _ROWS if rows not in taken]
    return (free + [rows for rows in _ROWS if rows in taken])[:_TRACES]
