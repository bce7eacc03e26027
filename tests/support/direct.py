"""What rank threads compute under a plan against direct execution of the whole graph."""

import torch
from pipeline import make_executor, make_tensors, one_call, rows_of, run_directly, run_ranks


def assert_close(actual, expected, what):
    assert (actual is None) == (expected is None), what
    if expected is None:
        return
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, what
    torch.testing.assert_close(
        actual, expected, rtol=1e-10, atol=1e-10, msg=lambda m: f"{what}: {m}"
    )


def check(graph, outputs, plan, local_rows, seed=0):
    """Outputs, gradients of parameters and of inputs, and buffers, on every rank."""
    check_calls(graph, outputs, plan, [local_rows], seed)


def check_calls(graph, outputs, plan, batches, seed=0):
    """One executor per rank runs ``batches``, the local rows of all ranks in each."""
    state = graph.state(seed)
    data = [
        (
            local_rows,
            make_tensors(graph.inputs, sum(local_rows), seed + 1),
            make_tensors(outputs, sum(local_rows), seed + 2),
        )
        for local_rows in batches
    ]

    def one_rank(communicator):
        executor = make_executor(graph.text(outputs), plan, communicator)
        return [
            one_call(executor, communicator.rank, graph, outputs, state, inputs, rows, grads)
            for rows, inputs, grads in data
        ]

    ranks = run_ranks(len(batches[0]), one_rank)
    for index, (local_rows, inputs, output_grads) in enumerate(data):
        direct = run_directly(graph.text(outputs), state, inputs, sum(local_rows), output_grads)
        compare(graph, outputs, local_rows, [results[index] for results in ranks], direct)


def compare(graph, outputs, local_rows, ranks, direct):
    begin = 0
    for rank, result in enumerate(ranks):
        end = begin + local_rows[rank]
        for index, value in enumerate(outputs):
            expected = rows_of(direct.outputs[index], value.rows, begin, end)
            assert_close(result.outputs[index], expected, f"rank {rank}, output {value}")
        for name, gradient in result.gradients.items():
            if direct.gradients[name] is None:  # a missing gradient travels as zeros
                assert gradient is None or not gradient.any(), name
                continue
            assert_close(gradient, direct.gradients[name], f"rank {rank}, gradient of {name}")
        for index, (gradient, value) in enumerate(
            zip(result.input_gradients, graph.inputs, strict=True)
        ):
            expected = direct.input_gradients[index]
            if gradient is None or expected is None:  # no rows, or a missing gradient
                assert gradient is None or not gradient.any(), value
                continue
            expected = rows_of(expected, value.rows, begin, end)
            assert_close(gradient, expected, f"rank {rank}, gradient of {value}")
        for name, buffer in result.buffers.items():
            assert_close(buffer, direct.buffers[name], f"rank {rank}, buffer {name}")
        begin = end
    held = {name for result in ranks for name in result.gradients}
    assert held >= {name for name, gradient in direct.gradients.items() if gradient is not None}
