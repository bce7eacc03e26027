"""Where ranks cannot have as many rows, it is said that some are repeated."""

import mpi

SCRIPT = """
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

import pyrannc
from pyrannc.integrations.accelerate import Accelerator
from pyrannc.integrations.lightning import RaNNCStrategy

accelerator, seen = Accelerator(cpu=True), []
for rows, drop_last in ((30, False), (32, False), (31, True)):
    loader = DataLoader(list(range(rows)), batch_size=4, drop_last=drop_last)
    for batch in accelerator.prepare(loader):
        seen += accelerator.gather(batch).tolist()
expected = [*range(30), 0, 1, *range(32), *range(24)]
assert sorted(seen) == sorted(expected), seen

class Module(pl.LightningModule):
    def validation_step(self, batch, index):
        self.log("mean", batch.mean(), batch_size=len(batch))


trainer = pl.Trainer(
    accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, strategy=RaNNCStrategy(),
    enable_model_summary=False, enable_checkpointing=False,
)
for rows in (9, 8):
    loader = DataLoader(torch.arange(float(rows)), batch_size=2)
    trainer.validate(Module(), loader, verbose=False)
print("all right", flush=True)
"""


def test_it_is_said_once_how_many_rows_are_repeated():
    job = mpi.run(SCRIPT, 2)
    assert job.stdout.count("all right") == 2, job.stderr[-3000:]
    lines = [line for line in job.stderr.splitlines() if "rows are no multiple of" in line]
    assert len(lines) == 2, job.stderr[-3000:]
    assert "30 rows are no multiple of 8" in lines[0]
    assert "filled up with the first 2, as" in lines[0]
    assert "9 rows are no multiple of 2" in lines[1]
