"""What users write around the plain loop, on two ranks and on four, each with one start of them."""

import itertools

import compatibility
import mpi
import pytest

pytestmark = pytest.mark.usefixtures("audits")


def cases_of(script):
    lines = (mpi.JOBS / script).read_text().splitlines()
    pairs = itertools.pairwise(lines)
    return [line.split()[1].split("(")[0] for before, line in pairs if before == "@case"]


CASES, OF_TORCH = cases_of("habits.py"), cases_of("torch_habits.py")
#: Where sums over stages and over their replicas meet, which takes four ranks.
REPLICATED = {
    "accumulation_by_dividing",
    "averages_of_a_copy_are_right_and_saved_whole",
    "backward_hooks_that_look_are_called_once_for_each_call_with_the_own_rows",
    "buffers_written_by_each_rank",
    "clip_grad_norm_is_that_of_the_whole_model",
    "hooks_of_parameters",
    "noise_of_each_rank",
    "noise_with_one_seed",
    "norm_and_clipping_in_two_steps",
    "ranks_of_different_lengths_are_padded_to_the_longest",
    "rates_that_follow_the_loss_of_one_rank",
    "steps_on_some_ranks_only_are_an_error",
    "summon_gives_the_whole_and_takes_it_back",
    "torchs_own_grad_scaler_skips_on_all_ranks",
}


@pytest.fixture(scope="module")
def job():
    return compatibility.RANKS, *compatibility.reports("habits.py", compatibility.RANKS)


@pytest.fixture(scope="module")
def of_torch():
    return compatibility.RANKS, *compatibility.reports("torch_habits.py", compatibility.RANKS)


@pytest.fixture(scope="module")
def on_four(request):
    """The same of four ranks, by script; there only the cases run that were selected."""
    selected = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == request.path and "on_four" in item.fixturenames
    ]
    found = {}
    for script, cases in (("habits.py", CASES), ("torch_habits.py", OF_TORCH)):
        names = [case for case in selected if case in cases]
        if names:
            found[script] = (4, *compatibility.reports(script, 4, *names))
    return found


def refuse_faults(case, ranks, reports, done):
    faults = [report["fault"] for report in reports if report["case"] == case]
    assert faults == [""] * ranks, "\n".join([*faults, done.stderr[-3000:]])


@pytest.mark.parametrize("case", CASES)
def test_a_habit_is_right_or_an_error(case, job):
    refuse_faults(case, *job)


@pytest.mark.parametrize("case", OF_TORCH)
def test_a_habit_of_pytorch_is_right_or_an_error(case, of_torch):
    refuse_faults(case, *of_torch)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case in REPLICATED else pytest.mark.all)
        for case in CASES + OF_TORCH
    ],
)
def test_a_habit_is_right_or_an_error_on_four_ranks(case, on_four):
    refuse_faults(case, *on_four["habits.py" if case in CASES else "torch_habits.py"])


def test_the_page_says_what_came_of_habits_of_pytorch(of_torch):
    _, reports, _ = of_torch
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
    _, reports, _ = job
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
