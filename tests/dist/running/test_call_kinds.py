"""What users put around calls, such as ``torch.autocast``, on two ranks against one process."""

import pytest

# A model of two stages, its twin in this process, and the batch of all ranks in `x`.
START = """
import contextlib, copy, sys, pyrannc, torch
from torch import nn

torch.manual_seed(0)
layers = [nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)]
plain = nn.Sequential(*layers)
twin = copy.deepcopy(plain)
rank = pyrannc.get_rank()
x = torch.randn(8, 8)
mine = slice(4 * rank, 4 * rank + 4)


def wrap(**config):
    config = pyrannc.Config(
        partition_num=2, replica_nums=[1, 1], pipeline_num=2, comm_timeout_s=30, **config
    )
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    return pyrannc.RaNNCModule(plain, optimizer, config), optimizer


def train_both(context=contextlib.nullcontext, **tolerance):
    '''A step of each, compared.'''
    optimizer.zero_grad()
    twin.zero_grad()
    with context():
        ours, theirs = model(x[mine]), twin(x)
    torch.testing.assert_close(ours, theirs[mine], **tolerance)
    ours.float().square().mean().backward()
    theirs.float().square().mean().backward()
    for name, parameter in model.named_parameters(from_global=False):
        expected = dict(twin.named_parameters())[name]
        torch.testing.assert_close(parameter.grad, expected.grad, **tolerance)
    optimizer.step()
    # So that errors of rounding do not add up.
    twin.load_state_dict(model.state_dict(rank0_only=False))
"""


@pytest.mark.parametrize("config", ["", "self_check=False"])
@pytest.mark.ranks(
    # In torch 2.13 the casts that autocast caches, here those of the self-check, hold weak
    # references to the weights, with which these cannot be released: "Expected no weakrefs".
    lambda config: (
        f"""
def autocast():
    return torch.autocast("cpu", torch.bfloat16)


model, optimizer = wrap({config})
for context in (autocast, autocast, contextlib.nullcontext, autocast):
    # Products of micro-batches are rounded to bfloat16 before they are summed.
    tolerance = dict(rtol=2e-2, atol=1e-3) if context is autocast else {{}}
    train_both(context, **tolerance)
"""
    ),
    before=START,
)
def test_every_call_may_be_under_autocast(config, done):
    pass


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.ranks(
    lambda begins: (
        f"""
model, optimizer = wrap()
if not {begins}:
    train_both()
for one in (model, twin):
    one.eval()
with torch.inference_mode():
    torch.testing.assert_close(model(x[mine]), twin(x)[mine])
for one in (model, twin):
    one.train()
train_both()
train_both()
"""
    ),
    before=START,
)
def test_inference_mode_is_as_no_grad(begins, done):
    pass


@pytest.mark.ranks(
    """
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x).square().mean()


critic = Critic()
expected = copy.deepcopy(critic)(twin(x))
gradients = torch.autograd.grad(expected, twin.parameters())
gradients = dict(zip(dict(twin.named_parameters()), gradients))
config = pyrannc.Config(comm_timeout_s=30, schedule="1f1b")
judge = pyrannc.RaNNCModule(critic, None, config)
config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], comm_timeout_s=30)
for outside_loss in ("mean", "sum"):
    model = pyrannc.RaNNCModule(copy.deepcopy(plain), None, config, outside_loss=outside_loss)
    judge(model(x[mine]).detach().requires_grad_()).backward()  # not its gradients
    judge(model(x[mine]) + 0).backward()
    for name, parameter in model.named_parameters(from_global=False):
        torch.testing.assert_close(parameter.grad, gradients[name])
""",
    before=START,
)
def test_a_model_that_feeds_another_one_gets_the_gradients_of_one_process(done):
    pass
