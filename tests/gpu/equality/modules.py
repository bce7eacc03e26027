"""Whole RaNNCModules on the device: what the suite of the stand-in device asks of them, and could
ask of any device."""

import os

import device
import torch
from models import ZOO
from report import Report
from torch.utils import _pytree as pytree

import pyrannc
from pyrannc import _C, launch
from pyrannc.capture.model import capture

# And where the model begins.
MODELS = (
    ("mlp", "device"), ("residual_cnn", "cpu"), ("tied_lm", "device"), ("tied_lm", "cpu"),
    ("encoder", "device"), ("loss", "cpu"), ("unet", "device"), ("buffers", "cpu"),
)  # fmt: skip
STEPS, ROWS = 3, 4
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}  # float32, and other kernels than the CPU's


def train(name, place, wrap, home):
    """The losses, and the parameters afterwards, on the host; ``home``: where the model begins."""
    entry = ZOO[name]
    torch.__future__.set_swap_module_params_on_conversion(True)  # tied parameters stay tied
    model = entry.build().to(home)
    torch.__future__.set_swap_module_params_on_conversion(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05)
    module = pyrannc.RaNNCModule(model, optimizer) if wrap else model
    losses = []
    for step in range(STEPS):
        args, kwargs = moved(entry.inputs(ROWS, step), place)
        loss = one_loss(module(*args, **kwargs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    found = {key: tensor.detach().cpu() for key, tensor in module.state_dict().items()}
    return {"loss": torch.stack(losses)} | found


def moved(arguments, place):
    return pytree.tree_map(
        lambda leaf: leaf.to(place) if isinstance(leaf, torch.Tensor) else leaf, arguments
    )


def one_loss(output):
    first = next(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor))
    return first.square().mean() if first.dim() else first


def trains_as_on_the_cpu(name, place, home):
    expected = train(name, "cpu", False, "cpu")
    for key, tensor in train(name, place, True, home).items():
        torch.testing.assert_close(
            tensor, expected[key], msg=lambda text, key=key: f"{key}: {text}", **TOLERANCE
        )


def gradients_are_on_the_device(place):
    linear = torch.nn.Linear(4, 2).to(place)
    wrapped = pyrannc.RaNNCModule(linear)
    output = wrapped(torch.ones(3, 4, device=place))
    output.sum().backward()
    assert output.device == place and linear.weight.grad.device == place


def is_in_the_order_of_the_users_stream(place):
    """A matrix product that takes long is before it on that stream, and nothing on the default."""
    linear = torch.nn.Linear(4, 4)
    twin = torch.nn.Linear(4, 4)
    twin.load_state_dict(linear.state_dict())
    wrapped = pyrannc.RaNNCModule(linear.to(place))
    wrapped(torch.ones(3, 4, device=place))
    size = 64 if device.SMALL else 4096
    before, stream = device.module().current_stream(), device.new_stream(place)
    stream.wait_stream(before)
    torch.accelerator.set_stream(stream)
    try:
        long = torch.randn(size, size, device=place)
        for _ in range(20):
            long = (long @ long).clamp(-1, 1)
        x = torch.ones(3, 4, device=place) + 0 * long[0, 0]
        wrapped(x * 2).sum().backward()
        gradient = linear.weight.grad.cpu()
    finally:
        torch.accelerator.set_stream(before)
    twin(torch.ones(3, 4) * 2).sum().backward()
    torch.testing.assert_close(gradient, twin.weight.grad)


def the_host_does_not_wait(place):
    """In forward, backward and the optimizer's step, after the first ones."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1)).to(place)
    optimizer = torch.optim.AdamW(model.parameters())
    wrapped = pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(pipeline_num=2))
    x = torch.randn(8, 8, device=place)

    def step():
        optimizer.zero_grad()
        wrapped(x).square().mean().backward()
        optimizer.step()

    for _ in range(12):  # until the report of the first steps is over
        step()
    if device.NAME == "cuda":
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    else:
        import standin

        with standin.no_waits():
            step()


def operators_are_timed_by_both_clocks(place):
    captured = capture(torch.nn.Linear(4, 2), (torch.ones(3, 4),), {})
    world = _C.comm.make_local(1)[0]
    table, _ = _C.profile.measure(
        captured.graph, captured.objects, [], world, [2, 4], device=str(place)
    )
    cost = table.node[0][1]
    assert min(cost.forward_ns, cost.backward_ns) > 0, cost
    assert min(cost.forward_host_ns, cost.backward_host_ns) > 0, cost


def a_plan_counts_the_devices_memory(place):
    """A model of small layers that together need more than this process may use has no plan."""
    share, layers = 0.1 if device.SMALL else 0.01, 16
    total = device.module().get_device_properties(place).total_memory
    width = int((share * total / layers / 4) ** 0.5)  # the weights alone need all of the share
    device.memory().empty_cache()
    device.module().set_per_process_memory_fraction(share, place)
    try:
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
        wrapped = pyrannc.RaNNCModule(model, None, pyrannc.Config(device=str(place)))
        try:
            wrapped(torch.ones(2, width, device=place))
        except pyrannc.InfeasibleError:
            return
        raise AssertionError("a model beyond the memory had a plan")
    finally:
        device.module().set_per_process_memory_fraction(1.0, place)


OTHERS = (
    gradients_are_on_the_device,
    is_in_the_order_of_the_users_stream,
    the_host_does_not_wait,
    operators_are_timed_by_both_clocks,
    a_plan_counts_the_devices_memory,
)


def main():
    os.environ.setdefault("RANNC_PROFILE_CACHE", "off")
    launch.world()
    report = Report()
    place = device.start()
    for case in OTHERS:
        with report.case(case.__name__.replace("_", " ")):
            case(place)
    for name, home in MODELS:
        with report.case(f"{name} from the {home}"):
            trains_as_on_the_cpu(name, place, place if home == "device" else home)
    report.figures["cases"] = len(OTHERS) + len(MODELS)
    report.show()


if __name__ == "__main__":
    main()
