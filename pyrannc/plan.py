"""Reading and showing a plan file, without torch and without the compiled core."""

import io
import json
import os
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

_WIDTH = 110  # where there is no terminal to ask


class PlanFileError(ValueError):
    """A plan file that cannot be read. The package's own errors live in the compiled core, which
    needs torch."""


def load(path: str | os.PathLike) -> dict:
    """The plan in a file that ``save_deployment`` or ``rannc-plan`` wrote.

    Raises:
        PlanFileError: The file cannot be read, or is no plan of version 1.
    """
    try:
        plan = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanFileError(f"cannot read the plan: {error}") from None
    except ValueError as error:
        raise PlanFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(plan, dict) or plan.get("format") != "rannc-plan":
        raise PlanFileError(f"{path} is not a plan: its 'format' is not 'rannc-plan'")
    if plan.get("version") != 1:
        raise PlanFileError(
            f"{path} is a plan of version {plan.get('version')}; this RaNNC reads version 1"
        )
    return plan


def show(plan: dict | str | os.PathLike, batch_size: int | None = None, width: int = _WIDTH) -> str:
    """A plan as a table for people: one row per stage.

    Args:
        plan: A plan as :func:`load` gives it, or the path of its file.
        batch_size: Rows of the global batch, to show rows per micro-batch. Default: as noted in
            the plan.
        width: Columns of the terminal.
    """
    where = "the plan"
    if not isinstance(plan, dict):
        where, plan = plan, load(plan)
    try:
        return _render(plan, batch_size, width)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanFileError(f"{where} is damaged: {type(error).__name__}: {error}") from error


def show_deployment(path: str | os.PathLike, batch_size: int | None = None) -> None:
    """Prints the plan in a file as a table."""
    console = Console()
    width = console.width if console.is_terminal else _WIDTH
    print(show(path, batch_size, width), end="")


def _render(plan: dict, batch_size: int | None, width: int) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, highlight=False, color_system=None)
    if not plan.get("feasible", True):
        console.print(f"No plan fits: {plan['reason']}", markup=False)
        return text.getvalue()
    notes = plan.get("notes", {})
    console.print(_headline(plan, notes, batch_size), markup=False)
    console.print(_table(plan["stages"], notes.get("memory_limit_bytes")))
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def _headline(plan: dict, notes: dict, batch_size: int | None) -> str:
    stages, micro_batches = len(plan["stages"]), plan["micro_batches"]
    ranks = len({rank for stage in plan["stages"] for rank in stage["ranks"]})
    parts = [
        _count(stages, "stage"),
        _count(ranks, "rank"),
        _count(micro_batches, "micro-batch", "micro-batches"),
    ]
    rows = batch_size or notes.get("global_batch")
    if rows:
        parts[-1] += f" of {_number_range(rows, micro_batches)} rows"
    parts.append(f"schedule {plan['schedule']}")
    if plan.get("iteration_ns"):
        parts.append(f"predicted iteration {_milliseconds(plan['iteration_ns'])} ms")
    if notes.get("memory_limit_bytes"):
        parts.append(f"memory limit {_bytes(notes['memory_limit_bytes'])} per rank")
    return ", ".join(parts)


def _table(stages: list[dict], limit: int | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("stage", justify="right", no_wrap=True)
    table.add_column("modules", overflow="fold", min_width=12)
    table.add_column("ranks", no_wrap=True)
    for name in ("fwd ms", "bwd ms", "memory", "sends"):
        table.add_column(name, justify="right", no_wrap=True)
    if recomputes := any(stage.get("recompute") for stage in stages):
        table.add_column("recompute", no_wrap=True)
    for index, stage in enumerate(stages):
        predicted, notes = stage.get("predicted"), stage.get("notes", {})
        memory = _bytes(predicted["peak_bytes"]) if predicted else "-"
        if predicted and limit:
            memory += f" ({predicted['peak_bytes'] / limit:.0%})"
        cells = [
            str(index),
            _escape(notes.get("modules") or _modules(stage["nodes"])),
            _ranges(stage["ranks"]),
            _milliseconds(predicted["forward_ns"]) if predicted else "-",
            _milliseconds(predicted["backward_ns"]) if predicted else "-",
            memory,
            _bytes(notes["send_bytes"]) if "send_bytes" in notes else "-",
        ]
        if recomputes:
            cells.append("yes" if stage.get("recompute") else "no")
        table.add_row(*cells)
    return table


def _modules(nodes: list[str]) -> str:
    """For plans without notes: the first and the last node, and how many lie between."""
    if len(nodes) <= 2:
        return ", ".join(nodes)
    return f"{nodes[0]} ... {nodes[-1]} ({len(nodes)} nodes)"


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)


def _number_range(total: int, parts: int) -> str:
    least, rest = divmod(total, parts)
    return f"{least} to {least + 1}" if rest else f"{least}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _milliseconds(nanoseconds: float) -> str:
    milliseconds = nanoseconds / 1e6
    return f"{milliseconds:.3g}" if milliseconds < 100 else f"{milliseconds:.0f}"


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
