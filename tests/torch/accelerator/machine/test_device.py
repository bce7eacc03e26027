"""Several devices, each with its own memory, streams and current device per thread."""

import threading

import pytest
import standin
import torch


def in_thread(function):
    """What it returns, or raises, in a thread of its own."""
    result = []

    def run():
        try:
            result.append(function())
        except RuntimeError as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


def test_each_thread_has_its_current_device():
    standin.set_device(2)
    assert torch.ones(1, device="standin").device.index == 2
    assert in_thread(standin.current_device) == 0
    with standin.device(1):
        assert standin.current_device() == 1
    assert standin.current_device() == 2


def test_devices_do_not_wait_for_each_other():
    x, y = torch.zeros(2, device="standin:1"), torch.zeros(2, device="standin:2")
    with standin.held(standin.current_stream(1)):
        x.add_(1)
        y.add_(1)
        assert y.tolist() == [1, 1]
        assert not standin.current_stream(1).query()
    assert x.tolist() == [1, 1]


def test_an_operator_of_two_devices_is_an_error():
    with pytest.raises(RuntimeError, match="at least two devices, standin:0 and standin:1"):
        torch.ones(1, device="standin:0") + torch.ones(1, device="standin:1")


def test_copies_between_devices_are_in_the_order_of_both():
    x, y = torch.ones(3, device="standin:1"), torch.zeros(3, device="standin:2")
    with standin.held(standin.current_stream(1)):
        x.add_(1)
        y.copy_(x, non_blocking=True)
        z = y + 1
        x.fill_(9)
        assert not standin.current_stream(2).query()
    assert z.tolist() == [3, 3, 3]


def test_streams_and_events_are_of_one_device():
    with pytest.raises(RuntimeError, match="memory of standin:1 and a stream of standin:0"):
        torch.ones(1, device="standin:1").record_stream(standin.current_stream(0))


def test_a_device_that_is_not_the_ranks_may_not_be_used():
    standin.keep_to(1)
    with pytest.raises(RuntimeError, match="standin:0 is used, which is not of this rank"):
        torch.ones(1, device="standin:0")
    with pytest.raises(RuntimeError, match="standin:2 is used, which is not of this rank"):
        standin.synchronize(2)
    assert torch.ones(1, device="standin:1").tolist() == [1]


def test_a_thread_that_does_not_set_its_device_is_seen():
    standin.keep_to(1)
    standin.set_device(1)

    def forgets():
        return torch.ones(1, device="standin").tolist()

    def remembers():
        standin.set_device(1)
        return forgets()

    assert in_thread(remembers) == [1]
    assert "a thread that has not set its device" in str(in_thread(forgets))


def test_gradients_are_computed_on_the_models_device():
    standin.keep_to(2)
    with standin.device(2):
        weight = torch.ones(2, device="standin", requires_grad=True)
        (weight * 3).sum().backward()
        assert weight.grad.tolist() == [3, 3]


def test_what_is_only_asked_of_a_device_makes_no_context():
    unused = 3  # by all other tests of this folder
    standin.set_device(unused)
    standin.current_stream(unused)
    standin.get_rng_state(unused)
    torch.ones(1, device="standin:0", requires_grad=True).sum().backward()
    assert not standin.has_context(unused)
    torch.ones(1, device="standin")
    assert standin.has_context(unused)


def test_devices_have_names_and_identities():
    properties = [standin.get_device_properties(index) for index in range(3)]
    assert len({entry.uuid for entry in properties}) == 3
    assert properties[0].total_memory == 256 << 20
