"""docs/zoo.md says what comes of each architecture."""

import re
import shutil
import sys
from pathlib import Path

import lockstep_cases
import needs_tracer
import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent))

import transformers
from architectures import KINDS
from zoo import FRONT_ENDS, PAGE, PLANS, RANKS, in_groups, trained, verdict_of

from pyrannc import _C

TEXT = PAGE.read_text()
ROWS = re.findall(r"^\| ([a-z-]+) \| `(\S+)` \| \d* \| (\w+).*? \| (\w+)", TEXT, re.MULTILINE)


def test_the_page_has_a_row_for_each_architecture_that_it_counts():
    counted = re.search(r"(\d+) of (\d+) equal under\s+torchscript", TEXT)
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


needs_ranks = pytest.mark.skipif(
    not _C.comm.mpi_available() or shutil.which("mpirun") is None,
    reason="this build has no MPI, or mpirun was not found",
)
TRAINED = [
    name for name in re.findall(r"^\| \S+ \| `(\S+)` .*\| 2 and 4 ranks \| .*\|$", TEXT, re.M)
]
IN_GROUPS = re.findall(r"^\| (\S+) \| `(\S+)` .*\| (\w+)[^|]* \|$", TEXT, re.MULTILINE)


def wrong(ranks, cases):
    found = trained(ranks, cases, timeout=len(cases) * 200)
    return {case: line for case, line in found.items() if line["verdict"] != "equal"}


@needs_ranks
def test_some_architectures_train_on_ranks_as_in_one_process():
    assert not wrong(4, ["four/gpt2", "four/t5", "free/mixtral", "four/switch_transformers"])


@needs_ranks
def test_an_architecture_that_trains_on_other_rows_is_not_equal():
    """The comparison itself: the ranks get other rows than the one process."""
    found = trained(2, ["four/gpt2+other"], timeout=200)
    assert found["four/gpt2+other"]["verdict"] == "differs", found


@pytest.mark.all
@needs_ranks
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", TRAINED)
def test_an_architecture_trains_as_the_page_says(name, ranks):
    assert not wrong(ranks, [f"{plan}/{name}" for plan in PLANS])


@needs_ranks
def test_no_audit_of_some_architectures_is_a_false_alarm():
    assert not wrong(2, ["torchscript/gpt2", "export/resnet"])


@pytest.mark.all
@needs_ranks
@pytest.mark.parametrize(("kind", "name", "torchscript", "export"), ROWS)
def test_no_audit_of_an_architecture_is_a_false_alarm(kind, name, torchscript, export):
    verdicts = {"torchscript": torchscript, "export": export}
    equal = [f"{each}/{name}" for each, verdict in verdicts.items() if verdict == "equal"]
    assert not wrong(2, equal)


def test_some_architectures_are_equal_under_two_places():
    for kind, name in (("decoder", "gpt2"), ("encoder-decoder", "t5"), ("vision", "convnext")):
        found = in_groups(kind, name)
        assert found["verdict"] == "equal" and found["cut"] > 0.5, found


def test_a_place_that_differs_is_not_equal(monkeypatch):
    """The comparison itself: one collective is missing."""
    error = lockstep_cases.error
    monkeypatch.setattr(
        lockstep_cases, "error", lambda case, ways: error(case, ways, {"group::sum_gradient"})
    )
    assert in_groups("decoder", "gpt2")["verdict"] == "differs"


@pytest.mark.all
@pytest.mark.parametrize(("kind", "name", "verdict"), IN_GROUPS)
def test_an_architecture_under_two_places_is_as_the_page_says(kind, name, verdict):
    found = in_groups(kind, name)
    assert found["verdict"] == verdict, found


def test_the_page_lists_what_needs_the_tracer():
    assert TEXT.endswith(needs_tracer.section())
