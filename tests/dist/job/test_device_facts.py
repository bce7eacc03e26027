"""Training on devices of which nobody says anything: the least that torch asks for."""

import bare_device
import pytest

pytestmark = pytest.mark.skipif(
    not bare_device.LIBRARY.exists(), reason="the bare device was not built"
)

BEFORE = (
    bare_device.begin("0")
    + """

class Model(torch.nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.embedding = torch.nn.Embedding(40, 16)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            for _ in range(3)
        )
        self.norm = torch.nn.LayerNorm(16)
        self.head = torch.nn.Linear(16, 40)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x.flatten(0, 1))
        return torch.nn.functional.cross_entropy(self.head(x), labels.flatten(), ignore_index=0)


def batch(step, device):
    whole = torch.randint(
        0, 40, (2, 4 * size, 6), generator=torch.Generator().manual_seed(step)
    )
    return whole, whole[:, 4 * rank : 4 * rank + 4].to(device)


def train(model, settings, device, twin=None, scales=False):
    twin = twin or copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    config = pyrannc.Config(calibrate=False, **settings)
    wrapped = pyrannc.RaNNCModule(model, optimizer, config)
    scaler = torch.amp.GradScaler("bare", init_scale=8.0, enabled=scales)
    for step in range(3):
        (tokens, labels), mine = batch(step, device)
        loss = wrapped(*mine)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        expected = twin(tokens, labels)
        expected.backward()
        expected_norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        twin_optimizer.step()
        twin_optimizer.zero_grad()
        torch.testing.assert_close(loss.detach().cpu(), expected.detach(), **TOLERANCE)
        torch.testing.assert_close(norm.cpu(), expected_norm, **TOLERANCE)
    found = wrapped.state_dict(rank0_only=False)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(found[name], value, **TOLERANCE, msg=lambda text: name + text)
    return wrapped


def build(tied=True):
    torch.manual_seed(0)
    return Model(tied)


def mine():
    return torch.device("bare", rank % 2)
"""
)


def ranks(code):
    return pytest.mark.ranks(code, before=BEFORE)


@ranks(
    """
    torch.bare.set_device(rank)
    for settings in ({}, {"partition_num": 2, "pipeline_num": 2}, {"replica_nums": [2]}):
        train(build(), {"device": "bare", **settings}, mine())
    """
)
def test_a_model_of_the_host_trains_there(done):
    assert "does not say how much memory it has" in done.stderr


@ranks(
    """
    torch.bare.set_device(rank)
    model = build(tied=False).to(mine())
    settings = {"partition_num": 2, "mem_limit_gb": 1.0, "schedule": "1f1b"}
    train(model, settings, mine(), build(tied=False))
    """
)
def test_a_model_that_is_there_trains_under_a_limit(done):
    assert "does not say how much memory" not in done.stderr


@ranks(
    """
    torch.bare.set_device(rank)
    train(build(), {"device": "bare", "partition_num": 2}, mine(), scales=True)
    """
)
def test_scaled_losses(done):
    pass
