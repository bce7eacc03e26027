"""A gradient that is infinite on one rank: all ranks skip the step."""

import json

import mpi
import pytest


def run(scaler):
    """Prints for each rank the scale before each of four steps, and whether parameters changed."""
    return mpi.run(
        f"""
        import json, pyrannc, torch
        from two_layers import TwoLayers

        torch.manual_seed(0)
        model = TwoLayers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model = pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(
            partition_num=2, replica_nums=[1, 1], pipeline_num=2, schedule="1f1b",
            comm_timeout_s=30, calibrate=False, self_check=False,
        ))
        scaler = {scaler}("cpu", init_scale=1024.0)
        x, found = torch.randn(4, 4), []
        for step in range(4):
            loss = model(x)["loss"]
            optimizer.zero_grad()
            before = [each.clone() for each in model.parameters(from_global=False)]
            scale = scaler.get_scale()
            scaler.scale(loss).backward()
            for name, parameter in model.named_parameters(from_global=False):
                if step == 1 and name == "stem.weight":  # rank 0 alone holds it
                    parameter.grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            after = list(model.parameters(from_global=False))
            found.append([scale, not all(map(torch.equal, before, after))])
        print(json.dumps(found) + "\\n", end="", flush=True)
        """,
        2,
        timeout=100,
    )


@pytest.mark.parametrize("scaler", ["pyrannc.GradScaler", "torch.amp.GradScaler"])
def test_all_ranks_skip_the_step(scaler):
    """A rank without parameters, too, of which torch's own said 'No inf checks were recorded'."""
    done = run(scaler)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line]
    scales = [1024.0, 1024.0, 512.0, 512.0]
    assert [[scale for scale, _ in steps] for steps in ranks] == [scales] * 2
    # A rank without parameters never changes any.
    assert [any(steps[step][1] for steps in ranks) for step in range(4)] == [
        True,
        False,
        True,
        True,
    ]
