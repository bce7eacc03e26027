"""torch.compile and wrapped models: of what is compiled before, and what is compiled around."""

import torch
from torch import nn

from pyrannc import launch, log
from pyrannc.capture import torch_private


def made_of(model: nn.Module) -> nn.Module:
    """The model that was compiled, for one that torch.compile or ``compile()`` has been called for;
    its modules are taken likewise, in place, so that names are those without the compiler.

    A captured graph runs operator by operator, so what was compiled would never be used.
    """
    found = []
    if (plain := torch_private.not_compiled(model)) is not model:
        found.append("the model")
    for path, module in [*plain.named_modules()]:
        if module._compiled_call_impl is not None:
            found.append(f"'{path}'" if path else "the model")
            module._compiled_call_impl = None
        if torch_private.has_compiled_forward(module):
            found.append(f"'{path}'" if path else "the model")
            del module.forward
        for name, child in module.named_children():
            if (inner := torch_private.not_compiled(child)) is not child:
                found.append(f"'{path}.{name}'" if path else f"'{name}'")
                setattr(module, name, inner)
    if found and launch.get_rank() == 0:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        log.warn(
            "module",
            f"{found[0]}{more} was compiled by torch.compile, and is taken as what it was made of: "
            "RaNNC captures the model itself",
        )
    return plain


def leave_alone(wrappers: type) -> None:
    """Lets torch.compile around an instance of ``wrappers`` (a class) neither compile nor look into
    what a call does. Once the compiler has been imported; until then there is nothing to do."""
    imported = torch_private.compiled_module_type() is not None
    if imported and "_call_impl" not in vars(wrappers):
        wrappers._call_impl = torch.compiler.disable(nn.Module._call_impl)
