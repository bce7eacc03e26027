"""Tests that do not pass where torch's tracer is absent (``make test-export``), and why.

They have to fail there: what torch.export learns comes off the list. docs/zoo.md shows it.
"""

import fnmatch
import os
import textwrap

import pytest

CAPTURE = "tests/torch/capture"
#: Why, and the tests, whose parameters are left out where all of them are meant.
NEEDS_TRACER = {
    "another graph that computes the same (tests/torch/capture/test_exported.py): operators have "
    "other names, a scripted function is opened": [
        f"{CAPTURE}/test_golden_graphs.py::test_a_captured_graph_is_the_committed_one[residual_cnn]",
        f"{CAPTURE}/test_golden_graphs.py::"
        "test_a_captured_graph_is_the_committed_one[lstm_sequence_first]",
        f"{CAPTURE}/test_golden_graphs.py::test_a_captured_graph_is_the_committed_one[experts]",
        f"{CAPTURE}/test_golden_graphs.py::test_a_captured_graph_is_the_committed_one[in_place]",
        f"{CAPTURE}/test_golden_graphs.py::test_a_captured_graph_is_the_committed_one[filled]",
        f"{CAPTURE}/test_golden_graphs.py::test_a_captured_graph_is_the_committed_one[script_loop]",
        f"{CAPTURE}/test_golden_graphs.py::test_a_captured_graph_is_the_committed_one[stray_tensor]",
        "tests/torch/profiling/test_operators.py::test_a_mixture_of_experts_is_measured_not_estimated",
    ],
    "the error has other words, or there is none, as torch.export can do it": [
        f"{CAPTURE}/test_model.py::test_what_the_trace_cannot_follow_is_named[torch.autograd.grad]",
        f"{CAPTURE}/test_model.py::test_what_the_trace_cannot_follow_is_named[torch.func.grad]",
        f"{CAPTURE}/test_model.py::test_a_constant_of_the_batch_size_is_an_error",
        f"{CAPTURE}/test_model.py::test_a_compiled_function_is_named_and_what_takes_it",
        f"{CAPTURE}/values/test_known_numbers.py::test_one_that_depends_on_the_rows_is_an_error",
        *(
            f"{CAPTURE}/test_torch_favours.py::test_without_the_favour_it_does_not[{spot}]"
            for spot in (
                "torch's check that all of a tensor is true",
                "torch.nn.TransformerEncoderLayer",
                "torch.nn.LSTM, GRU and RNN on CUDA",
                "the logs of torch's FakeTensors and of torch.export",
            )
        ),
    ],
    "a function of TorchScript that holds constants: torch's own assertion, in an error that says "
    "that torch.export refuses the model": [
        f"{CAPTURE}/test_reference.py::test_a_capture_follows_another_order_with_objects_of_its_own",
        f"{CAPTURE}/test_reference.py::test_another_constant_is_another_model",
    ],
    "it asks for the tracer": [
        "tests/dist/test_habits.py::test_a_habit_of_pytorch_is_right_or_an_error"
        "[a_model_that_asks_for_the_grad_mode]",
        f"{CAPTURE}/attributes/test_second_calls.py::*torchscript]",
        f"{CAPTURE}/attributes/test_new_parameters.py::*torchscript]",
        "tests/torch/hooks/test_seen_copies.py::"
        "test_a_loss_of_what_a_hook_has_seen_is_an_error[torchscript]",
        "tests/torch/test_garbage.py::test_a_model_that_nobody_holds_is_gone[torchscript]",
        "tests/torch/wrapper/test_front_ends.py::test_tensors_in_place_of_parameters[torchscript]",
        "tests/torch/wrapper/test_front_ends.py::test_the_one_that_is_set_is_used[torchscript]",
        "tests/torch/wrapper/test_front_ends.py::test_auto_begins_with_the_tracer_and_says_so",
        "tests/torch/wrapper/test_front_ends.py::test_auto_falls_back_and_says_why",
        "tests/torch/wrapper/test_front_ends.py::"
        "test_one_that_is_not_installed_is_an_error_that_names_the_other[torchscript-export]",
        "tests/torch/wrapper/test_front_ends.py::test_auto_passes_over_one_that_is_not_installed",
        "tests/torch/wrapper/test_front_ends.py::"
        "test_hooks_of_the_backward_see_what_they_see_in_eager[torchscript]",
    ],
    "the libraries that torch.export loads take 12 MiB more": [
        "tests/torch/job/test_process.py::"
        "test_the_process_keeps_what_a_step_needs_and_not_what_planning_did",
    ],
}


def expect(items) -> None:
    """Marks those of ``items``, where the tracer is absent; but not in the process of
    tests/torch/accelerator/conftest.py, which tells the one outside what came of them."""
    if os.environ.get("RANNC_FRONTEND") != "export" or "STANDIN_REPORTS" in os.environ:
        return
    for item in items:
        for reason, tests in NEEDS_TRACER.items():
            if any(_is_meant(item.nodeid, test) for test in tests):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def _is_meant(nodeid, test) -> bool:
    if "*" in test:
        return fnmatch.fnmatchcase(nodeid, test.replace("]", "[]]"))
    if test.endswith("]"):
        return nodeid == test
    begin = test if "[" in test else f"{test}["
    return nodeid == test or nodeid.startswith(begin)


def section() -> str:
    """Of docs/zoo.md."""
    head = (
        "`make test-export` runs the tests with the tracer taken away, as on a torch that no "
        "longer has TorchScript. All pass but these, which have to fail there:"
    )
    rows = []
    for reason, tests in NEEDS_TRACER.items():
        names = ", ".join(f"`{test.removeprefix('tests/')}`" for test in tests)
        rows.append(f"| {reason} | {names} |")
    parts = ["## Without torch's tracer", textwrap.fill(head, 100), "| why | tests |\n|---|---|"]
    return "\n\n".join(parts) + "".join(f"\n{row}" for row in rows) + "\n"
