"""What capture and state take from inside torch is there in this release."""

import pytest

from pyrannc.capture import torch_private as of_capture
from pyrannc.state import torch_private as of_state

ATTRIBUTES = [
    pytest.param(owner, name, id=f"{side.__name__}.{name}")
    for side in (of_capture, of_state)
    for name, (owner, _) in side.ATTRIBUTES.items()
]


@pytest.mark.parametrize(("owner", "name"), ATTRIBUTES)
def test_a_private_attribute_is_there(owner, name):
    assert hasattr(owner, name)


def test_every_attribute_says_what_breaks_without_it():
    for side in (of_capture, of_state):
        assert all(breaks for _, breaks in side.ATTRIBUTES.values())
