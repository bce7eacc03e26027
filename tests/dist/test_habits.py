"""What users write around the plain loop, on two and four ranks, each with one start of them."""

import compatibility
import mpi
import pytest

SCRIPT = mpi.JOBS / "habits.py"
CASES = [
    line.split()[1].split("(")[0]
    for before, line in zip(
        SCRIPT.read_text().splitlines(), SCRIPT.read_text().splitlines()[1:], strict=False
    )
    if before == "@case"
]


@pytest.fixture(scope="module", params=[2, 4])
def job(request):
    return request.param, *compatibility.reports("habits.py", request.param)


@pytest.mark.parametrize("case", CASES)
def test_a_habit_is_right_or_an_error(case, job):
    ranks, reports, done = job
    faults = [report["fault"] for report in reports if report["case"] == case]
    assert faults == [""] * ranks, "\n".join([*faults, done.stderr[-3000:]])


def test_one_warning_names_the_sampler(job):
    ranks, _, done = job
    assert done.stderr.count(f"all {ranks} ranks have fed the same rows") == 1, done.stderr[-3000:]
    assert "DistributedSampler" in done.stderr


def test_the_page_says_what_came_of_them(job):
    ranks, reports, _ = job
    if ranks == compatibility.RANKS:
        assert compatibility.habits_section(reports) in compatibility.PAGE.read_text(), (
            "run `make compatibility`, and read the difference"
        )


def test_a_warning_says_what_an_optimizer_made_after_wrapping_needs_and_what_was_counted(job):
    ranks, _, done = job
    # 600 x 600 + 600 float32 are 1.375 MiB: three copies instead of two.
    text = "Adam was not given to RaNNCModule: its state takes 4.1 MiB on this rank, for which"
    assert done.stderr.count(text) == ranks, done.stderr[-3000:]
    assert done.stderr.count("the plan has counted 2.8 MiB") == ranks


def test_a_warning_names_the_stage_to_which_a_forced_plan_leaves_nothing(job):
    _, _, done = job
    text = (
        "partition_num = 2 leaves stage 1 a single operator, '1.unflatten': the model is too small"
    )
    assert done.stderr.count(text) == 1, done.stderr[-3000:]
