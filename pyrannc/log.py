"""Log lines of the Python side; the same levels, module names and format as the C++ side."""

from pyrannc import _C


def configure(levels: str) -> None:
    """``"info"``, or per module ``"info,partition=debug"``; raises ConfigError on unknown words."""
    _C.util.configure_log(levels)


def debug(module: str, message: str) -> None:
    _C.util.log(_C.util.Level.debug, module, message)


def info(module: str, message: str) -> None:
    _C.util.log(_C.util.Level.info, module, message)


def warn(module: str, message: str) -> None:
    _C.util.log(_C.util.Level.warn, module, message)
