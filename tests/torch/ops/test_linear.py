"""aten::linear in graphs: one autograd node, and otherwise as torch's own."""

import itertools

import pytest
import torch
from torch.nn import functional

from pyrannc import _C
from pyrannc.errors import RaNNCError

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}


def linear(x, weight, bias):
    """By the interpreter, on a graph of this one node."""
    dtype = DTYPES[weight.dtype]
    dims = ", ".join(["B", *map(str, x.shape[1:])])
    out = ", ".join(["B", *map(str, x.shape[1:-1]), str(weight.shape[0])])
    text = f"""graph g(%x) -> (%y)
  input x: {dtype}[{dims}]
  parameter weight: {dtype}[{", ".join(map(str, weight.shape))}] grad
  parameter bias: {dtype}[{weight.shape[0]}] grad
  node linear = aten::linear(%x, %weight, {"%bias" if bias is not None else "none"}) -> %y
    result y: {dtype}[{out}] grad
"""
    if bias is None:
        text = "".join(line for line in text.splitlines(True) if "parameter bias" not in line)
    state = [weight] if bias is None else [weight, bias]
    return _C.runtime.Interpreter(_C.ir.parse(text), []).run([x], state, x.shape[0])[0]


def operands(shape, dtype, with_bias, requires_grad):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(size, generator=generator) for size in (shape, (5, shape[-1]), (5,))]
    tensors = [
        tensor.to(dtype).requires_grad_(wanted)
        for tensor, wanted in zip(tensors, requires_grad, strict=True)
    ]
    return [*tensors[:2], tensors[2] if with_bias else None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 4), (3, 2, 4), (2, 3, 2, 4), (3, 2, 0, 4)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_bits_are_those_of_torch_whatever_is_trained(dtype, shape, with_bias):
    seed = torch.randn(*shape[:-1], 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    for requires_grad in itertools.product([True, False], repeat=3):
        if not with_bias and requires_grad[2]:
            continue
        results = []
        for function in (linear, functional.linear):
            tensors = operands(shape, dtype, with_bias, requires_grad)
            y = function(*tensors)
            assert y.requires_grad == any(requires_grad)
            if y.requires_grad:
                y.backward(seed)
            results.append([y, *(t.grad for t in tensors if t is not None)])
        for mine, theirs in zip(*results, strict=True):
            assert (mine is None) == (theirs is None), requires_grad
            assert mine is None or torch.equal(mine, theirs), requires_grad


def test_it_is_one_node_and_leaves_to_torch_what_it_does_not_know():
    x, weight, bias = operands((3, 2, 4), torch.float32, True, (True,) * 3)
    node = linear(x, weight, bias).grad_fn
    assert [edge.name().split("::")[-1] for edge, _ in node.next_functions] == 3 * [
        "AccumulateGrad"
    ]
    across = torch.randn(3, 4, 2).requires_grad_()
    y = linear(across.transpose(1, 2), weight, bias)  # its products are of another form there
    assert len(y.grad_fn.next_functions) != 3
    torch.testing.assert_close(y, functional.linear(across.transpose(1, 2), weight, bias))
    with torch.no_grad():
        assert not linear(x, weight, bias).requires_grad


def test_a_write_to_what_it_keeps_is_an_error_as_in_torch():
    x, weight, bias = operands((7, 4), torch.float32, True, (True,) * 3)
    y = linear(x, weight, bias)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_it_frees_what_it_keeps_unless_the_graph_is_kept():
    x, weight, bias = operands((7, 4), torch.float32, True, (False, True, True))
    loss = linear(x, weight, bias).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert torch.equal(bias.grad, torch.full((5,), 14.0))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_shapes_that_do_not_fit_are_an_error_that_names_the_node():
    x, weight, bias = operands((7, 4), torch.float32, True, (True,) * 3)
    with pytest.raises(RaNNCError, match=r"'linear' \(aten::linear.*mat1 and mat2"):
        linear(x, weight[:, :3].contiguous(), bias)
