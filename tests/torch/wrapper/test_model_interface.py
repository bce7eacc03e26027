"""What nn.Module promises reaches the wrapped model."""

import copy

import pytest
import torch
from torch import nn

from pyrannc import Config, RaNNCModule


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 2), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.layer(x) * self.scale


def test_apply_gets_the_model_and_no_wrapper():
    # The model's own parameters kept their values, as the function asks for the class.
    def init(module):
        seen.append(type(module))
        if isinstance(module, Model):
            nn.init.constant_(module.scale, 3.0)

    seen, wrapped = [], RaNNCModule(Model())
    assert wrapped.apply(init) is wrapped
    assert seen == [nn.Linear, Model] and wrapped.module.scale.tolist() == [3, 3]


HOOKS = {
    "register_state_dict_pre_hook": "a state begins",
    "register_state_dict_post_hook": "a state is there",
    "register_load_state_dict_pre_hook": "loading begins",
    "register_load_state_dict_post_hook": "all is loaded",
}


@pytest.mark.parametrize("called", [False, True])
def test_hooks_of_states_are_the_models(called):
    # They stood at the wrapper, whose state_dict() is that of the model: none was called.
    plain = Model()
    wrapped = RaNNCModule(copy.deepcopy(plain), config=Config(calibrate=False))
    if called:
        wrapped(torch.ones(3, 4))
    seen, expected = [], []
    for model, to in ((plain, expected), (wrapped, seen)):
        handles = [
            getattr(model, add)(
                lambda module, *_, to=to, what=what: to.append((type(module), what))
            )
            for add, what in HOOKS.items()
        ]
        model.load_state_dict(model.state_dict())
        assert [what for _, what in to] == list(HOOKS.values())
        for handle in handles:
            handle.remove()
        model.load_state_dict(model.state_dict())
    assert seen == expected


@pytest.mark.parametrize("copied", [False, True])
def test_other_tensors_for_one_call_reach_the_root(copied):
    model = RaNNCModule(Model(), None)
    model = copy.deepcopy(model) if copied else model
    x, others = torch.ones(2, 4), {"scale": torch.zeros(2)}
    assert torch.func.functional_call(model, others, x).tolist() == [[0, 0], [0, 0]]
    torch.testing.assert_close(model(x), model.module(x))
    with pytest.raises(TypeError):  # as of any module
        model.scale = torch.zeros(2)
