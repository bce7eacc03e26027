"""docs/gpu-status.md says what has run on a GPU, and no other page says more."""

import gpu_status


def test_the_page_is_what_the_files_of_results_say():
    assert (
        gpu_status.PAGE.read_text() == gpu_status.page(gpu_status.results()) + gpu_status.since()
    ), "run `make gpu-status`"


def test_without_results_the_first_lines_of_the_page_say_so():
    found = gpu_status.results()
    assert (gpu_status.NEVER in gpu_status.PAGE.read_text().splitlines()[0]) == (not found)
    readme = (gpu_status.ROOT / "README.md").read_text()
    assert found or "no GPU" in readme


def test_what_ran_and_what_failed_is_on_the_page():
    machine = {"gpu": "H200", "torch": "2.13", "driver": "580", "nccl": "2.30.4"}
    parts = {
        "one rank": {"passed": True, "text": "", "figures": {"seconds": 3}},
        "two ranks": {"passed": False, "text": "it hung", "figures": {}},
    }
    text = gpu_status.page({"test": {"when": "2026-01-02", "machine": machine, "parts": parts}})
    assert gpu_status.NEVER not in text
    assert "| H200 | 2026-01-02 | 2.13, 580, 2.30.4 | 1 of 2 | two ranks |" in text
    assert "| two ranks | failed: it hung |" in text
    measured = "speed against eager, predicted against measured steps, operators' costs"
    assert f"`make gpu-bench` | {measured} | none" in text


def test_the_page_says_what_failed_and_what_was_only_recorded():
    outcome = {"figures": {"x": 1}, "seconds": 1}
    parts = {
        "good": outcome | {"passed": True, "text": "", "counts": True},
        "bad": outcome | {"passed": False, "text": "a | b\nc", "counts": True},
        "maybe": outcome | {"passed": False, "text": "refused", "counts": False},
    }
    machine = {"gpu": "H200", "torch": "2.11", "driver": "580", "nccl": "none", "python": "3.12"}
    found = {"test": {"when": "2026-01-01", "machine": machine, "parts": parts}}
    lines = gpu_status.page(found).splitlines()
    assert lines[0] == "# What has run on a GPU"
    end = "| H200 | 2026-01-01 | 2.11, 580, none | 1 of 2 | bad |"
    assert any(line.endswith(end) for line in lines)
    assert "| good | passed | x 1 |" in lines
    assert "| bad | failed: a \\| b c | x 1 |" in lines
    assert "| maybe | recorded: refused | x 1 |" in lines
