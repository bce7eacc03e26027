"""What several ranks do with losses, beyond the equality suite: choices and warnings."""

import mpi


def run(code):
    done = mpi.run(code, 2, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all right") == 2
    return done


def test_losses_of_the_ranks_are_averaged_by_rows_or_added():
    run(
        """
        import pyrannc, torch
        from torch import nn
        x = torch.arange(24.0).reshape(6, 4) / 10
        mine = x[3 * pyrannc.get_rank() :][:3]
        for outside_loss in ("mean", "sum"):
            torch.manual_seed(1)
            plain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
            config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], pipeline_num=3)
            model = pyrannc.RaNNCModule(plain, config=config, outside_loss=outside_loss)
            twin = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
            twin.load_state_dict(plain.state_dict())
            getattr(model(mine.double()).square(), outside_loss)().backward()
            getattr(twin(x.double()).square(), outside_loss)().backward()
            for name, parameter in model.named_parameters():
                torch.testing.assert_close(parameter.grad, twin.get_parameter(name).grad)
        try:
            pyrannc.RaNNCModule(plain, outside_loss="median")
        except pyrannc.ConfigError as error:
            assert "'median'" in str(error)
            print("all right", flush=True)
        """
    )


def test_what_is_not_linear_is_averaged_with_one_warning_or_exact_in_one_micro_batch():
    done = run(
        """
        import pyrannc, torch
        from torch import nn

        class Root(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

            def forward(self, x):
                return self.layers(x).square().mean().sqrt()

        x = torch.arange(24.0, dtype=torch.float64).reshape(6, 4) / 10
        mine = x[3 * pyrannc.get_rank() :][:3]

        def loss_of(**settings):
            torch.manual_seed(1)
            plain = Root().double()
            whole = plain(x)
            config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], **settings)
            # Micro-batch k is the k-th row of each rank.
            parts = [plain(x[[k, 3 + k]]) for k in range(3)]
            average = (sum(parts) / 3).item()
            model = pyrannc.RaNNCModule(plain, config=config)
            loss = model(mine)
            loss.backward()
            return model, loss.item(), average, whole.item()

        model, loss, average, whole = loss_of(pipeline_num=3)
        assert model.plan.micro_batches == 3
        assert abs(loss - average) < 1e-12 < abs(average - whole), (loss, average, whole)
        model, loss, average, whole = loss_of(exact_loss=True)
        assert model.plan.micro_batches == 1
        assert abs(loss - whole) < 1e-12, (loss, whole)
        print("all right", flush=True)
        """
    )
    warnings = [line for line in done.stderr.splitlines() if "is not linear in a mean" in line]
    assert len([line for line in warnings if "averaged by rows" in line]) == 1, done.stderr
    assert "aten::sqrt" in warnings[0] and "exact_loss=True" in warnings[0]
