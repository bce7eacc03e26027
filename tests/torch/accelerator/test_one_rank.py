"""A whole RaNNCModule on a stand-in device: it runs where the model is."""

import copy
import threading
import time
import types

import pytest
import standin
import torch
from models import ZOO
from pipeline import run_ranks
from torch import library as operators
from torch.utils import _pytree as pytree

import pyrannc
from pyrannc import _C, log
from pyrannc.capture.model import capture
from pyrannc.job import devices
from pyrannc.profiling import step_costs

STEPS = 3
DEADLINE_S = 60  # against a host that waits for a device that does not come


@pytest.fixture(autouse=True)
def tied_parameters_stay_tied():
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def train(name, device, wrap, home=None):
    """Losses on the host, and where the host waited: in the last forward, and in its backward.

    ``home``: where the model is at first, if not on ``device``.
    """
    entry = ZOO[name]
    model = entry.build().to(home or device)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05)
    if wrap:
        model = pyrannc.RaNNCModule(model, optimizer)
    losses, waits = [], ()
    for step in range(STEPS):
        args, kwargs = pytree.tree_map(
            lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf,
            entry.inputs(4, step),
        )
        if device != "cpu":  # what is read of the step before is there
            standin.synchronize()
        standin.clear_counts()
        loss = model(*args, **kwargs)
        if loss.dim():
            loss = loss.square().mean()
        waits = (standin.waits(),)
        standin.clear_counts()
        optimizer.zero_grad()
        loss.backward()
        waits += (standin.waits(),)
        optimizer.step()
        losses.append(loss.detach().cpu())
    return torch.stack(losses), waits


@pytest.mark.parametrize("home", ["standin", "cpu"])
@pytest.mark.parametrize("name", ["mlp", "residual_cnn", "tied_lm", "encoder", "loss"])
def test_a_wrapped_model_trains_as_on_the_cpu_and_the_host_does_not_wait(name, home):
    expected, _ = train(name, "cpu", wrap=False)
    losses, (forward, backward) = train(name, "standin", wrap=True, home=home)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    assert forward == {}
    assert backward == {}


def test_operators_are_timed_by_the_devices_clock_and_by_the_hosts():
    captured = capture(torch.nn.Linear(4, 2), (torch.ones(3, 4),), {})

    def costs(device):
        world = _C.comm.make_local(1)[0]
        table, measured = _C.profile.measure(
            captured.graph, captured.objects, [], world, [2, 4], device=device
        )
        return table.node[0][1], next(iter(measured.values()))[1]

    on_host, known = costs("cpu")
    assert (on_host.forward_host_ns, on_host.backward_host_ns) == (0, 0)
    assert len(known) == 3
    on_device, known = costs("standin:0")
    assert min(on_device.forward_ns, on_device.backward_ns) > 0
    assert min(on_device.forward_host_ns, on_device.backward_host_ns) > 0
    assert known[3:] == [on_device.forward_host_ns, on_device.backward_host_ns]


def test_outputs_and_gradients_are_on_the_models_device():
    model = pyrannc.RaNNCModule(torch.nn.Linear(4, 2).to("standin:1"))
    output = model(torch.ones(3, 4, device="standin:1"))
    output.sum().backward()
    assert output.device == torch.device("standin:1")
    assert model.module.weight.grad.device == torch.device("standin:1")
    assert standin.current_device() == 1


def test_a_model_of_the_host_comes_to_the_device_that_is_wanted():
    linear = torch.nn.Linear(4, 2)
    weight, seen = linear.weight, []
    weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.device))
    model = pyrannc.RaNNCModule(linear, config=pyrannc.Config(device="standin:2"))
    output = model(torch.ones(3, 4, device="standin:2"))
    output.sum().backward()
    assert linear.weight is weight and weight.device == torch.device("standin:2")
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}


def refused(model, inputs, message, optimizer=None, **settings):
    wrapped = pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(**settings))
    with pytest.raises(pyrannc.RaNNCError, match=message):
        wrapped(*inputs)


def test_a_model_on_two_accelerators_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    model[0].to("standin:0")
    model[1].to("standin:1")
    message = "'0.weight' is on standin:0 and '1.weight' on standin:1"
    refused(model, [torch.ones(3, 4, device="standin:0")], message)


def test_a_model_that_was_moved_in_half_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    model[1].to("standin:0")
    refused(model, [torch.ones(3, 4)], "'0.weight' is on cpu and '1.weight' on standin:0")


def test_inputs_that_eager_would_refuse_are_refused_at_the_first_call_and_later():
    model = torch.nn.Linear(4, 2)
    refused(model, [torch.ones(3, 4)], "two different devices", device="standin")
    moved = torch.nn.Linear(4, 2).to("standin:0")
    refused(moved, [torch.ones(3, 4)], "two different devices")
    wrapped = pyrannc.RaNNCModule(moved)
    wrapped(torch.ones(3, 4, device="standin:0"))
    with pytest.raises(pyrannc.RaNNCError, match="two different devices"):
        wrapped(torch.ones(3, 4))


def test_a_device_that_is_not_there_is_refused():
    refused(torch.nn.Linear(4, 2), [torch.ones(3, 4)], "this rank sees no devices", device="cuda")
    refused(torch.nn.Linear(4, 2), [torch.ones(3, 4)], "this rank sees 4", device="standin:9")
    refused(torch.nn.Linear(4, 2), [torch.ones(3, 4)], "device='nonsense'", device="nonsense")
    moved = torch.nn.Linear(4, 2).to("standin:0")
    message = "Config.device='standin:1'., but 'weight' of the model is on standin:0"
    refused(moved, [torch.ones(3, 4)], message, device="standin:1")


def test_ranks_as_threads_on_one_device_are_refused():
    """Their backwards would wait for each other in torch's one thread of the device."""
    call = types.SimpleNamespace(paths=["x"], tensors=[torch.ones(3, 4, device="standin:0")])

    def choose(world):
        model = torch.nn.Linear(4, 2).to("standin:0")
        message = "ranks 0 and 1 are threads of one process and compute on one device, standin:0"
        with pytest.raises(pyrannc.ConfigError, match=message):
            devices.choose(model, call, [], pyrannc.Config(share_device=True), world)

    run_ranks(2, choose)


def test_state_of_an_optimizer_on_another_device_than_its_parameter_is_refused():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    state = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(2, 4, device="standin:1")}
    optimizer.state[model.weight] = state
    message = "'exp_avg' that Adam keeps of 'weight' is on standin:1, but the parameter is on cpu"
    refused(model, [torch.ones(3, 4)], message, optimizer)


def test_an_optimizer_over_parameters_that_are_no_longer_the_models_is_refused():
    torch.__future__.set_swap_module_params_on_conversion(False)  # as torch does by itself
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.to("standin")
    with pytest.raises(pyrannc.ConfigError, match=r"after any \.to\(\) or copy"):
        pyrannc.RaNNCModule(model, optimizer)


def test_the_plan_counts_the_devices_memory():
    standin.set_per_process_memory_fraction(0.5)
    try:
        model = torch.nn.Linear(4, 2)
        wrapped = pyrannc.RaNNCModule(model, config=pyrannc.Config(device="standin"))
        wrapped(torch.ones(3, 4, device="standin:0"))
        with pytest.raises(pyrannc.RaNNCError, match="no plan fits"):
            large = torch.nn.Linear(4096, 8192)
            inputs = torch.ones(2, 4096, device="standin:0")
            pyrannc.RaNNCModule(large, config=pyrannc.Config(device="standin"))(inputs)
    finally:
        standin.set_per_process_memory_fraction(1.0)


def test_a_call_is_in_the_order_of_the_users_stream():
    before = standin.current_stream(0)
    torch.accelerator.set_stream(standin.Stream(0))
    model, twin = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    twin.load_state_dict(model.state_dict())
    wrapped = pyrannc.RaNNCModule(model, config=pyrannc.Config(device="standin"))
    x = torch.ones(3, 4, device="standin:0")
    wrapped(x)
    standin.set_delay(1000)
    wrapped(x * 2).sum().backward()
    twin(torch.ones(3, 4) * 2).sum().backward()
    gradient = model.weight.grad.cpu()
    torch.accelerator.set_stream(before)
    torch.testing.assert_close(gradient, twin.weight.grad)


def test_a_step_takes_what_the_device_takes_and_not_what_the_host_takes_to_issue_it():
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)]).to("standin")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    config = pyrannc.Config(calibrate=False, self_check=False)
    wrapped = pyrannc.RaNNCModule(model, optimizer, config)
    inputs = torch.ones(3, 4, device="standin:0")

    def step():
        optimizer.zero_grad()
        wrapped(inputs).square().mean().backward()
        optimizer.step()

    step()
    standin.synchronize()
    standin.set_delay(10_000)  # so long that a busy host does not count
    steps = wrapped._deployment.steps
    before = steps.seconds
    begin = time.perf_counter()
    for _ in range(3):
        step()
    standin.synchronize()
    passed = time.perf_counter() - begin
    assert passed / 2 < steps.seconds - before <= passed


def test_what_accumulating_and_an_optimizer_cost_is_measured_on_the_device():
    parameter = torch.nn.Parameter(torch.ones(4, device="standin:0"))
    optimizer = torch.optim.Adam([parameter], 0.1)
    on_host = torch.zeros
    with pytest.MonkeyPatch.context() as patch:
        asked = []
        patch.setattr(torch, "zeros", lambda *a, **k: asked.append(k["device"]) or on_host(*a, **k))
        step_costs._accumulate_ns_per_byte(16, parameter.device)
        step_costs._optimizer_lines(optimizer, parameter.device)
    assert asked
    assert {*asked} == {parameter.device}


def test_what_two_runs_of_the_model_differ_by_is_allowed_beside_the_tolerance(capfd):
    """As where a device adds up in any order. On the host nothing is allowed."""
    runs = 0

    @operators.custom_op("standin_one_rank::varying", mutates_args=())
    def varying(x: torch.Tensor) -> torch.Tensor:
        nonlocal runs
        runs += 1
        return x * (1 + size * (runs % 2))

    varying.register_fake(torch.empty_like)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)

        def forward(self, x):
            return varying(self.linear(x).detach()) + self.linear(x)

    def first_call(device):
        model = pyrannc.RaNNCModule(Model().to(device), config=pyrannc.Config(calibrate=False))
        model(torch.ones(3, 4, device=device))

    size = 0.1
    first_call("standin:0")
    with pytest.raises(pyrannc.TraceError, match="is off by"):
        first_call("cpu")


def test_a_check_for_which_the_device_is_too_small_is_skipped_with_one_line(capfd):
    """Three times the model are needed, 120 MiB, and there are 115."""
    standin.synchronize()
    torch.accelerator.empty_cache()
    standin.set_per_process_memory_fraction(0.45)
    try:
        model = torch.nn.Linear(1024, 40 * 256, bias=False).to("standin").requires_grad_(False)
        with torch.no_grad():
            config = pyrannc.Config(log_level="info")
            pyrannc.RaNNCModule(model, config=config)(torch.ones(2, 1024, device="standin:0"))
    finally:
        log.configure("warn")
        standin.set_per_process_memory_fraction(1.0)
    said = [line for line in capfd.readouterr().err.splitlines() if "self-check" in line]
    assert len(said) == 1 and "skipped: the whole model needs about 120.0 MiB" in said[0], said


def step_with_dropout(**settings):
    """Gradients of a first step, and the device's random state after it."""
    torch.manual_seed(3)
    layers = [
        torch.nn.Linear(8, 16),
        torch.nn.Dropout(0.5),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 4),
    ]
    model = torch.nn.Sequential(*layers).to("standin")
    standin.manual_seed_all(11)
    config = pyrannc.Config(pipeline_num=1, partition_num=1, **settings)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    wrapped = pyrannc.RaNNCModule(model, optimizer, config)
    wrapped(torch.ones(6, 8, device="standin:0")).square().mean().backward()
    gradients = [parameter.grad.cpu() for parameter in model.parameters()]
    return gradients, standin.get_rng_state(0)


@pytest.mark.parametrize(
    "settings",
    [
        {"self_check": True, "calibrate": False},
        {"self_check": False, "calibrate": True},
        {"self_check": False, "calibrate": False, "recompute": "always"},
    ],
    ids=["self-check", "calibration", "recompute"],
)
def test_random_numbers_of_the_device_are_as_without(settings):
    expected, state = step_with_dropout(self_check=False, calibrate=False, recompute="never")
    found, state_after = step_with_dropout(**{"recompute": "never", **settings})
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(state_after, state)


def test_a_gradient_that_eager_would_refuse_is_refused():
    model = torch.nn.Linear(4, 2).to("standin")
    output = pyrannc.RaNNCModule(model)(torch.ones(3, 4, device="standin:0"))
    plain = model(torch.ones(3, 4, device="standin:0"))
    for each in (plain, output):
        with pytest.raises(RuntimeError, match="cpu"):
            each.backward(torch.ones(3, 2))


@pytest.mark.parametrize("place", ["cpu", "standin:1"])
def test_loaded_state_of_an_optimizer_comes_to_its_parameters_device(place):
    def build():
        torch.manual_seed(3)
        model = torch.nn.Linear(4, 2).to("standin:0")
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        return pyrannc.RaNNCModule(model, optimizer), optimizer

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(3, 4, device="standin:0")).square().mean().backward()
        optimizer.step()
        return [parameter.detach().cpu() for parameter in model.module.parameters()]

    model, optimizer = build()
    step(model, optimizer)
    saved = pytree.tree_map(
        lambda leaf: leaf.to(place) if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf,
        copy.deepcopy(optimizer.state_dict()),  # a step changes its own
    )
    weights = {name: tensor.to(place) for name, tensor in model.state_dict().items()}
    expected = step(model, optimizer)
    other, other_optimizer = build()
    step(other, other_optimizer)
    other.load_state_dict(weights)
    other_optimizer.load_state_dict(saved)
    for parameter in other.module.parameters():
        state = other_optimizer.state[parameter]
        assert state["exp_avg"].device == parameter.device == torch.device("standin:0")
    for ours, theirs in zip(step(other, other_optimizer), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


class MeanSquare(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        )

    def forward(self, x):
        return self.layers(x).square().mean()


def test_a_step_is_issued_before_the_one_before_it_has_been_computed():
    torch.manual_seed(0)
    model = MeanSquare().to("standin")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model = pyrannc.RaNNCModule(model, optimizer)
    x = torch.ones(4, 4, device="standin")
    losses = []

    def step():
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    def two_steps():
        step()
        step()
        issued.set()

    for _ in range(12):  # until the report of the first steps is over
        step()
    standin.synchronize()
    issued = threading.Event()
    thread = threading.Thread(target=two_steps)
    with standin.held():
        thread.start()
        in_time = issued.wait(DEADLINE_S)
    thread.join()
    assert in_time, "the host waited for the device"
    assert torch.stack(losses).cpu().diff().max() < 0, "a loss is not less than the one before"
