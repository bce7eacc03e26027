"""bf16 and GradScaler on two ranks against the unwrapped model on this device, which every rank
computes itself with the rows of both."""

import copy
import json

import device
import torch
from report import Report, in_words

import pyrannc
from pyrannc import launch

PLANS = {
    "replicas": {"partition_num": 1, "replica_nums": [2]},
    "stages": {"partition_num": 2, "replica_nums": [1, 1]},
}
ROWS, STEPS = 4, 3
# Of the whole tensor. A number of bfloat16 has 8 bits: sums over other parts of the batch round
# otherwise, a few times.
LARGEST_ERROR = {torch.bfloat16: 3e-2, torch.float16: 1e-2}


class Model(torch.nn.Module):
    """Normalises what stays in float32 under autocast, as transformers do."""

    def __init__(self, normalised):
        super().__init__()
        norm = torch.nn.LayerNorm if normalised else torch.nn.Identity
        self.norms = torch.nn.ModuleList(norm(16) for _ in range(3))
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
            for _ in range(2)
        )
        self.head = torch.nn.Linear(16, 8)

    def forward(self, x):
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x = x + layer(norm(x))
        return self.head(self.norms[-1](x))


def pair(world, place, plan, dtype=torch.float32):
    """The wrapped model and its twin, each with its optimizer."""
    torch.manual_seed(3)
    # The CPU's kernel, which is the stand-in's, takes other statistics of bfloat16 than a GPU's.
    twin = Model(device.NAME == "cuda" or dtype == torch.float32).to(place, dtype)
    model = copy.deepcopy(twin)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, twin)]
    config = pyrannc.Config(
        device_transport="staged", share_device=True, pipeline_num=1, calibrate=False, **plan
    )
    return pyrannc.RaNNCModule(model, optimizers[0], config), twin, *optimizers


def batch(world, place, step, dtype=torch.float32):
    """Rows of all ranks, and those of this one."""
    generator = torch.Generator().manual_seed(step)
    whole = torch.randn(ROWS * world.size, 16, generator=generator).to(place, dtype)
    return whole, whole[ROWS * world.rank :][:ROWS]


def error_of(ours, theirs):
    """Relative, of the whole tensor."""
    ours, theirs = ours.detach().cpu().double(), theirs.detach().cpu().double()
    return ((ours - theirs).norm() / max(theirs.norm().item(), 1e-6)).item()


def compare(wrapped, twin, dtype):
    state, expected = wrapped.state_dict(rank0_only=False), twin.state_dict()
    errors = {name: error_of(state[name], tensor) for name, tensor in expected.items()}
    worst = max(errors, key=errors.get)
    assert errors[worst] <= LARGEST_ERROR[dtype], f"{worst}: error {errors[worst]:.3g}"
    return errors[worst]


def bf16_autocast(world, place, plan):
    wrapped, twin, optimizer, plain = pair(world, place, plan)
    for step in range(STEPS):
        whole, mine = batch(world, place, step)
        with torch.autocast(place.type, torch.bfloat16):
            output, expected = wrapped(mine), twin(whole)
        assert output.dtype == expected.dtype == torch.bfloat16, output.dtype
        output.float().square().mean().backward()
        expected.float().square().mean().backward()
        for each in (optimizer, plain):
            each.step()
            each.zero_grad()
    return compare(wrapped, twin, torch.bfloat16)


def bf16_parameters(world, place, plan):
    wrapped, twin, optimizer, plain = pair(world, place, plan, torch.bfloat16)
    for step in range(STEPS):
        whole, mine = batch(world, place, step, torch.bfloat16)
        wrapped(mine).float().square().mean().backward()
        twin(whole).float().square().mean().backward()
        for each in (optimizer, plain):
            each.step()
            each.zero_grad()
    return compare(wrapped, twin, torch.bfloat16)


def scaled_float16(world, place, plan):
    """The second step has a gradient that is infinite, on one rank: all skip it."""
    wrapped, twin, optimizer, plain = pair(world, place, plan)
    scaler, of_twin = (torch.amp.GradScaler(place.type, init_scale=1024.0) for _ in range(2))
    scales = []
    for step in range(STEPS + 1):
        whole, mine = batch(world, place, step)
        with torch.autocast(place.type, torch.float16):
            output, expected = wrapped(mine), twin(whole)
        scaler.scale(output.float().square().mean()).backward()
        of_twin.scale(expected.float().square().mean()).backward()
        if step == 1:
            if world.rank == 0:
                first = next(iter(wrapped.parameters(from_global=False)))
                first.grad.view(-1)[0] = float("inf")
            next(twin.parameters()).grad.view(-1)[0] = float("inf")
        for each, scaling in ((optimizer, scaler), (plain, of_twin)):
            scaling.step(each)
            scaling.update()
            each.zero_grad()
        scales.append(scaler.get_scale())
        assert scales[-1] == of_twin.get_scale(), f"scale {scales[-1]}, {of_twin.get_scale()}"
    assert scales[:2] == [1024.0, 512.0], scales
    return compare(wrapped, twin, torch.float16)


def main():
    world = launch.world()
    world.timeout_s = 30
    place = device.start()
    report = Report(shown=world.rank == 0)
    for case in (bf16_autocast, bf16_parameters, scaled_float16):
        for name, plan in PLANS.items():
            title = f"{case.__name__.replace('_', ' ')}, {name}"
            try:
                found = {"error": case(world, place, plan), "text": ""}
            except AssertionError as error:  # a difference; another error may leave a rank waiting
                found = {"error": None, "text": f"{title}: {in_words(error)}"}
            everyone = [json.loads(each) for each in world.all_gather(json.dumps(found).encode())]
            report.failures += [
                f"rank {rank}: {each['text']}" for rank, each in enumerate(everyone) if each["text"]
            ]
            errors = [each["error"] for each in everyone if each["error"] is not None]
            report.figures[title] = f"error {max(errors, default=float('nan')):.2g}"
            report.show()
    world.barrier()


if __name__ == "__main__":
    main()
