"""docs/zoo.md says what comes of each architecture."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent))

import transformers
from architectures import KINDS
from zoo import FRONT_ENDS, PAGE, verdict_of

TEXT = PAGE.read_text()
ROWS = re.findall(r"^\| ([a-z-]+) \| `(\S+)` \| \d* \| (\w+).*? \| (\w+)", TEXT, re.MULTILINE)


def test_the_page_has_a_row_for_each_architecture_that_it_counts():
    counted = re.search(r"(\d+) of (\d+) equal under torchscript", TEXT)
    assert len(ROWS) == int(counted[2]) > 50
    assert sum(row[2] == "equal" for row in ROWS) == int(counted[1])
    assert {row[0] for row in ROWS} <= KINDS.keys()
    assert {verdict for row in ROWS for verdict in row[2:]} <= {"equal", "refused"}


@pytest.mark.all
@pytest.mark.skipif(
    f"transformers {transformers.__version__}" not in TEXT, reason="the page is of another release"
)
@pytest.mark.parametrize(("kind", "name", "torchscript", "export"), ROWS)
def test_an_architecture_is_captured_as_the_page_says(kind, name, torchscript, export):
    found = {each: verdict_of(kind, name, each) for each in FRONT_ENDS}
    expected = {"torchscript": torchscript, "export": export}
    assert {each: found[each]["verdict"] for each in FRONT_ENDS} == expected, found
