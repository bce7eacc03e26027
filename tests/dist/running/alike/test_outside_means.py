"""pyrannc.mean() on several ranks, against one process with the rows of all of them."""

import pytest

BEFORE = """
import copy, pyrannc, torch
from torch import nn
from torch.nn import functional

rank, ranks = pyrannc.get_rank(), pyrannc.get_world_size()
torch.manual_seed(0)
x = torch.randn(8, 5, 6, dtype=torch.float64)
labels = torch.randint(0, 4, (8, 5))
labels[labels == 3] = -100
labels[0] = 1
labels[5:, 2:] = -100  # so the ranks have different numbers of tokens
plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def total_of(model, rows, labels=labels):
    scores = model(x[rows])
    total = functional.cross_entropy(
        scores.flatten(0, 1), labels[rows].flatten(), reduction="sum"
    )
    return total, (labels[rows] != -100).sum()


def same_gradients(model, twin):
    for name, parameter in model.named_parameters(from_global=False):
        torch.testing.assert_close(
            parameter.grad, twin.get_parameter(name).grad, rtol=1e-9, atol=1e-12
        )


def wrapped(**settings):
    config = pyrannc.Config(calibrate=False)
    return pyrannc.RaNNCModule(copy.deepcopy(plain), config=config, **settings)


STAGES = pyrannc.Config(partition_num=2, replica_nums=[1, 1], pipeline_num=2)
"""


@pytest.mark.ranks(
    """
    borders = {"equal": 4, "unequal": 6, "without rows": 8}
    for config in (STAGES, pyrannc.Config(calibrate=False, partition_num=1, replica_nums=[2])):
        for outside_loss in ("mean", "sum"):
            model = copy.deepcopy(plain)
            model = pyrannc.RaNNCModule(model, config=config, outside_loss=outside_loss)
            twin = copy.deepcopy(plain)
            for border in borders.values():
                mine = slice(0, border) if rank == 0 else slice(border, 8)
                total, count = total_of(model, mine)
                loss = pyrannc.mean(total, count)
                wanted = functional.cross_entropy(twin(x).flatten(0, 1), labels.flatten())
                torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=0)
                (loss / 4).backward()
                (wanted / 4).backward()
            same_gradients(model, twin)  # of all three together
    """,
    before=BEFORE,
)
def test_value_and_gradients_are_those_of_one_process(done):
    pass


@pytest.mark.ranks(
    """
    model, twin = wrapped(), copy.deepcopy(plain)
    mine = slice(4 * rank, 4 * rank + 4)
    without = labels.clone()
    without[4:] = -100  # rank 1 has none
    total, count = total_of(model, mine, without)
    assert (count == 0) == (rank == 1)
    loss = pyrannc.mean(total, count.item())
    loss.backward()
    wanted = functional.cross_entropy(twin(x).flatten(0, 1), without.flatten())
    wanted.backward()
    torch.testing.assert_close(loss, wanted)
    same_gradients(model, twin)
    """,
    before=BEFORE,
)
def test_a_rank_without_tokens_takes_part(done):
    pass


@pytest.mark.ranks(
    """
    model, twin = wrapped(), copy.deepcopy(plain)
    halves = [[slice(0, 3), slice(5, 6)], [slice(3, 5), slice(6, 8)]]
    with model.no_sync():
        pyrannc.mean(*total_of(model, halves[rank][0])).backward()
    pyrannc.mean(*total_of(model, halves[rank][1])).backward()
    for half in (slice(0, 5), slice(5, 8)):
        functional.cross_entropy(twin(x[half]).flatten(0, 1), labels[half].flatten()).backward()
    same_gradients(model, twin)
    model.eval()
    mine = slice(0, 6) if rank == 0 else slice(6, 8)
    with torch.no_grad():
        loss = pyrannc.mean(*total_of(model, mine))
    wanted = functional.cross_entropy(twin(x).flatten(0, 1), labels.flatten())
    torch.testing.assert_close(loss, wanted.detach())
    assert not loss.requires_grad
    right, seen = 3 + rank, 4 * (1 + rank)  # numbers, for a log
    assert pyrannc.mean(right, seen) == 7 / 12
    torch.testing.assert_close(pyrannc.mean(torch.tensor(right), seen), torch.tensor(7 / 12))
    """,
    before=BEFORE,
)
def test_under_no_sync_and_without_gradients(done):
    pass


@pytest.mark.ranks(
    """
    model, twin = wrapped(gather_inputs=False), copy.deepcopy(plain)
    pyrannc.mean(*total_of(model, slice(0, 8))).backward()
    functional.cross_entropy(twin(x).flatten(0, 1), labels.flatten()).backward()
    same_gradients(model, twin)
    """,
    before=BEFORE,
)
def test_a_batch_of_rank_0_counts_once(done):
    pass


@pytest.mark.ranks(
    """
    def fails(text, *arguments):
        try:
            pyrannc.mean(*arguments)
        except pyrannc.RaNNCError as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)

    pyrannc.clear()
    fails("before the first call of a wrapped model", torch.tensor(1.0), 1)
    model = wrapped()
    mine = slice(4 * rank, 4 * rank + 4)
    total, count = total_of(model, mine)
    fails("rank 1: mean(): count is a str", total, "three" if rank else 3)
    fails("rank 1: mean(): count has shape (2,)", total, torch.ones(2) if rank else 3)
    fails("rank 0: mean(): total has shape (4, 5, 3); it must be one number", model(x[mine]), 3)
    fails("rank 0: mean(): count is -1", total, -1)
    fails("the counts of all ranks are 0", total, 0)
    other = slice(0, 6) if rank == 0 else slice(6, 8)
    both = total + total_of(model, other)[0]
    fails("different shares of the rows", both, 3)
    """,
    before=BEFORE,
)
def test_what_is_no_mean_is_an_error_on_every_rank(done):
    pass
