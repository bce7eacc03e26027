"""``rannc advise``: what training would take on other numbers of devices."""

import tempfile
from pathlib import Path

import typer

from pyrannc import planner, progress
from pyrannc.cli.plans import answer


def advise(
    target, cluster, batch, devices, memory, recompute, dtype, autocast, device, request, price,
    html, as_json,
) -> None:  # fmt: skip
    from pyrannc.show import advise as what_if
    from pyrannc.show import page

    def asked():
        """What can be found wrong before a model is built."""
        if html is not None:
            page.check_writable(html)
        numbers = _numbers(devices, "--devices"), _numbers(memory, "--memory", float) or (None,)
        what_if.clusters(cluster, numbers[0])
        of_file = what_if.request(request) if request else None
        return _numbers(batch, "--batch"), of_file, *numbers, _words(recompute)

    wanted = answer(asked)
    with tempfile.TemporaryDirectory() as folder:
        graphs = _graphs(target, dtype, autocast, device, Path(folder))
        with progress.phase("planning all cases", line=progress.error_line):
            rows = answer(
                lambda: what_if.table(graphs, cluster, *wanted, progress=progress.advance_share)
            )
    price = price or what_if.price_in(cluster)
    if not as_json:
        print(_taken(target, dtype, autocast, device))
    print(what_if.as_json(rows, price) if as_json else what_if.text(rows, price), end="")
    if html is not None:
        answer(lambda: what_if.write_chart(html, rows, price))


def _taken(target, dtype, autocast, device):
    """What the table takes for granted."""
    if ":" not in target:
        return f"weights, computation and costs as '{target}' was captured"
    compute = f"in {autocast} under autocast" if autocast else "in the same"
    return f"weights in {dtype}, computation {compute}, costs of {device}"


def _graphs(target, dtypes, autocast, device, folder):
    """Paths of graph-profiles by precision; a build is captured once for each."""
    if ":" not in target:
        return {"as given": target}
    from pyrannc.errors import RaNNCError
    from pyrannc.profiling import graph_profile

    found = {}
    for dtype in dtypes.split(","):
        path = folder / f"{dtype}.json"
        try:
            build = graph_profile.load_build(target)
            what = f"capturing the model as {dtype}"
            with progress.phase(what, line=progress.error_line):
                profile = graph_profile.graph_profile(
                    build, device=device, dtype=dtype, autocast=autocast
                )
        except RaNNCError as error:
            typer.echo(f"rannc: {error}", err=True)
            raise typer.Exit(2) from None
        path.write_text(profile.to_json())
        found[dtype] = path
    return found


def _numbers(text, option, kind=int):
    try:
        found = [kind(part) for part in text.split(",") if part]
    except ValueError:
        found = [0]
    if not found and option == "--batch":
        found = [0]
    if not all(0 < number < float("inf") for number in found):
        raise planner.PlannerInputError(
            f"{option} takes numbers above 0, as 512,1024; found '{text}'"
        )
    return found


def _words(recompute):
    found = recompute.split(",")
    if unknown := set(found) - {"auto", "never", "always"}:
        raise planner.PlannerInputError(
            f"--recompute takes auto, never and always; found '{min(unknown)}'"
        )
    return found
