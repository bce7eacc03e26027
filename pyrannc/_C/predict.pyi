from __future__ import annotations
import collections.abc
import pyrannc._C.cost
import pyrannc._C.ir
import pyrannc._C.plan
import typing
__all__: list[str] = ['StepCosts', 'StepTime', 'bucket_bytes', 'step_peak_bytes', 'step_time']
class StepCosts:
    def __init__(self, *, cores: typing.SupportsFloat | typing.SupportsIndex = 1.0, action_ns: typing.SupportsFloat | typing.SupportsIndex = 0.0, message_ns: typing.SupportsFloat | typing.SupportsIndex = 0.0, copy_ns_per_byte: typing.SupportsFloat | typing.SupportsIndex = 0.0, accumulate_ns_per_byte: typing.SupportsFloat | typing.SupportsIndex = 0.0, optimizer_ns: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [], measured: collections.abc.Sequence[collections.abc.Sequence[tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]]] = [], around_ns: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = []) -> None:
        ...
class StepTime:
    @property
    def idle_ns(self) -> list[float]:
        ...
    @property
    def ns(self) -> float:
        ...
def bucket_bytes(plan: pyrannc._C.plan.Plan, cluster: pyrannc._C.cost.Cluster) -> int:
    ...
def step_peak_bytes(program: pyrannc._C.plan.Program, plan: pyrannc._C.plan.Plan, graph: pyrannc._C.ir.Graph, profile: pyrannc._C.cost.GraphProfile, saved: collections.abc.Sequence[tuple[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]]], optimizer_bytes_per_param_byte: typing.SupportsFloat | typing.SupportsIndex = 2.0, largest_bytes: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [], all_bytes: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [], bucket_bytes: typing.SupportsInt | typing.SupportsIndex = 26214400) -> list[float]:
    ...
def step_time(program: pyrannc._C.plan.Program, plan: pyrannc._C.plan.Plan, graph: pyrannc._C.ir.Graph, profile: pyrannc._C.cost.GraphProfile, cluster: pyrannc._C.cost.Cluster, costs: StepCosts) -> StepTime:
    ...
