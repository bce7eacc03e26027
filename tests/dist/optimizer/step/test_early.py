"""An agent whose methods are called, and never the agent itself, would train on each rank alone."""

import pytest

AGENT = """
import torch
from torch import nn
from pyrannc import Config, RaNNCError, RaNNCModule, get_rank, get_world_size

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)

    def value(self, x):
        return self.critic(x)

    def forward(self, x):
        return self.actor(x), self.critic(x)

agent = Agent()
optimizer = torch.optim.Adam(agent.parameters())
agent = RaNNCModule(agent, optimizer, Config(partition_num=1, calibrate=False))
rows = torch.randn(2, 4, generator=torch.Generator().manual_seed(get_rank()))
"""


@pytest.mark.ranks(AGENT + """
for _ in range(2):
    agent.value(rows).mean().backward()
    try:
        optimizer.step()
    except RaNNCError as error:
        assert "Adam has stepped before the first call" in str(error)
        assert "Call the wrapped model itself" in str(error)
    else:
        raise AssertionError("no error")
""")  # fmt: skip
def test_a_step_before_the_first_call_is_an_error(done):
    pass


@pytest.mark.ranks(AGENT + """
optimizer.step()  # of nothing, as before some schedulers
for each in agent.parameters():
    each.grad = torch.zeros_like(each)
optimizer.step()  # which makes its state
with torch.no_grad():
    agent.value(rows)

def closure():
    optimizer.zero_grad()
    loss = sum(each.square().mean() for each in agent(rows))
    loss.backward()
    return loss

optimizer.step(closure)
closure()
optimizer.step()
""")  # fmt: skip
def test_one_without_gradients_or_with_the_call_in_its_closure_is_none(done):
    pass
