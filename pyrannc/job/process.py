"""What a rank does to its whole process, and how it is undone.

``docs/process-wide-effects.md`` says of each when, why, and how to switch it off. Nothing else in
this package calls such functions of Python, torch and the C library
(``tests/repo/test_process_effects.py``).
"""

import atexit
import contextlib
import functools
import importlib.abc
import importlib.util
import inspect
import io
import os
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pyrannc import _C, log, tracebacks
from pyrannc.ranks import gathered

# Who sets any of these has chosen how malloc works (man 3 mallopt).
_MALLOC_CHOICES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")

#: For what a rank that fails has registered with atexit.
#: tuned by: a deadline, part of the 10 s within which a job ends.
#: without it: one function that waits for other ranks would keep the job from ending.
_AT_EXIT_S = 3.0

# How many models run on a world, by world. The same on all of its ranks.
_models = weakref.WeakKeyDictionary()
_around_steps = None  # what around_optimizer_steps() has got
# The code of the function that torch puts around step() of each class of optimizers.
_HOOKED_STEP = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
_end_of_job = None  # the _EndOfJob at work
_keeps_freed_memory = False
_preemption = None  # the Preemption that on_preemption() has made


def end_job_on_error(communicator, wanted: bool) -> None:
    """Whether an exception that ends this process ends the job; else the others wait for it."""
    global _end_of_job
    if wanted and _end_of_job is None:
        _end_of_job = _EndOfJob(communicator)
    elif not wanted and _end_of_job is not None:
        _end_of_job.undo()
        _end_of_job = None


class _EndOfJob:
    """The hooks of an exception that nobody has caught, in the main thread and in others."""

    def __init__(self, communicator):
        self._communicator, self._process, self._wanted = communicator, os.getpid(), True
        self.ends = False  # this rank has failed
        self._before = sys.excepthook, threading.excepthook
        self._stderr = sys.stderr
        # One bound method each: every access makes another one.
        self._mine = self._on_exception, self._on_thread_exception
        sys.excepthook, threading.excepthook = self._mine

    def undo(self):
        self._wanted = False  # others may have put hooks before ours, which go on to call them
        if sys.excepthook is self._mine[0]:
            sys.excepthook = self._before[0]
        if threading.excepthook is self._mine[1]:
            threading.excepthook = self._before[1]

    def _on_exception(self, kind, value, trace):
        show = functools.partial(self._show, kind, value, trace)
        self._end(kind, value, show, functools.partial(self._run_exit_functions, kind, value))

    def _on_thread_exception(self, args):
        if args.exc_type is SystemExit:
            return self._before[1](args)
        return self._end(args.exc_type, args.exc_value, lambda: self._before[1](args))

    def _show(self, kind, value, trace):
        of_rank = self._wanted and os.getpid() == self._process
        left_out = tracebacks.leave_out_others(value) if of_rank else 0
        self._before[0](kind, value, value.__traceback__ if left_out else trace)
        if left_out:
            print(
                f"rannc: {left_out} frames of RaNNC and torch are left out, which "
                f"{tracebacks.VARIABLE}=full shows",
                file=sys.stderr,
            )

    def _end(self, kind, value, show, last=lambda: None):
        if not self._wanted or os.getpid() != self._process:  # a forked worker is not a rank
            return show()
        # Where ranks do the same they fail together, and so do all who wait for the same rank; the
        # lowest tells, for all of them. Nothing depends on who comes first: without this wait, or
        # when a rank is later than it, several tell the same.
        time.sleep(min(self._communicator.rank, 3.0))
        try:
            show()
            self.ends = True
            last()
            self._write_out()
        finally:  # also when the streams are closed
            self._abort(kind, value)

    def _run_exit_functions(self, kind, value):
        """What the script and its libraries have registered with atexit, as of any process that
        ends by an exception; for a few seconds, as the others wait for this rank."""
        late = threading.Timer(_AT_EXIT_S, self._abort, (kind, value))
        late.daemon = True
        late.start()
        atexit._run_exitfuncs()
        late.cancel()

    def _abort(self, kind, value):
        self._communicator.abort(f"{kind.__name__}: {value}".splitlines()[0])

    def _write_out(self):
        """Also what was shown while another hook collects it, as torch's does that
        init_process_group() puts around ours: that one does not come to its end."""
        if isinstance(sys.stderr, io.StringIO) and sys.stderr is not self._stderr:
            self._stderr.write(sys.stderr.getvalue())
        for stream in (sys.stdout, self._stderr, sys.stderr):
            stream.flush()


def when_signalled(names, then) -> None:
    """Calls ``then()`` when this process gets one of the signals, which do what they do by default
    in a process that it forks: a worker of a DataLoader is ended by SIGTERM."""
    owner = os.getpid()

    def handle(number, _):
        if os.getpid() == owner:
            then()
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for name in names:
        signal.signal(getattr(signal, name), handle)


def set_preemption(found) -> None:
    """Keeps what :mod:`pyrannc.running.alike.preemption` knows of this process."""
    global _preemption
    _preemption = found


def preemption():
    return _preemption


def leave_mpi_of_others() -> None:
    """Where another library has started MPI, it also finalizes it, at exit: leaves before that.

    Where RaNNC has started it, the extension leaves at the very end of the process, where the exit
    code is known.
    """
    if _C.comm.started_mpi():
        return
    before_python_ends(_C.comm.finish_mpi)


def before_python_ends(end) -> None:
    """Calls ``end()`` then, in this process, and in none that it forks."""
    process = os.getpid()

    def end_here():
        ends_the_job = _end_of_job is not None and _end_of_job.ends  # `end` waits for the others
        if os.getpid() == process and not ends_the_job:
            end()

    atexit.register(end_here)


def cores_of_hosts(world, hosts) -> dict[str, set]:
    """Cores of each host on which its ranks run, each of which may be bound to some of them.
    Collective.

    Args:
        world: All ranks.
        hosts: Name of each rank's host.
    """
    cores = {host: set() for host in hosts}
    for host, of_rank in zip(hosts, gathered(world, os.sched_getaffinity(0)), strict=True):
        cores[host] |= of_rank
    return cores


def share_cores(world, hosts) -> None:
    """Cores of the host over its ranks, unless OMP_NUM_THREADS says otherwise or torch uses less.

    Threads of several ranks on the same cores spin at each other's barriers. Collective.

    Args:
        world: All ranks.
        hosts: Name of each rank's host.
    """
    mine = os.sched_getaffinity(0)
    here = cores_of_hosts(world, hosts)[hosts[world.rank]]
    if "OMP_NUM_THREADS" in os.environ:
        return
    ranks = hosts.count(hosts[world.rank])
    threads = max(1, min(len(mine), len(here) // ranks))
    if threads >= torch.get_num_threads():
        return
    torch.set_num_threads(threads)
    if world.rank == 0:
        log.info(
            "deploy",
            f"{threads} thread{'s' * (threads > 1)} of torch per rank, for {len(here)} cores and "
            f"{ranks} ranks on this host; OMP_NUM_THREADS sets another number",
        )


def keep_freed_memory(most_bytes: int = -1) -> None:
    """Keeps it for the next step, unless the environment says how malloc works.

    By default glibc hands large blocks back to the system, and every step begins with page faults:
    5 to 10 % of the step of a GPT on one core.

    Args:
        most_bytes: What is free beyond this, at the end of the heap, goes back; negative: nothing.
    """
    global _keeps_freed_memory
    chosen = [name for name in _MALLOC_CHOICES if name in os.environ]
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        chosen.append("GLIBC_TUNABLES")
    if chosen:
        log.info("deploy", f"malloc works as {', '.join(chosen)} says")
        return
    _keeps_freed_memory = _C.util.keep_freed_memory(most_bytes) and _C.runtime.reuse_freed_blocks()
    if not _keeps_freed_memory:
        log.info("deploy", "freed memory goes back to the system: the C library is not glibc")


@functools.cache
def order_nccl_launches() -> str:
    """Has NCCL order what several communicators do as this process asks for it; once.

    To be called before anything else of NCCL, which reads its environment when it starts. Returns
    why that may not come to pass; empty if it does.
    """
    variable = "NCCL_LAUNCH_ORDER_IMPLICIT"
    if variable in os.environ:
        return f"{variable} is 0" if os.environ[variable] == "0" else ""
    os.environ[variable] = "1"
    distributed = torch.distributed
    started = distributed.is_available() and distributed.is_initialized()
    if started and "nccl" in distributed.get_backend():
        return (
            f"torch.distributed had started NCCL before {variable}=1 was set; set it in the "
            "environment of the job"
        )
    return ""


def give_back_freed_memory() -> None:
    """What is free now goes back to the system, if keep_freed_memory() has kept it: a phase is over
    that needed more than the next ones."""
    if _keeps_freed_memory:
        _C.util.give_back_freed_memory()


def restart_resident_peak() -> None:
    """The system's peak of this process, ``VmHWM``, which ``ru_maxrss`` is too, begins anew."""
    Path("/proc/self/clear_refs").write_text("5")  # man 5 proc


def make_current(device) -> None:
    """The device is the current one of the calling thread, as by ``torch.cuda.set_device()``."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index)


def around_optimizer_steps(run, not_found) -> None:
    """Runs the code of all optimizers' steps by ``run(code, optimizer, args, kwargs)``, once per
    process: after the hooks before a step, also the user's, and before those after it. So ``run``
    sees the step raise, which no hook of torch's tells.

    Args:
        not_found: ``not_found(optimizer)`` is called before a step whose code is not found.
    """
    global _around_steps
    if _around_steps is None:
        register_optimizer_step_pre_hook(_find_code)
        _around_steps = run, not_found


def _find_code(optimizer, *_):
    """Torch's function calls the class's own step last, so this holds for the step at hand, too;
    and for those that have taken the function before, as schedulers do."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _HOOKED_STEP:
        frame = frame.f_back
    if frame is None or hasattr(frame.f_locals["func"], "is_run_by_us"):
        return
    for cell in _code_cells(optimizer):
        if not hasattr(cell.cell_contents, "is_run_by_us"):
            cell.cell_contents = _run_by_us(cell.cell_contents)
    if not hasattr(frame.f_locals["func"], "is_run_by_us"):
        _around_steps[1](optimizer)


def _code_cells(optimizer):
    """Where torch's function holds the code that it calls: of the class, and of its bases."""
    for kind in type(optimizer).__mro__:
        step = vars(kind).get("step")
        while step is not None:
            if getattr(step, "__code__", None) is _HOOKED_STEP:
                yield dict(zip(_HOOKED_STEP.co_freevars, step.__closure__, strict=True))["func"]
            step = getattr(step, "__wrapped__", None)


def _run_by_us(code):
    @functools.wraps(code)
    def step(optimizer, *args, **kwargs):
        return _around_steps[0](code, optimizer, args, kwargs)

    step.is_run_by_us = True
    return step


def replace_in_torch(wrapper, ours) -> None:
    """Lets one of torch's functions that torch has wrapped in no_grad() call ``ours(torchs, *args,
    **kwargs)``, also for code that has imported it before. Once per function."""
    torchs = wrapper.__wrapped__
    (cell,) = (cell for cell in wrapper.__closure__ if callable(cell.cell_contents))
    if cell.cell_contents is torchs:
        cell.cell_contents = functools.wraps(torchs)(functools.partial(ours, torchs))


def replace_method(owner, name, ours) -> None:
    """Lets a method of one of torch's classes be ``ours(torchs, self, *args)``. Once per method."""
    torchs = getattr(owner, name)
    if not hasattr(torchs, "asks_all_ranks"):

        @functools.wraps(torchs)
        def method(self, *args, **kwargs):
            return ours(torchs, self, *args, **kwargs)

        method.asks_all_ranks = True
        setattr(owner, name, method)


def replace_function(module, name, ours) -> None:
    """The same for a function that one of torch's modules calls by its global name."""
    torchs = getattr(module, name)
    if not hasattr(torchs, "asks_all_ranks"):
        function = functools.wraps(torchs)(functools.partial(ours, torchs))
        function.asks_all_ranks = True
        setattr(module, name, function)


@contextlib.contextmanager
def each_registered_parameter(change):
    """Inside, modules take ``change(parameter)`` for each parameter that they register."""
    torchs = nn.Module.register_parameter

    @functools.wraps(torchs)
    def register(module, name, param):
        torchs(module, name, param if param is None else change(param))

    nn.Module.register_parameter = register
    try:
        yield
    finally:
        nn.Module.register_parameter = torchs


def set_missing_variables(found: dict) -> None:
    """Sets variables of the environment that are not there."""
    for name, value in found.items():
        os.environ.setdefault(name, str(value))


def when_imported(name: str, then) -> None:
    """Calls ``then(module)`` for the module ``name``: now, or once it has been imported."""
    if name in sys.modules:
        then(sys.modules[name])
    elif not any(isinstance(each, _WhenImported) and each.name == name for each in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported(name, then))


class _WhenImported(importlib.abc.MetaPathFinder):
    """Lets the others find the module, and is called after its code has run."""

    def __init__(self, name, then):
        self.name, self._then = name, then

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                self._then(module)

            spec.loader.exec_module = exec_module
        return spec


def number_of_model(world) -> int:
    """Counts one more model that runs on ``world``, and returns how many there are before it."""
    _models[world] = _models.get(world, -1) + 1
    return _models[world]
