"""The graph and its stages as files for Graphviz."""

from pyrannc import _C, files, log
from pyrannc.errors import ConfigError


def write(plan, graph, prefix) -> None:
    """``PREFIX_r0.dot``: the whole graph, a box around each stage; ``PREFIX_s0.dot``: stage 0.

    Raises:
        ConfigError: A file cannot be written.
    """
    pictures = {f"{prefix}_r0.dot": _C.plan.show_dot(plan, graph)}
    for stage in range(len(plan.stages)):
        pictures[f"{prefix}_s{stage}.dot"] = _C.plan.show_dot(plan, graph, stage)
    for name, picture in pictures.items():
        try:
            files.write_whole(name, picture)
        except OSError as error:
            raise ConfigError(
                f"dump_graph: {name}: {error.strerror}.\n  Set dump_graph_prefix."
            ) from None
    log.info("deploy", f"dump_graph: wrote {', '.join(pictures)}")
