"""Saves that are killed, and what they take of memory, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pyrannc

ROOT = Path(pyrannc.__file__).parents[1]

# Every tensor of a checkpoint holds its number, so one that is mixed of two is found.
KILLED = """
import os, random, signal, sys, time
import torch, pyrannc

folder, kills = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)  # a forked process has no others
model = torch.nn.Sequential(*(torch.nn.Linear(200, 200) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)

def put(number):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(number)
            optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, number)

put(0)
pyrannc.save(folder, model, optimizer, extra=0)
begun = time.monotonic()
pyrannc.save(folder, model, optimizer, extra=0)
one_save = time.monotonic() - begun
random.seed(1)
last, inside = 0, 0
for _ in range(kills):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        number = last
        while True:
            number += 1
            put(number)
            os.write(writer, b"b")
            pyrannc.save(folder, model, optimizer, extra=number)
            os.write(writer, b"e")
    os.close(writer)
    told = os.read(reader, 1).decode()  # it has begun its first save, however slow the machine is
    time.sleep(random.uniform(0, 3 * one_save))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    told += os.read(reader, 1 << 20).decode()
    os.close(reader)
    inside += told.endswith("b")
    whole = last + told.count("e")
    put(-1)
    optimizer.state.clear()
    found = pyrannc.load(folder, model, optimizer)
    assert whole <= found <= whole + 1, (found, whole)
    for parameter in model.parameters():
        assert (parameter == found).all()
        assert (optimizer.state[parameter]["momentum_buffer"] == found).all()
    last = found
pyrannc.save(folder, model, optimizer)
left = [name for name in os.listdir(folder) if name.endswith("partial")]
assert not left and len(os.listdir(folder)) == 4, os.listdir(folder)
print("killed inside a save:", inside)
"""

MEMORY = """
import resource, sys
import torch, pyrannc

def most_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

small = torch.nn.Linear(2, 2)
pyrannc.save(sys.argv[1], small)  # what the first save loads
model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(8)))
before = most_mib()
pyrannc.save(sys.argv[1], model)
print(most_mib() - before)
"""


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_save_that_is_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    told = run(KILLED, tmp_path, 100)
    assert int(told.split()[-1]) > 30, told


def test_a_save_takes_less_than_256_mib_beyond_the_512_that_it_writes(tmp_path):
    assert float(run(MEMORY, tmp_path)) < 256
