"""Replays a capture beside the model that it was made of."""

import torch

from pyrannc import _C
from pyrannc.capture.arguments import pytree


def replay(captured, model, args, kwargs):
    """What ``model`` returns, computed by the interpreter from the captured graph."""
    state = dict(model.named_parameters(remove_duplicate=False))
    state.update(model.named_buffers(remove_duplicate=False))
    interpreter = _C.runtime.Interpreter(captured.whole, captured.objects, "cpu")
    rows = captured.batch_size(args, kwargs)
    inputs = captured.flatten(args, kwargs)
    tensors = interpreter.run(inputs, [state[name] for name in interpreter.state_names()], rows)
    return captured.unflatten(tensors, rows)


def backward(outputs):
    """Backward from a random combination of all outputs, the same for equal outputs."""
    tensors, _ = pytree.flatten(outputs)
    generator = torch.Generator().manual_seed(3)
    total = sum(
        (tensor * torch.randn(tensor.shape, generator=generator)).sum()
        for tensor in tensors
        if tensor.requires_grad
    )
    if isinstance(total, torch.Tensor):
        total.backward()


def assert_equal_trees(got, expected, **tolerance):
    """Same structure and types, and equal tensors."""
    left, left_shape = pytree.flatten(got)
    right, right_shape = pytree.flatten(expected)
    assert pytree.difference(right_shape, left_shape, "the result") is None
    for a, b in zip(left, right, strict=True):
        assert a.requires_grad == b.requires_grad
        torch.testing.assert_close(a, b, **tolerance)


def named(name):
    return lambda message: f"{name}: {message}"


def assert_replay_equals_eager(captured, build, args, kwargs, **tolerance):
    """Outputs, gradients and buffers of a replay equal those of a model built alike."""
    eager, replayed = build(), build()
    expected = eager(*args, **kwargs)
    got = replay(captured, replayed, args, kwargs)
    assert type(got) is type(expected)
    assert_equal_trees(got, expected, **tolerance)
    backward(expected)
    backward(got)
    for (name, a), (_, b) in zip(
        replayed.named_parameters(), eager.named_parameters(), strict=True
    ):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            torch.testing.assert_close(
                a.grad, b.grad, **tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )
    for (name, a), (_, b) in zip(replayed.named_buffers(), eager.named_buffers(), strict=True):
        torch.testing.assert_close(a, b, **tolerance, msg=named(name))
