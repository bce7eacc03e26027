"""One rank of test_set_order.py: models that go through sets of strings, in orders of each rank.

``SEEDS`` of the environment are seeds of Python's hashes, which the ranks take in turn: with them
two ranks side by side go through a set of strings in other orders. Every rank computes the twin
itself, one process on the batches of all ranks.
"""

import contextlib
import copy
import itertools
import json
import os
import sys


def take_seed():
    """Starts this rank anew with its hashes, which Python chooses before it runs anything."""
    seeds = os.environ["SEEDS"].split(",")
    seed = seeds[int(os.environ["OMPI_COMM_WORLD_RANK"]) % len(seeds)]
    if os.environ.get("PYTHONHASHSEED") != seed:
        os.environ["PYTHONHASHSEED"] = seed
        os.execv(sys.executable, sys.orig_argv)


take_seed()

import torch  # noqa: E402
from torch import nn  # noqa: E402

import pyrannc  # noqa: E402
from pyrannc import _C, launch  # noqa: E402
from pyrannc.planning import candidates  # noqa: E402

NAMES = [f"branch{number}" for number in range(6)]
INPUTS = ["x", "y", "z"]
WIDTH, ROWS, STEPS = 6, 3, 3
PLANS = {
    "1+1": {"partition_num": 2, "replica_nums": [1, 1]},
    "2+2": {"partition_num": 2, "replica_nums": [2, 2]},
    "1+1+1+1": {"partition_num": 4, "replica_nums": [1, 1, 1, 1]},
    "replicas": {"partition_num": 1},
}


@torch.jit.script
def squash(x, scale: float):
    return torch.tanh(x * scale)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Branches(nn.Module):
    """In the order of a set are: the modules, a buffer of each, their computation with a constant
    tensor, a scripted function and an autograd function in each, and the members of the result."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in set(NAMES)})
        self.scales = {name: torch.full((WIDTH,), 1.5 + n) for n, name in enumerate(NAMES)}
        for name in set(NAMES):
            self.register_buffer(f"{name}_calls", torch.zeros(()))
        self.last = nn.Linear(WIDTH * len(NAMES), 1)

    def forward(self, **inputs):
        x = inputs["x"] + 2 * inputs["y"] - inputs["z"]
        found = {}
        for name in set(NAMES):
            number = NAMES.index(name)
            hidden = self.branches[name](x) * self.scales[name].to(x.dtype)
            hidden = hidden + torch.tensor([0.1 * number] * WIDTH, dtype=x.dtype)
            hidden = Scale.apply(squash(hidden, 0.5 + number), 2.0 + number)
            getattr(self, f"{name}_calls").add_(hidden.shape[-1])
            found[name] = hidden
        loss = self.last(torch.cat([found[name] for name in NAMES], dim=1)).square().mean()
        return {"loss": loss} | {name: found[name].sum(1) for name in set(NAMES)}


class Dropped(Branches):
    """Draws in the order of the set."""

    def forward(self, **inputs):
        found = {name: self.branches[name](inputs["x"]) for name in NAMES}
        found = {name: nn.functional.dropout(found[name], 0.3) for name in set(NAMES)}
        return {"loss": self.last(torch.cat([found[n] for n in NAMES], dim=1)).square().mean()}


class Summed(Branches):
    """Adds up in the order of the set, and so rounds in another way."""

    def forward(self, **inputs):
        total = sum(self.branches[name](inputs["x"]) for name in set(NAMES))
        return {"loss": total.square().mean()}


def made(kind):
    """Equal on all ranks, whatever the order of the parameters."""
    model = kind().double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter.copy_(
                torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 4
            )
    return model


def batch(comm, step, rows=None):
    """Of this rank, and of all; the keywords come in the order of a set."""
    rows = rows or [ROWS] * comm.size
    generator = torch.Generator().manual_seed(step)
    shape = (sum(rows), WIDTH)
    whole = {n: torch.randn(shape, generator=generator, dtype=torch.float64) for n in INPUTS}
    return {name: mine(comm, whole[name], rows) for name in set(INPUTS)}, whole


def mine(comm, tensor, rows=None):
    """This rank's part of a tensor of the whole batch."""
    return tensor.split(rows or [ROWS] * comm.size)[comm.rank]


@contextlib.contextmanager
def cut_evenly():
    """Inside, every stage has as many nodes as the others, so that the cut is among the branches:
    the planner, which goes by the times of tiny operators, may leave a stage next to nothing."""
    make_plan = candidates.Planner.plan

    def even(planner):
        plan = json.loads(make_plan(planner).to_json())
        nodes = [node for stage in plan["stages"] for node in stage["nodes"]]
        count = len(plan["stages"])
        borders = [len(nodes) * stage // count for stage in range(count + 1)]
        for stage, (first, end) in zip(plan["stages"], itertools.pairwise(borders), strict=True):
            stage["nodes"] = nodes[first:end]
        return _C.plan.Plan.from_json(json.dumps(plan))

    candidates.Planner.plan = even
    try:
        yield
    finally:
        candidates.Planner.plan = make_plan


def close(name, ours, theirs):
    assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12), f"{name}: {ours} and {theirs}"


def settings(plan, **others):
    return pyrannc.Config(
        pipeline_num=2, comm_timeout_s=60, calibrate=False, **PLANS[plan], **others
    )


def train(comm, plan):
    """Loss, outputs, gradients, parameters and buffers are those of one process."""
    plain = made(Branches)
    twin = copy.deepcopy(plain)
    ours = torch.optim.SGD(plain.parameters(), lr=1e-4, momentum=0.9)
    theirs = torch.optim.SGD(twin.parameters(), lr=1e-4, momentum=0.9)
    model = pyrannc.RaNNCModule(plain, ours, settings(plan), outputs="all")
    for step in range(STEPS):
        local, whole = batch(comm, step)
        with cut_evenly():
            found, expected = model(**local), twin(**whole)
        compare_outputs(comm, found, expected)
        found["loss"].backward()
        expected["loss"].backward()
        for name, parameter in model.named_parameters(from_global=False):
            close(f"gradient of {name}", parameter.grad, twin.get_parameter(name).grad)
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    state = model.state_dict(rank0_only=False)
    for name, tensor in twin.state_dict().items():
        close(name, state[name], tensor)
    # Another capture, which the ranks agree on, too.
    model.eval()
    twin.eval()
    rows = [2] * comm.size
    local, whole = batch(comm, STEPS, rows)
    compare_outputs(comm, model(**local), twin(**whole), rows)


def compare_outputs(comm, found, expected, rows=None):
    assert list(found) == list(expected)  # in the order of this rank's set
    close("loss", found["loss"], expected["loss"])
    for name in NAMES:
        close(name, found[name], mine(comm, expected[name], rows))


def orders_differ(comm):
    orders = comm.all_gather(json.dumps([list(set(NAMES)), list(set(INPUTS))]).encode())
    for names in zip(*map(json.loads, orders), strict=True):
        assert names[0] != names[1], names


def keyed_draws_come_in_any_order(comm, plan):
    """Every rank has rank 0's names of the nodes, of which the numbers are told."""
    losses = []
    for each in (plan, "replicas"):
        torch.manual_seed(5)
        config = settings(each, deterministic_dropout=True)
        model = pyrannc.RaNNCModule(made(Dropped), config=config)
        with cut_evenly():
            # The last rank has most rows, so it checks its own capture.
            losses.append(model(**batch(comm, 0, [ROWS] * (comm.size - 1) + [ROWS + 1])[0])["loss"])
        losses[-1].backward()
    close("loss", *losses)
    assert losses[0] != made(Dropped).eval()(**batch(comm, 0)[1])["loss"]


def gemma(comm, plan):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    kinds = ["sliding_attention", "full_attention"]
    orders = comm.all_gather(json.dumps(list(set(kinds))).encode())
    assert orders[0] != orders[1], orders
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, sliding_window=4,
        layer_types=kinds * 2, use_cache=False,
    )  # fmt: skip
    plain = Gemma3ForCausalLM(config).double()
    twin = copy.deepcopy(plain)
    ours = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-3)
    model = pyrannc.RaNNCModule(plain, ours, settings(plan))
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        words = torch.randint(50, (ROWS * comm.size, 8), generator=generator)
        own = mine(comm, words)
        with cut_evenly():
            loss = model(input_ids=own, labels=own).loss
        expected = twin(input_ids=words, labels=words).loss
        assert abs(loss - expected) < 1e-6 * expected, (loss, expected)
        loss.backward()
        expected.backward()
        for name, parameter in model.named_parameters(from_global=False):
            theirs_of = twin.get_parameter(name).grad
            error = (parameter.grad - theirs_of).abs().max()
            assert error < 1e-5 * max(1, theirs_of.abs().max()), f"{name}: {error}"
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()


def differs(comm):
    """A real difference, on top of the order."""
    model = made(Branches)
    model.scales[NAMES[2]] = torch.full((WIDTH,), 1.0 + comm.rank)
    refused(comm, model, "rank 1 captured another graph than rank 0: constant '")


def sums_are_rounded_in_their_order(comm):
    refused(comm, made(Summed), "Set PYTHONHASHSEED=0 for all ranks")


def draws_are_made_in_their_order(comm):
    refused(comm, made(Dropped), "draws random numbers")


def refused(comm, model, text):
    """On every rank, with the same words."""
    os.environ.pop("PYTHONHASHSEED", None)  # as where each process chooses by itself
    try:
        pyrannc.RaNNCModule(model)(**batch(comm, 0)[0])
    except pyrannc.TraceError as error:
        texts = comm.all_gather(str(error).encode())
        assert text in texts[0].decode() and texts.count(texts[0]) == comm.size, texts
    else:
        raise AssertionError("no error")


def main():
    comm = launch.world()
    orders_differ(comm)
    plan = "1+1" if comm.size == 2 else "2+2"
    for each in [plan] if comm.size == 2 else [plan, "1+1+1+1"]:
        train(comm, each)
    keyed_draws_come_in_any_order(comm, plan)
    gemma(comm, plan)
    differs(comm)
    sums_are_rounded_in_their_order(comm)
    draws_are_made_in_their_order(comm)
    print(f"rank {comm.rank} is done")


if __name__ == "__main__":
    main()
