"""What backends of accelerators lack is found, told once, and done without."""

import subprocess
import sys

import bare_device
import pytest
from mpi import ROOT

pytestmark = pytest.mark.skipif(
    not bare_device.LIBRARY.exists(), reason="the bare device was not built"
)

# A process has one accelerator.
START = """
import sys

sys.path[:0] = [{root!r}, {support!r}]
import bare_device
import torch

bare_device.start(lacks={lacks})
import pyrannc
from pyrannc import _C
from pyrannc.capture import random_states
from pyrannc.job import elapsed
from pyrannc.loop.coming_to_host import ComingToHost

device = torch.device("bare", 0)
"""
ASKED = """
backend = _C.runtime.backend_of("bare:0")
print(backend.events, backend.timed_events, backend.generator)
ones = torch.ones(3, device=device)

# Moments of Python's, and what comes to the host by itself.
begin = elapsed.now(device, may_wait=True)
end = elapsed.now(device)
assert elapsed.is_past(end) and elapsed.ns_between(begin, end) >= 0
assert ComingToHost(2 * ones).value().tolist() == [2, 2, 2]
_C.runtime.wait_for("bare:1")

# Random numbers are of the host here; they come again.
states = random_states.of_torch(device)
first = torch.rand(3, device=device)
random_states.put(states, device)
assert first.equal(torch.rand(3, device=device))
random_states.seed(5, device)
assert random_states.are_equal(random_states.of_torch(device), random_states.of_torch(device))
"""
# Operators are timed, and a plan runs.
TRAINED = """
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).to(device)
wrapped = pyrannc.RaNNCModule(model, config=pyrannc.Config(profile_cache="off"))
wrapped(torch.ones(2, 4, device=device)).sum().backward()
print(all(p.grad.isfinite().all() for p in model.parameters()))
"""


def run_without(lacks, code):
    support = str(ROOT / "tests" / "support")
    code = START.format(root=str(ROOT), support=support, lacks=lacks) + code
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    "lacks, offers, told",
    [
        ((), (True, True, True), []),
        (("times",), (True, False, True), ["no timed events"]),
        (("events", "waiting"), (False, False, True), ["no events"]),
        (("bfloat16",), (True, True, True), []),
        (("generator",), (True, True, False), ["no generator"]),
    ],
)
def test_what_a_backend_lacks(lacks, offers, told):
    run = run_without(lacks, ASKED + TRAINED)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(each) for each in (*offers, True)], run.stdout
    for each in told:
        assert run.stderr.count(f"the backend of bare has {each}") == 1, run.stderr
    assert run.stderr.count("the backend of bare has no") == len(told), run.stderr


def test_a_device_without_float64_is_refused_by_name():
    run = run_without(("float64",), TRAINED)
    assert "ConfigError: bare:0 has no float64 (there is no float64)" in run.stderr, run.stderr
