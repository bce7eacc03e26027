"""Which stand-in device each rank computes on, and how a model of the host gets there."""

import pytest
import standin

pytestmark = pytest.mark.skipif(not standin.built(), reason="the stand-in device was not built")

BEFORE = """
import copy
import os

import standin
import torch

import pyrannc
from pyrannc import launch

world = launch.world()
rank, size = world.rank, world.size
if not standin.device_count():
    standin.start(devices=2, delay_us=20)
    standin.share_devices()
standin.keep_to()
standin.set_device(0)
torch.accelerator.empty_cache()


def build(width=8, layers=4):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


def batch(width=8, device=None):
    whole = torch.randn(8, width, generator=torch.Generator().manual_seed(1))
    mine = whole[rank * 4 : rank * 4 + 4]
    return whole, mine if device is None else mine.to(device)


def wrap(model, **settings):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = pyrannc.Config(partition_num=2, calibrate=False, **settings)
    return pyrannc.RaNNCModule(model, optimizer, config), optimizer


def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def train(model, optimizer, inputs, twin, whole):
    twin_optimizer = torch.optim.AdamW(twin.parameters(), lr=0.01)
    for _ in range(3):
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        twin_optimizer.zero_grad()
        twin(whole).square().mean().backward()
        twin_optimizer.step()
    for name, found in model.state_dict(rank0_only=False).items():
        assert found.device.type == "cpu", name
        torch.testing.assert_close(found, twin.state_dict()[name], rtol=1e-5, atol=1e-6)
"""


def ranks(code):
    return pytest.mark.ranks(code, before=BEFORE)


@ranks(
    """
    model, optimizer = wrap(build(), device="standin")
    device = torch.device("standin", rank)
    standin.set_device(rank)
    inputs = batch(device=device)[1]
    standin.set_device(0)  # nobody has chosen
    standin.keep_to(rank)
    train(model, optimizer, inputs, build(), batch()[0])
    assert standin.current_device() == rank
    for parameter in model.parameters():
        assert parameter.device == device, parameter.device
    mine = list(model.parameters(from_global=False))
    assert 0 < len(mine) < 8
    for parameter in mine:
        assert optimizer.state[parameter]["exp_avg"].device == device
    """
)
def test_ranks_of_a_host_count_through_its_devices_and_move_their_parts(done):
    pass


@ranks(
    """
    device = torch.device("standin", 1 - rank)
    model, optimizer = wrap(build())
    train(model, optimizer, batch(device=device)[1], build(), batch()[0])
    late = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)  # after the first call
    model(batch(device=device)[1]).square().mean().backward()
    late.step()
    assert {parameter.device for parameter in model.parameters()} == {device}
    model.undeploy()
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    for each in (optimizer, late):
        states = [value for state in each.state.values() for value in state.values()]
        assert len(each.state) == 8 and {value.device.type for value in states} == {"cpu"}
    inputs = batch(device=device)[1]
    before = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    model(inputs).square().mean().backward()
    optimizer.step()
    late.step()
    after = model.state_dict(rank0_only=False)
    assert any(not torch.equal(after[name], before[name]) for name in before)
    """
)
def test_a_model_of_the_host_goes_where_its_inputs_are_and_comes_back(done):
    pass


@ranks(
    """
    from pyrannc.state import moving

    seen = []
    moves = moving.to_device

    def watched(model, device):
        before = torch.accelerator.memory_allocated()
        moves(model, device)
        seen.append(torch.accelerator.memory_allocated() - before)

    moving.to_device = watched
    model, _ = wrap(build(width=256), device="standin")
    model.eval()
    standin.set_device(rank)
    inputs = batch(256, f"standin:{rank}")[1]
    with torch.no_grad():
        model(inputs)
    moving.to_device = moves
    own = sum(parameter.nbytes for parameter in model.parameters(from_global=False))
    assert 0 < own < 4 * 256 * 257 * 4
    assert len(seen) == 1 and own <= seen[0] < own + 2**16, (seen, own)
    """
)
def test_a_rank_moves_its_own_part_only(done):
    pass


@ranks(
    """
    model = build().to("standin:0")
    wrapped, _ = wrap(model)
    print(error_of(lambda: wrapped(batch(device="standin:0")[1])))
    wrapped, optimizer = wrap(model, share_device=True)
    train(wrapped, optimizer, batch(device="standin:0")[1], build(), batch()[0])
    """
)
def test_two_ranks_on_one_device_are_an_error_that_names_the_setting(done):
    text = "ConfigError: ranks 0 and 1 compute on one device, standin:0 (stand-in) of host"
    assert done.stdout.count(text) == 2
    assert done.stdout.count("model.cuda() before torch.cuda.set_device(") == 2
    assert done.stdout.count("Config(share_device=True)") == 2


@ranks(
    """
    count = torch.accelerator.device_count
    torch.accelerator.device_count = lambda: 1  # of two
    wrapped, _ = wrap(build(), device="standin")
    print("fewer:", error_of(lambda: wrapped(batch()[1])))
    torch.accelerator.device_count = count
    """
)
def test_fewer_devices_than_ranks_of_a_host_are_an_error_that_names_the_setting(done):
    text = "fewer: ConfigError: ranks 0 and 1 compute on one device, standin:0 (stand-in) of host"
    assert done.stdout.count(text) == 2
    assert "If there are fewer devices than ranks, Config(share_device=True)" in done.stdout


@ranks(
    """
    wrapped, _ = wrap(build())
    inputs = batch(device="standin:1" if rank else None)[1]
    print(error_of(lambda: wrapped(inputs)))
    half = build()
    if rank == 1:
        half[1].to("standin:1")
    wrapped, _ = wrap(half, device="standin")
    print(error_of(lambda: wrapped(inputs)))
    wrapped, _ = wrap(build(), device="cuda")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    print(error_of(lambda: wrapped(inputs)))
    wrapped, _ = wrap(build(), device="standin:7")
    print(error_of(lambda: wrapped(inputs)))
    """
)
def test_ranks_on_different_kinds_or_without_a_device_are_an_error_on_every_rank(done):
    assert done.stdout.count("the ranks compute on different kinds of devices") == 2
    assert done.stdout.count("rank 0: the CPU") == 2
    half = "'0.weight' is on cpu and '1.weight' on standin:1: a rank computes on one device"
    assert done.stdout.count(half) == 2
    none = "Config(device='cuda'): this rank sees no devices of this kind, as CUDA_VISIBLE_DEVICES"
    assert done.stdout.count(f"{none} is ''") == 2
    assert done.stdout.count("Config(device='standin:7'): this rank sees 2 devices") == 2


@ranks(
    """
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            self.register_buffer("positions", torch.arange(8))
            self.table = torch.arange(8.0)  # a constant of the host

        def forward(self, x, lengths):
            lengths = lengths.cpu()
            kept = torch.arange(8, device="cpu") < lengths[:, None]
            x = self.first(x) * torch.tensor(0.5)
            x = x + (self.table.to(x.device) + self.positions)
            x = self.second(x) * kept.to(x.device)
            return x.square().mean()

    torch.manual_seed(0)
    model = Masked()
    twin = copy.deepcopy(model)
    model, optimizer = wrap(model, device="standin")
    standin.set_device(rank)
    device = f"standin:{rank}"
    whole, mine = batch(device=device)
    all_lengths = torch.arange(8)
    lengths = all_lengths[rank * 4 : rank * 4 + 4].to(device)
    plain = torch.optim.AdamW(twin.parameters(), lr=0.01)
    for _ in range(2):
        loss = model(mine, lengths)
        expected = twin(whole, all_lengths)
        torch.testing.assert_close(loss.cpu(), expected, rtol=1e-5, atol=1e-6)
        loss.backward()
        expected.backward()
        optimizer.step()
        plain.step()
        optimizer.zero_grad()
        plain.zero_grad()
    graph = model._deployment.first.capture.graph
    print("crosses", [
        value.name for value in graph.values
        if value.on_host and value.rows.kind == "apart"
    ])
    print("refused:", error_of(lambda: model(mine.cpu(), lengths)))
    """
)
def test_what_the_model_keeps_on_the_host_stays_there(done):
    assert "crosses []" not in done.stdout
    assert done.stdout.count("refused: TraceError") == 2, done.stdout
