from __future__ import annotations
import collections.abc
import pyrannc._C.comm
import pyrannc._C.ir
import pyrannc._C.plan
import torch
import typing
__all__: list[str] = ['Backend', 'Call', 'DrawSteps', 'Executor', 'Interpreter', 'KeptGradients', 'MOST_OUTPUTS', 'MemoryRecorder', 'Span', 'Times', 'backend_of', 'connect_shards', 'device_stream', 'join_autograd', 'measure_links', 'move_parts', 'nccl', 'random_state', 'reconnect_nccl', 'reuse_freed_blocks', 'seed_generator', 'set_random_state', 'staged', 'start_all_gather', 'start_reduce_scatter', 'start_sum', 'trace_events', 'wait_for']
class Interpreter:
    def __init__(self, graph: pyrannc._C.ir.Graph, objects: collections.abc.Sequence, device: str = 'cpu') -> None:
        ...
    def run(self, inputs: collections.abc.Sequence[torch.Tensor], state: collections.abc.Sequence[torch.Tensor], rows: typing.SupportsInt | typing.SupportsIndex) -> list[torch.Tensor]:
        ...
    def run_row_free_effects(self, state: collections.abc.Sequence[torch.Tensor]) -> None:
        ...
    def state_names(self) -> list[str]:
        ...
class MemoryRecorder:
    def __enter__(self) -> MemoryRecorder:
        ...
    def __exit__(self, *args) -> None:
        ...
    def __init__(self, device: str | None = None) -> None:
        """
        Of one device, or of all memory.
        """
    def reset_peak(self) -> None:
        ...
    @property
    def current_bytes(self) -> int:
        ...
    @property
    def peak_bytes(self) -> int:
        ...
class Backend:
    """
    What the backend of an accelerator offers.
    """
    @property
    def events(self) -> bool:
        ...
    @property
    def generator(self) -> bool:
        ...
    @property
    def timed_events(self) -> bool:
        ...
class Call:
    def backward(self, output_grads: collections.abc.Sequence[torch.Tensor | None], keep_graph: bool = False) -> list[torch.Tensor | None]:
        ...
    @property
    def communicates(self) -> bool:
        ...
    @property
    def outputs(self) -> list[torch.Tensor | None]:
        ...
class KeptGradients:
    """
    Gradients of backward passes whose sum over the replicas is put off.
    """
    def __init__(self, device: str = 'cpu', float32_sums: bool = False) -> None:
        ...
    def drop(self) -> None:
        ...
    def sum(self, communicator: pyrannc._C.comm.Communicator) -> dict[str, torch.Tensor]:
        ...
    @property
    def lost(self) -> bool:
        ...
    @property
    def passes(self) -> int:
        ...
class DrawSteps:
    """
    What deterministic random numbers are told from, beside node and sample.
    """
    def __init__(self, seed: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def seed(self) -> int:
        ...
    @seed.setter
    def seed(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def step(self) -> int:
        ...
    @step.setter
    def step(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
class Span:
    @property
    def action(self) -> int:
        ...
    @property
    def begin_ns(self) -> int:
        ...
    @property
    def cpu_ns(self) -> int:
        ...
    @property
    def end_ns(self) -> int:
        ...
class Times:
    @property
    def compute_ns(self) -> int:
        ...
    @property
    def idle_ns(self) -> int:
        ...
    @property
    def receive_ns(self) -> int:
        ...
    @property
    def reduce_ns(self) -> int:
        ...
    @property
    def send_ns(self) -> int:
        ...
class Executor:
    def __init__(self, graph: pyrannc._C.ir.Graph, objects: collections.abc.Sequence, plan: pyrannc._C.plan.Plan, communicator: pyrannc._C.comm.Communicator, device: str = 'cpu', outputs: pyrannc._C.plan.Outputs = ..., preludes: collections.abc.Sequence[pyrannc._C.ir.Graph] = [], outside_sum: bool = False, draws: DrawSteps = None, kept: KeptGradients = None, bucket_bytes: typing.SupportsInt | typing.SupportsIndex = 26214400, holders: collections.abc.Mapping[str, collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]] = {}, show_values: bool = False, stream: pyrannc._C.comm.Stream = None, float32_sums: bool = False, shards: collections.abc.Sequence[collections.abc.Sequence[str]] | None = None, held: collections.abc.Mapping[str, tuple[typing.SupportsInt | typing.SupportsIndex, collections.abc.Sequence[collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]]]] = {}) -> None:
        ...
    def forward(self, inputs: collections.abc.Sequence[torch.Tensor], parameters: collections.abc.Sequence[torch.Tensor], buffers: collections.abc.Sequence[torch.Tensor], local_rows: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], with_backward: bool = True, no_sync: bool = False, loss_seed: typing.SupportsFloat | typing.SupportsIndex = 1.0) -> Call:
        ...
    @property
    def buffer_names(self) -> list[str]:
        ...
    @property
    def parameter_names(self) -> list[str]:
        ...
    @property
    def parts(self) -> list[pyrannc._C.ir.Part]:
        """
        Of its parameters and buffers, those that it takes a part of.
        """
    @property
    def timeline(self) -> list[Span]:
        ...
    @property
    def times(self) -> Times:
        ...
def backend_of(device: str) -> Backend:
    """
    Tried once for each kind of device; what is lacking is logged then.
    """
def connect_shards(comm: pyrannc._C.comm.Communicator, device: str, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], bytes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
    """
    Connects the ranks for flat tensors of these sizes, where that has to be done before. Every rank of the communicator calls it.
    """
def device_stream(device: str) -> pyrannc._C.comm.Stream:
    """
    The order of the device's work: that of the stream which is current.
    """
def join_autograd(call: Call, leaves: collections.abc.Sequence[torch.Tensor], differentiable: collections.abc.Sequence[bool], around: collections.abc.Callable) -> list[torch.Tensor | None]:
    """
    A call's outputs, as one node of the autograd graph of leaves (parameters, then arguments). around(output_grads, keep_graph, backward) is called for each backward, and calls backward(), or backward(keep_graph).
    """
def measure_links(comm: pyrannc._C.comm.Communicator, device: str) -> pyrannc._C.comm.LinkSpeeds:
    """
    As comm.measure_links(), from and to memory of the device.
    """
def move_parts(comm: pyrannc._C.comm.Communicator, tensors: collections.abc.Sequence[tuple[pyrannc._C.plan.Layout, pyrannc._C.plan.Layout, torch.Tensor | None, torch.Tensor | None]], ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
    """
    tensors: (layout that is, layout that shall be, this rank's part of the one, memory for its part of the other) of each, flat and on the host. ranks: all of them call it.
    """
def nccl(host: pyrannc._C.comm.Communicator, device: str, library: str = '', one_stream: bool = False, order_each: bool = False) -> pyrannc._C.comm.Communicator:
    """
    A communicator that sends and sums memory of the device by NCCL, and does all else over the host's. Collective.
    """
def random_state(device: str) -> torch.Tensor | None:
    """
    Of its default generator; None where its backend has none.
    """
def reconnect_nccl(communicator: pyrannc._C.comm.Communicator, device: str) -> None:
    """
    Ends NCCL's communicators, and connects new ones for the same traffic. Collective.
    """
def reuse_freed_blocks() -> bool:
    """
    Torch's tensors on the host take blocks that malloc can reuse exactly; False where somebody else has set the allocator.
    """
def seed_generator(device: str, seed: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    As torch.manual_seed() of its default generator, if it has one.
    """
def set_random_state(device: str, state: torch.Tensor) -> None:
    ...
def staged(host: pyrannc._C.comm.Communicator, device: str, pinned_bytes: typing.SupportsInt | typing.SupportsIndex = 268435456) -> pyrannc._C.comm.Communicator:
    """
    A communicator that sends and sums memory of the device over the host's, through pinned memory; for the CPU the host's itself.
    """
def start_all_gather(tensor: torch.Tensor, comm: pyrannc._C.comm.Communicator, stream: pyrannc._C.comm.Stream, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> pyrannc._C.comm.Operation:
    """
    This rank's shard of a contiguous tensor comes to all ranks, and theirs to it.
    """
def start_reduce_scatter(tensor: torch.Tensor, comm: pyrannc._C.comm.Communicator, stream: pyrannc._C.comm.Stream, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> pyrannc._C.comm.Operation:
    """
    The same, but only this rank's shard of the sum comes to it: tensor falls into as many equal shards as there are ranks.
    """
def start_sum(tensor: torch.Tensor, comm: pyrannc._C.comm.Communicator, stream: pyrannc._C.comm.Stream, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> pyrannc._C.comm.Operation:
    """
    Sums a contiguous tensor over ranks, in place. The result is there after stream.wait() of what is returned.
    """
def trace_events(program: pyrannc._C.plan.Program, rank: typing.SupportsInt | typing.SupportsIndex, timeline: collections.abc.Sequence[Span], step: typing.SupportsInt | typing.SupportsIndex, earlier_ns: typing.SupportsInt | typing.SupportsIndex) -> str:
    """
    Events of a timeline, on a clock that shows earlier_ns less than this host's.
    """
def wait_for(device: str) -> None:
    """
    Until the device has done what it was given.
    """
MOST_OUTPUTS: int = 62
