"""An optimizer that keeps something of no parameter, as MADGRAD does: its count of steps."""

import torch


class CountingSteps(torch.optim.Optimizer):
    """Each step is as far as the average of gradients so far, times the root of the count."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        count = self.state.setdefault("k", torch.zeros((), dtype=torch.long))
        count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                entry = self.state[parameter]
                total = entry.setdefault("sum", torch.zeros_like(parameter))
                total.add_(parameter.grad)
                parameter.add_(total, alpha=-group["lr"] / count.item() ** 0.5)
