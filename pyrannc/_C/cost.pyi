from __future__ import annotations
import collections.abc
import pyrannc._C.ir
import typing
__all__: list[str] = ['Cluster', 'CostTable', 'DeviceModel', 'GraphProfile', 'Link', 'MatrixWork', 'NodeCost', 'SavedStorage', 'collective_ns', 'device_model', 'estimate', 'fold', 'fold_group', 'fold_modules', 'of_groups', 'signature', 'training_work', 'verify']
class Link:
    __hash__: typing.ClassVar[None] = None
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __eq__(self, arg0: Link) -> bool:
        ...
    @typing.overload
    def __init__(self, *, bandwidth_bytes_per_s: typing.SupportsFloat | typing.SupportsIndex, latency_ns: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @typing.overload
    def __init__(self, keys: dict) -> None:
        ...
    @property
    def bandwidth_bytes_per_s(self) -> float:
        ...
    @property
    def latency_ns(self) -> float:
        ...
class Cluster:
    __hash__: typing.ClassVar[None] = None
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @staticmethod
    def from_toml(toml: str, file_name: str = 'cluster.toml') -> Cluster:
        ...
    def __eq__(self, arg0: Cluster) -> bool:
        ...
    def __init__(self, *, hosts: typing.SupportsInt | typing.SupportsIndex, devices_per_host: typing.SupportsInt | typing.SupportsIndex, device_memory_bytes: typing.SupportsFloat | typing.SupportsIndex, intra_host: Link, inter_host: Link = ..., links_per_host: typing.SupportsInt | typing.SupportsIndex = 1, host_of_rank: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = [], speed_of_host: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = []) -> None:
        ...
    def host_of(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def to_toml(self) -> str:
        ...
    @property
    def device_memory_bytes(self) -> float:
        ...
    @property
    def devices_per_host(self) -> int:
        ...
    @property
    def host_of_rank(self) -> list[int]:
        ...
    @property
    def hosts(self) -> int:
        ...
    @property
    def inter_host(self) -> Link:
        ...
    @property
    def intra_host(self) -> Link:
        ...
    @property
    def links_per_host(self) -> int:
        ...
    @property
    def ranks(self) -> int:
        ...
    @property
    def speed_of_host(self) -> list[float]:
        ...
class NodeCost:
    __hash__: typing.ClassVar[None] = None
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __eq__(self, arg0: NodeCost) -> bool:
        ...
    @property
    def backward_host_ns(self) -> int:
        ...
    @property
    def backward_ns(self) -> int:
        ...
    @property
    def forward_host_ns(self) -> int:
        ...
    @property
    def forward_ns(self) -> int:
        ...
    @property
    def saved_bytes(self) -> int:
        ...
    @property
    def workspace_bytes(self) -> int:
        ...
class CostTable:
    __hash__: typing.ClassVar[None] = None
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @staticmethod
    def from_json(json: str) -> CostTable:
        ...
    def __eq__(self, arg0: CostTable) -> bool:
        ...
    def to_json(self) -> str:
        ...
    @property
    def node(self) -> list[list[NodeCost]]:
        ...
    @property
    def rows(self) -> list[int]:
        ...
class SavedStorage:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, nodes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], bytes: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]) -> None:
        ...
    @property
    def bytes(self) -> list[float]:
        ...
    @property
    def nodes(self) -> list[int]:
        ...
class GraphProfile:
    __hash__: typing.ClassVar[None] = None
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @staticmethod
    def from_json(json: str) -> GraphProfile:
        ...
    def __eq__(self, arg0: GraphProfile) -> bool:
        ...
    def to_json(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def node_count(self) -> int:
        ...
    @property
    def rows(self) -> list[int]:
        ...
class DeviceModel:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def memory_bytes(self) -> float:
        ...
    @property
    def name(self) -> str:
        ...
class MatrixWork:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def flops(self) -> float:
        ...
    @property
    def peak_s(self) -> float:
        ...
def collective_ns(sharded: pyrannc._C.ir.Graph, ways: typing.SupportsInt | typing.SupportsIndex, rows: typing.SupportsInt | typing.SupportsIndex, link: Link) -> float:
    ...
def device_model(name: str) -> DeviceModel:
    ...
def estimate(graph: pyrannc._C.ir.Graph, device: DeviceModel, rows: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], saved: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]] = []) -> CostTable:
    ...
def fold(graph: pyrannc._C.ir.Graph, table: CostTable, optimizer_bytes: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [], saved: collections.abc.Sequence[SavedStorage] = []) -> GraphProfile:
    ...
def fold_group(whole: pyrannc._C.ir.Graph, sharded: pyrannc._C.ir.ShardedGraph, table: CostTable, optimizer_bytes: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], saved: collections.abc.Sequence[SavedStorage], ways: typing.SupportsInt | typing.SupportsIndex, link: Link) -> tuple[GraphProfile, list[SavedStorage]]:
    """
    What one of the ranks that compute layers together does, by nodes of the whole.
    """
def fold_modules(profile: GraphProfile, depth: typing.SupportsInt | typing.SupportsIndex = 0) -> GraphProfile:
    ...
def of_groups(cluster: Cluster, ways: typing.SupportsInt | typing.SupportsIndex) -> tuple[Cluster, Link]:
    """
    Groups of ranks as devices, and the link between the ranks of one.
    """
def signature(graph: pyrannc._C.ir.Graph, node: typing.SupportsInt | typing.SupportsIndex) -> str:
    ...
def training_work(graph: pyrannc._C.ir.Graph, device: DeviceModel, rows: typing.SupportsInt | typing.SupportsIndex) -> MatrixWork:
    ...
def verify(table: CostTable, graph: pyrannc._C.ir.Graph) -> None:
    ...
