"""Arguments of RaNNCModule that can only be a mistake."""

import pytest
from torch import nn

from pyrannc import ConfigError, RaNNCModule


@pytest.mark.parametrize(
    "given",
    [
        {"gather_inputs": "no"},
        {"master_weights": "False"},
        {"elementwise_optimizer": None},
        {"pad": 0},
        {"load_deployment": 3},
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(given):
    """Words are true, so that "no" would mean yes."""
    name, value = next(iter(given.items()))
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; it must"):
        RaNNCModule(nn.Linear(2, 2), **given)
