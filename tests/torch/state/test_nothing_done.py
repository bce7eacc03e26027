"""Operators on released tensors, which the ranks that hold them do."""

import pytest
import torch
from torch import nn
from torch.optim import swa_utils

from pyrannc import RaNNCError
from pyrannc.state.released import is_released, release


def released(name="a.weight", shape=(2, 3), dtype=torch.float32, ranks=(1,)):
    tensor = torch.ones(shape, dtype=dtype)
    tensor = nn.Parameter(tensor) if tensor.is_floating_point() else tensor
    release(tensor, name, [*ranks])
    return tensor


@pytest.fixture(params=[(2, 3), ()], ids=["matrix", "number"])
def two(request):
    with torch.no_grad():
        yield released(shape=request.param), released(shape=request.param)


def test_elementwise_operators_give_what_is_released_and_write_nothing(two):
    shadow, parameter = two
    for made in (
        parameter * 2 + 1 - parameter,
        1 - parameter / 3,
        -(parameter.data - shadow.detach()),
        torch.lerp(shadow, parameter, torch.tensor(0.5)),
        shadow.clone().float().to("cpu", torch.float32),
        torch.add(shadow, parameter, alpha=2) * torch.tensor(0.5),
    ):
        assert is_released(made) and made.shape == parameter.shape
        assert made.dtype == torch.float32 and made.device.type == "cpu"
    assert parameter.to(torch.float64).dtype == parameter.double().dtype == torch.float64
    for made in (
        shadow.mul_(0.9).add_(parameter, alpha=0.1),
        shadow.lerp_(parameter, torch.tensor(0.5)),
        shadow.copy_(0.9 * shadow + parameter),
        shadow.zero_(),
    ):
        assert made is shadow
    shadow += parameter
    shadow.data = parameter.data
    with pytest.raises(RaNNCError, match="released"):
        (shadow + 1).sum()
    with torch.enable_grad(), pytest.raises(RuntimeError, match="leaf Variable"):
        shadow.mul_(2)


def test_tensors_with_values_and_those_of_other_ranks_are_refused(two):
    shadow, parameter = two
    values = torch.ones_like(torch.empty(parameter.shape))
    for use in (
        lambda: parameter + values,
        lambda: values - parameter,
        lambda: parameter.copy_(values),
        lambda: values.copy_(parameter),
        lambda: values.mul_(0.9).add_(parameter),
        lambda: parameter.lerp_(values, 0.5),
        lambda: torch._foreach_add_([values], [parameter]),
        lambda: torch._foreach_lerp_([parameter], [values], 0.5),
        lambda: setattr(parameter, "data", values),
    ):
        with pytest.raises(RaNNCError, match=r"'a.weight'.*with values, torch.float32 \["):
            use()
    other = released("b.weight", parameter.shape, ranks=(1, 2))
    for use in (lambda: parameter + other, lambda: torch._foreach_add_([other], [shadow])):
        with pytest.raises(RaNNCError, match=r"beside it stands another one, parameter .[ab].weig"):
            use()


def test_a_target_that_the_same_ranks_hold_follows_there(two):
    target, other = two[0], released("online.weight", two[0].shape)
    target.data = target.data * 0.9 + 0.1 * other.data
    target.mul_(0.9).add_(other, alpha=0.1)
    torch._foreach_lerp_([target], [other], 0.1)
    assert is_released(target) and is_released(torch.lerp(target, other, 0.1))


def test_lists_are_computed_where_there_are_values(two):
    shadow, parameter = two
    mine, own = torch.ones(4), torch.full((4,), 3.0)
    with torch.no_grad():
        torch._foreach_lerp_([shadow, mine], [parameter, own], 0.5)
        assert mine.tolist() == [2.0] * 4
        first, second = torch._foreach_sub([shadow, mine], [parameter, own])
        assert is_released(first) and second.tolist() == [-1.0] * 4
        torch._foreach_mul_([shadow], 0.5)
        factors = [torch.tensor(2.0), torch.tensor(4.0)]
        torch._foreach_addcdiv_([shadow, mine], [parameter, own], factors)
        assert mine.tolist() == [2.75] * 4


@pytest.mark.parametrize("average", [None, swa_utils.get_ema_multi_avg_fn(), "swa"])
def test_whole_numbers_are_averaged_as_torch_does(average):
    count, other = (released("count", (), torch.int64) for _ in range(2))
    model, shadow = nn.Module(), nn.Module()
    model.register_buffer("count", count), shadow.register_buffer("count", other)
    given = swa_utils.get_swa_multi_avg_fn() if average == "swa" else average
    averaged = swa_utils.AveragedModel(nn.Module(), multi_avg_fn=given, use_buffers=True)
    averaged.module = shadow
    averaged.n_averaged += 1
    averaged.update_parameters(model)
    assert averaged.n_averaged == 2 and is_released(shadow.count)


def test_noise_like_a_released_tensor_leaves_the_generator_as_that_of_any_other():
    draws = []
    for tensor in (released(shape=(20, 30)), torch.ones(20, 30)):
        torch.manual_seed(0)
        torch.randn_like(tensor).mul(2), torch.rand_like(tensor, dtype=torch.float64)
        draws.append(torch.randn(3))
    assert torch.equal(*draws)
