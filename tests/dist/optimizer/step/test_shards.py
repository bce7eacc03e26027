"""State of optimizers that replicas share: steps, states and gradients are those without."""

import itertools

import pytest
import selected_cases
import standin

LOOPS = [
    "schedulers/4", "accumulation/2+2", "clipping/2+2", "scaler/4", "closures_and_hooks/2+2",
    "averages/4", "several_optimizers/2+2", "late/2+2", "loaded/2+2", "planned_anew/2+2",
    "evaluated_first/4", "failed_step/2+2", "distributed_checkpoint/2+2", "of_original/2+2",
]  # fmt: skip
COVERING = [
    "accumulation/2+2", "clipping/2+2", "scaler/4", "several_optimizers/2+2", "loaded/2+2",
    "planned_anew/2+2", "distributed_checkpoint/2+2",
]  # fmt: skip
ONE_STAGE = ["automatic/4"]  # its limit of memory is for replicas of the whole model
PLAIN = ["plain/4", "plain/1+3/recompute=always", "plain/2x(2+2)", "plain/4/dtype=bfloat16"]
PARAMETERS = [
    f"{name}/zero=parameters"
    for name in (
        "plain/4", "plain/2x(2+2)", "plain/1+3/recompute=always",
        "clipping/2+2", "accumulation/2+2", "scaler/4", "loaded/2+2", "planned_anew/2+2",
    )
]  # fmt: skip
OTHERS = [
    "plain/2+2/dtype=float32", "plain/3+1/schedule=1f1b", "plain/1+2+1", "plain/4/kind=Images",
]  # fmt: skip
OPTIMIZERS = [
    "adamw_loop", "adamw_foreach", "adamw_fused", "amsgrad", "sgd", "momentum", "rmsprop",
    "adagrad", "adadelta", "adamax", "asgd", "nadam", "radam", "rprop", "by_hand",
]  # fmt: skip
FEW = ["adamw_fused", "momentum", "adagrad", "by_hand"]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    return selected_cases.found("shared_states.py", request, tmp_path_factory, lambda case: case)


def check(found, case):
    assert not found[case], found[case]


@pytest.mark.parametrize("case", [(4, name) for name in COVERING + ONE_STAGE + PLAIN], ids=str)
def test_every_kind_of_loop_trains_as_without(found, case):
    check(found, case)


@pytest.mark.parametrize("case", [(4, name) for name in PARAMETERS], ids=str)
def test_parameters_and_gradients_are_shared_too(found, case):
    check(found, case)


@pytest.mark.parametrize("case", [(4, f"plain/2+2/optimizer={each}") for each in FEW], ids=str)
def test_optimizers_step_as_without(found, case):
    check(found, case)


@pytest.mark.parametrize("case", [(2, name) for name in ("plain/2", "plain/1+1")], ids=str)
def test_two_ranks_step_as_without(found, case):
    check(found, case)


EVERY = [
    (4, f"plain/{plan}/optimizer={each}")
    for each, plan in itertools.product(OPTIMIZERS, ("4", "2+2"))
]
EVERY += [
    (4, f"{kind.split('/')[0]}/{plan}") for kind, plan in itertools.product(LOOPS, ("3+1", "2+2"))
]
EVERY += [(4, name) for name in OTHERS + LOOPS if name not in COVERING]


@pytest.mark.all
@pytest.mark.parametrize("case", dict.fromkeys(EVERY), ids=str)
def test_every_optimizer_and_loop_under_two_plans(found, case):
    check(found, case)


ON_A_DEVICE = """
import standin
import torch

import pyrannc
from pyrannc import launch

rank = launch.world().rank
if not standin.device_count():
    standin.start(devices=2, delay_us=20)
standin.keep_to(rank)
standin.set_device(rank)
found = []
for zero in (True, "parameters", False):
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = pyrannc.Config(
        device="standin", calibrate=False, self_check=False, partition_num=1, replica_nums=[2]
    )
    model = pyrannc.RaNNCModule(model, optimizer, config, zero=zero)
    for step in range(3):
        torch.manual_seed(step + 10 * rank)
        optimizer.zero_grad()
        model(torch.randn(4, 8, device=f"standin:{rank}")).square().mean().backward()
        optimizer.step()
    state = optimizer.state_dict(rank0_only=False)["state"]
    held = sum(v.nbytes for e in optimizer.state.values() for v in e.values() if v.dim())
    found.append([model.state_dict(rank0_only=False), state, held])
*shared, (others, whole, all_of_it) = found
for (weights, state, held), most in zip(shared, (0.52, 0.6)):  # parts are of whole rows
    for name, value in others.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-6, atol=1e-6)
    assert state.keys() == whole.keys()
    for number, entry in whole.items():
        for key, value in entry.items():
            torch.testing.assert_close(state[number][key], value, rtol=1e-5, atol=1e-6)
    assert held < most * all_of_it, (held, all_of_it)
print("all right", flush=True)
"""


@pytest.mark.skipif(not standin.built(), reason="the stand-in device was not built")
@pytest.mark.ranks(ON_A_DEVICE)
def test_devices_step_as_without(done):
    assert done.stdout.count("all right") == 2, done.stderr
