from __future__ import annotations
import collections.abc
import pyrannc._C.comm
import pyrannc._C.cost
import pyrannc._C.ir
import torch
import typing
__all__: list[str] = ['keys', 'measure', 'placeholders', 'replay']
def keys(graph: pyrannc._C.ir.Graph, rows: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], strides: collections.abc.Sequence[collections.abc.Sequence[collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]]]] = []) -> list[str]:
    ...
def measure(graph: pyrannc._C.ir.Graph, objects: collections.abc.Sequence, saved: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]], comm: pyrannc._C.comm.Communicator, rows: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], strides: collections.abc.Sequence[collections.abc.Sequence[collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]]]] = [], repeats: typing.SupportsInt | typing.SupportsIndex = 5, device: str = 'cpu', cache_bytes: typing.SupportsInt | typing.SupportsIndex = 0, progress: collections.abc.Callable[[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], None] = None, known: collections.abc.Mapping[str, collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]]] = {}, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = []) -> tuple[pyrannc._C.cost.CostTable, dict[str, list[list[int]]]]:
    ...
def placeholders(graph: pyrannc._C.ir.Graph, rows: typing.SupportsInt | typing.SupportsIndex, device: str = 'cpu') -> tuple:
    ...
def replay(graph: pyrannc._C.ir.Graph, objects: collections.abc.Sequence, given: collections.abc.Sequence[torch.Tensor], rows: typing.SupportsInt | typing.SupportsIndex, before_node: collections.abc.Callable[[typing.SupportsInt | typing.SupportsIndex, collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]]], None], device: str = 'cpu') -> None:
    ...
