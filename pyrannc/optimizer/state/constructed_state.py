"""State that an optimizer's constructor makes, for copies of it that no constructor has seen."""

import torch


def give(copied: torch.optim.Optimizer) -> None:
    """What Adagrad's makes in torch 2.11 and 2.12; later ones make the same at the first step."""
    if not isinstance(copied, torch.optim.Adagrad):
        return
    for group in copied.param_groups:
        begin = group["initial_accumulator_value"]
        for tensor in group["params"]:
            value = complex(begin, begin) if tensor.is_complex() else begin
            copied.state[tensor] = {
                "step": torch.tensor(0.0, device=tensor.device if group.get("fused") else "cpu"),
                "sum": torch.full_like(tensor, value, memory_format=torch.preserve_format),
            }
