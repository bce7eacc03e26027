"""The time and the memory of each further micro-batch of a step, under bf16 autocast.

    rannc run -n 1 benchmarks/runtime/further_micro_batches.py

A GPT of 2 layers, width 256, sequences of 64, 8 rows in all, one stage on one rank, one thread. A
step of M micro-batches (forward and backward) is the shortest of several, in turns, by the
processor's clock, as machines are shared; beside the model under autocast stands one whose weights
are bfloat16 themselves, which casts none. Memory is what is held between forward and backward under
gpipe, whose growth with M is put beside the bytes of all weights in 16 bits.

Budgets: a further micro-batch takes at most 1.4 x that of weights of 16 bits, and holds at most 1 %
of the weights in 16 bits.
"""

import time

import torch
from models import WithLoss, gpt_layers

import pyrannc
from pyrannc import _C

COUNTS = [1, 2, 4, 8]
ROUNDS = 40
ROWS, LENGTH, WIDTH, WORDS = 8, 64, 256, 256


class Contender:
    def __init__(self, micro_batches, narrow):
        torch.manual_seed(0)
        model = WithLoss(gpt_layers(2, WIDTH, LENGTH, WORDS))
        self.narrow = narrow
        if narrow:
            model = model.to(torch.bfloat16)
        self.weights = sum(p.numel() for p in model.parameters())
        config = pyrannc.Config(
            partition_num=1,
            pipeline_num=micro_batches,
            schedule="gpipe",
            recompute="never",
            calibrate=False,
            self_check=False,
        )
        self.model = pyrannc.RaNNCModule(model, config=config)
        generator = torch.Generator().manual_seed(1)
        self.batch = [torch.randint(WORDS, (ROWS, LENGTH), generator=generator) for _ in range(2)]
        self.best = float("inf")

    def forward(self):
        with torch.autocast("cpu", torch.bfloat16, enabled=not self.narrow):
            return self.model(*self.batch)

    def step(self):
        self.model.zero_grad()
        begin = time.process_time()
        self.forward().backward()
        self.best = min(self.best, time.process_time() - begin)

    def held_bytes(self):
        """Between forward and backward."""
        self.model.zero_grad()
        with _C.runtime.MemoryRecorder() as memory:
            loss = self.forward()
        loss.backward()
        return memory.current_bytes


def main():
    torch.set_num_threads(1)
    contenders = {(narrow, m): Contender(m, narrow) for narrow in (False, True) for m in COUNTS}
    for contender in contenders.values():
        for _ in range(3):
            contender.step()
        contender.best = float("inf")
    for _ in range(ROUNDS):
        for contender in contenders.values():
            contender.step()
    further = {}
    for narrow, name in ((False, "autocast"), (True, "weights of 16 bits")):
        own = [contenders[narrow, m] for m in COUNTS]
        times = [1e3 * contender.best for contender in own]
        held = [contender.held_bytes() for contender in own]
        growth = (held[-1] - held[0]) / (COUNTS[-1] - COUNTS[0])
        further[narrow] = (times[-1] - times[0]) / (COUNTS[-1] - COUNTS[0])
        steps = ", ".join(f"{m}: {t:.2f}" for m, t in zip(COUNTS, times, strict=True))
        print(f"{name}: ms of a step by micro-batches {steps}; a further one {further[narrow]:.2f}")
        share = growth / (2 * own[0].weights)
        print(f"  held by a further one: {growth:.0f} bytes, {share:.2%} of the weights in 16 bits")
    print(f"a further micro-batch, autocast / 16 bits: {further[False] / further[True]:.2f}")


if __name__ == "__main__":
    main()
