"""Models whose Python code looks at the number of rows, on two ranks against one process."""

import pytest

from tests.support.jobs.rows_in_python import CASES

# Under torch.export, which takes longer, some of each kind.
EXPORTED = [
    "groups_of_four_or_all", "pairs", "averaged_in_pairs", "row_by_row", "best_sixteen",
    "pairs_as_divisor", "reciprocal", "too_few_to_trust", "statistics_of_few", "squeezed",
]  # fmt: skip


@pytest.mark.parametrize(
    ("front_end", "name"),
    [("torchscript", name) for name in CASES] + [("export", name) for name in EXPORTED],
)
@pytest.mark.ranks(
    lambda front_end, name: (
        f"""
from tests.support.jobs import rows_in_python

rows_in_python.compare({name!r}, {front_end!r})
"""
    )
)
def test_a_decision_by_the_number_of_rows_is_that_of_one_process(done, front_end, name):
    pass
