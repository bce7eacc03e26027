"""States of parts of parameters are put together on several ranks."""

import pytest


@pytest.mark.ranks(
    """
    import copy, pyrannc, torch
    from torch import nn

    # A rank that steps one number of a parameter took the count of steps, of one
    # number, for a part of what is kept of each number. The other ranks did not, and the gathering
    # of the state waited for another message.
    class Counted(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    state["step"] = state.get("step", torch.zeros(1)) + 1
                    state["mean"] = state.get("mean", torch.zeros_like(p)) + p.grad
                    p.sub_(group["lr"] / state["step"] * state["mean"])

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(5)])

        def forward(self, x):
            return sum(x[:, :3].square() @ row for row in self.rows).square().mean()

    rank, plain = pyrannc.get_rank(), Odd()
    inner = copy.deepcopy(plain)
    own, optimizer = Counted(plain.parameters()), Counted(inner.parameters())
    model = pyrannc.RaNNCModule(inner, optimizer, pyrannc.Config(
        partition_num=1, replica_nums=[2], calibrate=False, self_check=False
    ), zero=True)
    for step in range(3):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
        for each, steps, rows in ((plain, own, x), (model, optimizer, x[4 * rank : 4 * rank + 4])):
            steps.zero_grad()
            each(rows).backward()
            steps.step()
    pieces = model._deployment.sharded_steps.shards.pieces.values()
    assert any(end - begin == 1 for each in pieces for begin, end in each.values()), pieces
    found = optimizer.state_dict(rank0_only=False)["state"]
    for number, entry in own.state_dict()["state"].items():
        torch.testing.assert_close(found[number], entry)
    """
)
def test_one_number_of_each_parameter_is_none_of_the_numbers_that_a_rank_steps(done):
    pass


@pytest.mark.ranks(
    """
    import copy, pyrannc, torch
    from torch import nn

    # Two of three ranks have parts of the larger parameter, and the third one the other parameter.
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(20, 20, bias=False), nn.Tanh(), nn.Linear(20, 40, bias=False))
    inner = copy.deepcopy(plain)
    own = torch.optim.Adam(plain.parameters(), 0.01)
    optimizer = torch.optim.Adam(inner.parameters(), 0.01)
    model = pyrannc.RaNNCModule(inner, optimizer, pyrannc.Config(
        partition_num=1, replica_nums=[3], calibrate=False, self_check=False, comm_timeout_s=30
    ), zero=True)
    rank = pyrannc.get_rank()
    for step in range(2):
        x = torch.randn(6, 20, generator=torch.Generator().manual_seed(step))
        for each, steps, rows in ((model, optimizer, x[2 * rank : 2 * rank + 2]), (plain, own, x)):
            steps.zero_grad()
            each(rows).square().mean().backward()
            steps.step()
    pieces = model._deployment.sharded_steps.shards.pieces.values()
    assert sorted(map(len, pieces)) == [1, 2], pieces
    for _ in range(2):
        found = optimizer.state_dict(rank0_only=False)["state"]
        for number, entry in own.state_dict()["state"].items():
            torch.testing.assert_close(found[number], entry)
    """,
    number=3,
)
def test_a_rank_without_a_part_of_what_others_put_together_keeps_step_with_them(done):
    pass
