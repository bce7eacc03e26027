"""Runs a graph under a plan, ranks as threads of this process, and directly, to compare them."""

import dataclasses
import itertools
import json
import threading

import torch

from pyrannc import _C


@dataclasses.dataclass
class Result:
    """What one run gave: on one rank, or, run directly, for the whole batch."""

    outputs: list
    gradients: dict  # of parameters, by name
    buffers: dict
    input_gradients: list


def layout(rows):
    """``(dim, outer, inner)`` of the text form of rows, or None for scalars."""
    if rows is None or not rows.startswith("apart("):
        return None
    dim, *named = rows.removeprefix("apart(").removesuffix(")").split(",")
    named = dict(item.strip().split("=") for item in named)
    return int(dim), int(named.get("outer", 1)), int(named.get("inner", 1))


def rows_of(tensor, rows, begin, end):
    """Rows [begin, end) of a value in the layout ``rows``; scalars as they are."""
    if layout(rows) is None:
        return tensor
    dim, outer, inner = layout(rows)
    count = tensor.shape[dim] // (outer * inner)
    parts = tensor.unflatten(dim, (outer, count, inner))
    return parts.narrow(dim + 1, begin, end - begin).flatten(dim, dim + 2)


def make_tensors(values, rows, seed=1):
    """Random tensors of the sizes of ``values`` at ``rows`` rows; integers below 5."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for value in values:
        sizes = [eval(str(size), {"B": rows}) for size in value.sizes]
        if value.dtype == "int64":
            tensors.append(torch.randint(5, sizes, generator=generator))
        else:
            tensors.append(torch.randn(sizes, generator=generator, dtype=torch.float64))
    return tensors


def make_plan(node_names, stage_ranks, micro_batches, recompute=False, schedule="gpipe"):
    """Equal numbers of nodes for each stage."""
    cuts = [len(node_names) * s // len(stage_ranks) for s in range(len(stage_ranks) + 1)]
    nodes = [node_names[begin:end] for begin, end in itertools.pairwise(cuts)]
    return plan_of_stages(nodes, stage_ranks, micro_batches, recompute, schedule)


def plan_of_stages(stage_nodes, stage_ranks, micro_batches, recompute=False, schedule="gpipe"):
    """``recompute``: of all stages, or by their nodes."""
    again = recompute if callable(recompute) else lambda nodes: recompute
    return {
        "format": "rannc-plan",
        "version": 3,
        "schedule": schedule,
        "micro_batches": micro_batches,
        "stages": [
            {"nodes": nodes, "ranks": ranks, "recompute": again(nodes)}
            for nodes, ranks in zip(stage_nodes, stage_ranks, strict=True)
        ],
    }


def rows_of_rank(rank, graph, inputs, local_rows):
    """The inputs of one rank, out of those of all ranks."""
    begin = sum(local_rows[:rank])
    return [
        rows_of(tensor, value.rows, begin, begin + local_rows[rank])
        for tensor, value in zip(inputs, graph.inputs, strict=True)
    ]


def run_directly(text, state, inputs, rows, output_grads):
    """The graph at once on the whole batch, with autograd."""
    interpreter = _C.runtime.Interpreter(_C.ir.parse(text), [])
    state = {name: tensor.clone() for name, tensor in state.items()}
    leaves = {n: t for n, t in state.items() if f"parameter {n}:" in text}
    for tensor in leaves.values():
        tensor.requires_grad_()
    inputs = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
    given = [state[name] for name in interpreter.state_names()]
    outputs = interpreter.run(inputs, given, rows)
    wanted = [(o, g) for o, g in zip(outputs, output_grads, strict=True) if o.requires_grad]
    if wanted:
        torch.autograd.backward(*map(list, zip(*wanted, strict=True)))
    return Result(
        [output.detach() for output in outputs],
        {name: tensor.grad for name, tensor in leaves.items()},
        {name: tensor for name, tensor in state.items() if name not in leaves},
        [tensor.grad for tensor in inputs],
    )


def run_ranks(ranks, function, timeout_s=20.0):
    """``[function(communicator), ...]``, one thread per rank; the first error ends all of them."""
    results, errors = [None] * ranks, []

    def work(rank, communicator):
        try:
            results[rank] = function(communicator)
        except BaseException as error:
            errors.append(error)
            communicator.abort(f"rank {rank}: {error}")

    communicators = _C.comm.make_local(ranks, timeout_s)
    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(communicators)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def make_executor(text, plan, communicator):
    return _C.runtime.Executor(
        _C.ir.parse(text), [], _C.plan.Plan.from_json(json.dumps(plan)), communicator
    )


def local_state(executor, state):
    """This rank's own copies of the parameters, as leaves, and of the buffers."""
    parameters = [state[name].clone().requires_grad_() for name in executor.parameter_names]
    return parameters, [state[name].clone() for name in executor.buffer_names]


def run_plan(graph, outputs, plan, state, inputs, local_rows, output_grads):
    """The graph under a plan; ``inputs`` and ``output_grads`` hold the rows of all ranks."""

    def one_rank(communicator):
        executor = make_executor(graph.text(outputs), plan, communicator)
        return one_call(
            executor, communicator.rank, graph, outputs, state, inputs, local_rows, output_grads
        )

    return run_ranks(len(local_rows), one_rank)


def one_call(executor, rank, graph, outputs, state, inputs, local_rows, output_grads):
    """Forward and backward of one rank; ``inputs`` and ``output_grads`` hold the rows of all ranks.

    As the contract of Call.backward says, a rank's loss counts by its rows: its own gradients of
    outputs with rows are divided by that weight first. A backward of twice as much comes first, on
    the same graph: the gradients are bit by bit twice as large, and nothing of it is left.
    """

    def own_gradient(gradient, value):
        if value.dtype != "float64":
            return None
        if layout(value.rows) is None:
            return gradient
        return rows_of(gradient, value.rows, begin, end) / max(weight, 1e-300)

    begin = sum(local_rows[:rank])
    end = begin + local_rows[rank]
    weight = (end - begin) / sum(local_rows)
    parameters, buffers = local_state(executor, state)
    own = rows_of_rank(rank, graph, inputs, local_rows)
    call = executor.forward(own, parameters, buffers, local_rows, True)
    given = call.outputs
    own_grads = list(map(own_gradient, output_grads, outputs))
    doubled = call.backward([g if g is None else 2 * g for g in own_grads], keep_graph=True)
    gradients = call.backward(own_grads)
    for first, second in zip(doubled, gradients, strict=True):
        assert (first is None) == (second is None)
        assert first is None or torch.equal(first, 2 * second)
    names = executor.parameter_names
    return Result(
        given,
        dict(zip(names, gradients[: len(names)], strict=True)),
        dict(zip(executor.buffer_names, buffers, strict=True)),
        gradients[len(names) :],
    )
