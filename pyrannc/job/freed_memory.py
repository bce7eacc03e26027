"""What the process does with memory that it frees."""

import os

from pyrannc import _C, log

# Who sets any of these has chosen how malloc works (man 3 mallopt).
_CHOICES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed():
    """Keeps it for the next step, unless the environment says how malloc works.

    By default glibc hands large blocks back to the system, and every step begins with page faults:
    5 to 10 % of the step of a GPT on one core.
    """
    chosen = [name for name in _CHOICES if name in os.environ]
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        chosen.append("GLIBC_TUNABLES")
    if chosen:
        log.info("deploy", f"malloc works as {', '.join(chosen)} says")
    elif not _C.util.keep_freed_memory():
        log.info("deploy", "freed memory goes back to the system: the C library is not glibc")
