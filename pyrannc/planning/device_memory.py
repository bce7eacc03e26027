"""What a rank may use of an accelerator's memory."""

import torch

from pyrannc.job import device_facts
from pyrannc.optimizer.state import kept_state
from pyrannc.state import torch_private
from pyrannc.state.released import is_released


def take_workspaces(device) -> None:
    """The libraries of an accelerator take their workspaces at their first product, in the thread
    of the forward and in that of the backward, and keep them: no plan can have that memory."""
    if device.type == "cpu":
        return
    with torch.inference_mode(False), torch.enable_grad():
        for dtype in (torch.float32, torch.bfloat16):
            try:
                matrix = torch.ones(16, 16, dtype=dtype, device=device, requires_grad=True)
                torch.nn.functional.linear(matrix, matrix).sum().backward()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # it need not have the dtype, and then no workspace for it
                continue


def available_bytes(device, model, optimizers) -> int | None:
    """What is free there now, what torch keeps there without using it, and what the model and its
    optimizers hold there, as the plan counts that.

    Never more than ``set_per_process_memory_fraction()`` leaves to this process. The context of the
    device and what other libraries hold is in none of it. None where its backend says nothing.

    Args:
        device: ``torch.device`` with its index.
        model: The user's.
        optimizers: The user's.
    """
    known = device_facts.memory(device)
    if known is None:
        return None
    free, total = known
    reserved = torch.accelerator.memory_reserved(device)
    allocated = torch.accelerator.memory_allocated(device)
    own = held_bytes(device, model, optimizers)
    unused = max(reserved - allocated, 0)  # an allocator need not count what it reserves
    there = free + unused + own
    module = torch.get_device_module(device.type)
    if hasattr(module, "get_per_process_memory_fraction"):
        allowed = int(module.get_per_process_memory_fraction(device) * total)
        there = min(there, allowed - allocated + own)
    return max(there, 0)


def held_bytes(device, model, optimizers) -> int:
    """Of parameters, their gradients, buffers and states of the optimizers, each memory once."""
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [p.grad for p in model.parameters() if not is_released(p) and p.grad is not None]
    tensors += [value for optimizer in optimizers for value in kept_state.tensors(optimizer)]
    here = [each for each in tensors if each.device == device and not is_released(each)]
    with torch_private.without_subclasses():  # parts of tensors say nothing of their own memory
        storages = [each.untyped_storage() for each in here]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())
