"""One rank of the suite of random numbers: dropout under many plans.

Started by test_draws.py on four ranks; rank 0 prints one line of JSON for each case.
"""

import contextlib
import json
import sys
import tempfile
import traceback
from pathlib import Path

import borders
import torch
from jobs.equality import PLANS, stages_recompute_by_turns
from torch import nn

import pyrannc
from pyrannc import _C, launch

ROWS, WIDTH, STEPS = 3, 8, 3


class Net(nn.Module):
    """Two layers of a transformer, with dropout in and around the attention; returns its loss."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.25, batch_first=True)
                for _ in range(2)
            )
        )
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.layers(x)).square().mean()


class Layers(nn.Module):
    """Dropout between layers whose kernels are the same with gradients and without.

    Torch multiplies what is not contiguous, as heads of attention, in another order where a
    gradient is wanted, so recompute of those is equal to the last digit but one.
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(5 * WIDTH, 5 * WIDTH), nn.GELU(), nn.Dropout(0.25))
                for _ in range(6)
            )
        )

    def forward(self, x):
        return self.layers(x.flatten(1)).square().mean()


class Mask(nn.Module):
    """What dropout leaves of ones, behind a layer so that there can be two stages."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        hidden = self.first(x)
        mask = nn.functional.dropout((hidden * 0 + 1).repeat(1, 8), 0.5)
        return self.last(mask[:, :WIDTH]), mask


def batch(comm, step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS * comm.size, 5, WIDTH, generator=generator, dtype=torch.float64)
    return x[comm.rank * ROWS : (comm.rank + 1) * ROWS], x


def wrap(module, path=None, **settings):
    torch.manual_seed(0)
    config = pyrannc.Config(
        comm_timeout_s=60, calibrate=False, self_check=False, max_pipeline=4, **settings
    )
    return pyrannc.RaNNCModule(module.double(), config=config, load_deployment=path)


def net(path=None, kind=Net, **settings):
    torch.manual_seed(1)
    return wrap(kind(), path, **settings)


@contextlib.contextmanager
def alone():
    """Models wrapped inside belong to a job of one rank."""
    world, communicator = launch.world, _C.comm.make_local(1)[0]
    launch.world = lambda timeout_s: communicator
    try:
        yield
    finally:
        launch.world = world


def every_rank_draws_its_own(comm, plan):
    """All ranks call manual_seed(0); all rows of the global batch have another mask."""
    model = wrap(Mask(), schedule="gpipe", pipeline_num=1, **PLANS[plan])
    _, mask = model(torch.ones(ROWS, WIDTH, dtype=torch.float64))
    _, again = model(torch.ones(ROWS, WIDTH, dtype=torch.float64))
    rows = json.dumps([*mask.tolist(), *again.tolist()]).encode()
    everywhere = [tuple(row) for item in comm.all_gather(rows) for row in json.loads(item)]
    assert set(map(len, everywhere)) == {8 * WIDTH} and {0.0, 2.0} == set(everywhere[0])
    assert len(set(everywhere)) == 2 * ROWS * comm.size, f"{len(set(everywhere))} different masks"
    # What the user draws is still the same on ranks that were seeded alike, as in a shuffle.
    numbers = {json.loads(n) for n in comm.all_gather(json.dumps(torch.rand(()).item()).encode())}
    assert len(numbers) == 1, numbers


def one_rank_draws_as_torch_does(comm):
    with alone():
        torch.manual_seed(1)
        plain = Net().double()
        model = net(partition_num=1, pipeline_num=1)
        _, x = batch(comm, 0)
        model(x)
        torch.manual_seed(7)
        ours = model(x)
        torch.manual_seed(7)
        theirs = plain(x)
        assert torch.rand(()) == (torch.manual_seed(7), plain(x), torch.rand(()))[2]
    assert torch.allclose(ours, theirs, rtol=1e-12), (ours, theirs)


def gradients(model, comm, steps):
    with torch.no_grad():
        model(batch(comm, 0)[0])
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        model(batch(comm, step)[0]).backward()
        own = model.named_parameters(from_global=False)
        found.append({n: p.grad.clone() for n, p in own if p.grad is not None})
        model.zero_grad()
    return found


def recompute_is_bit_equal(comm, plan, schedule):
    settings = {**PLANS[plan], "pipeline_num": 4, "schedule": schedule}
    never = net(kind=Layers, recompute="never", **settings)
    expected = gradients(never, comm, STEPS)
    for recomputed in ("all", "every second", "parts"):
        content = json.loads(never.plan.to_json())
        content["version"] = 3
        for index, stage in enumerate(content["stages"]):
            stage["recompute"] = recomputed == "all" or index % 2 == 0
            if recomputed == "parts":
                stage["recompute"] = borders.segments(stage["nodes"], [])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            path.write_text(json.dumps(content))
            again = net(str(path), Layers, **settings)
            found = gradients(again, comm, STEPS)
        assert any(stage.recompute for stage in again.plan.stages)
        for step, (before, after) in enumerate(zip(expected, found, strict=True)):
            assert before.keys() == after.keys()
            for name, gradient in before.items():
                difference = (gradient - after[name]).abs().max().item()
                assert difference == 0, f"{recomputed}, step {step}, {name}: {difference}"
    first, second, *_ = expected
    assert not first or any(not torch.equal(first[name], second[name]) for name in first)


def trained(model, comm, rows):
    """Losses and gradients of a few steps, with other calls in between."""
    losses, found = [], []
    for step in range(STEPS):
        x = batch(comm, 0)[rows]  # the same each time: only the masks change
        loss = model(x)
        loss.backward()
        losses.append(loss.detach().clone())
        own = model.named_parameters(from_global=False)
        found.append({n: p.grad.clone() for n, p in own if p.grad is not None})
        model.zero_grad()
        with torch.no_grad():
            losses.append(model(x).detach().clone())
            if step == 1:
                model.eval()
                losses.append(model(x).detach().clone())
                model.train()
    return losses, found


def masks_are_those_of_one_rank(comm, plan, schedule):
    with alone():
        twin = net(partition_num=1, pipeline_num=1, deterministic_dropout=True)
        losses, expected = trained(twin, comm, rows=1)
    # Masks of steps 0 to 3 (without gradients, a call has those of the next step), and none.
    assert len({loss.item() for loss in losses}) == 5, losses
    with stages_recompute_by_turns(True):
        model = net(
            pipeline_num=4 if "x" in plan else 3,
            deterministic_dropout=True,
            schedule=schedule,
            **PLANS[plan],
        )
        ours, found = trained(model, comm, rows=0)
    assert len(model.plan.stages) == PLANS[plan]["partition_num"]
    torch.testing.assert_close(ours, losses, rtol=1e-10, atol=1e-12)
    for before, after in zip(expected, found, strict=True):
        for name, gradient in after.items():
            torch.testing.assert_close(gradient, before[name], rtol=1e-9, atol=1e-11)


CASES = {
    "own 4": lambda comm: every_rank_draws_its_own(comm, "4"),
    "own 2+2": lambda comm: every_rank_draws_its_own(comm, "2+2"),
    "own 1+3": lambda comm: every_rank_draws_its_own(comm, "1+3"),
    "alone": one_rank_draws_as_torch_does,
    "recompute 2+2 gpipe": lambda comm: recompute_is_bit_equal(comm, "2+2", "gpipe"),
    "recompute 2+2 1f1b": lambda comm: recompute_is_bit_equal(comm, "2+2", "1f1b"),
    "recompute 1+3 1f1b": lambda comm: recompute_is_bit_equal(comm, "1+3", "1f1b"),
    "recompute interleaved": lambda comm: recompute_is_bit_equal(comm, "2x(2+2)", "interleaved"),
    "same 4": lambda comm: masks_are_those_of_one_rank(comm, "4", "auto"),
    "same 2+2 gpipe": lambda comm: masks_are_those_of_one_rank(comm, "2+2", "gpipe"),
    "same 1+3 1f1b": lambda comm: masks_are_those_of_one_rank(comm, "1+3", "1f1b"),
    "same 1+1+1+1 1f1b": lambda comm: masks_are_those_of_one_rank(comm, "1+1+1+1", "1f1b"),
    "same interleaved": lambda comm: masks_are_those_of_one_rank(comm, "2x(2+2)", "interleaved"),
}


def main():
    comm = launch.world()
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        failure = ""
        try:
            CASES[name](comm)
        except AssertionError:
            failure = traceback.format_exc()[-1500:]
        failures = [item.decode() for item in comm.all_gather(failure.encode())]
        if comm.rank == 0:
            print(json.dumps({"case": name, "failures": list(filter(None, failures))}), flush=True)


if __name__ == "__main__":
    main()
