"""``rannc capture``: a model as a graph-profile file, without a GPU."""

import os
import time

import typer

from pyrannc import files, progress


def capture(
    target, output, device, dtype, rows, level, depth, real, hf, batch, length, autocast
) -> None:
    """``hf``: a configuration of transformers instead of ``target``."""
    started = time.perf_counter()
    _writing(output, lambda: files.check_writable(output))
    if device != "measured":
        # Shapes are computed, no numbers: a pool of threads would only take time to start.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    from pyrannc.errors import RaNNCError
    from pyrannc.profiling import graph_profile, model_of_config

    try:
        with progress.phase("capturing the model", line=progress.error_line):
            if hf:
                graph_profile.check_dtype(dtype)
                weights = graph_profile.DTYPES[dtype or "fp32"]
                build = model_of_config.build_of(hf, batch, length, weights)
            else:
                build = graph_profile.load_build(target)
            found = graph_profile.graph_profile(
                build,
                device=device,
                dtype=None if hf else dtype,
                rows=_numbers(rows),
                level=level,
                depth=depth,
                real=real,
                autocast=autocast,
            )
    except RaNNCError as error:
        typer.echo(f"rannc: {error}", err=True)
        raise typer.Exit(2) from None
    _writing(output, lambda: files.write_whole(output, found.to_json()))
    seconds = time.perf_counter() - started
    taken = f"weights {dtype or ('fp32' if hf else 'as built')}"
    taken += f", compute under autocast in {autocast}" if autocast else ", compute in the same"
    if hf:
        taken += f", {batch} rows of {length} tokens"
    typer.echo(f"{output}: {found.name}, {found.node_count} nodes, {taken}; {seconds:.1f} s")


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
