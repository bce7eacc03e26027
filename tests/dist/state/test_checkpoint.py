"""What ranks hold is read and loaded together, by the names of the model."""

import pytest


@pytest.mark.ranks(
    """
    import copy, pyrannc, torch
    from extra_states import Counted
    from torch import nn
    torch.manual_seed(pyrannc.get_rank())  # rank 0's values count
    def make():
        return nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), Counted(8, 2)
        )

    plain = make()
    start = copy.deepcopy(plain.state_dict())
    config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], pipeline_num=2)
    model = pyrannc.RaNNCModule(plain, config=config)
    x = torch.randn(4, 4)
    model(x).sum().backward()
    everywhere = model.state_dict(rank0_only=False)
    on_root = model.state_dict()
    assert list(everywhere) == list(start), list(everywhere)
    assert bool(on_root) == (pyrannc.get_rank() == 0)
    if pyrannc.get_rank() == 0:
        assert torch.equal(everywhere["3.weight"], start["3.weight"])
    assert everywhere["1.num_batches_tracked"] == 2  # one per micro-batch

    changed = {
        name: torch.full_like(value, 2) if isinstance(value, torch.Tensor) else {"rounds": 7}
        for name, value in everywhere.items()
    }
    model.load_state_dict(changed if pyrannc.get_rank() == 0 else {})
    assert plain[3].rounds == 7
    loaded = model.state_dict(rank0_only=False)
    assert loaded.pop("3._extra_state") == {"rounds": 7}
    assert all((value == 2).all() for value in loaded.values())
    whole = sum(p.numel() for p in make().parameters())
    assert sum(p.numel() for p in model.parameters(from_global=False)) < whole

    wide = {"3.weight": torch.ones(3, 8)} if pyrannc.get_rank() == 1 else {}
    try:
        model.load_state_dict(everywhere | wide)
        raise AssertionError("a wrong shape was taken")
    except pyrannc.RaNNCError as error:  # on both ranks
        assert "rank 1: " in str(error) and "size mismatch for 3.weight" in str(error), error
    model.load_state_dict(everywhere)
    model.eval()
    with torch.no_grad():
        ours = model(x)
    twin = make()
    twin.load_state_dict(everywhere)
    torch.testing.assert_close(ours, twin.eval()(x).detach())
    model.train()
    model(x).sum().backward()
    norm = model.clip_grad_norm(1e-3)
    assert norm > 1e-3
    print("all right", flush=True)
    """
)
def test_state_moves_between_ranks_by_name_and_modes_change_after_the_first_call(done):
    assert done.stdout.count("all right") == 2


@pytest.mark.ranks(
    """
    import pyrannc, torch
    from torch import nn

    class Halved(nn.Linear):
        def _load_from_state_dict(self, state_dict, prefix, *_):
            with torch.no_grad():
                for name, tensor in self.named_parameters():
                    tensor.copy_(state_dict[prefix + name] / 2)

    config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], pipeline_num=2)
    plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Halved(8, 2))
    model = pyrannc.RaNNCModule(plain, config=config)
    model(torch.randn(4, 4)).sum().backward()
    before = model.state_dict(rank0_only=False)
    given = {name: torch.full_like(value, 2) for name, value in before.items()}
    try:
        model.load_state_dict(given if pyrannc.get_rank() == 0 else {})
        raise AssertionError("rank 1 has not got it")
    except pyrannc.RaNNCError as error:  # on both ranks
        assert "rank 0: the module of '2.bias' loads it in a" in str(error), error
    for name, value in model.state_dict(rank0_only=False).items():
        assert torch.equal(value, before[name])
    model.load_state_dict(given)
    for name, value in model.state_dict(rank0_only=False).items():
        assert (value == (2 if name.startswith("0.") else 1)).all()
    print("all right", flush=True)
    """
)
def test_modules_that_load_by_themselves_need_the_state_dict_on_every_rank(done):
    assert done.stdout.count("all right") == 2, done.stderr


@pytest.mark.ranks(
    """
    import pyrannc, torch
    from torch import nn

    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), nn.Linear(2, 1)

    rank = pyrannc.get_rank()
    stem, head = build()
    config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], pipeline_num=2)
    outer = nn.Sequential(pyrannc.RaNNCModule(stem, config=config), head)
    twin = nn.Sequential(*build())
    x = torch.randn(4, 4)
    names = list(twin.state_dict())
    assert list(outer.state_dict()) == names
    outer(x).sum().backward()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(2)

    # As torch.load gives it on every rank, then as state_dict() gives it: rank 0's is complete.
    outer.load_state_dict(twin.state_dict())
    state = outer.state_dict()
    assert list(state) == (names if rank == 0 else ["1.weight", "1.bias"]), list(state)
    for name, value in state.items():
        assert torch.equal(value, twin.state_dict()[name]), name
    with torch.no_grad():
        for parameter in outer[0].parameters(from_global=False):
            parameter.zero_()
    outer.load_state_dict(state)
    torch.testing.assert_close(outer(x), twin(x))
    print("all right", flush=True)
    """
)
def test_an_outer_module_saves_and_loads_what_the_ranks_hold(done):
    assert done.stdout.count("all right") == 2
