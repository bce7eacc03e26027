"""Full-backward hooks of the model's modules, called after a backward of a captured model, with
the gradients of its probes."""

import functools

import torch

from pyrannc.capture.hook_probes import named
from pyrannc.errors import RaNNCError


def inputs(model, captured, call) -> list:
    """What the graph of ``captured`` takes for ``call`` of ``model``; a backward through it calls
    the hooks of the backward that the model has then."""
    if not captured.probes or not torch.is_grad_enabled():
        return captured.inputs(call)
    rows = call.rows(captured.batch_dims)
    arrived = functools.partial(_call_all, model, captured.hooked_calls)
    anchor = torch.zeros((), requires_grad=True)
    probes = [probe.zeros(rows) for probe in captured.probes]
    return captured.inputs(call, list(_Arriving.apply(anchor, arrived, *probes)))


class _Arriving(torch.autograd.Function):
    """Tensors whose gradients are handed over as soon as a backward has them all."""

    @staticmethod
    def forward(ctx, anchor, arrived, *tensors):
        ctx.set_materialize_grads(False)
        ctx.arrived = arrived
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx, *gradients):
        ctx.arrived(gradients)
        return None, None, *(None for _ in gradients)


def _call_all(model, ends, gradients):
    """In the order in which autograd would go through the modules."""
    of_outputs = {}  # by the id of a call, where a backward comes to it
    for call, is_end in reversed(ends):
        if is_end and call.outputs is not None:
            found = _placed(call.outputs, gradients)
            if all(each is None for each in found):
                continue
            of_outputs[id(call)] = found
            _call(model, call, "_backward_pre_hooks", found)
            if call.inputs is None:
                _call(model, call, "_backward_hooks", (None,) * call.arguments, found)
        elif not is_end and call.inputs is not None and id(call) in of_outputs:
            found = _placed(call.inputs, gradients)
            if any(each is not None for each in found):
                _call(model, call, "_backward_hooks", found, of_outputs[id(call)])


def _call(model, call, registry, *gradients):
    module = model.get_submodule(call.path)
    tensors = [each for group in gradients for each in group if each is not None]
    versions = [tensor._version for tensor in tensors]
    for hook in list(getattr(module, registry).values()):
        result = hook(module, *gradients)
        nothing = result is None or (
            isinstance(result, tuple) and all(each is None for each in result)
        )
        if not nothing or versions != [tensor._version for tensor in tensors]:
            raise RaNNCError(
                f"a backward hook of {named(call.path)} returned or changed a gradient, but the "
                "backward of a captured model is over when it is called.\n  Change gradients with "
                "register_hook() of a parameter, or let the module compute what it does with a "
                "torch.autograd.Function."
            )


def _placed(places, gradients) -> tuple:
    return tuple(None if place is None else gradients[place] for place in places)
