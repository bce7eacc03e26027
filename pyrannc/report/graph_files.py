"""The graph and its stages as files for Graphviz."""

from pathlib import Path

from pyrannc import _C, files, log
from pyrannc.errors import ConfigError


def write(plan, graph, prefix) -> None:
    """``PREFIX_r0.dot``: the whole graph, a box around each stage; ``PREFIX_s0.dot``: stage 0."""
    names = [f"{prefix}_r0.dot"]
    pictures = [_C.plan.show_dot(plan, graph)]
    for stage in range(len(plan.stages)):
        names.append(f"{prefix}_s{stage}.dot")
        pictures.append(_C.plan.show_dot(plan, graph, stage))
    try:
        for name, picture in zip(names, pictures, strict=True):
            files.write_whole(Path(name), picture)
    except OSError as error:
        raise ConfigError(f"dump_graph: {error}\n  Set dump_graph_prefix.") from None
    log.info("deploy", f"dump_graph: the graph is in {names[0]}, its stages in {names[1]} and on")
