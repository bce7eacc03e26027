"""A whole RaNNCModule on a stand-in device: it runs where the model is."""

import time
import types

import pytest
import standin
import torch
from models import ZOO
from pipeline import run_ranks
from torch.utils import _pytree as pytree

import pyrannc
from pyrannc import _C
from pyrannc.capture.model import capture
from pyrannc.job import devices
from pyrannc.profiling import step_costs

STEPS = 3


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
    standin.set_delay(2000)
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
