"""``AdamW(model.named_parameters())``: names stand beside their parameters, on every rank.

The list of names stayed whole where the parameters of other ranks went, so a loop over both had
each parameter with another one's name, as had the checkpoint of rank 0.
"""

import pytest

SETUP = """
import copy, tempfile, pyrannc, torch
from torch import nn

world, rank = pyrannc.launch.world(), pyrannc.get_rank()

def build(kind=torch.optim.AdamW):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    named = [("own." + name, parameter) for name, parameter in model.named_parameters()]
    groups = [
        {"params": [(n, p) for n, p in named if p.dim() == 1], "weight_decay": 0.0},
        {"params": [(n, p) for n, p in reversed(named) if p.dim() > 1], "weight_decay": 0.1},
    ]
    return model, kind(groups, lr=0.05)

def wrap(model, optimizer, stages=2):
    return pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(
        partition_num=stages, pipeline_num=2, calibrate=False, self_check=False
    ), zero="auto")

def train(model, optimizer, first, last, rows=slice(4 * rank, 4 * rank + 4)):
    for step in range(first, last):
        torch.manual_seed(50 + step)
        x = torch.randn(8, 4)[rows]
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

def paired(model, optimizer, prefix="own."):
    held = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        wanted = [prefix + held[id(parameter)] for parameter in group["params"]]
        assert group["param_names"] == wanted, (group["param_names"], wanted)

plain, own = build()
inner, optimizer = build()
whole = own.state_dict()["param_groups"]
assert len(whole[0]["param_names"]) == 3
"""


@pytest.mark.ranks(
    """
    model = wrap(inner, optimizer)
    train(model, optimizer, 0, 2)
    paired(inner, optimizer)
    assert 0 < sum(len(group["params"]) for group in optimizer.param_groups) < 6
    saved = optimizer.state_dict(rank0_only=False)
    assert [g["param_names"] for g in saved["param_groups"]] == [g["param_names"] for g in whole]

    own.load_state_dict(copy.deepcopy(saved))  # in one process
    paired(plain, own)
    optimizer.load_state_dict(saved)
    paired(inner, optimizer)
    optimizer.load_state_dict(optimizer.state_dict(from_global=False))
    paired(inner, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())  # rank 0 has it
    paired(inner, optimizer)

    # As torch has it, those of the state are taken over.
    other = copy.deepcopy(saved)
    for group in other["param_groups"]:
        group["param_names"] = [name.replace("own", "other") for name in group["param_names"]]
    optimizer.load_state_dict(copy.deepcopy(other))
    paired(inner, optimizer, "other.")
    found = optimizer.state_dict(rank0_only=False)["param_groups"]
    assert found == other["param_groups"], found
    optimizer.load_state_dict(saved)

    # States that were saved before have the names of rank 0's part, and no others.
    for group in other["param_groups"]:
        group["param_names"] = group["param_names"][:1]
    optimizer.load_state_dict(other)
    paired(inner, optimizer)

    model.undeploy()
    paired(inner, optimizer)
    found = [group["param_names"] for group in optimizer.param_groups]
    assert found == [group["param_names"] for group in whole], found
    train(model, optimizer, 2, 3)
    paired(inner, optimizer)
    """,
    before=SETUP,
)
def test_names_stay_beside_their_parameters_and_are_whole_in_state_dicts(done):
    pass


@pytest.mark.ranks(
    """
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = wrap(inner, optimizer)
    train(model, optimizer, 0, 2)
    folder = world.broadcast(tempfile.mkdtemp().encode() if rank == 0 else b"", 0).decode()
    pyrannc.save(f"{folder}/ours", model, optimizer)
    saved = optimizer.state_dict(rank0_only=False)

    pyrannc.load(f"{folder}/ours", plain, own)  # as without ranks
    paired(plain, own)
    assert [g["param_names"] for g in own.param_groups] == [g["param_names"] for g in whole]
    train(model, optimizer, 2, 3)
    pyrannc.load(f"{folder}/ours", model, optimizer)
    paired(inner, optimizer)
    if rank == 0:
        from pyrannc.checkpoint import tools
        from pathlib import Path
        tools.to_torch(Path(folder, "ours"), Path(folder, "torch"))
        found = torch.load(f"{folder}/torch/optimizer-0.pt")["param_groups"]
        assert found == saved["param_groups"], found

    pyrannc.init()
    weights, state = get_state_dict(model, optimizer)
    assert [g["param_names"] for g in state["param_groups"]] == [g["param_names"] for g in whole]
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/dcp")
    train(model, optimizer, 2, 3)
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/dcp")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    paired(inner, optimizer)
    """,
    before=SETUP,
)
def test_names_are_whole_in_checkpoints_and_loaded_beside_their_parameters(done):
    pass


@pytest.mark.ranks(
    """
    # A tied parameter stands in its group twice, and the groups behind it were numbered wrongly.
    def tied():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), *(nn.Linear(8, 8) for _ in range(3)))
        model[4].weight = model[2].weight
        named = [*model.named_parameters(remove_duplicate=False)]
        groups = [[each for each in named if each[1].dim() == size] for size in (2, 1)]
        return model, torch.optim.SGD([{"params": each} for each in groups], lr=0.1, momentum=0.9)

    for shared in (False, True):
        plain, own = tied()
        inner, optimizer = tied()
        model = wrap(inner, optimizer, 1 if shared else 2)
        train(plain, own, 0, 2, slice(0, 8))
        train(model, optimizer, 0, 2)
        found, wanted = optimizer.state_dict(rank0_only=False), own.state_dict()
        assert found["param_groups"] == wanted["param_groups"], found["param_groups"]
        torch.testing.assert_close(found["state"], wanted["state"])
        whole = optimizer.state_dict()
        train(model, optimizer, 2, 3)
        optimizer.load_state_dict(whole)
        torch.testing.assert_close(optimizer.state_dict(rank0_only=False)["state"], wanted["state"])
    """,
    before=SETUP,
)
def test_a_tied_parameter_that_stands_in_a_group_twice_has_the_numbers_and_names_of_torch(done):
    pass


@pytest.mark.ranks(
    """
    class NoDecayOfBiases(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p, name in zip(group["params"], group["param_names"], strict=True):
                    if p.grad is not None:
                        p.mul_(1.0 if name.endswith("bias") else 0.9).sub_(0.1 * p.grad)

    plain, own = build(NoDecayOfBiases)
    inner, optimizer = build(NoDecayOfBiases)
    model = wrap(inner, optimizer)  # which tries its step on copies
    train(plain, own, 0, 3, slice(0, 8))
    train(model, optimizer, 0, 3)
    for name, value in model.state_dict(rank0_only=False).items():
        torch.testing.assert_close(value, plain.state_dict()[name])
    """,
    before=SETUP,
)
def test_an_optimizer_that_asks_for_the_name_of_each_parameter_trains_as_one_process(done):
    pass
