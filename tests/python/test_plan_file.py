"""Reading and showing plan files, which needs neither torch nor the compiled core."""

import json
import subprocess
import sys

import pytest

from pyrannc import plan as plan_file

PREDICTED = {
    "rows": 2, "forward_ns": 2_500_000, "backward_ns": 5_000_000, "reduce_ns": 0,
    "param_bytes": 1 << 20, "gradient_bytes": 1 << 20, "optimizer_bytes": 2 << 20,
    "activation_bytes": 0, "buffer_bytes": 0, "workspace_bytes": 0, "peak_bytes": 4 << 20,
}  # fmt: skip


def plan(**more):
    stages = [
        {
            "nodes": ["a", "b", "c"],
            "ranks": [0, 1, 2],
            "recompute": True,
            "predicted": PREDICTED,
            "notes": {"modules": "embed, layers.0-3", "send_bytes": 2048},
        },
        {"nodes": ["d"], "ranks": [3]},
    ]
    return {
        "format": "rannc-plan", "version": 1, "feasible": True, "schedule": "gpipe",
        "micro_batches": 4, "iteration_ns": 40_000_000, "stages": stages, **more,
    }  # fmt: skip


def test_the_table_shows_modules_ranks_times_memory_and_messages():
    text = plan_file.show(plan(notes={"memory_limit_bytes": 8 << 20, "global_batch": 18}))
    assert "2 stages, 4 ranks, 4 micro-batches of 4 to 5 rows, schedule gpipe" in text
    assert "predicted iteration 40 ms, memory limit 8.0 MiB per rank" in text.replace("\n", " ")
    first, second = (
        " ".join(line.split()) for line in text.splitlines() if line.strip()[:2] in ("0 ", "1 ")
    )
    assert first == "0 embed, layers.0-3 0-2 2.5 5 4.0 MiB (50%) 2.0 KiB yes"
    assert second == "1 d 3 - - - - no"


def test_a_plan_that_does_not_fit_shows_its_reason():
    reason = "block 'b' needs 2 GiB of [1 GiB]"
    text = plan_file.show(
        {"format": "rannc-plan", "version": 1, "feasible": False, "reason": reason}
    )
    assert text == f"No plan fits: {reason}\n"


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "is not JSON"),
        ("[]", "is not a plan"),
        ('{"format": "rannc-plan", "version": 7}', "version 7; this RaNNC reads version 1"),
        ('{"format": "rannc-plan", "version": 1}', "is damaged: KeyError"),
    ],
)
def test_a_file_that_is_no_plan_is_named_with_the_reason(tmp_path, content, message):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(plan_file.PlanFileError, match=message) as error:
        plan_file.show(path)
    assert str(path) in str(error.value)


def test_rannc_show_prints_the_table_without_torch(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan()))
    script = (
        "import sys; from pyrannc.cli import app;"
        "app(['show', sys.argv[1]], standalone_mode=False);"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "embed, layers.0-3" in done.stdout


def test_rannc_show_of_a_missing_file_is_one_line(tmp_path):
    script = "from pyrannc.cli import app; app(['show', 'no.json'])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={"PYTHONPATH": ":".join(p or "." for p in sys.path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("rannc: cannot read the plan: ") and done.stderr.count("\n") == 1
