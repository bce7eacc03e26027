"""Log lines of the Python side; the same levels, module names and format as the C++ side.

They also go to the logger ``rannc`` of Python's logging, whose level and handlers are the user's.
"""

import logging

from pyrannc import _C
from pyrannc.original import loggers

_python = logging.getLogger("rannc")
# Without any handler Python would print warnings, which are printed already.
_python.addHandler(logging.NullHandler())


def configure(levels: str) -> None:
    """``"info"``, or per module ``"info,partition=debug"``, also by loggers of RaNNC 0.7; raises
    ConfigError on unknown words."""
    _C.util.configure_log(loggers.translate(levels))


def debug(module: str, message: str) -> None:
    _C.util.log(_C.util.Level.debug, module, message)
    _python.debug("%s: %s", module, message)


def info(module: str, message: str) -> None:
    _C.util.log(_C.util.Level.info, module, message)
    _python.info("%s: %s", module, message)


def warn(module: str, message: str) -> None:
    _C.util.log(_C.util.Level.warn, module, message)
    _python.warning("%s: %s", module, message)
