"""Predicted against measured: 20 plans of one model, spread over the space of plans.

    rannc run -n 2 benchmarks/predicted_and_measured.py
    rannc run -n 4 benchmarks/predicted_and_measured.py

One thread per rank. Budget, on a machine with two cores that is otherwise idle: the predicted best
within 3 % of the measured best, rank correlation at least 0.9, median error of the step's time at
most 10 %, of a stage's memory at most 5 %, of a rank's idle share at most 10 points. All plans live
in one job and take turns, so that a disturbance hits all of them alike; the time of a plan is the
median over the rounds.
"""

import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.nn.functional as F
from runtime.models import gpt_layers, loss_of
from torch import nn

import pyrannc


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*gpt_layers(layers=4, width=192, length=64, words=512))

    def forward(self, tokens):
        return loss_of(self.layers(tokens), tokens)

    @staticmethod
    def batch(rows, generator):
        return torch.randint(512, (rows, 64), generator=generator)


class MLP(nn.Sequential):
    def __init__(self, width=768, layers=8):
        super().__init__(
            *(layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU()))
        )

    def forward(self, x):
        return super().forward(x).square().mean()

    @staticmethod
    def batch(rows, generator):
        return torch.randn(rows * 4, 768, generator=generator)


class CNN(nn.Module):
    def __init__(self, width=48, layers=6):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = x + F.relu(norm(convolution(x)))
        return self.head(x.mean((2, 3))).logsumexp(1).mean()

    @staticmethod
    def batch(rows, generator):
        return torch.randn(rows, 3, 24, 24, generator=generator)


MODELS = {"gpt": GPT, "mlp": MLP, "cnn": CNN}

# (replicas of each stage, micro-batches, recompute)
PLANS = {
    2: [
        *(([2], m, "never") for m in (1, 2, 4, 8)),
        *(([2], m, "always") for m in (1, 4)),
        *(([1, 1], m, "never") for m in (1, 2, 4, 8, 16)),
        *(([1, 1], m, "always") for m in (1, 2, 4, 8)),
        *(([1], m, "never") for m in (1, 2, 4, 8)),
        ([1], 4, "always"),
    ],
    4: [
        *(([4], m, "never") for m in (1, 2, 4)),
        ([4], 2, "always"),
        *(([2, 2], m, "never") for m in (1, 2, 4, 8)),
        *(([2, 2], m, "always") for m in (2, 8)),
        *(([1, 1, 1, 1], m, "never") for m in (1, 4, 8)),
        ([1, 1, 1, 1], 4, "always"),
        *(([1, 3], m, "never") for m in (2, 4)),
        ([3, 1], 4, "never"),
        ([2], 4, "never"),
        ([1, 1], 4, "never"),
        ([1, 1, 2], 4, "always"),
    ],
}


class Trial:
    """One plan of the model, with its own parameters and optimizer."""

    def __init__(self, kind, plan, rows, rank, costs):
        self.replicas, self.micro_batches, self.recompute = plan
        torch.manual_seed(0)
        model = MODELS[kind]()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.model = pyrannc.RaNNCModule(
            model,
            self.optimizer,
            pyrannc.Config(
                partition_num=len(self.replicas),
                replica_nums=self.replicas,
                pipeline_num=self.micro_batches,
                recompute=self.recompute,
                self_check=False,
                profile_cache=costs,
            ),
        )
        self.batch = MODELS[kind].batch(rows, torch.Generator().manual_seed(rank))
        self.times_ms, self.peaks_mib, self.idle_shares = [], [], []

    def step(self):
        self.optimizer.zero_grad()
        self.model(self.batch).backward()
        self.optimizer.step()

    def measure(self, steps):
        """One round, after a step that brings the plan's data back into the caches."""
        self.step()
        with pyrannc.measure(self.model) as measured:
            for _ in range(steps):
                self.step()
        self.times_ms.append(measured.iteration_ms)
        self.peaks_mib.append(measured.peak_mib)
        self.idle_shares.append([rank["idle"] for rank in measured.shares])

    def __str__(self):
        name = f"{self.replicas} x {self.micro_batches}"
        return name + (" recompute" if self.recompute == "always" else "")

    @property
    def predicted_ms(self):
        return self.model.plan.step.ns / 1e6

    @property
    def from_operators_ms(self):
        return self.model.plan.step.from_operators_ns / 1e6

    @property
    def measured_ms(self):
        return statistics.median(self.times_ms)

    def memory(self):
        """(by section 6 of docs/planner-files.md, predicted, measured) MiB of each stage."""
        measured = [statistics.median(stage) for stage in zip(*self.peaks_mib, strict=True)]
        by_kinds = [stage.predicted.peak_bytes / 2**20 for stage in self.model.plan.stages]
        predicted = [peak / 2**20 for peak in self.model.plan.step.peak_bytes]
        return list(zip(by_kinds, predicted, measured, strict=True))

    def idle(self):
        """(predicted, measured) share of the step that each rank waits for others."""
        step = self.model.plan.step
        predicted = [idle / step.ns for idle in step.idle_ns]
        measured = [statistics.median(rank) for rank in zip(*self.idle_shares, strict=True)]
        return list(zip(predicted, measured, strict=True))


def ranks_of(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    places = [0] * len(values)
    for place, index in enumerate(order):
        places[index] = place
    return places


def correlation(a, b):
    """Spearman's: that of the ranks."""
    return statistics.correlation(ranks_of(a), ranks_of(b))


def report(trials):
    print(
        f"{'plan':30} {'operators ms':>12} {'predicted ms':>12} {'measured ms':>12} {'error':>7}   "
        "MiB: sum of kinds/predicted/measured; idle: predicted/measured"
    )
    kind_errors, memory_errors, idle_errors = [], [], []
    for trial in sorted(trials, key=lambda trial: trial.measured_ms):
        memory = trial.memory()
        kind_errors += [abs(by_kinds / measured - 1) for by_kinds, _, measured in memory]
        memory_errors += [abs(predicted / measured - 1) for _, predicted, measured in memory]
        idle = trial.idle()
        idle_errors += [abs(predicted - measured) for predicted, measured in idle]
        print(
            f"{trial!s:30} {trial.from_operators_ms:12.1f} {trial.predicted_ms:12.1f} "
            f"{trial.measured_ms:12.1f} "
            f"{trial.predicted_ms / trial.measured_ms - 1:+7.1%}   "
            + ", ".join("/".join(f"{mib:.1f}" for mib in stage) for stage in memory)
            + "; "
            + ", ".join("/".join(f"{share:.0%}" for share in rank) for rank in idle)
        )
    compare("predicted", trials, lambda trial: trial.predicted_ms)
    compare("from operators alone", trials, lambda trial: trial.from_operators_ms)
    print(
        f"median error of the memory {statistics.median(memory_errors):.1%} "
        f"(of the sum of all kinds {statistics.median(kind_errors):.1%})"
    )
    print(
        f"idle share of a rank: median difference {100 * statistics.median(idle_errors):.1f} "
        f"points, largest {100 * max(idle_errors):.1f}"
    )


def compare(what, trials, prediction):
    predicted = [prediction(trial) for trial in trials]
    measured = [trial.measured_ms for trial in trials]
    chosen = min(trials, key=prediction)
    errors = [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)]
    print(
        f"{what}: best '{chosen}', {chosen.measured_ms / min(measured) - 1:.1%} above the measured "
        f"best; rank correlation {correlation(predicted, measured):.3f}; median error of the time "
        f"{statistics.median(errors):.1%}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="gpt")
    parser.add_argument("--rows", type=int, default=16, help="rows of the global batch")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2, help="steps of a round")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    rank, size = pyrannc.get_rank(), pyrannc.get_world_size()
    begin = time.perf_counter()
    trials = []
    # The plans share measured costs, but take none from another run.
    with tempfile.TemporaryDirectory() as costs:
        for plan in PLANS[size]:
            trials.append(Trial(arguments.model, plan, arguments.rows // size, rank, costs))
            trials[-1].step()
    if rank == 0:
        print(f"{len(trials)} plans made in {time.perf_counter() - begin:.0f} s")
    for _ in range(arguments.rounds):
        for trial in trials:
            trial.measure(arguments.steps)
    if rank == 0:
        load = os.getloadavg()[0]
        print(f"{arguments.model} on {size} ranks, {os.cpu_count()} cores, load {load:.1f}")
        report(trials)


if __name__ == "__main__":
    main()
