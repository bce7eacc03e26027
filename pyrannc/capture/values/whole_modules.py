"""Modules that look for the elements they compute with (``nonzero()``), such as a loop over the
experts that have been chosen: each call of one is a node, and runs the module's own code.

The node is handed the module's tensors beside the call's, so that autograd and whoever sums
gradients over ranks know of them. How large its results are, the module itself says, on random
numbers in place of the traced tensors. What such a module may not do is looked for there.
"""

import dataclasses

import torch

from pyrannc.capture import random_states
from pyrannc.capture.arguments import pytree
from pyrannc.capture.attributes import module_attributes
from pyrannc.capture.torch_patches import PythonCall
from pyrannc.capture.torch_private import FakeTensor, disable_current_modes
from pyrannc.errors import TraceError

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Called:
    """Named as an autograd function is; the module's code runs, and autograd follows it."""

    @staticmethod
    def apply(module, cast, names, states, args, kwargs):
        tensors = dict(zip(names, states, strict=True))
        grads = torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in pytree.flatten((states, args, kwargs))[0]
        )
        with torch.autocast(cast.device, cast.dtype, cast.enabled, cache_enabled=False):
            result = torch.func.functional_call(module, tensors, args, kwargs)
        for tensor in pytree.flatten(result)[0]:
            if grads and tensor.is_floating_point() and not tensor.requires_grad:
                tensor.requires_grad_()  # nothing was selected that has a gradient
        return result


@dataclasses.dataclass(frozen=True)
class Cast:
    """How autocast is set around a call."""

    device: str
    dtype: torch.dtype
    enabled: bool


def prepared(module, args, kwargs):
    """A call of the module as ``PythonCall``, and the tensors that it is given."""
    named = [*module.named_parameters(), *module.named_buffers()]
    names, states = [name for name, _ in named], [tensor for _, tensor in named]
    tensors, shape = pytree.flatten((module, _cast(tensors_of=states), names, states, args, kwargs))
    return PythonCall(Called, shape), tensors


def call(session, module, args, kwargs):
    """A traced call of the module as one node."""
    whole, tensors = prepared(module, args, kwargs)
    results, result_shape = tried(session, module, whole, tensors)
    session.tracer.record_python(type(module).__name__, whole, tensors, results, [])
    return pytree.unflatten(result_shape, results)


def _cast(tensors_of):
    device = tensors_of[0].device.type if tensors_of else "cpu"
    return Cast(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))


def tried(session, module, whole, tensors):
    """FakeTensors like the results, and their shape; a TraceError for what no node may do."""
    path = session.paths[id(module)]

    def refuse(why):
        raise TraceError(
            f"'{path}': the values of a tensor decide what runs next or how large a result is, and "
            f"the module cannot be one node of the graph, because {why}.\n  Use torch.where, or "
            "masking."
        )

    if any(getattr(each, name) for each in module.modules() for name in _HOOKS):
        refuse("it has hooks")
    with session.hidden(), disable_current_modes():
        for seed in range(2):
            random = torch.Generator().manual_seed(seed)
            given = [_like(tensor, random) for tensor in tensors]
            kept = [tensor._version for tensor in given]
            before, states = module_attributes.snapshot(module), random_states.of_torch()
            with random_states.kept(), random_states.refused_outside_torch():
                try:
                    found = pytree.unflatten(whole.arguments, given)
                    result = Called.apply(*found)
                except RuntimeError as error:
                    refuse(f"its code fails on random numbers: {error}")
                if not random_states.are_equal(states, random_states.of_torch()):
                    refuse("it draws random numbers (dropout?)")
            if changed := module_attributes.changed(before, module):
                refuse(f"it changes its attribute '{next(iter(changed))}'")
            if [tensor._version for tensor in given] != kept:
                refuse("it writes into a tensor that it is handed, a parameter or a buffer")
        results, shape = pytree.flatten(result)
        own = {tensor.untyped_storage().data_ptr() for tensor in given}
        if any(tensor.untyped_storage().data_ptr() in own for tensor in results):
            refuse("it returns a tensor that it is handed")
    device = tensors[0].device
    with session.hidden(), session.mode:
        fakes = [
            torch.empty_strided(each.size(), each.stride(), dtype=each.dtype, device=device)
            for each in results
        ]
        if torch.is_grad_enabled():
            # A copy: no operator may write into what autograd begins with.
            fakes = [
                fake.requires_grad_().clone() if each.requires_grad else fake
                for fake, each in zip(fakes, results, strict=True)
            ]
    return fakes, shape


def _like(tensor, random):
    """Random numbers in its shape, on the host: 0 or 1 where they are no fractions."""
    assert isinstance(tensor, FakeTensor)
    if tensor.is_floating_point() or tensor.is_complex():
        made = torch.randn(tensor.shape, generator=random, dtype=tensor.dtype)
    else:
        made = torch.randint(0, 2, tensor.shape, generator=random).to(tensor.dtype)
    return made.requires_grad_(tensor.requires_grad)
