"""Measured costs of operators on disk, so that a second run measures only what is new."""

import json
import os
import platform
from pathlib import Path

import torch

from pyrannc import __version__, files
from pyrannc.errors import ConfigError
from pyrannc.job import device_facts
from pyrannc.profiling import kept_file
from pyrannc.profiling.kept_file import KeptFile, digest

_HOST = torch.device("cpu")
KIND = "rannc-profile-cache", 1
# To be counted up when operators are measured in another way. 2: the memory of a linear layer's
# backward is without the gradient of its weight. 3: weights are in no cache, where a step touches
# much; a long operator is called twice.
_METHOD = 3
#: Beyond so many costs the oldest go: a file stays at a few megabytes.
#: tuned by: a bound on the size of a file.
#: without it: the file grows with every model, and all ranks read it at every start.
MOST_ENTRIES = 20_000


class ProfileCache:
    """One file for one kind of machine; rank 0 reads and writes it.

    Args:
        folder: ``"off"`` keeps nothing, empty stands for the user's cache directory.
        environment: What costs depend on besides the operator. Default: this process.
    """

    def __init__(self, folder, environment=None):
        environment = environment_of_process() if environment is None else environment
        self._file = KeptFile("costs", KIND, _is_rows, folder, environment)

    def read(self, keys) -> dict:
        """``{key: [[forward ns, backward ns, workspace bytes] for each number of rows]}`` (of an
        accelerator also what the host takes, forward and backward, in ns) of those
        of ``keys`` that are there."""
        return _of(keys, self._file.read())

    def add(self, known) -> None:
        """Keeps ``known``, as read() returns it, besides what is there by now."""
        if not known:
            return
        added = {digest(key): rows for key, rows in known.items()}
        kept = {key: rows for key, rows in self._file.read().items() if key not in added} | added
        self._file.write(dict(list(kept.items())[-MOST_ENTRIES:]))


class ProfileFile:
    """Costs in one file that the user names, by the operators as they are."""

    def __init__(self, path):
        self._path = Path(path)

    def read(self, keys) -> dict:
        """As :meth:`ProfileCache.read`.

        Raises:
            ConfigError: There is no such file, or it is none of costs.
        """
        try:
            read = json.loads(self._path.read_text(encoding="utf-8"))
            environment = read.get("environment") if isinstance(read, dict) else None
            costs = kept_file.values(read, "costs", KIND, _is_rows, environment)
        except (OSError, ValueError) as error:
            raise ConfigError(f"load_graph_profile: {self._path}: {error}") from None
        return _of(keys, costs)

    def write(self, known) -> None:
        """Raises ConfigError where it cannot be written."""
        costs = {digest(key): rows for key, rows in known.items()}
        content = kept_file.content(costs, "costs", KIND, environment_of_process())
        try:
            files.write_whole(self._path, json.dumps(content))
        except OSError as error:
            raise ConfigError(f"save_graph_profile: {self._path}: {error.strerror}") from None


def _of(keys, costs):
    found = {key: costs.get(digest(key)) for key in keys if key}
    return {key: rows for key, rows in found.items() if rows is not None}


def environment_of_process(device=_HOST) -> dict:
    """``device``: on which the operators run."""
    environment = {
        "pyrannc": __version__,
        "torch": torch.__version__,
        "device": _processor(),
        "threads": torch.get_num_threads(),
        "method": _METHOD,
    }
    return (
        environment if device.type == "cpu" else environment | {"accelerator": accelerator(device)}
    )


def accelerator(device) -> dict:
    """Its kind, what runs it, and with what precision torch computes there."""
    return {
        "kind": device.type,
        "clocks": 2,  # the host's time is apart from the device's
        "name": device_facts.name(device),
        "memory": device_facts.total_bytes(device),
        "cache": device_facts.cache_bytes(device),
        "runtime": torch.version.cuda or torch.version.hip or "",
        "driver": _driver(),
        "float32": device_facts.float32_precisions(),
        "half": device_facts.other_precisions(),
        "attention": device_facts.attention_kernels(),
        "benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _driver():
    """The version of NVIDIA's driver, where there is one."""
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except OSError:
        return ""


def _processor():
    """The model of this machine's processor, and what torch uses of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = models[0] if models else platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"


def _is_rows(rows):
    return isinstance(rows, list) and all(
        isinstance(cost, list)
        and len(cost) in (3, 5)
        and all(type(number) is int and 0 <= number < 2**62 for number in cost)
        for cost in rows
    )
