from __future__ import annotations
import collections.abc
import typing
import typing_extensions
__all__: list[str] = ['Communicator', 'Host', 'LateStream', 'LinkSpeed', 'LinkSpeeds', 'Listener', 'MessageMistake', 'Operation', 'Stream', 'StreamMistake', 'careless', 'distinct_names', 'end_nccl', 'find_nccl', 'finish_mpi', 'finish_sockets', 'make_local', 'make_mpi', 'make_sockets', 'measure_links', 'mpi_available', 'mpi_version', 'nccl_available', 'nccl_version_text', 'own_host', 'started_mpi', 'subset']
class Operation:
    def done(self) -> bool:
        ...
    def wait(self) -> None:
        ...
class Stream:
    """
    The work of a device, in the order in which it is done.
    """
    def wait(self, operation: Operation) -> None:
        """
        What it is given from now on is done after the operation; the host goes on where it can.
        """
class LateStream(Stream):
    """
    Its work is done delay_s after it was given; for tests.
    """
    def __init__(self, delay_s: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def recorded(self) -> int:
        ...
    @property
    def waited(self) -> int:
        ...
class Communicator:
    def abort(self, reason: str) -> None:
        ...
    def agree(self, own: typing.SupportsInt | typing.SupportsIndex, kind: typing.SupportsInt | typing.SupportsIndex, call: typing.SupportsInt | typing.SupportsIndex, capture: typing.SupportsInt | typing.SupportsIndex) -> tuple[list[int], bool]:
        ...
    def all_gather(self, data: str) -> list:
        ...
    def all_reduce_sum(self, buffer: typing_extensions.Buffer, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None = None) -> None:
        ...
    def barrier(self) -> None:
        ...
    def broadcast(self, data: str, root: typing.SupportsInt | typing.SupportsIndex = 0) -> bytes:
        ...
    def broadcast_into(self, buffer: typing_extensions.Buffer, root: typing.SupportsInt | typing.SupportsIndex = 0, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None = None) -> None:
        ...
    def receive(self, bytes: typing.SupportsInt | typing.SupportsIndex, source: typing.SupportsInt | typing.SupportsIndex, tag: typing.SupportsInt | typing.SupportsIndex = 0) -> bytes:
        ...
    def send(self, data: str, to: typing.SupportsInt | typing.SupportsIndex, tag: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def sent_bytes(self, what: str) -> int:
        """
        Of messages that this rank has sent for a purpose.
        """
    def start_all_gather_shards(self, buffer: typing_extensions.Buffer, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None = None) -> Operation:
        ...
    def start_all_reduce_sum(self, buffer: typing_extensions.Buffer, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None = None) -> Operation:
        ...
    def start_reduce_scatter_sum(self, buffer: typing_extensions.Buffer, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None = None) -> Operation:
        ...
    @property
    def host(self) -> str:
        ...
    @property
    def left_messages(self) -> str:
        ...
    @property
    def rank(self) -> int:
        ...
    @property
    def size(self) -> int:
        ...
    @property
    def timeout_s(self) -> float:
        ...
    @timeout_s.setter
    def timeout_s(self, arg1: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
class StreamMistake:
    """
    To plant in tests.
    
    Members:
    
      records_nothing
    
      waits_for_nothing
    
      of_another_thread
    """
    __members__: typing.ClassVar[dict[str, StreamMistake]]
    of_another_thread: typing.ClassVar[StreamMistake]
    records_nothing: typing.ClassVar[StreamMistake]
    waits_for_nothing: typing.ClassVar[StreamMistake]
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
class MessageMistake:
    """
    To plant in tests.
    
    Members:
    
      forgets_sends
    
      issues_elsewhere
    """
    __members__: typing.ClassVar[dict[str, MessageMistake]]
    forgets_sends: typing.ClassVar[MessageMistake]
    issues_elsewhere: typing.ClassVar[MessageMistake]
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
class LinkSpeed:
    @property
    def bandwidth_bytes_per_s(self) -> float:
        ...
    @property
    def latency_ns(self) -> float:
        ...
class LinkSpeeds:
    @property
    def inter_host(self) -> LinkSpeed | None:
        ...
    @property
    def intra_host(self) -> LinkSpeed | None:
        ...
class Host:
    """
    The host of a rank, as it says.
    """
    def __init__(self, name: str, identity: str) -> None:
        ...
    @property
    def identity(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
class Listener:
    """
    A port on which other ranks find this one.
    """
    def __init__(self, address: str) -> None:
        ...
    @property
    def port(self) -> int:
        ...
@typing.overload
def careless(stream: Stream, mistake: StreamMistake) -> Stream:
    ...
@typing.overload
def careless(communicator: Communicator, mistake: MessageMistake) -> Communicator:
    ...
def distinct_names(hosts: collections.abc.Sequence[Host]) -> list[str]:
    """
    Names of the ranks' hosts, with a number where two hosts have the same one.
    """
def end_nccl(communicator: Communicator) -> None:
    ...
def find_nccl(file: str = '') -> tuple[str, int]:
    """
    File and version (23004 is 2.30.4) of the NCCL that would be used.
    """
def finish_mpi() -> None:
    ...
def finish_sockets() -> None:
    ...
def make_local(ranks: typing.SupportsInt | typing.SupportsIndex, timeout_s: typing.SupportsFloat | typing.SupportsIndex = 20.0) -> list[Communicator]:
    ...
def make_mpi(timeout_s: typing.SupportsFloat | typing.SupportsIndex, start_timeout_s: typing.SupportsFloat | typing.SupportsIndex = 60.0) -> Communicator:
    ...
def make_sockets(listener: Listener, rank: typing.SupportsInt | typing.SupportsIndex, addresses: collections.abc.Sequence[str], hosts: collections.abc.Sequence[str], secret: str, timeout_s: typing.SupportsFloat | typing.SupportsIndex, start_timeout_s: typing.SupportsFloat | typing.SupportsIndex) -> Communicator:
    ...
def measure_links(comm: Communicator) -> LinkSpeeds:
    ...
def mpi_available() -> bool:
    ...
def mpi_version() -> str:
    ...
def nccl_available() -> bool:
    ...
def nccl_version_text(version: typing.SupportsInt | typing.SupportsIndex) -> str:
    ...
def own_host() -> Host:
    ...
def started_mpi() -> bool:
    ...
def subset(all: Communicator, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> Communicator:
    """
    Some ranks of a communicator as one of their own, numbered by their order.
    """
