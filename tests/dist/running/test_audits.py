"""What forward() reads from Python and a script changes between calls counts, or is an error."""

import pytest
import state_changes

pytestmark = pytest.mark.usefixtures("audits")


@pytest.mark.ranks(lambda name: f"import state_changes; state_changes.check({name!r})")
@pytest.mark.parametrize("name", state_changes.CHANGES)
def test_a_change_between_calls_counts_or_is_an_error(name, done):
    pass
