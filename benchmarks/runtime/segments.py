"""What recompute by segments keeps and takes, beside torch.utils.checkpoint around each layer.

    rannc run -n 1 benchmarks/runtime/segments.py

A GPT of 12 layers, width 128, sequences of 128, 8 rows, float32, one stage, one micro-batch, one
thread. Activations are what is held between forward and backward, beside parameters; the peak is of
forward and backward together. Times are the shortest of several steps in turns, by the processor's
clock.

Budgets: activations of segments at most 0.15 x those of none, the predicted peak of a step within
3 % of the measured one; 1.02 x the time and 1.05 x the memory of checkpoints in eager.
"""

import time

import torch
import torch.nn.functional as F
from models import WithLoss, gpt_layers
from torch import nn
from torch.utils.checkpoint import checkpoint

import pyrannc
from pyrannc import _C

LAYERS, WIDTH, LENGTH, WORDS, ROWS = 12, 128, 128, 256, 8
ROUNDS = 6
MIB = 2**20


class Checkpointed(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        for layer in self.model.layers:
            x = checkpoint(layer, x, use_reentrant=False) if x.is_floating_point() else layer(x)
        return F.cross_entropy(x.flatten(0, 1), labels.flatten())


class Contender:
    def __init__(self, kind):
        torch.manual_seed(0)
        self.model = WithLoss(gpt_layers(LAYERS, WIDTH, LENGTH, WORDS))
        self.predicted = None
        if kind == "eager, checkpoints":
            self.model = Checkpointed(self.model)
        elif kind != "eager":
            config = pyrannc.Config(
                partition_num=1,
                pipeline_num=1,
                recompute=kind,
                calibrate=False,
                self_check=False,
            )
            self.model = pyrannc.RaNNCModule(self.model, config=config)
        generator = torch.Generator().manual_seed(1)
        self.batch = [torch.randint(WORDS, (ROWS, LENGTH), generator=generator) for _ in range(2)]
        self.best = float("inf")

    def step(self):
        self.model.zero_grad()
        begin = time.process_time()
        self.model(*self.batch).backward()
        self.best = min(self.best, time.process_time() - begin)

    def bytes(self):
        """Held between forward and backward, and at the peak, beside parameters."""
        self.model.zero_grad()
        with _C.runtime.MemoryRecorder() as memory:
            loss = self.model(*self.batch)
            held = memory.current_bytes
            loss.backward()
            return held, memory.peak_bytes


def main():
    torch.set_num_threads(1)
    kinds = ("eager", "eager, checkpoints", "never", "segments")
    contenders = {kind: Contender(kind) for kind in kinds}
    for _ in range(ROUNDS):
        for contender in contenders.values():
            contender.step()
    for kind, contender in contenders.items():
        held, peak = contender.bytes()
        text = f"{kind}: {1e3 * contender.best:.1f} ms, "
        text += f"holds {held / MIB:.2f} MiB, peak {peak / MIB:.2f}"
        if kind in ("never", "segments"):
            stage = contender.model.plan.stages[0]
            parameters = sum(p.nbytes for p in contender.model.parameters())
            step = contender.model.plan.step.peak_bytes[0] - stage.predicted.optimizer_bytes
            text += f", predicted {(step - parameters) / MIB:.2f}, {len(stage.segments)} segments"
        print(text)


if __name__ == "__main__":
    main()
