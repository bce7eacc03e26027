"""What only a job of several ranks can get wrong: disagreement, and reading the state together."""

import mpi


def run(code, ranks=2):
    return mpi.run(code, ranks, timeout=100)


def test_a_rank_with_another_batch_size_is_an_error_on_every_rank():
    done = run(
        """
        import pyrannc, torch
        model = pyrannc.RaNNCModule(torch.nn.Linear(4, 2))
        model(torch.randn(3 + pyrannc.get_rank(), 4))
        """
    )
    assert done.returncode != 0
    assert "rank 0 has 3 rows, rank 1 has 4" in done.stderr


def test_a_rank_with_another_model_is_an_error_that_shows_the_difference():
    done = run(
        """
        import pyrannc, torch
        layer = [torch.nn.ReLU(), torch.nn.Tanh()][pyrannc.get_rank()]
        model = pyrannc.RaNNCModule(torch.nn.Sequential(torch.nn.Linear(4, 2), layer))
        model(torch.randn(3, 4))
        """
    )
    assert done.returncode != 0
    assert "rank 1 captured another graph than rank 0" in done.stderr
    assert "tanh" in done.stderr


def test_state_moves_between_ranks_by_name_and_modes_change_after_the_first_call():
    done = run(
        """
        import copy, pyrannc, torch
        from torch import nn
        torch.manual_seed(pyrannc.get_rank())  # rank 0's values count
        plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
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

        changed = {name: torch.full_like(value, 2) for name, value in everywhere.items()}
        model.load_state_dict(changed if pyrannc.get_rank() == 0 else {})
        assert all((value == 2).all() for value in model.state_dict(rank0_only=False).values())
        assert sum(p.numel() for p in model.parameters()) < sum(v.numel() for v in start.values())

        model.load_state_dict(everywhere)
        model.eval()
        with torch.no_grad():
            ours = model(x)
        twin = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
        twin.load_state_dict(everywhere)
        torch.testing.assert_close(ours, twin.eval()(x).detach())
        model.train()
        model(x).sum().backward()
        norm = model.clip_grad_norm(1e-3)
        assert norm > 1e-3
        print("all right", flush=True)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all right") == 2


def test_import_starts_no_mpi_and_prints_nothing():
    done = run("import pyrannc; from pyrannc import RaNNCModule, _C", ranks=2)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
