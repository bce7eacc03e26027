"""What every operator of a graph costs: times measured, saved bytes from autograd's own hooks."""

import dataclasses
import math

import torch

from pyrannc import _C, log, progress
from pyrannc.capture import torch_favours
from pyrannc.capture.fake_mode import FakeMode
from pyrannc.job import device_facts
from pyrannc.profiling.cache import ProfileCache, ProfileFile, environment_of_process
from pyrannc.ranks import of_rank, on_rank


def profile(
    graph,
    objects,
    world,
    local_rows,
    cache_folder="off",
    device="cpu",
    load_file="",
    save_file="",
    rows=None,
    known=None,
    ranks=None,
):
    """Costs of all nodes of ``graph``, equal on every rank, and the :class:`Traced` behind them.

    Collective. Each distinct operator is timed once, forward and backward, at a few numbers of
    rows; the ranks share the work.

    Args:
        graph: ``_C.ir.Graph``.
        objects: The torch objects that it refers to.
        world: The communicator of the job.
        local_rows: Rows of one rank's batch.
        cache_folder: Of costs that earlier runs have measured; see :class:`ProfileCache`.
        device: On which the operators run.
        load_file: Of such costs, which count whatever machine they were measured on; or empty.
        save_file: Where all costs of this graph are written; or empty.
        rows: Numbers of them to time at; default: :func:`row_counts`.
        known: What was timed before for this job, the same on all ranks; what is timed is added.
        ranks: Those that share the work, on equal hosts; default: all.
    """
    rows = rows or row_counts(local_rows)
    # Python's share of the work is short and the same everywhere: one rank does it.
    traced = trace(graph, objects, rows, device) if world.rank == 0 else None
    traced = of_rank(0, world, traced)
    files = load_file, save_file
    costs = time_operators(
        graph, objects, traced, world, rows, cache_folder, device, *files, known, ranks
    )
    return costs, traced


def time_operators(
    graph,
    objects,
    traced,
    world,
    rows,
    cache_folder="off",
    device="cpu",
    load_file="",
    save_file="",
    known=None,
    ranks=None,
):
    """The measured part of :func:`profile`: times all distinct operators at each of ``rows``, but
    for those that rank 0 finds in the cache."""
    place = torch.device(device)
    environment = environment_of_process(place)
    if ranks:
        environment = of_rank(ranks[0], world, environment)
    cache = ProfileCache(cache_folder, environment) if world.rank == 0 else None

    def stored():
        keys = _C.profile.keys(graph, rows, traced.strides)
        return cache.read(keys) | (ProfileFile(load_file).read(keys) if load_file else {})

    before = {} if known is None else known
    known = on_rank(0, world, stored) | before
    with progress.phase("measuring operators", world.rank == 0):
        table, measured = _C.profile.measure(
            graph,
            objects,
            traced.saved,
            world,
            rows,
            traced.strides,
            device=str(device),
            cache_bytes=0 if place.type == "cpu" else device_facts.cache_bytes(place),
            progress=progress.advance,
            known=known,
            ranks=ranks or [],
        )
    if world.rank == 0:
        cache.add({key: costs for key, costs in measured.items() if key not in known})
    if save_file:
        on_rank(0, world, lambda: ProfileFile(save_file).write(known | measured))
    before |= measured
    return table


def row_counts(local_rows):
    """The numbers of rows to time: two or three, up to a rank's batch.

    Never one row, at which some operators take other paths (batch normalisation refuses it).
    """
    counts = sorted({2, max(2, math.ceil(local_rows / 2)), max(2, local_rows)})
    return counts if len(counts) > 1 else [2, 4]


@dataclasses.dataclass
class Traced:
    """What fake tensors tell about a graph.

    Attributes:
        saved: [node][number of rows]: bytes of the device that autograd keeps for the backward.
            Each storage counts at the first node that saves it; parameters, buffers and constants
            are there anyway.
        storages: The same by storage: (nodes that save it, bytes at each number of rows). A stage
            that holds only later ones of these nodes keeps it, too.
        strides: [first, last number of rows][node][operand]: empty where they are not known, or no
            lines in the rows.
    """

    saved: list
    storages: list
    strides: list


def trace(graph, objects, rows, device="cpu") -> Traced:
    """Runs ``graph`` on fake tensors at the first and at the last number of ``rows``, or at all of
    them where sizes are no lines in the rows.

    Takes neither memory nor arithmetic, so some operators (those whose result depends on data)
    cannot run; then the bytes are estimated from the graph, and there are no strides.
    """
    line = _C.ir.sizes_are_linear(graph)
    try:
        found = [
            _trace_at(graph, objects, n, str(device))
            for n in ((rows[0], rows[-1]) if line else rows)
        ]
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        log.warn("profile", f"bytes saved for backward are estimated, not measured: {reason}")
        table = _C.cost.estimate(graph, _C.cost.device_model("cpu"), rows)
        saved = [[cost.saved_bytes for cost in node] for node in table.node]
        return Traced(saved, [[[node], sizes] for node, sizes in enumerate(saved)], [])
    traces = [storages for storages, _ in found]
    if any([nodes for nodes, _ in trace] != [nodes for nodes, _ in traces[0]] for trace in traces):
        # What is saved depends on the number of rows; what each node saves has a size at each.
        traces = [_by_first_node(storages, len(graph.nodes)) for storages in traces]
    storages = []
    for same in zip(*traces, strict=True):
        sizes = [size for _, size in same]
        if line:
            shares = [(count - rows[0]) / max(rows[-1] - rows[0], 1) for count in rows]
            sizes = [round(sizes[0] + share * (sizes[1] - sizes[0])) for share in shares]
        storages.append([same[0][0], sizes])
    saved = [[0] * len(rows) for _ in range(len(graph.nodes))]
    for nodes, sizes in storages:
        saved[nodes[0]] = [sum(pair) for pair in zip(saved[nodes[0]], sizes, strict=True)]
    return Traced(saved, storages, [found[0][1], found[-1][1]] if line else [])


def _by_first_node(storages, count):
    sums = [0] * count
    for nodes, size in storages:
        sums[nodes[0]] += size
    return [([node], size) for node, size in enumerate(sums)]


def _trace_at(graph, objects, rows, device):
    """(nodes that save it, bytes) of each storage, and each node's strides, at ``rows`` rows."""
    kept = {}  # by address; a storage that is held keeps its address
    strides = []
    kind = torch.device(device).type

    def enter(_, operands):
        strides.append(operands)

    def pack(tensor):
        if tensor.device.type != kind:  # of the host beside it
            return
        storage = tensor.untyped_storage()
        _, nodes = kept.setdefault(storage._cdata, (storage, []))
        if len(strides) - 1 not in nodes:
            nodes.append(len(strides) - 1)

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed)
    with torch.inference_mode(False), FakeMode(), hooks:
        tensors, is_input = _C.profile.placeholders(graph, rows, device)
        state = {
            tensor.untyped_storage()._cdata
            for tensor, batched in zip(tensors, is_input, strict=True)
            if not batched
        }
        with torch_favours.without_cudnn():  # its recurrent layers look at what they draw
            _C.profile.replay(graph, objects, tensors, rows, enter, device)
    found = [
        (nodes, storage.nbytes()) for key, (storage, nodes) in kept.items() if key not in state
    ]
    return found, strides
