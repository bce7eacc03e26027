"""Models whose Python code looks at the number of rows, on ranks against one process.

`forward` of each is a function of the model, the rows and their targets. `rows`: of the batches of
all ranks together, one after the other.
"""

import dataclasses
import math
import sys

import torch
from torch import nn
from torch.nn import functional

import pyrannc


@dataclasses.dataclass
class Case:
    forward: object
    rows: tuple = (8, 8)
    replicas: bool = False  # the first batch runs on two of one stage, in two micro-batches
    loss_inside: bool = True
    batch_dim: int = 0


CASES = {}


def case(**options):
    def add(forward):
        CASES[forward.__name__] = Case(forward, **options)
        return forward

    return add


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 6), nn.Linear(6, 1), nn.Linear(12, 1)
        self.norm = nn.BatchNorm1d(6)
        self.score = nn.Linear(5, 1)

    def hidden(self, x):
        return torch.tanh(self.a(x))

    def loss(self, h, y):
        return functional.mse_loss(self.b(h).squeeze(1), y)


# -- groups of rows -------------------------------------------------------------------------------


@case(rows=(8, 6, 8))
def groups_of_four_or_all(self, x, y):
    h, n = self.hidden(x), x.shape[0]
    group = 4 if n % 4 == 0 else n
    s = h.view(group, -1, 6).std(0).mean(1, keepdim=True).repeat(group, 1)
    return self.loss(h * s, y)


@case(rows=(8, 4))
def minibatch_stddev(self, x, y):
    h, n = self.hidden(x), x.shape[0]
    group = min(4, n)
    s = h.view(group, n // group, 6)
    s = (s - s.mean(0)).square().mean(0).add(1e-8).sqrt().mean(1).repeat(group)
    return self.loss(h + s[:, None], y)


@case()
def pairs(self, x, y):
    h = self.hidden(x)
    return self.c(h.view(x.shape[0] // 2, 12)).square().mean() + self.loss(h, y)


@case(rows=(8, 7))
def halves(self, x, y):
    h, half = self.hidden(x), x.shape[0] // 2
    return (h[:half].mean(0) - h[half:].mean(0)).square().sum() + self.loss(h, y)


@case()
def chunks(self, x, y):
    one, other = self.hidden(x).chunk(2)
    return self.c(torch.cat([one, other], 1)).square().mean() + (y * y).mean()


@case(rows=(8, 5))
def parts_of_three(self, x, y):
    return sum(self.hidden(part).mean() ** 2 for part in x.split(3)) + y.mean()


@case(rows=(8, 7))
def thirds(self, x, y):
    return sum(self.hidden(part).sum().tanh() for part in x.tensor_split(3)) + y.mean()


@case()
def even_and_odd(self, x, y):
    h = self.hidden(x)
    return (h[::2] * h[1::2]).sum(1).logsumexp(0) + self.loss(h, y)


@case()
def views_of_one_image(self, x, y):
    h = functional.normalize(self.hidden(x), dim=1)
    n = x.shape[0] // 2
    scores = h @ h.T / 0.5 - 1e9 * torch.eye(2 * n)
    return functional.cross_entropy(scores, (torch.arange(2 * n) + n) % (2 * n)) + y.mean()


@case()
def mixed_with_the_other_half(self, x, y):
    half = x.shape[0] // 2
    mixed = 0.7 * x + 0.3 * torch.cat([x[half:], x[:half]])
    return self.loss(self.hidden(mixed), y)


@case(rows=(8, 6))
def rolled_by_half(self, x, y):
    h = self.hidden(x)
    return self.loss(h - h.roll(x.shape[0] // 2, 0), y)


@case()
def ghost_batches(self, x, y):
    h = self.hidden(x)
    return self.loss(torch.cat([self.norm(part) for part in h.chunk(x.shape[0] // 4)]), y)


@case(rows=(8, 6))
def whole_pairs_only(self, x, y):
    n = x.shape[0] - x.shape[0] % 4
    return self.loss(self.hidden(x[:n]), y[:n])


@case(rows=(6, 8))
def filled_up_to_fours(self, x, y):
    n = x.shape[0]
    h = functional.pad(self.hidden(x), (0, 0, 0, math.ceil(n / 4) * 4 - n))
    return self.loss(h.view(4, -1, 6).mean(0), y[: math.ceil(n / 4)])


@case()
def windows(self, x, y):
    h = self.hidden(x).unfold(0, 4, 2)
    return h.std(2).square().mean() + y.mean()


@case()
def averaged_in_pairs(self, x, y):
    h = self.hidden(x)
    while h.shape[0] > 1:
        h = torch.tanh(h[0::2] + h[1::2])
    return self.b(h).sum() + y.mean()


@case()
def sorted_by_halves(self, x, y):
    def fold(h):
        if h.shape[0] == 1:
            return h[0]
        one, other = h.split(h.shape[0] // 2)
        return torch.maximum(fold(one), 0.5 * fold(other))

    return self.b(fold(self.hidden(x))).sum() + y.mean()


# -- rows one by one ------------------------------------------------------------------------------


@case(rows=(6, 4))
def row_by_row(self, x, y):
    found = []
    for i in range(x.shape[0]):
        found.append(self.hidden(x[i]) * (i + 1))
    return self.loss(torch.stack(found), y)


@case(rows=(4, 6))
def rows_and_targets(self, x, y):
    terms = [(self.b(self.hidden(row)) - target).square() for row, target in zip(x, y, strict=True)]
    return torch.cat(terms).mean()


@case(rows=(6, 6))
def each_with_the_one_before(self, x, y):
    state, terms = torch.zeros(6), []
    for row in x:
        state = torch.tanh(self.a(row) + 0.5 * state)
        terms.append(state)
    return self.loss(torch.stack(terms), y)


@case(rows=(4, 5))
def all_pairs(self, x, y):
    h, n = self.hidden(x), len(x)
    terms = [(h[i] * h[j]).sum() for i in range(n) for j in range(i)]
    return torch.stack(terms).exp().mean() + y.mean()


# -- how many -------------------------------------------------------------------------------------


@case(rows=(8, 20, 8))
def best_sixteen(self, x, y):
    scores = self.score(x).squeeze(1)
    found = scores.topk(min(16, x.shape[0])).values
    return found.square().mean() + y.mean()


@case(rows=(8, 20))
def first_sixteen(self, x, y):
    n = min(x.shape[0], 16)
    return self.loss(self.hidden(x[:n]), y[:n])


@case(rows=(8, 5))
def hardest_half(self, x, y):
    errors = (self.b(self.hidden(x)).squeeze(1) - y).square()
    return errors.topk(max(1, int(0.5 * len(x)))).values.mean()


@case(rows=(8, 4))
def hardest_quarter(self, x, y):
    errors = (self.b(self.hidden(x)).squeeze(1) - y).square()
    return errors.sort(descending=True).values[: int(0.25 * x.size(0))].mean()


@case(rows=(7, 5))
def middle_one(self, x, y):
    scores = self.score(x).squeeze(1).sort().values
    return (scores[len(scores) // 2] - y.mean()).square()


@case(rows=(7, 8))
def of_rank_half(self, x, y):
    scores = self.score(x).squeeze(1)
    return (scores.kthvalue(x.shape[0] // 2 + 1).values - y.mean()).square()


# -- arithmetic with the number -------------------------------------------------------------------


@case(rows=(8, 6))
def pairs_as_divisor(self, x, y):
    h, n = self.hidden(x), x.shape[0]
    return (h @ h.T).triu(1).sum() / (n * (n - 1)) + self.loss(h, y)


@case(rows=(8, 6))
def root_of_the_number(self, x, y):
    return (self.hidden(x).sum(0) / math.sqrt(x.shape[0])).square().sum() + y.mean()


@case(rows=(8, 6))
def root_and_rows_apart(self, x, y):
    return self.loss(self.hidden(x) / x.shape[0] ** 0.5, y)


@case(rows=(8, 5))
def logarithm(self, x, y):
    return self.loss(self.hidden(x), y) * math.log(x.shape[0])


@case(rows=(8, 5))
def reciprocal(self, x, y):
    weight = 1.0 / x.shape[0]
    return (self.b(self.hidden(x)).squeeze(1) - y).square().sum() * weight


@case(rows=(8, 7))
def half_as_factor(self, x, y):
    return self.loss(self.hidden(x) * (x.shape[0] // 2), y)


@case(rows=(8, 7))
def unbiased(self, x, y):
    n, errors = len(x), (self.b(self.hidden(x)).squeeze(1) - y).square()
    return errors.sum() / max(1, n - 1) * (n / (n + 1))


@case(rows=(8, 5))
def table_of_numbers(self, x, y):
    return self.loss(self.hidden(x), y) * {8: 2.0}.get(x.shape[0], 1.0)


@case(rows=(8, 6))
def positions_of_pairs(self, x, y):
    n = x.shape[0]
    i, j = torch.triu_indices(n, n, 1)
    h = self.hidden(x)
    return (h[i] - h[j]).square().sum(1).neg().exp().mean().log() + y.mean()


# -- branches, also of a later batch --------------------------------------------------------------


@case(rows=(8, 7, 8))
def odd_and_even(self, x, y):
    h = self.hidden(x)
    return self.loss(h if x.shape[0] % 2 else h * 2, y)


@case(rows=(8, 1, 8), replicas=True)
def too_few_to_trust(self, x, y):
    h = self.hidden(x)
    if x.shape[0] == 1:
        h = h * 0.5
    return self.loss(h, y)


@case(rows=(8, 20, 8), replicas=True)
def more_than_sixteen(self, x, y):
    h = self.hidden(x)
    if len(x) > 16:
        h = torch.relu(h)
    return self.loss(h, y)


@case(rows=(8, 1), replicas=True)
def squeezed(self, x, y):
    return functional.mse_loss(self.b(self.hidden(x)).squeeze(), y.squeeze())


@case(rows=(8, 1, 8), replicas=True)
def normalised_but_for_one(self, x, y):
    h = self.hidden(x)
    if x.shape[0] > 1:
        h = h - functional.normalize(h, dim=1)
    self.norm.running_mean.mul_(0.9).add_(0.1)
    return self.loss(h, y)


@case(rows=(8, 2, 8), replicas=True)
def statistics_of_few(self, x, y):
    h = self.hidden(x)
    if x.shape[0] < 3:
        h = self.norm(h)
    return self.loss(h, y)


@case(rows=(8, 2, 8), replicas=True, loss_inside=False)
def other_outputs_of_few(self, x, y):
    h = self.hidden(x)
    return self.b(h).squeeze(1) if x.shape[0] > 2 else h.mean(1)


@case(rows=(8, 6), loss_inside=False)
def outputs_of_groups(self, x, y):
    h = self.hidden(x)
    return self.b(h - h.view(2, -1, 6).mean(0).repeat(2, 1)).squeeze(1)


@case(rows=(8, 6), batch_dim=1)
def rows_in_the_middle(self, x, y):
    one, other = self.hidden(x.squeeze(0)).chunk(2)
    return (one - other).square().mean() + y.mean()


@case(rows=(8, 1, 8), replicas=True)
def tail_alone(self, x, y):
    h = self.hidden(x)
    weight = 0.25 if x.shape[0] in (1, 2) else 1.0
    return weight * self.loss(h, y)


# -------------------------------------------------------------------------------------------------


def batch_of(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 5, generator=generator), torch.randn(rows, generator=generator)


def arguments(tensors, batch_dim):
    return [tensors[0].unsqueeze(0) if batch_dim else tensors[0], tensors[1]]


def compare(name, front_end) -> None:
    """Losses, outputs, gradients of each step, and the state after it."""
    case = CASES[name]
    made = type(name, (Model,), {"forward": case.forward})
    torch.manual_seed(0)
    twin = made().double()
    torch.manual_seed(0)
    plain = made().double()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    twins = torch.optim.SGD(twin.parameters(), lr=0.1)
    plan = {"partition_num": 2}
    if case.replicas:
        plan = {"partition_num": 1, "replica_nums": [2], "pipeline_num": 2}
    config = pyrannc.Config(calibrate=False, frontend=front_end, comm_timeout_s=60, **plan)
    dims = {0: 1, 1: 0} if case.batch_dim else None
    model = pyrannc.RaNNCModule(plain, optimizer, config, batch_dims=dims)
    rank, world = pyrannc.get_rank(), pyrannc.get_world_size()
    for step, rows in enumerate(case.rows):
        whole = [each.double() for each in batch_of(rows, step)]
        own = [each.tensor_split(world)[rank] for each in whole]
        optimizer.zero_grad()
        twins.zero_grad()
        ours = model(*arguments(own, case.batch_dim))
        theirs = twin(*arguments(whole, case.batch_dim))
        where = f"{name}, step {step} of {rows} rows"
        if case.loss_inside:
            assert_close(ours, theirs, where)
        else:
            assert_close(ours, theirs.tensor_split(world)[rank], where)
            ours, theirs = ours.square().mean(), theirs.square().mean()
        ours.backward()
        theirs.backward()
        for path, parameter in twin.named_parameters():
            found = model.get_param_grad(path)
            wanted = parameter.grad
            if found is None or wanted is None:
                assert not any(each is not None and each.any() for each in (found, wanted)), where
            else:
                assert_close(found, wanted, f"{where}: {path}")
        optimizer.step()
        twins.step()
    state = model.state_dict(rank0_only=False)
    for path, wanted in twin.state_dict().items():
        assert_close(state[path], wanted, f"{name}: {path} at the end")


def assert_close(found, wanted, where) -> None:
    torch.testing.assert_close(
        found, wanted, rtol=1e-9, atol=1e-9, msg=lambda text: f"{where}: {text}"
    )


if __name__ == "__main__":
    front_end, *names = sys.argv[1:]
    wrong = []
    for each in names or CASES:
        try:
            compare(each, front_end)
            print("right", each, flush=True)
        except AssertionError as error:
            print("WRONG", each, str(error)[:300].replace("\n", " "), flush=True)
