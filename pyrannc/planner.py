"""The planner for those who have files or dictionaries: no torch, no compiled extension.

Everything here calls the program ``rannc-plan``, which is built into this package. The same program
is ``rannc plan``, so that a plan does not depend on how it was asked for; a search can be
interrupted, and cannot take the caller down with it.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

PROGRAM = Path(__file__).with_name("rannc-plan")
_BAD_INPUT, _DOES_NOT_FIT = 2, 3
_WIDTH = 80  # where there is no terminal to ask


class PlannerInputError(ValueError):
    """A file or an argument that cannot be used: one line with its name, and the line and column or
    the JSON path. The package's own errors live in the compiled core, which needs torch."""


def plan(
    graph,
    cluster,
    request=None,
    *,
    global_batch: int | None = None,
    time_limit: float | None = None,
    threads: int | None = None,
    pins: dict[str, int] | None = None,
    whole: str | tuple[str, ...] = (),
    progress: Callable[[float], None] | None = None,
) -> dict:
    """The fastest plan that fits, by the files of ``docs/planner-files.md``.

    Args:
        graph: A graph profile: a path, a dictionary, or an object with ``to_json``.
        cluster: A cluster: a path of a TOML file, or a dictionary of the same keys.
        request: A request: a path or a dictionary. Default: the default one for ``global_batch``.
        global_batch: Rows of the global batch, instead of a request.
        time_limit: Seconds after which, or at Ctrl-C, the best plan so far is the answer.
        threads: Of the search; the plan does not depend on it. Default: one for each core.
        pins: The stage of a module; -1 is the last.
        whole: Modules that one stage must hold.
        progress: Hears how far the search is, from 0 to 1.

    Returns:
        The plan, as its file holds it; ``plan["feasible"]`` is False, and ``plan["reason"]`` says
        why, when nothing fits.

    Raises:
        PlannerInputError: Something in the input is wrong.
    """
    options = ["--json"]
    if time_limit is not None:
        options += ["--time-limit", str(time_limit)]
    if threads is not None:
        options += ["--threads", str(threads)]
    if not isinstance(pins, Mapping | None):
        raise PlannerInputError(f"pins is {pins!r}: it must be a dictionary, as {{'head': -1}}")
    for module, stage in (pins or {}).items():
        options += ["--pin", f"{module}={'last' if stage == -1 else stage}"]
    for module in [whole] if isinstance(whole, str) else whole:
        options += ["--whole", module]
    inputs = {"graph": graph, "cluster": cluster, "request": request}
    return json.loads(_call("plan", inputs, global_batch, options, progress))


def evaluate(plan, graph, cluster, request=None, *, global_batch: int | None = None) -> dict:
    """Time and memory of any plan, and what is wrong with it.

    Args:
        plan: A plan, also one that was written by hand: a path, a dictionary, or an object with
            ``to_json``.
        graph, cluster, request, global_batch: As for :func:`plan`.

    Returns:
        ``valid``, the list ``problems``, and where the plan's structure allows it ``iteration_ns``,
        ``stages``, ``parts`` and ``transfers``.

    Raises:
        PlannerInputError: Something in the input is wrong, other than the plan's choices.
    """
    inputs = {"graph": graph, "cluster": cluster, "request": request, "plan": plan}
    return json.loads(_call("evaluate", inputs, global_batch, ["--json"]))


def show(plan, batch_size: int | None = None, width: int = _WIDTH) -> str:
    """A plan as tables for people.

    Args:
        plan: A path, a dictionary, or an object with ``to_json``.
        batch_size: Rows of the global batch, to show rows per micro-batch. Default: as noted in
            the plan.
        width: Columns of the terminal.

    Raises:
        PlannerInputError: It is no plan, or cannot be read.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = [_file("plan", plan, folder), "--width", str(width)]
        if batch_size:
            options += ["--global-batch", str(batch_size)]
        return _run(["show", *options], folder)


def check_shown(plan, graph=None) -> None:
    """Reads a plan, and the graph that it is for, as ``rannc show`` does.

    Raises:
        PlannerInputError: One of them cannot be read, is of another version, or the plan is of
            another graph; says what differs.
    """
    _run(["show", os.fspath(plan), *(["--graph", os.fspath(graph)] if graph else [])])


def explain(plan, module: str, options=()) -> str:
    """Which stage of a plan file holds a module, as ``rannc explain`` prints it.

    Raises:
        PlannerInputError: It is no plan, or has no such module.
    """
    return _run(["explain", os.fspath(plan), module, *options])


def show_deployment(path: str | os.PathLike, batch_size: int | None = None) -> None:
    """Prints the plan in a file."""
    print(show(path, batch_size), end="")


def _call(
    command: str, inputs: dict, global_batch: int | None, options: list[str], progress=None
) -> str:
    if global_batch is not None:
        options = [*options, "--global-batch", str(global_batch)]
    with tempfile.TemporaryDirectory() as folder:
        for name, value in inputs.items():
            if value is not None:
                options = [*options, f"--{name}", _file(name, value, folder)]
        return _run([command, *options], folder, progress)


def _file(name: str, value, folder: str) -> str:
    """The path of a file with ``value``, in ``folder`` when it is not one already."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    path = Path(folder, f"{name}.toml" if name == "cluster" else f"{name}.json")
    if hasattr(value, "to_json"):
        text = value.to_json()
    elif hasattr(value, "to_toml"):
        text = value.to_toml()
    else:
        text = _toml(value) if name == "cluster" else json.dumps(value, default=_plain)
    path.write_text(text, encoding="utf-8")
    return str(path)


def _toml(table: dict) -> str:
    """A table of numbers, strings and lists, with tables of such: all that a cluster has."""
    lines = [
        f"{_toml_value(str(key))} = {_toml_value(value)}\n"
        for key, value in table.items()
        if not isinstance(value, dict)
    ]
    for key, value in table.items():
        if isinstance(value, dict):
            lines.append(f"[{_toml_value(str(key))}]\n{_toml(value)}")
    return "".join(lines)


def _plain(value):
    """What NumPy or torch has counted, as Python's numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise PlannerInputError(
        f"a file holds numbers, strings, lists and dictionaries, not {type(value).__name__}"
    )


def _toml_value(value) -> str:
    if hasattr(value, "tolist"):
        value = value.tolist()
    # TOML's strings are escaped as JSON's are, and its floats are written as Python's.
    if isinstance(value, str | bool):
        return json.dumps(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, int | float):
        # Its integers have 64 bits.
        return repr(value if abs(value) < 2**63 else float(value))
    raise PlannerInputError(
        f"a cluster holds numbers, strings and lists, not {type(value).__name__}"
    )


def _run(arguments: list[str], folder: str | None = None, progress=None) -> str:
    if progress is not None:
        arguments = [*arguments, "--progress"]
    # Without buffers, of which communicate() would not know.
    process = subprocess.Popen(
        [program(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    said = b""
    while True:
        try:
            # Until its last share, 1, it writes nothing else, so that no pipe fills up meanwhile.
            while progress is not None:
                said = process.stderr.readline()
                name, _, share = said.partition(b" ")
                if name == b"progress":
                    progress(float(share))
                if name != b"progress" or float(share) >= 1:
                    progress = None
            out, rest = process.communicate()
            complaint = said + rest
            break
        except KeyboardInterrupt:
            # The terminal has told the program, too: with a time limit it answers, else it ends.
            if "--time-limit" not in arguments:
                process.wait()
                raise
    if process.returncode in (0, _DOES_NOT_FIT):
        return out.decode()
    reason = complaint.decode(errors="replace").strip()
    if folder is not None:
        reason = reason.replace(folder + os.sep, "")
    if process.returncode == _BAD_INPUT:
        raise PlannerInputError(reason.removeprefix("rannc-plan: "))
    raise RuntimeError(f"rannc-plan ended with {process.returncode}: {reason}")


def program() -> str:
    """The path of ``rannc-plan``.

    Raises:
        FileNotFoundError: It is not built; says how to build it.
    """
    if not PROGRAM.is_file():
        raise FileNotFoundError(
            f"{PROGRAM} is not built; rebuild with: pip install --no-build-isolation -e ."
        )
    return str(PROGRAM)


def become(arguments: list[str], name: str = "rannc") -> None:
    """Replaces this process by ``rannc-plan`` with ``arguments``: its output, its exit code, and
    what it does at Ctrl-C."""
    os.execv(program(), [name, *arguments])


def main() -> None:
    """The command ``rannc-plan``."""
    import sys

    become(sys.argv[1:], "rannc-plan")
