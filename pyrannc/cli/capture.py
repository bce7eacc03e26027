"""``rannc capture``: a model as a graph-profile file, without a GPU."""

import os
import time

import typer

from pyrannc import files, progress


def capture(target, output, device, dtype, rows, level, depth, real) -> None:
    started = time.perf_counter()
    _writing(output, lambda: files.check_writable(output))
    if device != "measured":
        # Shapes are computed, no numbers: a pool of threads would only take time to start.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    from pyrannc.errors import RaNNCError
    from pyrannc.profiling import graph_profile

    try:
        with progress.phase("capturing the model", line=progress.error_line):
            found = graph_profile.graph_profile(
                graph_profile.load_build(target),
                device=device,
                dtype=dtype,
                rows=_numbers(rows),
                level=level,
                depth=depth,
                real=real,
            )
    except RaNNCError as error:
        typer.echo(f"rannc: {error}", err=True)
        raise typer.Exit(2) from None
    _writing(output, lambda: files.write_whole(output, found.to_json()))
    seconds = time.perf_counter() - started
    typer.echo(f"{output}: {found.name}, {found.node_count} nodes, {seconds:.1f} s")


def _writing(output, write):
    try:
        write()
    except OSError as error:
        typer.echo(f"rannc: cannot write '{output}': {error.strerror}", err=True)
        raise typer.Exit(2) from None


def _numbers(text):
    from pyrannc.errors import ConfigError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--rows takes numbers, as 1,2,4,8; found '{text}'") from None
