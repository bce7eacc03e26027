from __future__ import annotations
import collections.abc
import pyrannc._C.cost
import pyrannc._C.plan
import pyrannc._C.predict
import typing
__all__: list[str] = ['Allowed', 'Arrangement', 'Candidates', 'Evaluation', 'Force', 'Pin', 'PlannerOptions', 'Request', 'StageEvaluation', 'TriedPlan', 'arrangement_of', 'described', 'evaluate', 'make_plan', 'verify_request', 'with_trials']
class Force:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, *, stages: typing.SupportsInt | typing.SupportsIndex | None = None, micro_batches: typing.SupportsInt | typing.SupportsIndex | None = None, schedule: str | None = None, interleave: typing.SupportsInt | typing.SupportsIndex | None = None, replicas: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None = None) -> None:
        ...
    @property
    def interleave(self) -> int | None:
        ...
    @property
    def micro_batches(self) -> int | None:
        ...
    @property
    def replicas(self) -> list[int] | None:
        ...
    @property
    def schedule(self) -> str | None:
        ...
    @property
    def stages(self) -> int | None:
        ...
class Request:
    __hash__: typing.ClassVar[None] = None
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @staticmethod
    def from_json(json: str) -> Request:
        ...
    def __eq__(self, arg0: Request) -> bool:
        ...
    def __init__(self, global_batch: typing.SupportsInt | typing.SupportsIndex, *, gradient_bytes_per_param_byte: typing.SupportsFloat | typing.SupportsIndex = 1.0, optimizer_bytes_per_param_byte: typing.SupportsFloat | typing.SupportsIndex = 2.0, memory_margin: typing.SupportsFloat | typing.SupportsIndex = 0.0, micro_batches: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = [], schedules: collections.abc.Sequence[str] = ['gpipe', '1f1b'], max_interleave: typing.SupportsInt | typing.SupportsIndex = 1, recompute: str = 'stage', reduction_buckets: typing.SupportsInt | typing.SupportsIndex = 1, force: Force = ..., master_bytes_per_param_byte: typing.SupportsFloat | typing.SupportsIndex = 0.0, shard_optimizer: bool = False) -> None:
        ...
    def to_json(self) -> str:
        ...
    @property
    def force(self) -> Force:
        ...
    @property
    def global_batch(self) -> int:
        ...
    @property
    def gradient_bytes_per_param_byte(self) -> float:
        ...
    @property
    def max_interleave(self) -> int:
        ...
    @property
    def memory_margin(self) -> float:
        ...
    @property
    def micro_batches(self) -> list[int]:
        ...
    @property
    def optimizer_bytes_per_param_byte(self) -> float:
        ...
    @property
    def recompute(self) -> str:
        ...
    @property
    def reduction_buckets(self) -> int:
        ...
    @property
    def schedules(self) -> list[str]:
        ...
class Pin:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, module: str, stage: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def module(self) -> str:
        ...
    @property
    def stage(self) -> int:
        ...
class PlannerOptions:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, *, max_blocks: typing.SupportsInt | typing.SupportsIndex = 0, one_replica: bool = False, pins: collections.abc.Sequence[Pin] = [], whole: collections.abc.Sequence[str] = [], time_limit_s: typing.SupportsFloat | typing.SupportsIndex = 0.0, threads: typing.SupportsInt | typing.SupportsIndex = 1, exactly: bool = True, progress: collections.abc.Callable[[typing.SupportsFloat | typing.SupportsIndex], None] = None) -> None:
        ...
    @property
    def exactly(self) -> bool:
        ...
    @property
    def max_blocks(self) -> int:
        ...
    @property
    def one_replica(self) -> bool:
        ...
    @property
    def pins(self) -> list[Pin]:
        ...
    @property
    def threads(self) -> int:
        ...
    @property
    def time_limit_s(self) -> float:
        ...
    @property
    def whole(self) -> list[str]:
        ...
class StageEvaluation:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def activation_bytes(self) -> float:
        ...
    @property
    def backward_ns(self) -> float:
        ...
    @property
    def buffer_bytes(self) -> float:
        ...
    @property
    def forward_ns(self) -> float:
        ...
    @property
    def gradient_bytes(self) -> float:
        ...
    @property
    def optimizer_bytes(self) -> float:
        ...
    @property
    def param_bytes(self) -> float:
        ...
    @property
    def peak_bytes(self) -> float:
        ...
    @property
    def reduce_ns(self) -> float:
        ...
    @property
    def rows(self) -> float:
        ...
    @property
    def workspace_bytes(self) -> float:
        ...
class Evaluation:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    @property
    def iteration_ns(self) -> float:
        ...
    @property
    def iteration_price(self) -> float:
        ...
    @property
    def problems(self) -> list[str]:
        ...
    @property
    def stages(self) -> list[StageEvaluation]:
        ...
class Arrangement:
    __hash__: typing.ClassVar[None] = None
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __eq__(self, arg0: Arrangement) -> bool:
        ...
    def __init__(self, replicas: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], schedule: str, interleave: typing.SupportsInt | typing.SupportsIndex = 1) -> None:
        ...
    @property
    def interleave(self) -> int:
        ...
    @property
    def replicas(self) -> list[int]:
        ...
    @property
    def schedule(self) -> str:
        ...
class TriedPlan:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, arrangement: Arrangement, micro_batches: typing.SupportsInt | typing.SupportsIndex, run_ns: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
class Allowed:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, *, least_rows: typing.SupportsInt | typing.SupportsIndex = 1, powers_of_two: bool = False, fewest_stages: bool = False) -> None:
        ...
class Candidates:
    @staticmethod
    def __repr__(*args, **kwargs):
        """
        (self: object) -> str
        """
    def __init__(self, step: pyrannc._C.predict.StepModel, request: Request, options: PlannerOptions, allowed: Allowed, held_bytes: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def best(self) -> pyrannc._C.plan.Plan:
        ...
    def limit_memory(self, device_bytes: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def of_other_arrangements(self, plan: pyrannc._C.plan.Plan, slower_by: typing.SupportsFloat | typing.SupportsIndex) -> list[pyrannc._C.plan.Plan]:
        ...
    def other_micro_batches(self, plan: pyrannc._C.plan.Plan) -> list[int]:
        ...
    def with_micro_batches(self, plan: pyrannc._C.plan.Plan, count: typing.SupportsInt | typing.SupportsIndex) -> pyrannc._C.plan.Plan | None:
        ...
def arrangement_of(plan: pyrannc._C.plan.Plan) -> Arrangement:
    ...
def described(profile: pyrannc._C.cost.GraphProfile, cluster: pyrannc._C.cost.Cluster, request: Request, plan: pyrannc._C.plan.Plan, evaluation: Evaluation) -> pyrannc._C.plan.Plan:
    ...
def evaluate(profile: pyrannc._C.cost.GraphProfile, cluster: pyrannc._C.cost.Cluster, request: Request, plan: pyrannc._C.plan.Plan) -> Evaluation:
    ...
def make_plan(profile: pyrannc._C.cost.GraphProfile, cluster: pyrannc._C.cost.Cluster, request: Request, options: PlannerOptions = ...) -> pyrannc._C.plan.Plan:
    ...
def verify_request(request: Request, ranks: typing.SupportsInt | typing.SupportsIndex) -> None:
    ...
def with_trials(plan: pyrannc._C.plan.Plan, arrangements: collections.abc.Sequence[TriedPlan], numbers: collections.abc.Sequence[TriedPlan]) -> pyrannc._C.plan.Plan:
    ...
