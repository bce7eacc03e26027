"""What PEFT has put into a model: the names that tensors had before, and how it sets its own.

Without PEFT, nothing.
"""

import sys

from torch import nn


def names_without(model: nn.Module, held) -> dict[str, str | None]:
    """What each of ``held``, names of tensors of ``model``, was called before PEFT was there; None
    for those of adapters. Copies of a module that are trained have the name of that module."""
    if "peft" not in sys.modules:
        return {name: name for name in held}
    return {name: _without(model, name) for name in held}


def _without(model, name):
    import peft
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    module, left, *parts = model, [], *name.split(".")
    while parts:
        part = parts.pop(0)
        if isinstance(module, BaseTunerLayer):
            if part != "base_layer":
                return None
        elif isinstance(module, AuxiliaryTrainingWrapper):
            if part == "modules_to_save":  # by names of adapters
                module, part = getattr(module, part), parts.pop(0)
            elif part != "original_module":
                return None
        elif isinstance(module, peft.PeftModel) and part != "base_model":
            return None
        else:
            left.append(part)
        module = getattr(module, part)
    return ".".join(left)


def resets(model: nn.Module):
    """``(method, arguments, name, module)`` of the methods by which PEFT sets the adapters in
    ``model`` when it makes them."""
    if "peft" not in sys.modules:
        return
    from peft.tuners.ia3.layer import IA3Layer
    from peft.tuners.lora.layer import LoraLayer

    for path, module in model.named_modules():
        for adapter, config in _configs_of(model, path):
            if isinstance(module, LoraLayer):
                arguments = adapter, config.init_lora_weights
                yield module.reset_lora_parameters, arguments, path, module
            elif isinstance(module, IA3Layer):
                yield module.reset_ia3_parameters, (adapter,), path, module


def _configs_of(model, path):
    """Adapters and their settings, as the first module on the way to ``path`` has them."""
    module, parts = model, path.split(".") if path else []
    while not isinstance(found := getattr(module, "peft_config", None), dict) and parts:
        module = getattr(module, parts.pop(0))
    return found.items() if isinstance(found, dict) else ()
