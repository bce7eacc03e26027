"""Private names of torch that state, optimizer and running rely on; other files name none.

All were seen in torch 2.11 to 2.15. Beside each stands what breaks without it; a test looks
for all of them in each supported release.
"""

import torch
from torch import nn
from torch.nn.utils import _named_member_accessor, clip_grad
from torch.utils import _python_dispatch

#: Gives two tensors each other's memory, and lets both Python objects be. torch.utils.swap_tensors
#: calls it after it has refused tensors with weak references, which nn.LSTM keeps of its weights.
#: Without it a rank cannot free what others hold.
swap_tensors = torch._C._swap_tensor_impl

#: Whether a tensor can take the memory of another one, of another device, by `.data`. Without it
#: hooks on parameters are lost where a rank moves its part of a model to its device.
can_share_memory = torch._has_compatible_shallow_copy_type

#: Inside, a tensor of a subclass is one of torch's own to the functions that are called. Without it
#: what released tensors are cannot be read.
without_subclasses = torch._C.DisableTorchFunctionSubclass

#: torch's functions about norms of gradients, to which clip_grad_norm_() and get_total_norm() lead.
#: Without them every rank clips by the norm of its own part.
total_norm = clip_grad._get_total_norm
clip_with_norm = clip_grad._clip_grads_with_norm_

#: What torch's gradient scaler calls for an optimizer before its step. Without it ranks disagree
#: about a step that is left out.
unscale = torch.amp.GradScaler._unscale_grads_

#: What that does to the gradients. Without it a scaler fails where a rank has parts of parameters.
unscale_each = torch._amp_foreach_non_finite_check_and_unscale_

#: Sees every operator of a thread. Without it display_act_value shows nothing.
TorchDispatchMode = _python_dispatch.TorchDispatchMode

#: The key, behind a module's path, of what get_extra_state() returns, which checkpoints lack
#: without it.
EXTRA_STATE = nn.modules.module._EXTRA_STATE_KEY_SUFFIX

#: Hooks for all modules, of which torch says no other way whether there are any. Without them such
#: hooks are called with fake tensors, and then never.
HOOKS_OF_ALL = (
    nn.modules.module._global_forward_pre_hooks,
    nn.modules.module._global_forward_hooks,
    nn.modules.module._global_backward_pre_hooks,
    nn.modules.module._global_backward_hooks,
)

#: Where torch.func.functional_call() puts tensors in place of a module's parameters. Without it a
#: parameter of the model's root cannot be replaced so.
ACCESSOR = _named_member_accessor.__name__

#: What load_state_dict() returns.
IncompatibleKeys = nn.modules.module._IncompatibleKeys

#: Functions of torch.distributed.checkpoint.state_dict by which it asks a model and its optimizers.
#: Without them get_state_dict() finds no model on ranks other than 0.
STATE_DICT_FUNCTIONS = (
    "_get_model_state_dict",
    "_load_model_state_dict",
    "_get_optim_state_dict",
    "_load_optim_state_dict",
)


def flatten_optimizer_state(state: dict) -> dict:
    """As StateDictOptions(flatten_optimizer_state_dict=True) asks for; without it that fails."""
    from torch.distributed.checkpoint import state_dict  # takes more than a second

    return state_dict._flatten_optim_state_dict(state)


#: Private attributes by name: an object that has each, and what breaks without it.
ATTRIBUTES = {
    "_cdata": (torch.UntypedStorage, "what sets a tensor of a model without values is not found"),
    "_schema": (torch.ops.aten.add.Tensor, "as _cdata"),
    "_backward_hooks": (torch.Tensor, "the user's hooks are called with None as gradient"),
    "_backward_pre_hooks": (nn.Module(), "hooks before the backward of a module are not called"),
    "_buffers": (nn.Module(), "state cannot be found by name"),
    "_forward_hooks": (nn.Module(), "forward hooks are called with fake tensors, and then never"),
    "_forward_hooks_with_kwargs": (nn.Module(), "forward hooks miss keyword arguments"),
    "_forward_pre_hooks": (nn.Module(), "hooks before forward are called with fake tensors"),
    "_forward_pre_hooks_with_kwargs": (nn.Module(), "hooks before forward miss keyword arguments"),
    "_get_name": (nn.Module, "a wrapped module cannot be printed"),
    "_is_full_backward_hook": (nn.Module(), "hooks that are none of a full backward are called"),
    "_metadata": (nn.Module().state_dict(), "checkpoints lose the versions of modules"),
    "_modules": (nn.Module(), "a replaced module is not noticed"),
    "_non_persistent_buffers_set": (nn.Module(), "checkpoints hold non-persistent buffers"),
    "_parameters": (nn.Module(), "state cannot be found by name"),
    "_save_to_state_dict": (nn.Module, "a part's state_dict() has tensors without values"),
    "_version": (torch.Tensor, "a hook that changes a tensor in place is taken for one that looks"),
    "_post_accumulate_grad_hooks": (
        torch.Tensor,
        "the user's hooks after accumulation run although there is no gradient",
    ),
    "_state_dict_hooks": (nn.Module(), "state_dict(no_hook=True) runs the hooks"),
    "_state_dict_pre_hooks": (nn.Module(), "state_dict(no_hook=True) runs the hooks"),
}
