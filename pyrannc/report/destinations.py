"""What settings want written, and whether it can be: asked before the work that it tells about."""

import importlib.util

from pyrannc import files
from pyrannc.errors import ConfigError


def check(config) -> None:
    """Looks at every file and folder that ``config`` asks for, and changes none of them.

    Raises:
        ConfigError: One of them could not be written; names the setting, the path and the reason.
    """
    if config.save_deployment:
        check_file(config.deployment_file, "save_deployment: deployment_file")
    if config.trace_events:
        check_file(config.event_trace_file, "event_trace_file")
    if config.metrics_file:
        _checked(files.check_appendable, config.metrics_file, "metrics_file")
    if config.tensorboard_dir:
        _check_tensorboard(config.tensorboard_dir)
    if config.dump_graph:
        check_file(f"{config.dump_graph_prefix}_r0.dot", "dump_graph_prefix")
    if config.save_graph_profile:
        check_file(config.graph_profile_file, "graph_profile_file")


def check_file(path, setting) -> None:
    """Raises ConfigError where ``files.write_whole`` could not write to ``path``."""
    _checked(files.check_writable, path, setting)


def _checked(check, path, setting):
    try:
        check(path)
    except OSError as error:
        raise ConfigError(
            f"{setting}: {path} cannot be written: {error.strerror}.\n"
            "  Set it to a place in a folder that rank 0 may write to."
        ) from None


def _check_tensorboard(folder):
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            f"tensorboard_dir = '{folder}' needs the package tensorboard, which is not installed.\n"
            "  Try pip install tensorboard, or metrics_file, which needs nothing."
        )
    _checked(files.check_folder, folder, "tensorboard_dir")
