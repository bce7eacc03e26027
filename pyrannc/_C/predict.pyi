from __future__ import annotations
import collections.abc
import pyrannc._C.cost
import pyrannc._C.ir
import pyrannc._C.plan
import typing
__all__: list[str] = ['Calibration', 'MeasuredAction', 'MeasuredRuns', 'OptimizerMemory', 'RecordedRun', 'StepCosts', 'StepModel', 'bucket_bytes', 'summarize']
class RecordedRun:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, *, host: str, seconds: typing.SupportsFloat | typing.SupportsIndex, paging_seconds: typing.SupportsFloat | typing.SupportsIndex = 0.0, around_ns: typing.SupportsFloat | typing.SupportsIndex = 0.0, compute_ns: typing.SupportsFloat | typing.SupportsIndex = 0.0, optimizer_ns: typing.SupportsFloat | typing.SupportsIndex = 0.0, optimizer_factor: typing.SupportsFloat | typing.SupportsIndex = 0.0, one_thread: bool = True, actions: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]] = []) -> None:
        ...
class MeasuredAction:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def wait_ns(self) -> float:
        ...
    @property
    def work_ns(self) -> float:
        ...
class MeasuredRuns:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def actions(self) -> list[list[MeasuredAction]]:
        ...
    @property
    def all_ns(self) -> float:
        ...
    @property
    def around_ns(self) -> list[float]:
        ...
    @property
    def compute_ns(self) -> list[float]:
        ...
    @property
    def optimizer_factor(self) -> list[float]:
        ...
    @property
    def optimizer_ns(self) -> list[float]:
        ...
    @property
    def run_ns(self) -> float:
        ...
    @property
    def shortest_ns(self) -> float:
        ...
    @shortest_ns.setter
    def shortest_ns(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
class StepCosts:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, *, cores: typing.SupportsFloat | typing.SupportsIndex = 1.0, accumulate_ns_per_byte: typing.SupportsFloat | typing.SupportsIndex = 0.0, optimizer_ns: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [], in_order: bool = False) -> None:
        ...
    @property
    def accumulate_ns_per_byte(self) -> float:
        ...
    @property
    def cores(self) -> float:
        ...
    @property
    def in_order(self) -> bool:
        ...
    @property
    def optimizer_ns(self) -> list[float]:
        ...
class OptimizerMemory:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, *, state_factor: typing.SupportsFloat | typing.SupportsIndex = 2.0, largest_bytes: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [], all_bytes: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = []) -> None:
        ...
    @property
    def all_bytes(self) -> list[float]:
        ...
    @property
    def largest_bytes(self) -> list[float]:
        ...
class Calibration:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def beyond_ns(self) -> float:
        ...
    @property
    def plan(self) -> pyrannc._C.plan.Plan:
        ...
class StepModel:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, *, graph: pyrannc._C.ir.Graph, profile: pyrannc._C.cost.GraphProfile, cluster: pyrannc._C.cost.Cluster, costs: StepCosts, optimizer: OptimizerMemory, saved: collections.abc.Sequence[pyrannc._C.cost.SavedStorage], local_rows: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], outputs: pyrannc._C.plan.Outputs = ...) -> None:
        ...
    def at_speed(self, calibration: Calibration, factors: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]) -> pyrannc._C.plan.StepPrediction:
        ...
    def calibrated(self, plan: pyrannc._C.plan.Plan, runs: MeasuredRuns) -> Calibration:
        ...
    def predict(self, plan: pyrannc._C.plan.Plan) -> pyrannc._C.plan.Plan:
        ...
    @property
    def cluster(self) -> pyrannc._C.cost.Cluster:
        ...
    @property
    def costs(self) -> StepCosts:
        ...
    @property
    def profile(self) -> pyrannc._C.cost.GraphProfile:
        ...
def bucket_bytes(plan: pyrannc._C.plan.Plan, cluster: pyrannc._C.cost.Cluster) -> int:
    ...
def summarize(program: pyrannc._C.plan.Program, runs: collections.abc.Sequence[collections.abc.Sequence[RecordedRun]]) -> MeasuredRuns:
    ...
