"""Writes docs/compatibility.md: what users write around the plain loop, and what comes of it.

The rows are what the jobs `habits.py`, `torch_habits.py` and `scripts.py` report on two ranks, so
that nothing stands there that no test has seen.
"""

import re
import tempfile

import mpi
import reports as found

PAGE = mpi.ROOT / "docs" / "compatibility.md"
HEAD = """\
# What works, and what is told

Each row is a test that compares with one process, on two ranks and on four. The page is written by
`make compatibility` from what these tests have seen. "Equal" means: losses, gradients, parameters
and what else the row is about equal those of the model without RaNNC on one process with the
batches of all ranks.
"""
RANKS = 2
SCRIPTS = ["plain_loop", "lightning_module", "trainer", "accelerate_loop", "ddp_script"]


def reports(job, ranks, *arguments):
    """What the ranks of a job have reported, and the job itself."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(mpi.free_port()),
            found.FOLDER: folder,
        }
        done = mpi.run([str(mpi.JOBS / job), *arguments], ranks, timeout=300, env=environment)
        return found.read(folder), done


def habit_rows(reported):
    """What is written, and what comes of it: the first errors on the first rank that has any."""
    errors = {}
    for report in reported:
        known = errors.setdefault(report["what"], [])
        known[:] = known or report["errors"]
    return [(what, answer(known)) for what, known in errors.items()]


def script_rows(reported):
    first = {}
    for report in reported:
        first.setdefault(report["script"], report)
    rows = []
    for name in SCRIPTS:
        report = first[name]
        place = f" (line {report['line']})" if report["error"] else ""
        rows.append((f"[{name}.py](../tests/support/scripts/{name}.py){place}: {report['what']}",
                     answer([report["error"]] if report["error"] else [])))  # fmt: skip
    return rows


def answer(errors):
    """Names and numbers depend on where the plan cuts, and paths on the machine at work."""
    return "<br>".join(f"error: {general(error)}" for error in errors) or "equal"


def general(error):
    error = re.sub(r"(?<![\w.])/[\w./-]+", "PATH", error)
    error = re.sub(r"'\w+(\.\w+)+'", "'NAME'", error)
    return re.sub(r"\b\d+(, \d+)*\b", "N", error)


def table(title, rows):
    lines = [f"\n## {title}\n", "| what is written | what comes of it |", "|---|---|"]
    return "\n".join([*lines, *(f"| {what} | {came} |" for what, came in rows)]) + "\n"


def scripts_section(reported):
    return table("Scripts with the one added line", script_rows(reported))


def habits_section(reported):
    return table("Habits around the loop", habit_rows(reported))


def torch_section(reported):
    return table("Habits of PyTorch", habit_rows(reported))


if __name__ == "__main__":
    scripts, _ = reports("scripts.py", RANKS, *SCRIPTS)
    habits, _ = reports("habits.py", RANKS)
    of_torch, _ = reports("torch_habits.py", RANKS)
    PAGE.write_text(
        HEAD + scripts_section(scripts) + habits_section(habits) + torch_section(of_torch)
    )
