"""Optimizers step parts of parameters, also those that keep masters of them."""

import pytest

SETUP = """from groups import *

def half(build, optimizer=torch.optim.AdamW, wrap=None, **settings):
    torch.manual_seed(4)
    model = build().bfloat16()
    made = optimizer(model.parameters(), lr=0.02)
    wrap = {"master_weights": True, **(wrap or {})}
    config = pyrannc.Config(**settings)
    return pyrannc.RaNNCModule(model, made, config, **wrap), made

def wholes(optimizer):
    return optimizer.state_dict(rank0_only=False)["state"]

def as_by_hand(wrap, **settings):
    "Masters of whole parameters in float32, stepped with the gradients of the groups."
    model, optimizer = half(GPT, wrap=wrap, tensor_parallel=2, **settings)
    other, its = half(GPT, replica_nums=[size], partition_num=1)
    masters = {name: p.detach().float() for name, p in model.module.named_parameters()}
    by_hand = torch.optim.AdamW(masters.values(), lr=0.02)
    for number, batch in enumerate(batches(tokens, 8, 5)):
        optimizer.zero_grad()
        loss = model(own(batch))
        loss.backward()
        if number == 0:  # later ones differ by the rounding of 16 bits, which Adam makes large
            same(loss.detach().float(), other(own(batch)).detach().float(), 2e-2)
        for name, master in masters.items():
            master.grad = model.get_param_grad(name).float()
        by_hand.step(), optimizer.step()
    state, whole = wholes(optimizer), model.state_dict(rank0_only=False)
    for number, (name, master) in enumerate(masters.items()):
        assert state[number]["master"].dtype == torch.float32
        same(state[number]["master"], master, 1e-6)
        assert torch.equal(whole[name], state[number]["master"].bfloat16()), name
        for key, value in by_hand.state[master].items():
            same(state[number][key], value, 1e-6)
    assert any(hasattr(p, "place_of_part") for p in model.module.parameters())
    return model, optimizer
"""

pytestmark = pytest.mark.usefixtures("done")


def ranks(code, number=4):
    return pytest.mark.ranks(code, number=number, before=SETUP)


MASTERS = {
    "one group": (2, "as_by_hand({})"),
    "groups that share nothing": (4, "as_by_hand({}, partition_num=1, replica_nums=[2])"),
    "groups that share": (
        4,
        "as_by_hand({'zero': True}, partition_num=1, replica_nums=[2])",
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(n, marks=ranks(c, number)) for n, (number, c) in MASTERS.items()]
)
def test_masters_are_of_parts(case):
    pass


@ranks("""
for wrap in ({}, {"zero": True}):
    settings = {"tensor_parallel": 2, "partition_num": 1, "replica_nums": [2]}
    model, optimizer = as_by_hand(wrap, **{
        key: value for key, value in settings.items() if key != "tensor_parallel"})
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    folder = pyrannc.comm_utils.bcast_obj(folder)[0]
    pyrannc.save(folder, model, optimizer)
    state = wholes(optimizer)
    (batch,) = batches(tokens, 8, 1)
    again, its_again = half(GPT, wrap=wrap, **settings)
    pyrannc.load(folder, again, its_again)
    for m, o in ((model, optimizer), (again, its_again)):
        o.zero_grad(), m(own(batch)).backward(), o.step()
    first, second = wholes(optimizer), wholes(its_again)
    for number, entry in first.items():
        for key, value in entry.items():
            assert torch.equal(second[number][key], value), (number, key)
    alone = GPT().bfloat16()
    its_alone = torch.optim.AdamW(alone.parameters(), lr=0.02)
    pyrannc.load(folder, alone, its_alone)
    for number, entry in its_alone.state_dict()["state"].items():
        assert torch.equal(entry["master"], state[number]["master"])
    optimizer.load_state_dict({**its_again.state_dict(rank0_only=False)})
    for number, entry in wholes(optimizer).items():
        assert torch.equal(entry["master"], second[number]["master"])
""")
def test_masters_of_parts_are_saved_and_loaded():
    pass


@ranks("""
model, optimizer = half(GPT, tensor_parallel=2, replica_nums=[2], partition_num=1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for batch in batches(tokens, 8, 2):
    optimizer.zero_grad()
    scaler.scale(model(own(batch))).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer), scaler.update()
assert all("master" in entry for entry in wholes(optimizer).values())
""")
def test_masters_of_parts_with_a_scaler():
    pass
