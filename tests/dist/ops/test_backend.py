"""Training on devices whose backend has only what c10 demands: the current device and stream."""

import bare_device
import pytest

pytestmark = pytest.mark.skipif(
    not bare_device.LIBRARY.exists(), reason="the bare device was not built"
)

BEFORE = (
    bare_device.begin("rank", lacks=("events", "streams", "waiting", "generator"))
    + """

class Model(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        layers = [torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Dropout(dropout)]
        self.layers = torch.nn.Sequential(*copy.deepcopy(layers), *layers, torch.nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x).square().mean()


def train(settings, dropout=0.0, steps=4):
    torch.manual_seed(0)
    model = Model(dropout)
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    twin_optimizer = torch.optim.AdamW(twin.parameters(), lr=0.05)
    wrapped = pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(device="bare", **settings))
    losses = []
    for step in range(steps):
        whole = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        loss = wrapped(whole[4 * rank : 4 * rank + 4].to(torch.device("bare", rank)))
        loss.backward()
        losses.append(loss.detach().cpu())
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        expected = twin(whole)
        expected.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        twin_optimizer.step()
        twin_optimizer.zero_grad()
        if not dropout:
            torch.testing.assert_close(losses[-1], expected.detach(), **TOLERANCE)
    found = wrapped.state_dict(rank0_only=False)
    if not dropout:
        for name, value in twin.state_dict().items():
            torch.testing.assert_close(found[name], value, **TOLERANCE)
    wrapped.undeploy()
    return losses
"""
)


def ranks(code):
    return pytest.mark.ranks(code, before=BEFORE)


@ranks(
    """
    for settings in (
        {},
        {"partition_num": 2, "pipeline_num": 2, "schedule": "1f1b"},
        {"partition_num": 2, "pipeline_num": 2, "schedule": "gpipe", "recompute": "always"},
        {"replica_nums": [2], "partition_num": 1},
    ):
        train(settings)
    """
)
def test_a_model_trains_as_on_the_cpu(done):
    for lacks in ("events", "streams to spare", "generator of random numbers"):
        assert done.stderr.count(f"rank 0: the backend of bare has no {lacks}") == 1


@ranks(
    """
    import pathlib, tempfile

    with tempfile.TemporaryDirectory() as mine:
        folder = pathlib.Path(world.all_gather(mine.encode())[0].decode())
        file = str(folder / "trace.json")
        settings = {"trace_events": True, "event_trace_file": file, "trace_steps": 2}
        train({**settings, "profiling": True})
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        wrapped = pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(device="bare"))
        wrapped(torch.ones(2, 4, device=torch.device("bare", rank))).square().mean().backward()
        optimizer.step()
        pyrannc.save(str(folder / "run"), wrapped, optimizer)
        pyrannc.load(str(folder / "run"), wrapped, optimizer)
        world.barrier()
    """
)
def test_a_run_is_traced_saved_and_loaded(done):
    assert "training steps as planned took" in done.stderr
