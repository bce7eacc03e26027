"""Layers that several ranks compute together equal those of one process."""

import pytest

SETUP = "from groups import *\n"

pytestmark = pytest.mark.usefixtures("done")


def ranks(code, number=2):
    return pytest.mark.ranks(code, number=number, before=SETUP)


MODELS = {
    "GPT": "trains_alike(GPT, batches(tokens, 4), tensor_parallel=size)",
    "CNN": "trains_alike(CNN, batches(lambda r: torch.randn(r, 3, 6, 6).double(), 4), "
    "tensor_parallel=size)",
    "statistics of a batch": "trains_alike(Normalised, batches("
    "lambda r: torch.randn(r, 3, 6, 6).double(), 4), tensor_parallel=size, pipeline_num=1)",
    "uneven widths": "trains_alike(MLP, batches(lambda r: torch.randn(r, 5).double(), 4), "
    "tensor_parallel=size)",
    "uneven batches": "trains_alike(GPT, batches(tokens, 5), [4, 1], tensor_parallel=size)",
    "a rank without rows": "trains_alike(GPT, batches(tokens, 3), [0, 3], tensor_parallel=size)",
    "micro-batches": "trains_alike(GPT, batches(tokens, 4), tensor_parallel=size, pipeline_num=2)",
    "recompute": "trains_alike(GPT, batches(tokens, 4), tensor_parallel=size, checkpointing=True)",
    "the sequence": "trains_alike(GPT, batches(tokens, 4), tensor_parallel=size, "
    "sequence_parallel=True)",
    "the sequence, micro-batches, recompute, uneven batches": "trains_alike(GPT, "
    "batches(tokens, 5), [4, 1], tensor_parallel=size, sequence_parallel=True, pipeline_num=2, "
    "checkpointing=True)",
}


@pytest.mark.parametrize("case", [pytest.param(n, marks=ranks(c)) for n, c in MODELS.items()])
def test_two_ranks_that_compute_layers_together_train_as_one_process(case):
    pass


LATER = """
class Branches(nn.Module):
    "Calls that use one weight in ways that cannot be cut alike."

    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(6, 8), nn.Linear(8, 6), nn.LayerNorm(8)
        self.extra = nn.Linear(6, 4)

    def forward(self, x, how):
        h = self.up(x)
        if how == 1:  # needs all of a row
            h = self.norm(h)
        if how == 2:  # the weight on both sides, and a parameter that no call has used so far
            beside = self.extra(x).square().mean()
            return (functional.gelu(h) @ self.up.weight).square().mean() + beside
        if how == 3:
            h = h.sort(-1).values
        return self.down(functional.gelu(h)).square().mean()

class Chain(nn.Module):
    "Calls that lead through the stages otherwise, and use weights of another one."

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(192, 768), nn.GELU(), nn.Linear(768, 192)) for _ in range(6))
        self.head = nn.Linear(192, 40, bias=False)

    def forward(self, x, how):
        if how == 2:
            x = functional.linear(x @ self.head.weight.T, self.head.weight.T)
        for each in reversed(self.layers) if how == 1 else self.layers:
            x = x + each(x)
        return (self.layers[3](x).sort(-1).values if how == 3 else self.head(x)).square().mean()

def changes(build, width, kinds, **settings):
    model, optimizer, twin, its = begun(build, torch.optim.SGD, tensor_parallel=2, **settings)
    for how, kept in kinds:
        batch = torch.randn(2 * size, width).double()
        optimizer.zero_grad(), its.zero_grad()
        if kept is not None:
            with model.no_sync():
                model(own(batch), how=kept).backward()
            twin(batch, how=kept).backward()
        loss, expected = model(own(batch), how=how), twin(batch, how=how)
        same(loss, expected)
        loss.backward(), expected.backward()
        same(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5),
             torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5))
        optimizer.step(), its.step()
    equal_state(model, twin)
    assert all(stage.factors for stage in model.plan.stages), "nothing is cut"

torch.manual_seed(7)
"""
LATER_CALLS = {
    "the first cuts": (
        2,
        "changes(Branches, 6, [(0, None), (1, None), (2, None), (3, None), (0, 1), (0, 2), "
        "(3, 0)])",
    ),
    "the first gathers": (
        2,
        "changes(Branches, 6, [(3, None), (0, None), (2, None), (1, None), (3, 0), (1, 2)])",
    ),
    "two replicas": (
        4,
        "changes(Branches, 6, [(0, None), (2, None), (3, None), (0, 2), (2, 1)], partition_num=1, "
        "replica_nums=[2])",
    ),
    "two stages": (
        4,
        "changes(Chain, 192, [(0, None), (1, None), (2, None), (3, None), (0, 1), (2, 3), "
        "(0, None)], partition_num=2, pipeline_num=2)",
    ),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(name, marks=ranks(LATER + code, number))
        for name, (number, code) in LATER_CALLS.items()
    ],
)
def test_later_calls_take_parameters_as_the_first_one_has_cut_them(case):
    pass


MESHES = {
    "four ways, three heads": "trains_alike(GPT, batches(tokens, 4), tensor_parallel=4)",
    "two replicas of two": "trains_alike(GPT, batches(tokens, 4), tensor_parallel=2, "
    "partition_num=1, replica_nums=[2])",
    "statistics of the whole batch": "trains_alike(Normalised, batches("
    "lambda r: torch.randn(r, 3, 6, 6).double(), 4), tensor_parallel=2, partition_num=1, "
    "replica_nums=[2], sync_batch_norm=True)",
    "two stages of two": "trains_alike(large, batches(tokens, 8), tensor_parallel=2, "
    "partition_num=2, pipeline_num=2)",
    "the sequence, 6 places on four ranks": "trains_alike(GPT, batches(tokens, 4), "
    "tensor_parallel=4, sequence_parallel=True)",
    "the sequence, two replicas, shared state": "trains_alike(GPT, batches(tokens, 4), "
    "tensor_parallel=2, sequence_parallel=True, partition_num=1, replica_nums=[2], "
    "wrap={'zero': True})",
    "the sequence, two stages": "trains_alike(large, batches(tokens, 8), tensor_parallel=2, "
    "sequence_parallel=True, partition_num=2, pipeline_num=4, schedule='1f1b')",
    "two stages of two, 1F1B": "trains_alike(large, batches(tokens, 8), tensor_parallel=2, "
    "partition_num=2, pipeline_num=4, schedule='1f1b')",
}


@pytest.mark.parametrize("case", [pytest.param(n, marks=ranks(c, 4)) for n, c in MESHES.items()])
def test_groups_are_replicas_and_stages(case):
    pass


@ranks("""
model, optimizer, twin, its = trains_alike(GPT, batches(tokens, 4), tensor_parallel=2)
found = optimizer.state_dict(rank0_only=False)
for number, entry in its.state_dict()["state"].items():
    for key, value in entry.items():
        same(found["state"][number][key], value)
optimizer.load_state_dict(found)
with model.summon():
    for mine, other in zip(model.module.parameters(), twin.parameters(), strict=True):
        same(mine.detach(), other.detach())
name = next(name for name, p in model.module.named_parameters() if hasattr(p, "place_of_part"))
its_own = dict(twin.named_parameters())[name].detach()
same(pyrannc.full(dict(model.module.named_parameters())[name]), its_own)
same(model.get_param(name), its_own)
(last,) = batches(tokens, 4, 1)
folder = [tempfile.mkdtemp() if rank == 0 else None]
folder = pyrannc.comm_utils.bcast_obj(folder)[0]
pyrannc.save(folder, model, optimizer)
step(model, optimizer, own(last))
pyrannc.load(folder, model, optimizer)
same(step(model, optimizer, own(last))[0], step(twin, its, last)[0])
equal_state(model, twin)
alone = GPT().double()
alone_optimizer = torch.optim.AdamW(alone.parameters(), lr=0.02)
pyrannc.load(folder, alone, alone_optimizer)
model.eval(), twin.eval()
with torch.no_grad():
    same(model(own(last)), twin(last))
model.train(), twin.train()
model.undeploy()
for mine, other in zip(model.module.parameters(), twin.parameters(), strict=True):
    same(mine.detach(), other.detach())
same(step(model, optimizer, own(last))[0], step(twin, its, last)[0])
""")
def test_state_is_whole_for_all_who_ask():
    pass


@ranks("""
model, optimizer, twin, its = begun(GPT, tensor_parallel=2)
adds_up(model, optimizer, twin, its, batches(tokens, 4, 2))
""")
def test_gradients_add_up_without_a_sum():
    pass


@ranks("""
model, optimizer, twin, its = begun(GPT, tensor_parallel=2)
for batch in batches(tokens, 4, 2):
    optimizer.zero_grad(), its.zero_grad()
    for _ in range(2):
        with model.no_sync():
            model(own(batch)).backward()
        twin(batch).backward()
    model.allreduce_grads()
    optimizer.step(), its.step()
equal_state(model, twin)
""")
def test_gradients_that_are_summed_later_are_of_the_whole_group():
    pass


@ranks("""
model, optimizer, twin, its = trains_alike(GPT, batches(tokens, 4), tensor_parallel=2)
part = next(p for p in model.module.parameters() if hasattr(p, "place_of_part"))
shape = dict(twin.named_parameters())[part.place_of_part.name].shape
assert part.shape == shape and part.numel() == shape.numel() and len(part) == shape[0]
with torch.no_grad():
    part.mul_(2.0)
    dict(twin.named_parameters())[part.place_of_part.name].mul_(2.0)
equal_state(model, twin)
for wrong in (
    lambda: part.norm(), lambda: part.sum(), lambda: part @ part.T, lambda: part[0],
    lambda: float(part.pow(2).mean()), lambda: torch.zeros(shape).add_(part),
    lambda: torch._foreach_add_([torch.zeros(shape)], [part]), lambda: copy.deepcopy(part),
):
    try:
        found = wrong()
    except pyrannc.RaNNCError as error:
        assert "pyrannc.full" in str(error), error
    else:
        raise AssertionError(f"{found} is of a part")
""")
def test_a_part_says_what_the_whole_is_and_gives_no_number_of_the_part():
    pass


@ranks("""
def losses(**settings):
    torch.manual_seed(1)
    model, optimizer, _, _ = begun(lambda: GPT(drop=0.3), self_check=False, **settings)
    return [step(model, optimizer, own(batch)) for batch in batches(tokens, 4)]
alone = losses(deterministic_dropout=True)
for settings in ({}, {"sequence_parallel": True}):
    for mine, other in zip(losses(tensor_parallel=2, **settings), alone, strict=True):
        same(mine, other)
""")
def test_what_is_dropped_is_the_same_with_and_without():
    pass


@ranks("""
model, optimizer, twin, its = begun(MLP, tensor_parallel=2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
first, second = batches(lambda rows: torch.randn(rows, 5).double(), 4, 2)
scaler.scale(model(own(first))).backward()
scaler.step(optimizer), scaler.update()
twin(first).backward(), its.step()
equal_state(model, twin)
optimizer.zero_grad()
scaler.scale(model(own(second))).backward()
part = next(p for p in model.module.parameters() if hasattr(p, "place_of_part"))
if rank == 1:
    part.grad.mul_(float("inf"))
scaler.step(optimizer), scaler.update()  # no rank steps
equal_state(model, twin)
assert scaler.get_scale() == 512
""")
def test_a_scaler_leaves_a_step_out_on_all_ranks():
    pass


@ranks("""
for shares in ([2, 2], [3, 1]):
    model, optimizer, twin, its = begun(Outputs, tensor_parallel=2)
    for batch in batches(lambda rows: torch.randn(rows, 5).double(), 4):
        optimizer.zero_grad(), its.zero_grad()
        model(own(batch, shares)).square().mean().backward()
        twin(batch).square().mean().backward()
        optimizer.step(), its.step()
    equal_state(model, twin)
""")
def test_a_loss_outside_of_the_model_has_the_rows_of_each_rank():
    pass


@ranks("""
def hooked(hook, late):
    model, optimizer, twin, its = begun(MLP, tensor_parallel=2)
    (batch,) = batches(lambda rows: torch.randn(rows, 5).double(), 4, 1)
    if late:
        step(model, optimizer, own(batch)), step(twin, its, batch)
    for each in (model.module, twin):
        for parameter in each.parameters():
            parameter.register_hook(hook)
    step(model, optimizer, own(batch)), step(twin, its, batch)
    equal_state(model, twin)

for late in (False, True):
    hooked(lambda gradient: gradient * 2, late)
    try:
        hooked(lambda gradient: gradient / (gradient.norm() + 1), late)
    except pyrannc.RaNNCError as error:
        assert "norm of a tensor of which this rank has a part" in str(error), error
    else:
        raise AssertionError("a hook has taken a part for the whole")
""")
def test_hooks_on_parameters_see_parts():
    pass


@ranks("""
with torch.device("meta"):
    empty = GPT()
empty = empty.double()
optimizer = torch.optim.Adagrad(empty.parameters(), lr=0.02, eps=1e-3)
model = pyrannc.RaNNCModule(empty, optimizer, pyrannc.Config(tensor_parallel=2))
twin = its = None
for batch in batches(tokens, 4):
    optimizer.zero_grad()
    loss = model(own(batch))
    if twin is None:
        twin = GPT().double()
        twin.load_state_dict(model.state_dict(rank0_only=False))
        its = torch.optim.Adagrad(twin.parameters(), lr=0.02, eps=1e-3)
        assert sum(p.abs().sum() for p in twin.parameters()) > 0
        assert any(hasattr(p, "place_of_part") for p in model.module.parameters())
    its.zero_grad()
    expected = twin(batch)
    same(loss, expected)
    loss.backward(), expected.backward()
    optimizer.step(), its.step()
equal_state(model, twin)
""")
def test_models_that_are_built_without_values_fill_their_parts():
    pass


@ranks("""
folder = [tempfile.mkdtemp() if rank == 0 else None]
file = pyrannc.comm_utils.bcast_obj(folder)[0] + "/plan.json"
trains_alike(GPT, batches(tokens, 4), tensor_parallel=2, save_deployment=True,
             sequence_parallel=True, deployment_file=file)
model, _, _, _ = trains_alike(GPT, batches(tokens, 4), tensor_parallel=2, load_deployment=True,
                              deployment_file=file)
assert model.plan.stages[0].places == 2 and model.plan.stages[0].factors
assert '"sequence_parallel": true' in model.plan.to_json()
shown = pyrannc._C.plan.show(model.plan)
assert "1 x 2" in shown and "stage on 2 ranks of 2" in shown, shown
try:
    begun(GPT, load_deployment=True, deployment_file=file)[0](tokens(2))
except pyrannc.RaNNCError as error:
    assert "has groups of 2 ranks, but tensor_parallel is 1" in str(error), error
else:
    raise AssertionError("not refused")
""")
def test_a_plan_with_groups_is_written_read_and_shown():
    pass


REFUSED = {
    "sequence_parallel is of ranks that compute layers together": """
begun(GPT, sequence_parallel=True)
""",
    "tensor_parallel = 3 does not divide the 2 ranks": """
begun(GPT, tensor_parallel=3)[0](tokens(2))
""",
    "tensor_parallel shares the state of Adafactor out over ranks": """
begun(MLP, torch.optim.Adafactor, tensor_parallel=2)[0](torch.randn(2, 5).double())
""",
    "tensor_parallel shares the state of ByNorm out over ranks": """
begun(MLP, ByNorm, tensor_parallel=2)[0](torch.randn(2, 5).double())
""",
}


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(
            message,
            marks=ranks(
                "try:\n"
                + "".join(f"    {line}\n" for line in code.strip().splitlines())
                + "except pyrannc.RaNNCError as error:\n"
                + f"    assert {message!r} in str(error), error\n"
                + "else:\n    raise AssertionError('not refused')"
            ),
        )
        for message, code in REFUSED.items()
    ],
)
def test_what_does_not_go_together_is_an_error(message):
    pass
