"""One rank that trains weights of 16 bits by masters of 32, under plans, shared out and not.

Started by tests/dist/optimizer/step/test_masters.py as shared_states.py is.
"""

import sys
import tempfile
from pathlib import Path

import shared_states
import torch
from shared_states import OPTIMIZERS, Run, alike
from torch import nn

import pyrannc
from pyrannc import launch

STEPS = shared_states.STEPS
LOOSE = 2e-2  # of a step of Adam where a gradient of 16 bits is rounded otherwise


def run(plan, zero, dtype=torch.bfloat16, **more):
    return Run(plan, zero, dtype=dtype, master_weights=True, **more)


def check_masters(one):
    """Every parameter is its master, rounded; the state is of 32 bits, and of this rank's part."""
    for name, entry in one.optimizer.state_dict(rank0_only=False)["state"].items():
        assert {v.dtype for v in entry.values() if torch.is_tensor(v)} == {torch.float32}, name
    numbers = one.optimizer.state_dict(rank0_only=False)["state"]
    weights = [*one.model.state_dict(rank0_only=False).items()]
    masters = {tuple(entry["master"].shape): [] for entry in numbers.values()}
    for entry in numbers.values():
        masters[tuple(entry["master"].shape)].append(entry["master"])
    for name, value in weights:
        rounded = [m.to(value.dtype) for m in masters[tuple(value.shape)]]
        assert any(torch.equal(value, each) for each in rounded), name


def loops(plan):
    """As a loop without shared state does, under the same plan."""
    for optimizer in ("adamw", "adamw_foreach", "adamw_fused", "momentum", "adagrad"):
        one, other = (run(plan, zero, optimizer=optimizer, grouped=True) for zero in (True, False))
        for each in (one, other):
            make = torch.optim.lr_scheduler.StepLR(each.optimizer, 1, 0.5)
            each.train(scheduler=make)
            check_masters(each)
        alike(one, other, LOOSE)


def clipping(plan):
    norms = []
    for zero in (True, False):
        each = run(plan, zero)
        for step in range(STEPS):
            each.optimizer.zero_grad()
            each.model(*each.batch(step)).backward()
            norms.append(nn.utils.clip_grad_norm_(each.model.parameters(), 0.1).item())
            each.optimizer.step()
        check_masters(each)
    half = len(norms) // 2
    torch.testing.assert_close(
        torch.tensor(norms[:half]), torch.tensor(norms[half:]), rtol=LOOSE, atol=LOOSE
    )


def scaler(plan):
    for zero in (True, False):
        each = run(plan, zero)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
        for step in range(STEPS):
            each.optimizer.zero_grad()
            scaler.scale(each.model(*each.batch(step))).backward()
            scaler.unscale_(each.optimizer)
            gradient = each.model.get_param_grad("embed.weight")
            assert gradient.dtype == torch.bfloat16
            nn.utils.clip_grad_norm_(each.model.parameters(), 1.0)
            scaler.step(each.optimizer)
            scaler.update()
        check_masters(each)


def checkpoints(plan):
    """What one plan has saved another one goes on with, shared out or not, and bit for bit."""
    world = launch.world()
    other_plan = "2+2" if plan == "4" else "4"
    for zero in (True, False):
        folder = tempfile.mkdtemp() if world.rank == 0 else ""
        folder = world.broadcast(folder.encode(), 0).decode()
        one = run(plan, zero).train(0, 2)
        pyrannc.save(folder, one.model, one.optimizer)
        whole = one.optimizer.state_dict(rank0_only=False)
        weights = one.model.state_dict(rank0_only=False)
        for way in ("save", "state_dict"):
            other = run(other_plan, not zero).train(3, 4)
            if way == "save":
                pyrannc.load(folder, other.model, other.optimizer)
            else:
                other.model.load_state_dict(weights)
                other.optimizer.load_state_dict(whole)
            found = other.optimizer.state_dict(rank0_only=False)["state"]
            assert found.keys() == whole["state"].keys()
            for number, entry in whole["state"].items():
                for key, value in entry.items():
                    assert torch.equal(found[number][key], value), (way, number, key)
            other.train(2, 3)
            check_masters(other)


def late(plan):
    """Optimizers that are made after the first call step masters, which are saved and loaded."""
    world = launch.world()
    folder = tempfile.mkdtemp() if world.rank == 0 else ""
    folder = world.broadcast(folder.encode(), 0).decode()
    ends = []
    for way in ("once", "save", "state_dict"):
        one = run(plan, False).train(0, 1)
        one.optimizer = OPTIMIZERS["momentum"](one.model.parameters())
        if way == "once":
            one.train(1, 2)
            pyrannc.save(folder, one.model, one.optimizer)
            weights = one.model.state_dict(rank0_only=False)
            whole = one.optimizer.state_dict(rank0_only=False)
        elif way == "save":
            pyrannc.load(folder, one.model, one.optimizer)
        else:
            one.model.load_state_dict(weights)
            one.optimizer.load_state_dict(whole)
        one.train(2, STEPS)
        check_masters(one)
        ends.append(one.optimizer.state_dict(rank0_only=False)["state"])
    for found in ends[1:]:
        assert found.keys() == ends[0].keys()
        for number, entry in ends[0].items():
            assert torch.equal(found[number]["master"], entry["master"]), number


def losses(plan, steps=200):
    """200 steps end within 1 % of float32's loss, and those of bare bfloat16 do not."""
    ends = []
    for dtype, masters in (
        (torch.float32, False), (torch.bfloat16, True), (torch.bfloat16, False),
    ):  # fmt: skip
        one = Run(plan, masters, "small_steps", dtype=dtype, master_weights=masters)
        total = 0.0
        for step in range(steps):
            one.optimizer.zero_grad()
            loss = one.model(*one.batch(step % 3))
            loss.backward()
            one.optimizer.step()
            total += loss.item() if step >= steps - 3 else 0.0
        ends.append(total / 3)
    exact, mastered, bare = ends
    assert abs(mastered / exact - 1) < 0.01, ends
    assert abs(bare / exact - 1) > 0.01, ends


OPTIMIZERS["small_steps"] = lambda p: torch.optim.AdamW(p, lr=1e-4)
shared_states.CASES = {
    each.__name__: each for each in (loops, clipping, scaler, checkpoints, late, losses)
}

if __name__ == "__main__":
    shared_states.main(Path(sys.argv[1]))
