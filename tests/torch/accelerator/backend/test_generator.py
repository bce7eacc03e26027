"""Random numbers as CUDA's: a seed and an offset, which operators advance when they are issued."""

import pytest
import standin
import torch
from torch.nn import functional


def test_a_seed_gives_the_same_numbers_again():
    torch.manual_seed(3)
    first = torch.randn(5, device="standin")
    second = torch.randn(5, device="standin")
    torch.manual_seed(3)
    assert torch.equal(torch.randn(5, device="standin"), first)
    assert torch.equal(torch.randn(5, device="standin"), second)
    assert not torch.equal(first, second)


def test_the_state_is_the_hosts_and_advances_when_an_operator_is_issued():
    torch.manual_seed(3)
    with standin.held(), standin.no_waits():
        state = standin.get_rng_state()
        late = torch.rand(5, device="standin")
        assert not torch.equal(state, standin.get_rng_state())
        standin.set_rng_state(state)
        again = torch.rand(5, device="standin")
    assert state.shape == (16,)
    assert torch.equal(late, again)
    assert ((late >= 0) & (late < 1)).all()


def test_numbers_of_the_host_and_of_the_device_do_not_move_each_other():
    torch.manual_seed(3)
    here, there = torch.get_rng_state(), standin.get_rng_state()
    torch.rand(5, device="standin")
    assert torch.equal(torch.get_rng_state(), here)
    standin.set_rng_state(there)
    torch.rand(5)
    assert torch.equal(standin.get_rng_state(), there)


def test_each_device_has_its_own():
    torch.manual_seed(3)
    states = [standin.get_rng_state(index) for index in range(3)]
    torch.rand(5, device="standin:1")
    assert [torch.equal(standin.get_rng_state(i), states[i]) for i in range(3)] == [
        True,
        False,
        True,
    ]


def test_a_generator_of_ones_own_is_used():
    generator = torch.Generator(device="standin").manual_seed(4)
    state = standin.get_rng_state()
    first = torch.randn(3, device="standin", generator=generator)
    assert torch.equal(standin.get_rng_state(), state)
    generator.manual_seed(4)
    assert torch.equal(torch.randn(3, device="standin", generator=generator), first)
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(3, device="standin", generator=torch.Generator())


def test_dropout_has_the_gradient_of_what_it_kept():
    torch.manual_seed(3)
    x = torch.ones(1000, device="standin", requires_grad=True)
    y = functional.dropout(x, 0.25)
    y.sum().backward()
    assert torch.equal(y.detach(), x.grad)
    assert sorted(set(y.tolist())) == pytest.approx([0, 4 / 3])
    assert 0.2 < (y == 0).float().mean().item() < 0.3


def test_the_state_can_be_forked():
    torch.manual_seed(3)
    before = standin.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="standin"):
        torch.rand(5, device="standin")
    assert torch.equal(standin.get_rng_state(), before)
