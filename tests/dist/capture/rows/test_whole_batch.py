"""Models whose Python code looks at the number of rows, on two ranks against one process."""

import pytest

from tests.support.jobs.rows_in_python import CASES


@pytest.mark.parametrize("name", CASES)
@pytest.mark.ranks(
    lambda name: (
        f"""
from tests.support.jobs import rows_in_python

rows_in_python.compare({name!r}, "torchscript")
"""
    )
)
def test_a_decision_by_the_number_of_rows_is_that_of_one_process(done, name):
    pass
