"""Each row of the table is reached by what a user calls, and stands on the page of effects."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyrannc.wrapper.replaced_for_good import TABLE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "process-wide-effects.md").read_text()

# In a process of its own, as what is replaced stays. What a user calls comes by the names that
# scripts import before RaNNC puts anything in, where torch has one function for all of them.
SCRIPT = """
import contextlib, dataclasses, sys
import torch
from torch import nn
from torch.nn.utils import (
    clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm)
from pyrannc.wrapper import replaced_for_good

reached = []

def recorder(row):
    def ours(theirs, *args, **kwargs):
        reached.append(row.name)
        return theirs(*args, **kwargs)
    return dataclasses.replace(row, ours=ours)

whens = {row.when for row in replaced_for_good.TABLE}
replaced_for_good.TABLE = [recorder(row) for row in replaced_for_good.TABLE]
for when in whens:
    replaced_for_good.install(when)
    replaced_for_good.install(when)  # is once

folder = sys.argv[1]
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu")
scaler.scale(model(torch.ones(1, 2)).sum()).backward()
scaler.step(optimizer)
clip_grad_norm_(model.parameters(), 1.0)
clip_grad_value_(model.parameters(), 1.0)
norm = get_total_norm([each.grad for each in model.parameters()])
clip_grads_with_norm_(model.parameters(), 1.0, norm)
torch.save(optimizer.state_dict(), folder + "/state")
optimizer.load_state_dict(torch.load(folder + "/state"))
with contextlib.suppress(ValueError, RuntimeError):  # there is no group
    torch.utils.data.distributed.DistributedSampler([1, 2])

from torch.distributed.checkpoint import state_dict
found = state_dict.get_state_dict(model, optimizer)
state_dict.set_state_dict(
    model, optimizer, model_state_dict=found[0], optim_state_dict=found[1])

if "accelerate" in sys.argv:
    import accelerate
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.save_state(folder + "/accelerate")
    accelerator.save_model(model, folder + "/model")
if "transformers" in sys.argv:
    import transformers
    from transformers.optimization import Adafactor, AdafactorSchedule
    AdafactorSchedule(Adafactor(nn.Linear(2, 2).parameters(), lr=None))
    arguments = transformers.TrainingArguments(folder, use_cpu=True, report_to=[])
    transformers.Trainer(nn.Linear(2, 2), arguments).save_model(folder + "/trainer")
for name in {"lightning.pytorch", "pytorch_lightning"} & {*sys.argv}:
    lightning = __import__(name, fromlist=["strategies"])
    strategy = lightning.strategies.SingleDeviceStrategy(
        checkpoint_io=lightning.plugins.io.TorchCheckpointIO())
    strategy.save_checkpoint({}, folder + "/lightning")
    strategy.remove_checkpoint(folder + "/lightning")
print(*reached, sep="\\n")
"""


def installed(library):
    try:
        __import__(library)
    except ImportError:
        return False
    return True


@pytest.fixture(scope="module")
def reached(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("files"))
    libraries = ("accelerate", "transformers", "lightning.pytorch", "pytorch_lightning")
    found = [each for each in libraries if installed(each)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, folder, *found],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_what_a_user_calls_reaches_it(row, reached):
    library = row.module.partition(".")[0]
    if not installed(library):
        pytest.skip(f"{library} is not installed")
    assert row.name in reached


def test_the_page_shows_the_table():
    rows = [
        f"| `{row.name}` | {row.when} | {row.reason} | {row.others} | {row.releases} |"
        for row in TABLE
    ]
    shown = re.findall(r"^\| `[\w.]+` \|.*\|$", PAGE, re.MULTILINE)
    assert [line for line in shown if line in rows] == rows, "\n".join(rows)
