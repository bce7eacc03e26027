"""How many ranks compute layers together is the planner's choice, by what it predicts."""

import pytest

SETUP = """
import copy, pyrannc, torch
from torch import nn
from torch.nn import functional

rank, size = pyrannc.get_rank(), pyrannc.get_world_size()

class GPT(nn.Module):
    def __init__(self, words, width, inner, heads=4, layers=1):
        super().__init__()
        self.heads, self.words = heads, nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(dict(
                norm=nn.LayerNorm(width), qkv=nn.Linear(width, 3 * width),
                out=nn.Linear(width, width), up=nn.Linear(width, inner),
                down=nn.Linear(inner, width))) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                       for each in layer["qkv"](layer["norm"](x)).chunk(3, -1))
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["out"](seen.transpose(1, 2).flatten(2))
            x = x + layer["down"](functional.gelu(layer["up"](x)))
        scores = self.head(self.norm(x))
        return functional.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

def trains_alike(build, words, length, rows=4, optimizer=torch.optim.AdamW, **settings):
    torch.manual_seed(4)
    model = build().double()
    twin = copy.deepcopy(model)
    mine, its = (optimizer(each.parameters(), lr=0.02) for each in (model, twin))
    model = pyrannc.RaNNCModule(model, mine, pyrannc.Config(**settings))
    for _ in range(2):
        batch = torch.randint(words, (rows, length))
        mine.zero_grad(), its.zero_grad()
        loss, expected = model(batch.tensor_split(size)[rank]), twin(batch)
        torch.testing.assert_close(loss, expected)
        loss.backward(), expected.backward()
        mine.step(), its.step()
    found = model.state_dict(rank0_only=False)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(found[name], tensor, atol=1e-10, rtol=1e-10)
    return model, mine

def places(model):
    return {stage.places for stage in model.plan.stages}
"""

pytestmark = pytest.mark.usefixtures("done")


def ranks(code, number=2):
    return pytest.mark.ranks(code, number=number, before=SETUP)


@ranks("""
model, _ = trains_alike(lambda: GPT(11, 12, 20), 11, 6, tensor_parallel="auto")
assert places(model) == {1}, places(model)
""")
def test_a_small_model_has_no_groups():
    pass


@ranks("""
model, _ = trains_alike(lambda: GPT(12_000, 64, 128), 12_000, 16, tensor_parallel="auto")
assert places(model) == {2}, places(model)
cut = {factor for stage in model.plan.stages for factor in stage.factors}
assert "head.weight:0" in cut, cut
""")
def test_a_vocabulary_that_is_most_of_a_model_is_shared_out():
    pass


@ranks("""
class Wide(nn.Module):
    "One layer that a rank has no room for."
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 8192), nn.Linear(8192, 2)

    def forward(self, ids):
        x = functional.one_hot(ids, 64).double()
        return self.down(functional.gelu(self.up(x))).square().mean()

# Parameters, gradients and state of Adam of one layer take 17 MB: too much for any stage.
limit = dict(mem_limit_gb=15 / 1024, mem_margin=0.0, recompute="never", profile_cache="off")
try:
    trains_alike(Wide, 64, 1, pipeline_num=1, **limit)
    raise SystemExit("fits without groups")
except pyrannc.errors.InfeasibleError:
    pass
model, _ = trains_alike(Wide, 64, 1, pipeline_num=1, tensor_parallel="auto", **limit)
assert places(model) == {2}, places(model)
""")
def test_what_fits_only_in_groups_gets_them():
    pass


TO_THE_BYTE = """
import json

settings = dict(tensor_parallel=2, pipeline_num=2, recompute="never")
model, optimizer = trains_alike(lambda: GPT(41, 16, 22, layers=2), 41, 6, **settings)
(stage,) = model.plan.stages
world = pyrannc.launch.world()
before = world.sent_bytes("tensor parallel")
model(torch.randint(41, (2, 6))).backward()
sent = world.sent_bytes("tensor parallel") - before
predicted = model.plan.micro_batches * json.loads(stage.notes)["group"]["collective_bytes"]
assert sent == predicted > 0, (sent, predicted)

if rank == 0:  # which has the larger part of what is uneven
    states = [each["exp_avg"] for each in optimizer.state.values()]
    mine = sum(each.nbytes for each in states)
    assert stage.predicted.param_bytes == mine, (stage.predicted.param_bytes, mine)
    assert stage.predicted.optimizer_bytes == 2 * mine, (stage.predicted.optimizer_bytes, mine)
    whole = sum(p.nbytes for p in model.parameters())
    assert mine < 0.7 * whole, (mine, whole)
"""


@ranks(TO_THE_BYTE)
def test_what_is_sent_and_held_is_predicted_to_the_byte():
    pass


@ranks("""
class ByNorm(torch.optim.SGD):
    "Looks at the whole of each gradient."
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad / (p.grad.norm() + 1), alpha=group["lr"])

model, _ = trains_alike(lambda: GPT(12_000, 64, 128), 12_000, 16, optimizer=ByNorm,
                        tensor_parallel="auto")
assert places(model) == {1}, places(model)
""")
def test_an_optimizer_that_needs_whole_parameters_has_no_groups():
    pass
