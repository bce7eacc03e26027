"""Rows that these libraries repeat so that all ranks have as many."""

from pyrannc import launch, log


def warn(rows, together) -> None:
    """Says on rank 0 that ``rows`` are filled up to a multiple of ``together``, if they are."""
    missing = -rows % together
    if missing and launch.get_world_size() > 1 and launch.get_rank() == 0:
        log.warn(
            "module",
            f"{rows} rows are no multiple of {together}, which all ranks take together: the last "
            f"batch is filled up with the first {missing}, as for DistributedDataParallel, and "
            "one process would do without. With drop_last it is left out.",
        )
