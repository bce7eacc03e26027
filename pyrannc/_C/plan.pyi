from __future__ import annotations
import collections.abc
import pyrannc._C.ir
import typing
__all__: list[str] = ['Answer', 'Durations', 'Layout', 'MadeFor', 'Move', 'Outputs', 'Plan', 'Prediction', 'Program', 'RowRange', 'Simulation', 'Span', 'Stage', 'StageSummary', 'StepPrediction', 'Transfer', 'backward_comes_first', 'can_be_dealt_out', 'fill_drain', 'foretold_events', 'headline', 'loss_of', 'lower', 'map_to', 'of_groups', 'on_one_replica', 'rows_of_groups', 'shard_size', 'share_parameters', 'show', 'show_dot', 'simulate', 'simulate_in_order', 'summarize', 'timeline', 'trained_beside', 'verify', 'with_summary', 'without_recompute', 'without_shared_parameters']
class Prediction:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def activation_bytes(self) -> int:
        ...
    @property
    def backward_ns(self) -> int:
        ...
    @property
    def buffer_bytes(self) -> int:
        ...
    @property
    def forward_ns(self) -> int:
        ...
    @property
    def gradient_bytes(self) -> int:
        ...
    @property
    def optimizer_bytes(self) -> int:
        ...
    @property
    def param_bytes(self) -> int:
        ...
    @property
    def peak_bytes(self) -> int:
        ...
    @property
    def reduce_ns(self) -> int:
        ...
    @property
    def rows(self) -> int:
        ...
    @property
    def workspace_bytes(self) -> int:
        ...
class Stage:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def place_of(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int | None:
        ...
    def ranks_of_place(self, place: typing.SupportsInt | typing.SupportsIndex) -> list[int]:
        ...
    def ranks_of_replica(self, replica: typing.SupportsInt | typing.SupportsIndex) -> list[int]:
        ...
    def replica_of(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int | None:
        ...
    @property
    def factors(self) -> list[str]:
        ...
    @property
    def nodes(self) -> list[str]:
        ...
    @property
    def notes(self) -> str:
        ...
    @property
    def places(self) -> int:
        ...
    @property
    def predicted(self) -> Prediction | None:
        ...
    @property
    def ranks(self) -> list[int]:
        ...
    @property
    def recompute(self) -> bool:
        ...
    @property
    def replicas(self) -> int:
        ...
    @property
    def segments(self) -> list[list[str]]:
        ...
    @property
    def shared(self) -> list[str]:
        ...
class MadeFor:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def fingerprint(self) -> str:
        ...
    @property
    def global_batch(self) -> int | None:
        ...
    @property
    def world(self) -> int | None:
        ...
class StepPrediction:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def bubble_ns(self) -> list[int]:
        ...
    @property
    def from_operators_ns(self) -> int | None:
        ...
    @property
    def idle_ns(self) -> list[int]:
        ...
    @property
    def ns(self) -> int | None:
        ...
    @property
    def peak_bytes(self) -> list[int]:
        ...
class Plan:
    __hash__: typing.ClassVar[None] = None
    shard_optimizer: bool
    @staticmethod
    def from_json(json: str) -> Plan:
        ...
    def __eq__(self, other: Plan) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __str__(self) -> str:
        ...
    def _repr_html_(self) -> typing.Any:
        ...
    def to_indented_json(self) -> str:
        ...
    def to_json(self) -> str:
        ...
    @property
    def bucket_bytes(self) -> int | None:
        ...
    @property
    def feasible(self) -> bool:
        ...
    @property
    def interleave(self) -> int:
        ...
    @property
    def iteration_ns(self) -> int:
        ...
    @property
    def made_for(self) -> MadeFor:
        ...
    @property
    def micro_batches(self) -> int:
        ...
    @property
    def notes(self) -> str:
        ...
    @property
    def reason(self) -> str:
        ...
    @property
    def schedule(self) -> str:
        ...
    @property
    def stages(self) -> list[Stage]:
        ...
    @property
    def step(self) -> StepPrediction:
        ...
class StageSummary:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def modules(self) -> str:
        ...
    @property
    def param_bytes(self) -> int:
        ...
    @property
    def predicted(self) -> Prediction:
        ...
    @property
    def ranks(self) -> str:
        ...
    @property
    def recompute(self) -> bool:
        ...
    @property
    def send_bytes(self) -> int:
        ...
class Answer:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def rank(self) -> int:
        ...
    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """
        (place in the whole tensor, place in the rank's array, count) of each run of numbers.
        """
class Move:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def from_rank(self) -> int:
        ...
    @property
    def numel(self) -> int:
        ...
    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """
        (place in the sender's array, place in the receiver's, count) of each run of numbers.
        """
    @property
    def to_rank(self) -> int:
        ...
class Layout:
    __hash__: typing.ClassVar[None] = None
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @staticmethod
    def whole(tensor: str, shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> Layout:
        ...
    def __eq__(self, other: Layout) -> bool:
        ...
    def __init__(self, tensor: str, shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], parts: collections.abc.Sequence[tuple[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], collections.abc.Sequence[tuple[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]]], tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex] | None]]) -> None:
        """
        ``parts``: (ranks, [(begin, size) of each box], range of the numbers of the boxes or None).
        """
    def answers(self) -> list[Answer]:
        ...
    def holders(self, number: typing.SupportsInt | typing.SupportsIndex) -> list[int]:
        ...
    def moves(self, to: Layout, rank: typing.SupportsInt | typing.SupportsIndex | None = None) -> list[Move]:
        ...
    def numel(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def to_json(self) -> str:
        ...
    @property
    def parts(self) -> list[tuple[list[int], list[tuple[list[int], list[int]]], tuple[int, int] | None]]:
        ...
    @property
    def shape(self) -> list[int]:
        ...
    @property
    def tensor(self) -> str:
        ...
class Transfer:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def from_rank(self) -> int:
        ...
    @property
    def from_stage(self) -> int:
        ...
    @property
    def grad(self) -> bool:
        ...
    @property
    def micro_batch(self) -> int:
        ...
    @property
    def source(self) -> tuple[int, int]:
        ...
    @property
    def target(self) -> tuple[int, int]:
        ...
    @property
    def to_rank(self) -> int:
        ...
    @property
    def to_stage(self) -> int:
        ...
    @property
    def value(self) -> int:
        ...
    @property
    def weight(self) -> float:
        ...
    @property
    def whole(self) -> bool:
        ...
class RowRange:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def begin(self) -> int:
        ...
    @property
    def end(self) -> int:
        ...
class Program:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def show_order(self) -> str:
        ...
    def to_json(self) -> str:
        ...
    @property
    def buckets(self) -> list[tuple[list[int], list[int]]]:
        """
        Values of the graph whose gradients are summed as one array, in its order, and the ranks over which they are.
        """
    @property
    def micro_batches(self) -> int:
        ...
    @property
    def ranks(self) -> int:
        ...
    @property
    def reductions(self) -> int:
        ...
    @property
    def schedule(self) -> str:
        ...
    @property
    def shares(self) -> list[list[list[RowRange]]]:
        ...
    @property
    def stage_ranks(self) -> list[list[int]]:
        ...
    @property
    def stages(self) -> int:
        ...
    @property
    def training(self) -> bool:
        ...
    @property
    def transfers(self) -> list[Transfer]:
        ...
class Outputs:
    """
    Members:
    
      loss
    
      all
    """
    __members__: typing.ClassVar[dict[str, Outputs]]
    all: typing.ClassVar[Outputs]
    loss: typing.ClassVar[Outputs]
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __int__(self) -> int:
        ...
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class Durations:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, *, forward_ns: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], backward_ns: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], transfer_ns: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]], transfer_back_ns: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]] = [], reduce_ns: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = []) -> None:
        ...
class Span:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def action(self) -> int:
        ...
    @property
    def begin_ns(self) -> float:
        ...
    @property
    def end_ns(self) -> float:
        ...
    @property
    def rank(self) -> int:
        ...
class Simulation:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def end_ns(self) -> float:
        ...
    @property
    def peak_in_flight(self) -> list[int]:
        ...
    @property
    def spans(self) -> list[Span]:
        ...
def backward_comes_first(plan: Plan) -> bool:
    ...
def can_be_dealt_out(output: pyrannc._C.ir.Value) -> bool:
    ...
def fill_drain(plan: Plan) -> Plan:
    ...
def foretold_events(plan: Plan, program: Program, begin_ns: typing.SupportsInt | typing.SupportsIndex, step: typing.SupportsInt | typing.SupportsIndex) -> str:
    ...
def headline(plan: Plan) -> str:
    ...
def loss_of(graph: pyrannc._C.ir.Graph) -> int | None:
    ...
def lower(plan: Plan, graph: pyrannc._C.ir.Graph, local_rows: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], training: bool, outputs: Outputs = ..., holders: collections.abc.Mapping[str, collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]] = {}, bucket_bytes: typing.SupportsInt | typing.SupportsIndex | None = None) -> Program:
    ...
def map_to(plan: Plan, from_graph: pyrannc._C.ir.Graph, to_graph: pyrannc._C.ir.Graph) -> Plan:
    ...
def of_groups(plan: Plan, graph: pyrannc._C.ir.Graph, places: typing.SupportsInt | typing.SupportsIndex, factors: collections.abc.Sequence[str], latency_ns: typing.SupportsFloat | typing.SupportsIndex, ns_per_byte: typing.SupportsFloat | typing.SupportsIndex, sequence_parallel: bool = False) -> Plan:
    """
    A plan of groups as one of their ranks.
    """
def on_one_replica(plan: Plan) -> Plan:
    ...
def rows_of_groups(local_rows: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], places: typing.SupportsInt | typing.SupportsIndex) -> list[int]:
    ...
def shard_size(numbers: typing.SupportsInt | typing.SupportsIndex, ranks: typing.SupportsInt | typing.SupportsIndex) -> int:
    ...
def share_parameters(plan: Plan, graph: pyrannc._C.ir.Graph, preludes: collections.abc.Sequence[pyrannc._C.ir.Graph], left_out: collections.abc.Sequence[str] = []) -> Plan:
    ...
def show(plan: Plan, width: typing.SupportsInt | typing.SupportsIndex = 80, global_batch: typing.SupportsInt | typing.SupportsIndex | None = None, with_names: bool = False) -> str:
    ...
def show_dot(plan: Plan, graph: pyrannc._C.ir.Graph, stage: typing.SupportsInt | typing.SupportsIndex | None = None) -> str:
    ...
def simulate(program: Program, durations: Durations) -> Simulation:
    ...
def simulate_in_order(program: Program, durations: Durations) -> Simulation:
    ...
def summarize(plan: Plan, graph: pyrannc._C.ir.Graph, global_rows: typing.SupportsInt | typing.SupportsIndex) -> list[StageSummary]:
    ...
def timeline(program: Program) -> str:
    ...
def trained_beside(graph: pyrannc._C.ir.Graph, outputs: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> tuple[int, str] | None:
    """
    The output that the training loop seems to make the loss of, and a parameter that only it trains or an empty string; None where there is no loss, or no such output.
    """
@typing.overload
def verify(plan: Plan, graph: pyrannc._C.ir.Graph, world: typing.SupportsInt | typing.SupportsIndex) -> None:
    ...
@typing.overload
def verify(program: Program, graph: pyrannc._C.ir.Graph) -> None:
    ...
def with_summary(plan: Plan, graph: pyrannc._C.ir.Graph, global_rows: typing.SupportsInt | typing.SupportsIndex) -> Plan:
    ...
def without_recompute(plan: Plan) -> Plan:
    ...
def without_shared_parameters(plan: Plan) -> Plan:
    ...
