"""Lookahead, written as timm's is: an optimizer that others know by another one's groups."""

import collections

import torch


class Lookahead(torch.optim.Optimizer):
    """Every third step weights go half of the way back to where they were (Zhang et al., 2019)."""

    def __init__(self, base):
        # Not by super().__init__(), whose groups would be others.
        for name in ("step", "state_dict", "load_state_dict"):
            for when in ("pre", "post"):
                setattr(self, f"_optimizer_{name}_{when}_hooks", collections.OrderedDict())
        self._base_optimizer = base
        self.param_groups, self.defaults = base.param_groups, base.defaults
        self.state = collections.defaultdict(dict)
        for group in base.param_groups:
            group["lookahead_step"] = 0

    @torch.no_grad()
    def step(self, closure=None):
        loss = self._base_optimizer.step(closure)
        for group in self.param_groups:
            group["lookahead_step"] += 1
            if group["lookahead_step"] % 3 == 0:
                for parameter in group["params"]:
                    self._back(parameter)
        return loss

    def _back(self, parameter):
        entry = self._base_optimizer.state[parameter]
        if "slow" not in entry:
            entry["slow"] = parameter.clone()
        entry["slow"].lerp_(parameter, 0.5)
        parameter.copy_(entry["slow"])

    def state_dict(self):
        return self._base_optimizer.state_dict()

    def load_state_dict(self, state):
        self._base_optimizer.load_state_dict(state)
        self.param_groups = self._base_optimizer.param_groups
