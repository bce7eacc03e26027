"""What users write around the plain loop, on two and four ranks, each with one start of them."""

import itertools

import compatibility
import mpi
import pytest


def cases_of(script):
    lines = (mpi.JOBS / script).read_text().splitlines()
    pairs = itertools.pairwise(lines)
    return [line.split()[1].split("(")[0] for before, line in pairs if before == "@case"]


CASES, OF_TORCH = cases_of("habits.py"), cases_of("torch_habits.py")


@pytest.fixture(scope="module", params=[2, 4])
def job(request):
    return request.param, *compatibility.reports("habits.py", request.param)


@pytest.fixture(scope="module", params=[2, 4])
def of_torch(request):
    return request.param, *compatibility.reports("torch_habits.py", request.param)


def refuse_faults(case, ranks, reports, done):
    faults = [report["fault"] for report in reports if report["case"] == case]
    assert faults == [""] * ranks, "\n".join([*faults, done.stderr[-3000:]])


@pytest.mark.parametrize("case", CASES)
def test_a_habit_is_right_or_an_error(case, job):
    refuse_faults(case, *job)


@pytest.mark.parametrize("case", OF_TORCH)
def test_a_habit_of_pytorch_is_right_or_an_error(case, of_torch):
    refuse_faults(case, *of_torch)


def test_the_page_says_what_came_of_habits_of_pytorch(of_torch):
    ranks, reports, _ = of_torch
    if ranks == compatibility.RANKS:
        assert compatibility.torch_section(reports) in compatibility.PAGE.read_text(), (
            "run `make compatibility`, and read the difference"
        )


def test_one_warning_names_parameters_beside_the_model(of_torch):
    text = "SGD steps 1 parameters that no wrapped model has, of shape [6]"
    assert of_torch[-1].stderr.count(text) == 1, of_torch[-1].stderr[-3000:]


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
