"""What ranks save into and load from, and what is given with it."""

import pytest

BEFORE = """
import tempfile
from pathlib import Path
import pyrannc, torch
from torch import nn
from pyrannc import RaNNCError

pyrannc.init()
rank = pyrannc.get_rank()
folder = [tempfile.mkdtemp()]
torch.distributed.broadcast_object_list(folder)
folder = Path(folder[0])

def make(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], calibrate=False, self_check=False)
    if "zero" in settings:
        config = pyrannc.Config(partition_num=1, calibrate=False, self_check=False)
    return pyrannc.RaNNCModule(model, optimizer, config, **settings), optimizer

def train(model, optimizer, step):
    torch.manual_seed(step)
    optimizer.zero_grad()
    model(torch.randn(8, 6)).square().mean().backward()
    optimizer.step()

def refused(words, call, *arguments, **kwargs):
    try:
        call(*arguments, **kwargs)
    except RaNNCError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no error: {words}")
"""


@pytest.mark.ranks(
    """
    model, optimizer = make()
    train(model, optimizer, 0)
    own = folder / str(rank)
    words = "rank 1: pyrannc.save(): there is no '%s' on this rank" % (folder / "1")
    refused(words, pyrannc.save, own, model, optimizer)
    own.mkdir(exist_ok=True)
    torch.distributed.barrier()
    words = "rank 0 does not find in '%s'" % (folder / "0")
    refused(words, pyrannc.save, own, model, optimizer)
    assert not list(own.iterdir())
    """,
    before=BEFORE,
)
def test_ranks_that_save_into_folders_of_their_own_are_told(done):
    """It was saved, and each part lay in another folder: nothing could be loaded."""


@pytest.mark.ranks(
    """
    model, optimizer = make()
    for step in range(2):
        train(model, optimizer, step)
        pyrannc.save(folder / str(step), model, optimizer)
    before = model.state_dict(rank0_only=False)
    words = f"rank 0 reads '{folder / '0'}', and rank 1 another checkpoint, '{folder / '1'}'"
    refused(words, pyrannc.load, folder / str(rank), model, optimizer)
    for name, value in model.state_dict(rank0_only=False).items():
        assert torch.equal(value, before[name])
    """,
    before=BEFORE,
)
def test_ranks_that_load_different_checkpoints_are_told(done):
    """Each stage went on from a step of its own."""


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.ranks(
    lambda zero: (
        f"""
    model, optimizer = make(**{dict(zero=True) if zero else {}})
    train(model, optimizer, 0)
    pyrannc.save(folder, model.module, optimizer)
    train(model, optimizer, 1)
    expected = model.state_dict(rank0_only=False)
    pyrannc.load(folder, model.module, optimizer)
    train(model, optimizer, 1)
    for name, value in model.state_dict(rank0_only=False).items():
        torch.testing.assert_close(value, expected[name])
    """
    ),
    before=BEFORE,
)
def test_the_model_that_was_wrapped_may_be_given(done, zero):
    """It was an error about a released tensor, or about a key of a state."""


@pytest.mark.ranks(
    """
    model, optimizer = make()
    average = torch.optim.swa_utils.AveragedModel(model)
    for step in range(2):
        train(model, optimizer, step)
        average.update_parameters(model)
    pyrannc.save(folder, average)
    expected = average.module.state_dict(rank0_only=False)
    train(model, optimizer, 2)
    average.update_parameters(model)
    pyrannc.load(folder, average)
    assert average.n_averaged == 2
    for name, value in average.module.state_dict(rank0_only=False).items():
        assert torch.equal(value, expected[name])
    words = "is that of the Sequential that was wrapped, and was given with another model, Averaged"
    refused(words, pyrannc.save, folder, average, optimizer)
    """,
    before=BEFORE,
)
def test_a_module_around_a_wrapped_model_is_saved_without_its_optimizer(done):
    """As torch's AveragedModel: it was an error about a released tensor."""
