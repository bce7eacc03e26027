"""Boolean masks that select, against eager: one rank, four micro-batches."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from pyrannc import Config, RaNNCModule, TraceError

CLASSES = 4


class Selecting(nn.Module):
    def __init__(self, loss):
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        self.head = nn.Sequential(nn.LayerNorm(CLASSES), nn.Linear(CLASSES, CLASSES), nn.GELU())
        self.loss = loss

    def forward(self, x, labels, target):
        return self.loss(self, self.body(x), labels, target)


def batch(seed, rows=8):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 5, 8, generator=generator)
    labels = torch.randint(-1, CLASSES, (rows, 5), generator=generator)
    labels[1], labels[4:6] = 2, -1  # all of one row, and none of a micro-batch
    target = torch.randn(rows, 5, CLASSES, generator=generator)
    return x, labels, target.masked_fill(labels[..., None] < 0, torch.nan)


def train(loss, **config):
    """Three steps with the loss and of an eager twin; their losses and parameters are equal."""
    plain = Selecting(loss).double()
    twin = copy.deepcopy(plain)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (plain, twin)]
    model = RaNNCModule(plain, optimizers[0], Config(**{"pipeline_num": 4} | config))
    for step in range(3):
        x, labels, target = batch(step)
        losses = []
        for one, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(one(x.double(), labels, target.double()))
            losses[-1].backward()
            optimizer.step()
        torch.testing.assert_close(*losses)
    for parameter, expected in zip(plain.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected)


def mean_error(m, y, labels, target):
    known = ~target.isnan()
    return functional.mse_loss(y[known], target[known])


def masked_select(m, y, labels, target):
    known = labels >= 0
    return (y.masked_select(known.unsqueeze(-1)) ** 2).sum() / known.sum()


def labels_twice(m, y, labels, target):
    return functional.cross_entropy(
        y.view(-1, CLASSES)[labels.view(-1) != -1], labels.view(-1)[labels.view(-1) != -1]
    )


def module_losses(m, y, labels, target):
    known = labels >= 0
    loss = nn.SmoothL1Loss(beta=0.5)(y[known], target[known])
    return loss + nn.CrossEntropyLoss(label_smoothing=0.1)(y[known], labels[known])


def head_of_the_selected(m, y, labels, target):
    known = labels >= 0
    scores = m.head(y[known]).log_softmax(-1)
    picked = scores.gather(1, labels[known].unsqueeze(1)).squeeze(1)
    return -picked.mean()


def focal(m, y, labels, target):
    known = labels >= 0
    loss = functional.cross_entropy(y[known], labels[known], reduction="none")
    return ((1 - torch.exp(-loss)) ** 2 * loss).mean()


def columns(m, y, labels, target):
    known = labels >= 0
    chosen = y[known, :]
    return chosen[:, 0].pow(2).mean() + (chosen[..., 1:] * 2).sum(-1).abs().mean(dim=0)


def probabilities(m, y, labels, target):
    known = labels >= 0
    wanted = functional.one_hot(labels.clamp(min=0), CLASSES).to(y.dtype)
    loss = functional.binary_cross_entropy(torch.sigmoid(y)[known], wanted[known])
    return loss + functional.cross_entropy(y[known], wanted[known])


def of_the_selected(m, y, labels, target):
    known = labels >= 0
    chosen, its_labels = y[known], labels[known]
    return chosen[its_labels > 1].square().mean() + chosen.reshape(-1, 2, 2).amax(2).mean()


def written_back(m, y, labels, target):
    known = labels >= 0
    y = y.clone()
    y[known] = m.head(y[known]) * 2
    return y.square().mean()


def sum_by_batch(m, y, labels, target):
    known = labels >= 0
    log, wanted = y.log_softmax(-1)[known], y.detach().softmax(-1)[known]
    return functional.kl_div(log, wanted, reduction="batchmean") - log.mean((0, 1))


def parts(m, y, labels, target):
    known = labels >= 0
    one, other = y[known].chunk(2, dim=-1)
    return (one * torch.sigmoid(other)).mean() + y[known].topk(2).values.sum(1).mean()


def targets_one_after_the_other(m, y, labels, target):
    scores = torch.cat([y, -y], 1).log_softmax(-1).transpose(0, 1)
    known = (labels != -1) & (labels != 0)  # 0 is the blank
    return functional.ctc_loss(
        scores, labels.masked_select(known), torch.full((len(y),), 10), known.sum(-1),
        reduction="mean", zero_infinity=True,
    )  # fmt: skip


IDIOMS = (
    mean_error, masked_select, labels_twice, module_losses, head_of_the_selected, focal, columns,
    probabilities, of_the_selected, written_back, sum_by_batch, parts,
    targets_one_after_the_other,
)  # fmt: skip


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.__name__)
def test_what_is_selected_for_a_sum_or_a_mean_trains_as_in_eager(idiom):
    train(idiom)


@pytest.mark.parametrize("recompute", ["auto", "always"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_selections_are_right_under_every_schedule(schedule, recompute):
    train(mean_error, schedule=schedule, recompute=recompute)


REFUSED = {
    "how many": lambda m, y, labels, target: y[labels >= 0].sum() / len(y[labels >= 0]),
    "their shape": lambda m, y, labels, target: y.sum() / y[labels >= 0].shape[0],
    "an output": lambda m, y, labels, target: {"loss": y.mean(), "known": y[labels >= 0]},
    "over them": lambda m, y, labels, target: y[labels >= 0].softmax(0).mean(),
    "the largest": lambda m, y, labels, target: y[labels >= 0].max(),
    "two masks": lambda m, y, labels, target: (y[labels >= 0] * target[labels >= 1]).mean(),
    "a decision": lambda m, y, labels, target: y.mean() if y[labels >= 0].mean() > 0 else y.sum(),
    "some of them": lambda m, y, labels, target: y[labels >= 0][:3].mean(),
    "positions": lambda m, y, labels, target: (labels >= 0).nonzero().sum() + y.sum(),
    "targets of other lengths": lambda m, y, labels, target: functional.ctc_loss(
        y.log_softmax(-1).transpose(0, 1),
        labels[labels > 0],
        torch.full((len(y),), 5),
        (labels >= 0).sum(-1),
    ),
    "random masks": lambda m, y, labels, target: (
        y[torch.rand(y.shape) > 0.5] - target[torch.rand(y.shape) > 0.5]
    ).mean(),
}


@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED.keys())
def test_what_depends_on_how_many_are_selected_is_refused(use):
    model = RaNNCModule(Selecting(use), None, Config())
    with pytest.raises(TraceError, match=r"(?s)decide.*of what a mask"):
        model(*batch(0))
