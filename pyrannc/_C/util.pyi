from __future__ import annotations
import collections.abc
import typing
__all__: list[str] = ['CommError', 'ConfigError', 'InfeasibleError', 'InternalError', 'Level', 'PlanError', 'RaNNCError', 'TraceError', 'closest', 'configure_log', 'give_back_freed_memory', 'human_bytes', 'human_ns', 'keep_freed_memory', 'log', 'log_enabled', 'set_log_rank']
class RaNNCError(RuntimeError):
    pass
class ConfigError(RaNNCError):
    pass
class TraceError(RaNNCError):
    pass
class PlanError(RaNNCError):
    pass
class InfeasibleError(RaNNCError):
    pass
class CommError(RaNNCError):
    pass
class InternalError(AssertionError):
    pass
class Level:
    """
    Members:
    
      debug
    
      info
    
      warn
    
      error
    
      off
    """
    __members__: typing.ClassVar[dict[str, Level]]
    debug: typing.ClassVar[Level]
    error: typing.ClassVar[Level]
    info: typing.ClassVar[Level]
    off: typing.ClassVar[Level]
    warn: typing.ClassVar[Level]
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
def closest(word: str, candidates: collections.abc.Sequence[str], most: typing.SupportsInt | typing.SupportsIndex = 18446744073709551615) -> str:
    ...
def configure_log(levels: str) -> None:
    ...
def give_back_freed_memory() -> bool:
    """
    Gives what is free now back to the system; False where the C library cannot.
    """
def human_bytes(bytes: typing.SupportsFloat | typing.SupportsIndex) -> str:
    ...
def human_ns(nanoseconds: typing.SupportsFloat | typing.SupportsIndex) -> str:
    ...
def keep_freed_memory(most_bytes: typing.SupportsInt | typing.SupportsIndex = -1) -> bool:
    """
    Keeps freed memory in this process; False where the C library cannot.
    """
def log(level: Level, module: str, message: str) -> None:
    ...
def log_enabled(level: Level, module: str) -> bool:
    ...
def set_log_rank(rank: typing.SupportsInt | typing.SupportsIndex) -> None:
    ...
