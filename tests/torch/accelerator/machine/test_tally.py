"""The host's waits for a device, and what it gives to streams, are counted by thread and place."""

import threading

import pytest
import standin
import torch


def test_waits_are_counted_where_and_by_whom():
    x = torch.ones(2, device="standin")
    standin.clear_counts()
    x.sum().item()
    thread = threading.Thread(target=lambda: (x.cpu(), standin.synchronize()))
    thread.start()
    thread.join()
    waits = standin.waits()
    assert waits[("main", "aten::_local_scalar_dense")] == 1
    others = {place: count for (name, place), count in waits.items() if name != "main"}
    assert others == {"copy to host": 1, "device": 1}


def test_a_training_step_does_not_wait_in_eager():
    model = torch.nn.Linear(3, 2).to("standin")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.ones(4, 3, device="standin")
    with standin.no_waits():
        model(x).sum().backward()
        optimizer.step()
    with pytest.raises(RuntimeError, match="the host would wait"), standin.no_waits():
        model.weight.sum().item()


def test_who_gives_work_to_a_stream_is_counted():
    x = torch.ones(2, device="standin", requires_grad=True)
    y = (x * 2).sum()
    standin.clear_counts()
    y.backward()
    assert {thread for thread, _ in standin.issues()} <= {"main", "pt_autograd_0"}
    thread = threading.Thread(target=lambda: x.detach().add_(1))
    thread.start()
    thread.join()
    assert len({thread for thread, _ in standin.issues()} - {"main", "pt_autograd_0"}) == 1
