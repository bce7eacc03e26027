"""What torch's distributed checkpoints have of wrapped models beside tensors."""

import pytest


@pytest.mark.ranks(
    """
    import tempfile
    import pyrannc, torch
    import torch.distributed.checkpoint as dcp
    from extra_states import Counted
    from torch import nn
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    pyrannc.init()
    folder = [tempfile.mkdtemp()]
    torch.distributed.broadcast_object_list(folder)
    config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], calibrate=False, self_check=False)
    plain = nn.Sequential(Counted(4, 8), nn.Tanh(), Counted(8, 2))
    model = pyrannc.RaNNCModule(plain, config=config)
    model(torch.randn(8, 4) + pyrannc.get_rank()).sum().backward()
    plain[0].rounds, plain[2].rounds = 7 + pyrannc.get_rank(), 8
    state = get_model_state_dict(model)
    assert state["0._extra_state"] == {"rounds": 7}, state  # rank 0's, as of save()
    dcp.save(state, checkpoint_id=folder[0])
    twin = nn.Sequential(Counted(4, 8), nn.Tanh(), Counted(8, 2))
    for read in (model, twin):
        plain[0].rounds = plain[2].rounds = 1
        state = get_model_state_dict(read)
        dcp.load(state, checkpoint_id=folder[0])
        set_model_state_dict(read, state)
        assert (read[0].rounds, read[2].rounds) == (7, 8)
    state.pop("2._extra_state")
    try:
        set_model_state_dict(model, state)
        raise AssertionError("no error")
    except pyrannc.RaNNCError as error:
        assert "the state lacks ['2._extra_state'" in str(error), error
    print("all right", flush=True)
    """
)
def test_what_modules_keep_beside_tensors_is_in_it(done):
    """It was left out without a word."""
    assert done.stdout.count("all right") == 2, done.stderr
