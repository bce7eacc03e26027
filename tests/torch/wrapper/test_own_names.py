"""The names of RaNNC and those of the model, where both have one."""

import copy

import pytest
import torch
from torch import nn

from pyrannc import Config, RaNNCError, RaNNCModule


class Like(nn.Module):
    """As those of transformers: a ``config``, and a ``model`` with a head."""

    def __init__(self):
        super().__init__()
        self.model = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.config = {"hidden_size": 4}
        self.plan = "of the model"

    def forward(self, x):
        return self.head(self.model(x))


def test_names_of_the_model_come_first_and_ours_are_at_rannc():
    plain, config = Like(), Config()
    inner = plain.model
    wrapped = RaNNCModule(plain, None, config)
    assert wrapped.module is plain and wrapped.rannc.model is plain
    assert wrapped.model is inner and wrapped.config == {"hidden_size": 4}
    assert wrapped.plan == "of the model" and wrapped.rannc.config is config
    with pytest.raises(RaNNCError, match="made by the first call"):
        _ = wrapped.rannc.plan
    wrapped(torch.ones(4, 4))
    assert wrapped.rannc.plan.micro_batches >= 1 and wrapped.plan == "of the model"
    assert {"config", "model", "plan", "no_sync"} <= set(dir(wrapped.rannc))
    with wrapped.rannc.no_sync():
        pass
    with pytest.raises(AttributeError, match="'no_name'"):
        _ = wrapped.rannc.no_name


def test_what_is_read_of_the_model_is_also_written_there():
    plain, other = Like(), nn.Linear(4, 4)
    wrapped = RaNNCModule(plain)
    wrapped.model, wrapped.config, wrapped.plan = other, {"hidden_size": 5}, "changed"
    assert (plain.model, plain.config, plain.plan) == (other, {"hidden_size": 5}, "changed")
    assert wrapped.module is plain


class Scaled(nn.Linear):
    def forward(self, x):
        x = nn.functional.dropout(super().forward(x), 0.5, self.training)
        return x * getattr(self, "alpha", 1.0)


@pytest.mark.parametrize("called", [False, True])
def test_what_is_new_is_the_models_and_so_is_its_mode(called):
    # Both stayed at the wrapper, where forward() does not look.
    plain = Scaled(4, 2)
    plain.training = False
    wrapped = RaNNCModule(copy.deepcopy(plain), config=Config(calibrate=False))
    wrapped.training = True
    if called:
        wrapped(torch.ones(3, 4))
    assert wrapped.module.training
    wrapped.training = False
    assert not wrapped.module.training
    plain.alpha = wrapped.alpha = 5.0
    assert wrapped.module.alpha == 5.0 == wrapped.alpha
    torch.testing.assert_close(wrapped(torch.ones(3, 4)), plain(torch.ones(3, 4)))
    del plain.alpha, wrapped.alpha
    assert not hasattr(wrapped.module, "alpha") and not hasattr(wrapped, "alpha")
    torch.testing.assert_close(wrapped(torch.ones(3, 4)), plain(torch.ones(3, 4)))
    with pytest.raises(AttributeError, match="alpha"):
        del wrapped.alpha


def test_a_parameter_set_through_the_wrapper_is_the_models_and_another_wrapped_model_is_not():
    wrapped = RaNNCModule(nn.Linear(4, 2))
    wrapped.scale, wrapped.teacher = nn.Parameter(torch.ones(2)), copy.deepcopy(wrapped)
    assert [name for name, _ in wrapped.named_parameters()] == ["weight", "bias", "scale"]
    assert isinstance(wrapped.teacher, RaNNCModule) and not hasattr(wrapped.module, "teacher")


def test_where_the_model_has_none_ours_answer():
    plain, config = nn.Linear(4, 2), Config()
    wrapped = RaNNCModule(plain, None, config)
    assert wrapped.model is plain and wrapped.config is config
    wrapped.config = other = Config(partition_num=1)
    assert wrapped.rannc.config is other and not hasattr(plain, "config")
    for name in ("model", "module", "plan", "rannc"):
        with pytest.raises(AttributeError, match=f"'{name}' of a RaNNCModule cannot be replaced"):
            setattr(wrapped, name, nn.Linear(4, 2))
    wrapped(torch.ones(4, 4))
    assert wrapped.plan == wrapped.rannc.plan


def test_a_copy_has_names_of_its_own():
    wrapped = RaNNCModule(Like())
    copied = copy.deepcopy(wrapped)
    assert copied.rannc.model is copied.module is not wrapped.module
    assert copied.model is copied.module.model and copied.rannc.config is not wrapped.rannc.config
