"""``rannc doctor``: whether this machine can train, and what to do where it cannot."""

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata

from rich.console import Console
from rich.table import Table

from pyrannc import __version__, launch, progress
from pyrannc.cli import devices, doctor_hosts, launchers
from pyrannc.cli import hosts as reach

SINGLE_COPY = "OMPI_MCA_btl_vader_single_copy_mechanism"
DEADLINE_S = 120
NO_RANKS = "torchrun does not work either, so this machine trains on one rank only"

# Both ways, with contents that show a copy that went wrong; rank 0 prints the rate.
PROBE = """
import threading, time
from pyrannc import launch
world = launch.world()
world.timeout_s = 20
peer = 1 - world.rank
mine, theirs = (bytes([1 + rank]) * (1 << 20) for rank in (world.rank, peer))
best = 1e9
for _ in range(5):
    world.barrier()
    start = time.perf_counter()
    sender = threading.Thread(target=world.send, args=(mine, peer))
    sender.start()
    got = world.receive(1 << 20, peer)
    sender.join()
    assert got == theirs, "the message arrived with other contents"
    best = min(best, time.perf_counter() - start)
if world.rank == 0:
    print(f"{1e3 * best:.2f}")
"""


def doctor(as_json=False, hosts="", variables=()) -> int:
    """Prints versions, resources and a trial of message passing; returns 0 when all is well.

    Of ``hosts`` (``a,b``) what they have and how they reach each other, with the ``variables`` that
    ``rannc run`` would hand on.
    """
    if hosts:
        handed = launch.variables_of_ranks(os.environ, variables)
        names = reach.names_of(hosts)
        with progress.phase("asking the hosts", line=progress.error_line):
            rows, problems = doctor_hosts.examine(names, handed)
    else:
        with progress.phase("trying what this machine has", line=progress.error_line):
            rows, problems = examine()
    if as_json:
        print(json.dumps({"found": dict(rows), "problems": problems}, indent=1))
        return 1 if problems else 0
    table = Table(show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    console = Console()
    console.print(table)
    for problem in problems:
        console.print(f"[bold]problem[/bold]: {problem}", highlight=False, soft_wrap=True)
    if not problems:
        console.print("no problems found")
    return 1 if problems else 0


def examine() -> tuple[list[tuple[str, str]], list[str]]:
    """The rows of the table, and each problem with what to do about it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rows = [
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("pyrannc", __version__),
    ]
    problems = []
    extension = examine_extension(rows, problems)
    rows.append(("cores", str(len(os.sched_getaffinity(0)))))
    rows.append(("memory", f"{memory / 2**30:.1f} GiB"))
    if extension:
        devices.examine(rows, problems)
        lacking = without_mpi()
        if not lacking:
            examine_mpi(rows, problems)
        by_torch = launchers.examine(rows, problems, PROBE, DEADLINE_S)
        if lacking and not by_torch:
            problems.append(f"{lacking}\n  {NO_RANKS}")
    return rows, problems


def examine_extension(rows, problems) -> bool:
    """Versions of torch; whether the extension can be loaded."""
    try:
        rows.append(("torch installed", metadata.version("torch")))
    except metadata.PackageNotFoundError:
        rows.append(("torch installed", "no"))
        problems.append("torch is not installed: pip install torch")
        return False
    try:
        from pyrannc import _C
    except ImportError as error:
        rows.append(("extension", "cannot be loaded"))
        problems.append(str(error))
        return False
    rows.append(("torch built against", _C.torch_version))
    lacking = without_mpi()
    rows.append(("MPI", "none: " + lacking.splitlines()[0] if lacking else _C.comm.mpi_version()))
    return True


def without_mpi() -> str:
    """Why there is no MPI here, and how to get it; empty where there is one."""
    from pyrannc import _C
    from pyrannc.errors import CommError

    try:
        _C.comm.mpi_version()
    except CommError as error:
        return str(error)
    return ""


def examine_mpi(rows, problems) -> None:
    """Version of mpirun, and a megabyte between two ranks."""
    program = shutil.which("mpirun")
    if program is None:
        rows.append(("mpirun", "not found"))
        problems.append("mpirun was not found: install it (Debian: apt install openmpi-bin)")
        return
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    first_line = version.splitlines()[0] if version else "unknown version"
    rows.append(("mpirun", f"{first_line} ({program})"))
    if "Open MPI" not in version:
        problems.append(f"{program} is not Open MPI, the only one that RaNNC is tested with")

    time_ms, errors = exchange({})
    if time_ms is not None:
        rows.append(("1 MiB between 2 ranks", f"{time_ms} ms"))
        return
    rows.append(("1 MiB between 2 ranks", "failed"))
    slower_ms, _ = exchange({SINGLE_COPY: "none"})
    if slower_ms is not None:
        problems.append(
            f"this machine forbids copies from process to process (CMA); without them it works, "
            f"{slower_ms} ms per MiB:\n  export {SINGLE_COPY}=none\n"
            "  In Docker, --cap-add=SYS_PTRACE allows them, which is several times faster."
        )
    else:
        problems.append("two ranks could not exchange a megabyte; they printed:\n" + errors.strip())


def exchange(variables: dict[str, str]) -> tuple[str | None, str]:
    """Milliseconds for a megabyte both ways, or None and what the ranks printed."""
    try:
        result = subprocess.run(
            launch.command(2, [sys.executable, "-c", PROBE]),
            env=launch.environment(2) | variables,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        return None, f"not finished after {DEADLINE_S} s"
    # Open MPI falls back, or corrupts data, with a complaint like "Read -1, expected 4096".
    if result.returncode != 0 or "Read -1" in result.stderr:
        return None, result.stderr
    return result.stdout.strip(), ""
