from __future__ import annotations
import collections.abc
import typing
__all__: list[str] = ['Factor', 'Graph', 'HoistedSums', 'Match', 'NamedGraph', 'Node', 'Nodes', 'Part', 'RowMix', 'Rows', 'RunningStatistic', 'ShardedGraph', 'Trait', 'Value', 'Values', 'at_rows', 'by_share_nodes', 'choose_factors', 'collective_bytes', 'dense_gradients', 'depends_on_rows', 'drop_dead_nodes', 'dtypes', 'exact_means', 'explicit_draws', 'extract', 'factors', 'first_reader', 'for_rows_alone', 'held_values', 'hoist_input_sums', 'infer_rows', 'inseparable_nodes', 'match', 'may_draw', 'module_ends', 'operators', 'parse', 'requires_grad', 'row_mixes', 'row_positions', 'rows_are_inside', 'running_statistics', 'shard', 'sizes_are_linear', 'state_names', 'verify', 'verify_shard', 'whole_batch_nodes', 'whole_batch_statistics', 'why_rows_interact', 'why_rows_may_interact', 'why_shares_differ', 'with_sizes_of', 'without_dropout', 'written_names']
class Rows:
    """
    How a value depends on the rows of the batch.
    """
    __hash__: typing.ClassVar[None] = None
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __eq__(self, arg0: Rows) -> bool:
        ...
    @property
    def dim(self) -> int:
        ...
    @property
    def inner(self) -> int:
        ...
    @property
    def kind(self) -> str:
        """
        'none', 'apart', 'mean', 'sum' or 'mixed'
        """
    @property
    def outer(self) -> int:
        ...
    @property
    def proved(self) -> bool:
        ...
class Value:
    """
    A tensor of a graph.
    """
    def __repr__(self) -> str:
        ...
    def bytes(self, rows: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    @property
    def aliases(self) -> list[str]:
        ...
    @property
    def dims(self) -> list[tuple[int, int]]:
        """
        Pairs (fixed, per_row): the size is fixed + per_row * rows.
        """
    @property
    def dtype(self) -> str:
        ...
    @property
    def kind(self) -> str:
        """
        'input', 'parameter', 'buffer', 'constant' or 'result'
        """
    @property
    def name(self) -> str:
        ...
    @property
    def on_host(self) -> bool:
        ...
    @property
    def requires_grad(self) -> bool:
        ...
    @property
    def rows(self) -> Rows:
        ...
    @property
    def storage(self) -> int:
        ...
class Node:
    """
    An operator of a graph; values by their index.
    """
    def __repr__(self) -> str:
        ...
    @property
    def by_share(self) -> bool:
        ...
    @property
    def grad_enabled(self) -> bool:
        ...
    @property
    def kind(self) -> str:
        """
        'dispatcher', 'scripted' or 'python'
        """
    @property
    def like(self) -> str:
        ...
    @property
    def module(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def op(self) -> str:
        ...
    @property
    def outputs(self) -> list[typing.Any]:
        ...
    @property
    def source(self) -> str:
        """
        'model.py:12', or 'unknown source'
        """
    @property
    def whole_batch(self) -> bool:
        ...
    @property
    def writes(self) -> list[typing.Any]:
        ...
class Values:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __getitem__(self, index: typing.SupportsInt | typing.SupportsIndex) -> Value:
        ...
    def __iter__(self) -> collections.abc.Iterator[Value]:
        ...
    def __len__(self) -> int:
        ...
class Nodes:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __getitem__(self, index: typing.SupportsInt | typing.SupportsIndex) -> Node:
        ...
    def __iter__(self) -> collections.abc.Iterator[Node]:
        ...
    def __len__(self) -> int:
        ...
class Graph:
    """
    A model's forward pass, valid at any batch size.
    """
    __hash__: typing.ClassVar[None] = None
    @staticmethod
    def from_json(json: str) -> Graph:
        ...
    @staticmethod
    def parse(text: str) -> Graph:
        ...
    def __eq__(self, arg0: Graph) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __str__(self) -> str:
        ...
    def arguments(self, node: typing.SupportsInt | typing.SupportsIndex) -> list:
        """
        In the order of the schema; tensors are ('value', name).
        """
    def fingerprint(self) -> str:
        ...
    def operands(self, node: typing.SupportsInt | typing.SupportsIndex) -> list[typing.Any]:
        """
        Indices of the values that a node reads, in argument order.
        """
    def text(self) -> str:
        ...
    def to_json(self) -> str:
        ...
    @property
    def inputs(self) -> list[typing.Any]:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def nodes(self) -> Nodes:
        ...
    @property
    def outputs(self) -> list[typing.Any]:
        ...
    @property
    def values(self) -> Values:
        ...
class NamedGraph:
    """
    A graph, and what its inputs, outputs and objects are on every rank.
    """
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, graph: Graph, inputs: collections.abc.Sequence[str], outputs: collections.abc.Sequence[str], objects: collections.abc.Sequence[str]) -> None:
        ...
class Match:
    """
    How a trace of a model appears in another one.
    """
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def difference(self) -> str:
        ...
    @property
    def inputs(self) -> list[int]:
        ...
    @property
    def objects(self) -> list[typing.Any]:
        ...
    @property
    def outputs(self) -> list[int]:
        ...
class Trait:
    """
    What kind an operator is (rannc/ir/operators.h).
    
    Members:
    
      pointwise
    
      view
    
      reduction
    
      along
    
      product
    
      factory
    
      scales
    
      loss
    
      draws
    
      unset
    
      like
    
      passes
    
      statistics
    
      known
    
      mask
    
      selected
    
      checked
    
      released
    """
    __members__: typing.ClassVar[dict[str, Trait]]
    along: typing.ClassVar[Trait]
    checked: typing.ClassVar[Trait]
    draws: typing.ClassVar[Trait]
    factory: typing.ClassVar[Trait]
    known: typing.ClassVar[Trait]
    like: typing.ClassVar[Trait]
    loss: typing.ClassVar[Trait]
    mask: typing.ClassVar[Trait]
    passes: typing.ClassVar[Trait]
    pointwise: typing.ClassVar[Trait]
    product: typing.ClassVar[Trait]
    reduction: typing.ClassVar[Trait]
    released: typing.ClassVar[Trait]
    scales: typing.ClassVar[Trait]
    selected: typing.ClassVar[Trait]
    statistics: typing.ClassVar[Trait]
    unset: typing.ClassVar[Trait]
    view: typing.ClassVar[Trait]
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
class RowMix:
    """
    A node whose rows interact.
    """
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def node(self) -> int:
        ...
    @property
    def reason(self) -> str:
        ...
class RunningStatistic:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def buffer(self) -> int:
        ...
    @property
    def momentum(self) -> float:
        ...
    @property
    def node(self) -> int:
        ...
class HoistedSums:
    """
    A graph in parts, by hoist_input_sums().
    """
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def main(self) -> Graph:
        ...
    @property
    def preludes(self) -> list[Graph]:
        ...
class Factor:
    """
    A class of dimensions that are cut together.
    """
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def id(self) -> str:
        ...
    @property
    def parameters(self) -> list[typing.Any]:
        ...
    @property
    def units(self) -> int:
        ...
    @property
    def why_not(self) -> str:
        ...
class Part:
    """
    Which part of a parameter, buffer or constant a place holds.
    """
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def dim(self) -> int:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def stretches(self) -> list[tuple[int, int]]:
        """
        Begin and size of each along `dim`, side by side.
        """
class ShardedGraph:
    """
    One place's graph of a group.
    """
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def factors(self) -> list[str]:
        ...
    @property
    def gathered(self) -> list[tuple[int, str]]:
        ...
    @property
    def graph(self) -> Graph:
        ...
    @property
    def parts(self) -> list[Part]:
        ...
def at_rows(graph: Graph, rows: typing.SupportsInt | typing.SupportsIndex) -> Graph:
    ...
def by_share_nodes(graph: Graph) -> list[typing.Any]:
    ...
def choose_factors(graph: Graph, ways: typing.SupportsInt | typing.SupportsIndex) -> list[str]:
    ...
def collective_bytes(sharded: Graph, ways: typing.SupportsInt | typing.SupportsIndex, rows: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    What a rank sends for the collectives of a sharded graph, by rings.
    """
def dense_gradients(graph: Graph) -> tuple[Graph, list[int]]:
    """
    The graph, and the nodes, by index, that are not as they were.
    """
def depends_on_rows(graph: Graph) -> list[bool]:
    ...
def drop_dead_nodes(graph: Graph) -> Graph:
    ...
def dtypes(graph: Graph) -> set[str]:
    ...
def exact_means(graph: Graph) -> Graph:
    ...
def explicit_draws(graph: Graph) -> Graph:
    ...
def extract(graph: Graph, nodes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], keep: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> Graph:
    """
    One stage as a graph of its own; nodes and values by index.
    """
def factors(graph: Graph) -> list[Factor]:
    ...
def first_reader(graph: Graph, name: str) -> int | None:
    """
    Index of the first node that reads a value of this name.
    """
def for_rows_alone(trace: Graph, rows: typing.SupportsInt | typing.SupportsIndex) -> Graph:
    ...
def held_values(graph: Graph, local: Graph) -> list[tuple[Value, int, int]]:
    """
    Parameters, buffers and constants, in the order of the graph: each with its bytes in local, the same graph with the sizes of one rank, and those of the whole.
    """
def hoist_input_sums(graph: Graph, by_share: bool = False) -> HoistedSums:
    ...
def infer_rows(graph: Graph) -> Graph:
    ...
def inseparable_nodes(graph: Graph) -> list[list[int]]:
    ...
def match(reference: NamedGraph, trace: NamedGraph, keyed_draws: bool) -> Match:
    ...
def may_draw(op: str) -> bool:
    ...
def module_ends(graph: Graph) -> dict[str, int]:
    """
    For each module path, the index of the last node inside it that has exactly one result.
    """
def operators(trait: Trait | None = None) -> set[str]:
    """
    Those of a kind, without namespace, overload and in-place underscore; other names, too.
    """
def parse(text: str) -> Graph:
    ...
def requires_grad(graph: Graph) -> bool:
    ...
def row_mixes(graph: Graph) -> list[RowMix]:
    ...
def row_positions(graph: Graph) -> list[tuple[int, int]]:
    """
    Of each node that takes an input for positions of rows, both indices.
    """
def rows_are_inside(value: Value) -> bool:
    """
    Whether its rows stand inside another dimension.
    """
def running_statistics(graph: Graph) -> list[RunningStatistic]:
    ...
def shard(graph: Graph, ways: typing.SupportsInt | typing.SupportsIndex, place: typing.SupportsInt | typing.SupportsIndex, chosen: collections.abc.Sequence[str] | None = None, held: collections.abc.Mapping[str, tuple[typing.SupportsInt | typing.SupportsIndex, collections.abc.Sequence[collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]]]] = {}, sequence: bool = False) -> ShardedGraph:
    ...
def sizes_are_linear(graph: Graph) -> bool:
    ...
def state_names(graph: Graph) -> list[str]:
    """
    Parameters and buffers, in the order of the graph.
    """
def verify(graph: Graph) -> None:
    ...
def verify_shard(whole: Graph, places: collections.abc.Sequence[ShardedGraph]) -> None:
    ...
def whole_batch_nodes(graph: Graph) -> list[typing.Any]:
    ...
def whole_batch_statistics(graph: Graph) -> Graph:
    ...
def why_rows_interact(graph: Graph) -> str:
    ...
def why_rows_may_interact(graph: Graph) -> str:
    ...
def why_shares_differ(graph: Graph) -> str:
    ...
def with_sizes_of(whole: Graph, sharded: ShardedGraph) -> Graph:
    ...
def without_dropout(graph: Graph) -> Graph:
    ...
def written_names(graph: Graph) -> set[str]:
    """
    What some node writes, by the name of the value that holds its memory.
    """
