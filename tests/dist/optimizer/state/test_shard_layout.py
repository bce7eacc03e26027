"""Replicas that are groups share the state of the optimizers of their parts."""

import pytest

SETUP = """from groups import *

ZERO = {"zero": True}
TWICE = {"tensor_parallel": 2, "partition_num": 1, "replica_nums": [2]}

class Fused(nn.Module):
    "A weight of which each place has several stretches of the last dimension."

    def __init__(self):
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(6, 3 * 8))
        self.out, self.norm, self.scale = nn.Linear(8, 6), nn.LayerNorm(6), nn.Parameter(
            torch.tensor(1.5))

    def forward(self, x):
        q, k, v = (x.unsqueeze(1) @ self.qkv).unflatten(-1, (3, 4, 2)).unbind(2)
        seen = functional.gelu(q) * k + v
        return (self.norm(self.out(seen.flatten(2))) * self.scale).square().mean()

def rows(width):
    return lambda number: torch.randn(number, width).double()

def shared(build, made, count=5, optimizer=torch.optim.AdamW, shares=None):
    found = trains_alike(
        build, batches(made, 8, count), shares, optimizer, wrap=ZERO, **TWICE)
    model, optimizer = found[:2]
    assert model.plan.shard_optimizer
    whole = sum(p.numel() for p in model.module.parameters())
    parts = [v.numel() for e in optimizer.state.values() for v in e.values() if v.dim()]
    assert not parts or sum(parts) < 1.6 * whole / 2, (sum(parts), whole)
    return found

def folder():
    made = [tempfile.mkdtemp() if rank == 0 else None]
    return pyrannc.comm_utils.bcast_obj(made)[0]

def same_optimizer(optimizer, its):
    found, expected = optimizer.state_dict(rank0_only=False), its.state_dict()
    assert found["state"].keys() == expected["state"].keys()
    for number, entry in expected["state"].items():
        for key, value in entry.items():
            same(found["state"][number][key], value)
            assert found["state"][number][key].shape == value.shape
    return found
"""

pytestmark = pytest.mark.usefixtures("done")


def ranks(code, number=4):
    return pytest.mark.ranks(code, number=number, before=SETUP)


ALIKE = {
    "heads": "shared(GPT, tokens)",
    "uneven widths": "shared(MLP, rows(5))",
    "stretches of rows": "shared(Fused, rows(6))",
    "a convolution": "shared(CNN, lambda number: torch.randn(number, 3, 6, 6).double())",
    "uneven rows": "shared(Fused, rows(6), shares=[5, 0, 1, 2])",
    "a state that is there at once": "shared(Fused, rows(6), optimizer=lambda p, lr: "
    "torch.optim.Adagrad(p, lr=lr, eps=1e-3))",
}


@pytest.mark.parametrize("case", [pytest.param(n, marks=ranks(c)) for n, c in ALIKE.items()])
def test_groups_that_share_a_state_train_as_one_process(case):
    pass


STATES = """
batch = batches(made, 8, 6)[-1]
model, optimizer, twin, its = shared(build, made)
state = same_optimizer(optimizer, its)
optimizer.load_state_dict(state)
same_optimizer(optimizer, its)
path = folder()
pyrannc.save(path, model, optimizer)
kept = copy.deepcopy(twin)
step(model, optimizer, own(batch))
norm = step(twin, its, batch)[1]
for name, parameter in twin.named_parameters():
    found = model.get_param_grad(name)
    same(found, parameter.grad)
pyrannc.load(path, model, optimizer)
equal_state(model, kept)
same(step(model, optimizer, own(batch))[1], norm)
equal_state(model, twin)
same_optimizer(optimizer, its)
alone = build().double()
alone_optimizer = torch.optim.AdamW(alone.parameters(), lr=0.02)
pyrannc.load(path, alone, alone_optimizer)
step(alone, alone_optimizer, batch)
for mine, other in zip(alone.parameters(), twin.parameters(), strict=True):
    same(mine.detach(), other.detach())
for settings, wrap in (
    ({"tensor_parallel": 4}, {}), ({"replica_nums": [4], "partition_num": 1}, ZERO), (TWICE, ZERO),
):
    later, later_optimizer, _, _ = begun(build, wrap=wrap, **settings)
    pyrannc.load(path, later, later_optimizer)
    step(later, later_optimizer, own(batch))
    equal_state(later, twin)
    same_optimizer(later_optimizer, its)
    back = folder()
    pyrannc.save(back, later, later_optimizer)
    pyrannc.load(back, model, optimizer)
    equal_state(model, twin)
    same_optimizer(optimizer, its)
model.undeploy()
same_optimizer(optimizer, its)
step(model, optimizer, own(batch)), step(twin, its, batch)
equal_state(model, twin)
same_optimizer(optimizer, its)
"""
BUILDS = {
    "heads": "build, made = GPT, tokens\n",
    "stretches of rows": "build, made = Fused, rows(6)\n",
    "uneven widths": "build, made = MLP, rows(5)\n",
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=ranks(code + STATES)) for name, code in BUILDS.items()],
)
def test_the_state_is_whole_for_all_plans(case):
    pass


@ranks("""
model, optimizer, twin, its = shared(Fused, rows(6), 1)
adds_up(model, optimizer, twin, its, batches(rows(6), 8, 2))
part = next(p for p in model.module.parameters() if hasattr(p, "place_of_part"))
try:
    pyrannc.full(part.grad)
except pyrannc.RaNNCError as error:
    assert "get_param_grad" in str(error), error
else:
    raise AssertionError("of the sums of one range")
late = torch.optim.Adagrad(model.parameters(), lr=0.01)
its_late = torch.optim.Adagrad(twin.parameters(), lr=0.01)
for batch in batches(rows(6), 8, 2):
    step(model, late, own(batch)), step(twin, its_late, batch)
equal_state(model, twin)
same_optimizer(late, its_late)
""")
def test_gradients_that_add_up_and_late_optimizers():
    pass
