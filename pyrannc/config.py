"""Settings: one table, four sources.

Precedence: argument of ``Config`` > environment ``RANNC_<NAME>`` > ``rannc_conf.toml`` (in
``$RANNC_CONF_DIR`` or ``~/.pyrannc``) > default. A name or a value that is not in the table is an
error that names the closest valid one.
"""

import copy
import os
import tomllib
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyrannc import files
from pyrannc.errors import ConfigError, meant
from pyrannc.original import loggers
from pyrannc.original import settings as original

FILE_NAME = "rannc_conf.toml"
# Read by this module, the launcher or the core, not settings of a plan.
OTHER_VARIABLES = {
    "RANNC_CONF_DIR", "RANNC_MPI_LIBRARY", "RANNC_TERMINAL_WIDTH", "RANNC_TRACEBACK",
}  # fmt: skip
# The core counts in 32 bits.
MOST_COUNT = 2**31 - 1
# Bytes are counted in 64 bits, and several ranks' are added up.
MOST_GIB = 2**30


def boolean(value) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    word = str(value).strip().lower()
    if word not in words:
        raise ValueError("expected true, false, 1, 0, yes or no")
    return words[word]


def whole(value, least: int) -> int:
    if isinstance(value, bool):
        raise ValueError("expected a whole number")
    try:
        number = int(value)
        # int() drops the fraction of a number of whatever class.
        is_whole = isinstance(value, str) or bool(number == value)
    except (TypeError, ValueError, ArithmeticError):
        is_whole = False
    if not is_whole:
        raise ValueError("expected a whole number")
    if number < least:
        raise ValueError(f"expected at least {least}")
    if number > MOST_COUNT:
        raise ValueError(f"expected at most {MOST_COUNT}")
    return number


def ways(value) -> int | str:
    """How many ranks compute a layer together."""
    if value == "auto":
        return value
    return 1 if value == "none" else whole(value, 1)


def count(value) -> int:
    """0 leaves the choice to the planner."""
    return whole(value, 0)


def positive(value) -> int:
    return whole(value, 1)


def number(value) -> float:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise ValueError("expected a number") from None
    if not 0 <= result < float("inf"):
        raise ValueError("expected a finite number, 0 or more")
    return result


def gib(value) -> float:
    result = number(value)
    if result > MOST_GIB:
        raise ValueError(f"expected at most {MOST_GIB}")
    return result


def seconds(value) -> float:
    result = number(value)
    if result == 0:
        raise ValueError("expected more than 0 seconds")
    return result


def fraction(value) -> float:
    result = number(value)
    if result >= 1:
        raise ValueError("expected a number from 0 up to, but not including, 1")
    return result


def counts(value) -> tuple[int, ...]:
    """``"1,3"``, ``[1, 3]``; empty leaves the choice to the planner."""
    items = value.split(",") if isinstance(value, str) else value
    if isinstance(value, bytes | Mapping | Set):  # the order says which stage
        raise ValueError("expected a list of whole numbers, such as 1,3")
    try:
        return tuple(whole(item, 1) for item in items if item != "")
    except TypeError:
        raise ValueError("expected a list of whole numbers, such as 1,3") from None


def text(value) -> str:
    """A path, too; str() would make a folder of the name "None"."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError("expected a text")
    path = os.fspath(value)
    if not isinstance(path, str) or "\0" in path:
        raise ValueError("expected a text without bytes of zero")
    return path


def word(*allowed: str) -> Callable[[Any], str]:
    def parse(value) -> str:
        if str(value) not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return str(value)

    return parse


def schedule(value) -> str:
    name = word("auto", "gpipe", "fill_drain", "1f1b", "interleaved")(value)
    return "gpipe" if name == "fill_drain" else name


@dataclass(frozen=True)
class Item:
    """One setting: how its value is read, its default, and what it does."""

    parse: Callable[[Any], Any]
    default: Any
    help: str


ITEMS = {
    "device": Item(
        text,
        "",
        "where ranks compute with a model that is on the CPU, such as cuda; empty: where its first "
        "inputs are",
    ),
    "share_device": Item(boolean, False, "several ranks may compute on one accelerator"),
    "pinned_memory_mib": Item(count, 256, "most pinned memory of a rank for such messages, in MiB"),
    "mem_limit_gb": Item(
        gib, 0.0, "memory of each rank's device in GiB, fractions allowed; 0: what it has"
    ),
    "mem_margin": Item(
        fraction, 0.1, "share of that memory that plans leave free, as for what allocators reserve"
    ),
    "tensor_parallel": Item(
        ways,
        1,
        "ranks that compute each layer together; 1 or none: each computes whole layers; auto: the "
        "planner decides",
    ),
    "sequence_parallel": Item(
        boolean,
        False,
        "with tensor_parallel: what lies between the products, as norms, dropout and residuals, "
        "has a part of the sequence on each of these ranks",
    ),
    "partition_num": Item(count, 0, "number of stages; 0: the planner decides"),
    "replica_nums": Item(counts, (), "replicas of each stage, such as 1,3; empty: the planner"),
    "pipeline_num": Item(count, 0, "number of micro-batches; 0: the planner decides"),
    "min_pipeline": Item(positive, 1, "fewest micro-batches the planner tries"),
    "max_pipeline": Item(positive, 32, "most micro-batches the planner tries"),
    "max_partition_num": Item(count, 0, "most blocks for the stage search; 0: by the cluster"),
    "schedule": Item(
        schedule,
        "auto",
        "auto, gpipe (or fill_drain), 1f1b or interleaved; auto: 1f1b or "
        "interleaved for a model that returns its loss, gpipe for others, also for one that "
        "returns a part of it beside what the loop makes the loss of",
    ),
    "recompute": Item(
        word("auto", "never", "always", "stage", "segments"),
        "auto",
        "run a stage's forward again in its backward, or that of its segments, one after the other",
    ),
    "opt_param_factor": Item(
        number,
        2.0,
        "optimizer state in copies of a parameter, for optimizers not known, and for one made "
        "after wrapping",
    ),
    "frontend": Item(
        word("torchscript", "export", "auto"),
        "torchscript",
        "what captures the model: torchscript, torch's tracer; export, torch.export; auto: the "
        "first of them that can and passes the self-check",
    ),
    "self_check": Item(
        boolean, True, "compare the captured graph with eager before planning, when it fits"
    ),
    "audit": Item(
        word("auto", "off"),
        "auto",
        "capture the second, fourth and eighth call of a kind once more, and later ones within 1 % "
        "of the time, and "
        "compare with what runs; off: none",
    ),
    "calibrate": Item(
        boolean,
        True,
        "run a new plan a few times before the first step, to predict its time, and others that "
        "may be faster",
    ),
    "profile_cache": Item(
        text, "", "folder of measured costs; empty: the user's cache directory; off: none"
    ),
    "exact_loss": Item(
        boolean,
        False,
        "one replica and one micro-batch where a loss is not linear in means over the batch",
    ),
    "deterministic_dropout": Item(
        boolean,
        False,
        "random numbers depend on seed, step and sample, not on the plan",
    ),
    "sync_batch_norm": Item(
        boolean,
        False,
        "batch normalisation by the statistics of the whole batch, in one micro-batch",
    ),
    "keep_freed_memory": Item(
        boolean, True, "the process keeps freed memory for the next step: no page faults (glibc)"
    ),
    "wrap_hooks": Item(
        boolean,
        True,
        "hooks on parameters and arguments run only in backwards that have a gradient for them",
    ),
    "guard_no_sync": Item(
        boolean,
        True,
        "a step of any optimizer is an error while its gradients are kept under no_sync()",
    ),
    "end_job_on_error": Item(
        boolean, True, "an exception that ends one rank ends the job, with its text"
    ),
    "fused_optimizer": Item(
        boolean,
        True,
        "torch's fused steps of Adam, AdamW and SGD on the CPU, unless fused or foreach is set",
    ),
    "sync_params_on_init": Item(boolean, True, "start from rank 0's parameters on every rank"),
    "save_deployment": Item(boolean, False, "write the plan to deployment_file"),
    "load_deployment": Item(boolean, False, "take the plan from deployment_file"),
    "deployment_file": Item(text, "rannc_plan.json", "where the plan is written and read"),
    "dp_search_all": Item(
        boolean, True, "plans of every number of stages; false: the fewest stages that fit"
    ),
    "min_pipeline_bs": Item(positive, 1, "fewest rows of a replica in a micro-batch"),
    "limit_dev_num_pot": Item(boolean, False, "each stage has a power of two of replicas"),
    "partitioning_dry_run_np": Item(
        count, 0, "plan for so many ranks, show and save that plan, and end; 0: train"
    ),
    "verify_partitioning": Item(
        boolean, False, "compare outputs and gradients under the plan with those of one process"
    ),
    "verify_recomp": Item(
        boolean, False, "compare gradients with and without recompute, before the first step"
    ),
    "save_graph_profile": Item(boolean, False, "write measured costs to graph_profile_file"),
    "load_graph_profile": Item(
        boolean, False, "take measured costs from graph_profile_file, of whatever machine"
    ),
    "graph_profile_file": Item(text, "rannc_graph_profiles.json", "where these costs are"),
    "dump_graph": Item(
        boolean, False, "write the graph, and each stage, to dump_graph_prefix + _*.dot (Graphviz)"
    ),
    "dump_graph_prefix": Item(text, "rannc_graph", "what the names of these files begin with"),
    "profiling": Item(boolean, False, "log at the end of a plan where each rank's time went"),
    "trace_events": Item(
        boolean, False, "write what the ranks do in the first training steps to event_trace_file"
    ),
    "event_trace_file": Item(text, "rannc_trace.json", "that file, for Perfetto"),
    "trace_steps": Item(positive, 16, "training steps that it has"),
    "metrics_file": Item(text, "", "file to which records of steps are added, a line of JSON each"),
    "tensorboard_dir": Item(text, "", "folder of TensorBoard's for the same numbers"),
    "metrics_every": Item(positive, 10, "training steps from one record to the next"),
    "display_comm_value": Item(boolean, False, "log what enters and leaves the stages"),
    "display_act_value": Item(boolean, False, "log the results of all operators"),
    "device_transport": Item(
        word("auto", "nccl", "staged"),
        "auto",
        "how messages of an accelerator travel; staged: through pinned memory of the host",
    ),
    "nccl_library": Item(
        text,
        "",
        "file of NCCL 2.26 or newer; empty: the one that torch has loaded, or the system's",
    ),
    "float32_sums": Item(
        boolean,
        False,
        "NCCL sums 16-bit gradients over ranks in float32, in twice the bytes; others always do",
    ),
    "nccl_one_stream": Item(
        boolean, False, "all of NCCL's work on one stream, beside the one that computes"
    ),
    "comm_timeout_s": Item(seconds, 600.0, "longest wait for another rank, in seconds"),
    "log_level": Item(text, "warn", "debug, info, warn, error or off; per module: comm=debug"),
    "show_config_items": Item(boolean, False, "print the settings that are not defaults"),
}


def _unknown(name: str, where: str) -> ConfigError:
    names = [*ITEMS, *original.RENAMED, *original.REPLACED]
    written = name.lower().removeprefix("rannc_")
    hint = meant(written, names) or ". docs/settings.md lists them all"
    return ConfigError(f"unknown setting '{name}' {where}{hint}")


def _parse(name: str, value, where: str, parse=None):
    try:
        return (parse or ITEMS[name].parse)(value)
    except ValueError as error:
        raise ConfigError(f"{name} = {value!r} {where}: {error}") from None


class _EachStage(int):
    """``replica_num`` of RaNNC 0.7: as many replicas for every stage; 0: the planner decides."""


def _always(value) -> str:
    return "always" if boolean(value) else "auto"


def _each_stage(value):
    return _EachStage(count(value))


# How a value of RENAMED is read, where not as that of the setting here.
_READ = {"checkpointing": _always, "replica_num": _each_stage}


def _items(given: dict[str, Any], place: Callable[[str], str], notes: list[str]) -> dict[str, Any]:
    """What one source gives, by names of ``ITEMS``; adds a line to ``notes`` for each setting of
    RaNNC 0.7 that does nothing here. ``place(name)`` says where a setting stands."""
    found, names = {}, {}
    for name, value in given.items():
        where = place(name)
        if name in ITEMS:
            item, parsed = name, _parse(name, value, where)
        elif name in original.RENAMED:
            item = original.RENAMED[name]
            parsed = _parse(name, value, where, _READ.get(name, ITEMS[item].parse))
        elif name in original.REPLACED:
            notes.append(
                f"setting '{name}' {where} is of RaNNC 0.7 and does nothing here: "
                f"{original.REPLACED[name]}"
            )
            continue
        else:
            raise _unknown(name, where)
        if item in found:
            old = name if name != item else names[item]
            raise ConfigError(f"'{item}' and its old name '{old}' are both given {where}")
        found[item], names[item] = parsed, name
    return found


def _from_file(notes: list[str]) -> dict[str, Any]:
    """Of ``rannc_conf.toml``, and the log levels of ``logging.toml`` beside it, where there are."""
    given = os.environ.get("RANNC_CONF_DIR")
    home = files.home()
    if not given and home is None:
        return {}
    folder = Path(given or home / ".pyrannc")
    path, of_loggers = folder / FILE_NAME, folder / loggers.FILE_NAME
    found = {}
    if of_loggers.is_file():
        found["log_level"] = loggers.of_file(of_loggers)
    elif not path.is_file() and given:
        raise ConfigError(f"RANNC_CONF_DIR is {given}, but there is no {path}")
    if not path.is_file():
        return found
    try:
        content = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return found | _items(content, lambda _: f"in {path}", notes)


def _from_environment(notes: list[str]) -> dict[str, Any]:
    found = {}
    for variable, value in os.environ.items():
        if not variable.startswith("RANNC_") or variable in OTHER_VARIABLES:
            continue
        found[variable.removeprefix("RANNC_").lower()] = value
    return _items(found, lambda name: f"in the environment (RANNC_{name.upper()})", notes)


class Config:
    """Limits and choices of the planner and the runtime; every item of ``ITEMS`` is an attribute.

    Raises:
        ConfigError: An unknown item or a malformed value, in an argument, in the environment or in
            ``rannc_conf.toml``; names the place and the closest valid name.

    >>> Config(partition_num=2, replica_nums=[1, 3]).replica_nums
    (1, 3)
    """

    def __init__(self, **arguments):
        #: A line for each setting of RaNNC 0.7 that does nothing here.
        self.notes = []
        values = {name: item.default for name, item in ITEMS.items()}
        values |= _from_file(self.notes) | _from_environment(self.notes)
        values |= _items(arguments, lambda _: "in Config(...)", self.notes)
        for name, value in values.items():
            setattr(self, name, value)
        #: Ranks of a group must draw alike what each of them has whole.
        self.draws_by_key = self.deterministic_dropout or self.tensor_parallel != 1
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ConfigError(
                "sequence_parallel is of ranks that compute layers together, but tensor_parallel "
                "is none; set it, too, or leave sequence_parallel out"
            )
        if isinstance(self.replica_nums, _EachStage):
            self._repeat_replicas(int(self.replica_nums))
        stages = len(self.replica_nums)
        if stages and self.partition_num and stages != self.partition_num:
            raise ConfigError(
                f"replica_nums = {list(self.replica_nums)} is of {stages} stages, but "
                f"partition_num = {self.partition_num}; leave one of them out, or let them agree"
            )
        if self.min_pipeline > self.max_pipeline:
            raise ConfigError(
                f"min_pipeline = {self.min_pipeline} is larger than "
                f"max_pipeline = {self.max_pipeline}"
            )

    def with_groups(self, ways):
        """The same where ``ways`` ranks compute layers together."""
        made = copy.copy(self)
        made.tensor_parallel = ways
        return made

    def _repeat_replicas(self, each):
        if each and not self.partition_num:
            raise ConfigError(
                f"replica_num = {each} needs partition_num, the number of stages: each of them has "
                "as many replicas. replica_nums says them one by one"
            )
        self.replica_nums = (each,) * self.partition_num if each else ()

    @classmethod
    def from_env(cls) -> "Config":
        """The settings without any argument."""
        return cls()

    def changed(self) -> dict[str, Any]:
        """The items that differ from their defaults."""
        return {
            name: getattr(self, name)
            for name, item in ITEMS.items()
            if getattr(self, name) != item.default
        }

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.changed().items())})"
