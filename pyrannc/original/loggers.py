"""Loggers of RaNNC 0.7, by whose names and levels log lines are chosen, and ``logging.toml``."""

import difflib
import tomllib
from pathlib import Path

from pyrannc.errors import ConfigError

FILE_NAME = "logging.toml"

#: The module here whose lines tell what that logger told.
LOGGERS = {
    "RaNNCProcess": "module",
    "RaNNCModule": "deploy",
    "GraphLauncher": "runtime",
    "GraphConnector": "runtime",
    "GraphProfiler": "profile",
    "GraphValueStorage": "frontend",
    "ParamStorage": "deploy",
    "TorchDriver": "ops",
    "NCCLWrapper": "comm",
    "SComm": "comm",
    "MLPartitioner": "partition",
    "DPStaging": "partition",
    "Decomposer": "partition",
    "Decomposition": "plan",
    "ConvertGraph": "frontend",
    "Validator": "deploy",
    "SyncWatchDog": "comm",
    "DistLinearFunction": "ops",
    "DistTaskDispatcher": "runtime",
    "main": "module",
    "rannc": "module",
    "GraphUtil": "ir",  # which its documentation names, and which it never had
}
#: Levels of its log library, as far as they are called otherwise here.
LEVELS = {"trace": "debug", "warning": "warn", "err": "error", "critical": "error"}
# From the one that says most.
_ORDER = ["debug", "info", "warn", "error", "off"]
# What stands for all loggers in logging.toml.
_ALL = ("root", "default", "")


def translate(levels: str) -> str:
    """``"SComm=trace,info"`` as ``"comm=debug,info"``. Of two loggers that are one module here, the
    level that says more counts; a module's own name counts more than both.

    Raises:
        ConfigError: A name is almost that of a logger.
    """
    general, of_loggers, own = [], {}, []
    for item in filter(None, levels.split(",")):
        name, is_module, level = item.strip().rpartition("=")
        level = LEVELS.get(level, level)
        if not is_module:
            general.append(level)
        elif name in LOGGERS:
            of_loggers.setdefault(LOGGERS[name], []).append(level)
        else:
            _refuse_misspelt(name)
            own.append(f"{name}={level}")
    chosen = [f"{module}={min(found, key=_place)}" for module, found in of_loggers.items()]
    return ",".join([*general, *chosen, *own])


def _place(level):
    return _ORDER.index(level) if level in _ORDER else -1  # a wrong one is to be complained about


def _refuse_misspelt(name):
    if name != name.lower():  # all names of modules are of small letters
        close = difflib.get_close_matches(name, LOGGERS, n=1, cutoff=0)[0]
        raise ConfigError(f"unknown logger '{name}' in the log levels; did you mean '{close}'?")


def of_file(path: Path) -> str:
    """The levels that ``logging.toml`` of RaNNC 0.7 gives its loggers, as a ``log_level``.

    Sinks and patterns in it have nothing to set here.

    Raises:
        ConfigError: It is no such file, or names an unknown logger.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        found = [(each["name"], each.get("level", "info")) for each in content.get("logger", [])]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path}: each [[logger]] needs a name and a level") from None
    try:
        return translate(
            ",".join(level if name in _ALL else f"{name}={level}" for name, level in found)
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
