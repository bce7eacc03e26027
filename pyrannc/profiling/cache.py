"""Measured costs of operators on disk, so that a second run measures only what is new."""

import hashlib
import json
import os
import platform
from pathlib import Path

import torch

from pyrannc import __version__, files, log
from pyrannc.errors import ConfigError
from pyrannc.job import device_facts

_HOST = torch.device("cpu")
FORMAT, VERSION = "rannc-profile-cache", 1
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
        self._environment = environment_of_process() if environment is None else environment
        self._path = path_of("costs", folder, self._environment)

    def read(self, keys) -> dict:
        """``{key: [[forward ns, backward ns, workspace bytes] for each number of rows]}`` (of an
        accelerator also what the host takes, forward and backward, in ns) of those
        of ``keys`` that are there."""
        if self._path is None:
            return {}
        costs = self._costs()
        found = {key: costs.get(_digest(key)) for key in keys if key}
        return {key: rows for key, rows in found.items() if rows is not None}

    def add(self, known) -> None:
        """Keeps ``known``, as read() returns it, besides what is there by now."""
        if self._path is None or not known:
            return
        added = {_digest(key): rows for key, rows in known.items()}
        kept = {key: rows for key, rows in self._costs().items() if key not in added} | added
        content = {
            "format": FORMAT,
            "version": VERSION,
            "environment": self._environment,
            "costs": dict(list(kept.items())[-MOST_ENTRIES:]),
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(self._path, json.dumps(content))
        except OSError as error:
            log.warn("profile", f"measured costs are not kept for the next run: {error}")

    def _costs(self):
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            return self._ignored(error)
        try:
            return _checked(json.loads(text), self._environment)
        except ValueError as error:
            return self._ignored(error)

    def _ignored(self, reason):
        log.warn("profile", f"{self._path} is ignored and will be written anew: {reason}")
        return {}


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
            content = json.loads(self._path.read_text(encoding="utf-8"))
            environment = content.get("environment") if isinstance(content, dict) else None
            costs = _checked(content, environment)
        except (OSError, ValueError) as error:
            raise ConfigError(f"load_graph_profile: {self._path}: {error}") from None
        found = {key: costs.get(_digest(key)) for key in keys if key}
        return {key: rows for key, rows in found.items() if rows is not None}

    def write(self, known) -> None:
        """Raises ConfigError where it cannot be written."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "environment": environment_of_process(),
            "costs": {_digest(key): rows for key, rows in known.items()},
        }
        try:
            files.write_whole(self._path, json.dumps(content))
        except OSError as error:
            raise ConfigError(f"save_graph_profile: {self._path}: {error.strerror}") from None


def path_of(what, folder, environment) -> Path | None:
    """The file of ``what`` depends on ``environment``; None where nothing is kept.

    Args:
        folder: ``"off"`` keeps nothing, empty stands for the user's cache directory.
    """
    base = None
    if folder != "off":
        base = Path(folder) if folder else user_folder()
    return base and base / f"{what}-{_digest(json.dumps(environment))}.json"


def user_folder() -> Path | None:
    """Where this user's programs keep what can be computed again; none for a user without one."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base and files.home() is None:
        return None
    return (Path(base) if base else files.home() / ".cache") / "rannc"


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


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _checked(content, environment):
    """The costs of a file's content; raises ValueError when it is not what add() writes."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it is no {FORMAT}")
    if content.get("version") != VERSION:
        raise ValueError(f"its version is {content.get('version')}, not {VERSION}")
    if content.get("environment") != environment:
        raise ValueError("it is of another machine")
    costs = content.get("costs")
    if not isinstance(costs, dict) or not all(map(_is_rows, costs.values())):
        raise ValueError("its costs are malformed")
    return costs


def _is_rows(rows):
    return isinstance(rows, list) and all(
        isinstance(cost, list)
        and len(cost) in (3, 5)
        and all(type(number) is int and 0 <= number < 2**62 for number in cost)
        for cost in rows
    )
