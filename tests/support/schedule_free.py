"""An optimizer with modes, as those of schedulefree (Defazio et al., 2024) have them."""

import torch


class ScheduleFree(torch.optim.Optimizer):
    """SGD; parameters are where gradients are taken in training, and averages in evaluation."""

    def __init__(self, params, lr=0.5, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "count": 0, "train_mode": False})

    @torch.no_grad()
    def _exchange(self, to_train):
        for group in self.param_groups:
            if group["train_mode"] == to_train:
                continue
            weight = 1 - group["beta"] if to_train else 1 - 1 / group["beta"]
            for parameter in group["params"]:
                if "z" in self.state[parameter]:
                    parameter.lerp_(self.state[parameter]["z"], weight)
            group["train_mode"] = to_train

    def train(self):
        self._exchange(True)

    def eval(self):
        self._exchange(False)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("Optimizer was not in train mode when step is called.")
            group["count"] += 1
            rate, part = group["lr"], 1 / group["count"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                z = self.state[parameter].setdefault("z", parameter.clone())
                parameter.lerp_(z, part)
                parameter.add_(parameter.grad, alpha=rate * (group["beta"] * (1 - part) - 1))
                z.sub_(parameter.grad, alpha=rate)
