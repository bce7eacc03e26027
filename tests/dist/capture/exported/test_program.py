"""Models whose Python code looks at the number of rows, by torch.export, against one process."""

import pytest

# Some of each kind, as torch.export takes long.
NAMES = [
    "groups_of_four_or_all", "pairs", "averaged_in_pairs", "row_by_row", "best_sixteen",
    "pairs_as_divisor", "reciprocal", "too_few_to_trust", "statistics_of_few", "squeezed",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.ranks(
    lambda name: (
        f"""
from tests.support.jobs import rows_in_python

rows_in_python.compare({name!r}, "export")
"""
    )
)
def test_a_decision_by_the_number_of_rows_is_that_of_one_process(done, name):
    pass
