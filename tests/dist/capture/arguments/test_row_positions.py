"""Arguments that have as many entries as the batch, and are no rows of it; ranks without rows."""

import pytest

START = """
import pyrannc, torch
from torch import nn

rank = pyrannc.get_rank()


class Net(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.bag, self.out, self.how = nn.EmbeddingBag(10, 4, mode="sum"), nn.Linear(4, 4), how

    def forward(self, x, other, y):
        if self.how == "offsets":
            return (self.out(self.bag(x, other)).sum(1) - y).square().mean()
        h = torch.tanh(self.out(self.bag(x.view(-1, 1))))
        if self.how == "positions":
            return (h[other].sum(1) - y).square().mean()
        return nn.functional.cross_entropy(h @ other.t(), y.long())


def call(how, other, **settings):
    torch.manual_seed(0)
    model = Net(how)
    config = pyrannc.Config(calibrate=False, comm_timeout_s=60)
    wrapped = pyrannc.RaNNCModule(model, None, config, **settings)
    x, y = torch.arange(4) + 4 * rank, torch.arange(4.0) * (1 - rank)
    return wrapped(x, other, y)
"""


@pytest.mark.parametrize(
    ("how", "other", "told"),
    [
        ("offsets", "torch.tensor([0, 2, 2, 3])", "holds positions of rows"),
        ("positions", "torch.tensor([3, 2, 2, 0])", "holds positions of rows"),
        ("classes", "torch.eye(4)", "is the same on all ranks"),
    ],
)
@pytest.mark.ranks(
    lambda how, other, told: (
        f"""
try:
    call({how!r}, {other})
except pyrannc.RaNNCError as error:
    assert {told!r} in str(error) and "{{'other': None}}" in str(error), error
else:
    raise AssertionError("no error")
"""
    ),
    before=START,
)
def test_what_is_no_row_is_an_error_that_asks_for_batch_dims(done, how, other, told):
    # Symptom: rank 1's offsets and positions pointed at rank 0's rows, and the classes counted
    # twice; the loss was another one, without a word.
    pass


@pytest.mark.ranks(
    """
want = [float(call("classes", torch.eye(4), batch_dims={"other": None}))]
assert len({float(each) for each in want}) == 1
""",
    before=START,
)
def test_what_the_user_says_of_it_counts(done):
    pass


@pytest.mark.ranks(
    """
def asked(n):
    x = torch.randn(n, 4).requires_grad_()
    loss = model(x)
    (gradient,) = torch.autograd.grad(loss, x)
    assert gradient.shape == x.shape, gradient


class Squares(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x).square().mean()


model = pyrannc.RaNNCModule(Squares(), None, pyrannc.Config(calibrate=False))
asked(2)
asked(1 - rank)
""",
    before=START,
)
def test_a_rank_without_rows_has_a_gradient_of_none(done):
    # "One of the differentiated Tensors appears to not have been used in the graph", on that rank.
    pass


@pytest.mark.ranks(
    """
class Shares(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, q):  # which has to add up to 1
        weights = nn.functional.softplus(self.linear(x)) + 0.1
        return -torch.distributions.Dirichlet(weights).log_prob(q).mean()


model = pyrannc.RaNNCModule(Shares(), None, pyrannc.Config(calibrate=False))
model(torch.randn(8, 4), torch.randn(8, 4).softmax(1)).backward()
""",
    before=START,
)
def test_a_model_may_refuse_numbers_that_the_self_check_makes_up(done):
    # "The model fails on a batch of 6 rows made from this call's: ValueError: Expected value ...".
    pass
