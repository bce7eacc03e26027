"""Faults as they happen, each of which ``affected.py`` has to answer with a test that fails.

``python tests/support/planted_faults.py`` puts them into the sources one after the other, builds
what is of C++, runs the test that stands beside each, and says which ones it has not noticed; with
words behind it, those whose file has one of them in its path. For a fault without a test it goes
through what is selected for its file until one fails, and prints that. The sources are as before in
the end, also after Ctrl-C. All of it takes half an hour on two cores.
"""

import re
import subprocess
import sys
import time
from typing import NamedTuple

import affected

ROOT = affected.ROOT


class Fault(NamedTuple):
    """``old`` stands once in ``file``; with ``new`` in its place ``test`` fails."""

    file: str
    old: str
    new: str
    test: str = ""


FAULTS = [
    Fault(
        "pyrannc/wrapper/given.py",
        "if value not in (False, True):",
        "if value in (False, True):",
        "tests/torch/wrapper/test_given.py",
    ),
    Fault(
        "pyrannc/wrapper/signature.py",
        "[own, *signature",
        "[*signature",
        "tests/torch/wrapper/test_signature.py",
    ),
    Fault(
        "pyrannc/wrapper/items.py",
        "return key in self",
        "return key not in self",
        "tests/torch/wrapper/test_items.py",
    ),
    Fault(
        "pyrannc/capture/arguments/padding.py",
        'self._side == "left"',
        'self._side == "right"',
        "tests/torch/capture/arguments/test_padding.py",
    ),
    Fault(
        "pyrannc/capture/arguments/batch_dims.py",
        "others[0][1] == count",
        "others[0][1] > count",
        "tests/torch/capture/arguments/test_batch_dims.py",
    ),
    Fault(
        "pyrannc/capture/random_states.py",
        "        random.setstate(python_state)\n",
        "",
        "tests/torch/capture/test_model.py",
    ),
    Fault(
        "pyrannc/capture/values/known_numbers.py",
        "bound <= 0 or",
        "bound < 0 or",
        "tests/torch/capture/values/test_known_numbers.py",
    ),
    Fault(
        "pyrannc/capture/exported/rows.py",
        "sympy.Integer(rows)",
        "sympy.Integer(rows + 1)",
        "tests/torch/capture/test_exported.py",
    ),
    Fault(
        "pyrannc/selfcheck/compare.py",
        "expected.isnan() & found",
        "expected.isnan() | found",
        "tests/torch/selfcheck/test_check.py",
    ),
    Fault(
        "pyrannc/selfcheck/row_parts.py",
        "/ sum(sizes)",
        "/ len(sizes)",
        "tests/torch/selfcheck/test_check.py",
    ),
    Fault(
        "pyrannc/profiling/kept_file.py",
        '"environment") != environment',
        '"environment") is None',
        "tests/torch/profiling/test_links.py",
    ),
    Fault(
        "pyrannc/planning/schedules.py",
        "return not _C.plan.backward",
        "return _C.plan.backward",
        "tests/torch/planning/test_schedules.py",
    ),
    Fault(
        "pyrannc/planning/device_memory.py",
        "reserved - allocated, 0",
        "allocated - reserved, 0",
        "tests/torch/job/test_device_facts.py",
    ),
    Fault(
        "pyrannc/trial/choose.py",
        "if best != planned:",
        "if best == planned:",
        "tests/torch/trial/test_choose.py",
    ),
    Fault(
        "pyrannc/running/no_sync.py",
        "grad.add_(gradient)",
        "grad.copy_(gradient)",
        "tests/dist/test_loops.py",
    ),
    Fault(
        "pyrannc/hooks/backward_hooks.py",
        "captured.inputs(call, list(",
        "captured.inputs(call) or (list(",
        "tests/dist/test_habits.py",
    ),
    Fault(
        "pyrannc/optimizer/gradient_norm.py",
        "if not _gradients(own) and _of_other",
        "if not _gradients(own) and not _of_other",
        "tests/dist/test_habits.py",
    ),
    Fault(
        "pyrannc/wrapper/ranks_of_job.py",
        "and not has_group:",
        "and has_group:",
        "tests/dist/test_habits.py",
    ),
    Fault(
        "pyrannc/optimizer/step/late.py",
        "if all(given is not optimizer",
        "if any(given is not optimizer",
        "tests/dist/test_habits.py",
    ),
    Fault(
        "pyrannc/generation/whole_draws.py",
        "sum(all_rows[:rank])",
        "sum(all_rows[: rank + 1])",
        "tests/dist/generation/test_generate.py",
    ),
    Fault(
        "pyrannc/report/time_shares.py",
        ' + rank["idle"] - bubble / step',
        ' + rank["idle"]',
        "tests/torch/report/test_time_shares.py",
    ),
    Fault(
        "pyrannc/materialize/initialised.py",
        "            made.fill_(not_set)\n",
        "            pass\n",
        "tests/torch/materialize/test_values.py",
    ),
    Fault(
        "pyrannc/optimizer/scheduled_rates.py",
        "if len(found) != len(held):",
        "if len(found) == len(held):",
        "tests/torch/optimizer/test_scheduled_rates.py",
    ),
    Fault(
        "pyrannc/optimizer/state/shard_layout.py",
        "min(end, (number + 1) * self.share)",
        "min(end, number * self.share + 1)",
        "tests/torch/optimizer/state/test_shard_layout.py",
    ),
    Fault(
        "pyrannc/checkpoint/layout.py",
        "min(ranks_of(tensors[name]),",
        "min(range(size),",
        "tests/dist/checkpoint/test_save.py",
    ),
    Fault(
        "pyrannc/checkpoint/nested.py",
        "isinstance(key, str) and key != _KIND",
        "isinstance(key, str)",
        "tests/torch/checkpoint/test_nested.py",
    ),
    Fault(
        "pyrannc/integrations/repeats.py",
        "missing = -rows",
        "missing = rows",
        "tests/dist/integrations/test_repeats.py",
    ),
    Fault(
        "pyrannc/original/names.py",
        "if value != default or",
        "if value == default or",
        "tests/torch/original/test_original.py",
    ),
    Fault(
        "pyrannc/state/summon.py",
        "if writeback or (outer.rank0_only and not rank0_only):",
        "if outer.rank0_only and not rank0_only:",
        "tests/dist/test_habits.py",
    ),
    Fault(
        "pyrannc/job/launchers.py",
        "            if said != (world.size, world.rank):",
        "            if said[1] != world.rank:",
        "tests/torch/job/test_launchers.py",
    ),
    Fault(
        "pyrannc/job/same_rows.py",
        "if dim is not None]\n    digest",
        "if dim is None]\n    digest",
        "tests/dist/test_habits.py",
    ),
    Fault(
        "pyrannc/show/diff.py",
        "if here[0] == here[1]:",
        "if here[0] != here[1]:",
        "tests/python/show/test_diff.py",
    ),
    Fault(
        "pyrannc/show/advise.py",
        "count > each and count % each",
        "count > each",
        "tests/python/show/test_advise.py",
    ),
    Fault(
        "pyrannc/cli/what_if.py",
        "all(0 < number",
        "all(0 <= number",
        "tests/python/cli/test_what_if.py",
    ),
    Fault(
        "pyrannc/config.py",
        "if number < least:",
        "if number <= least:",
        "tests/python/test_config.py",
    ),
    Fault(
        "pyrannc/comm_utils.py",
        "0 <= root < world.size",
        "0 <= root <= world.size",
        "tests/dist/original/test_original.py",
    ),
    Fault(
        "pyrannc/native.py",
        "__file__ is None",
        "__file__ is not None",
        "tests/python/test_native.py",
    ),
    Fault(
        "pyrannc/planner.py",
        "in [whole] if isinstance(whole, str) else whole",
        "in whole",
        "tests/python/test_planner.py",
    ),
    Fault(
        "pyrannc/show/moves.py",
        "stage, +1, count - first)",
        "stage, +1, count)",
        "tests/python/show/test_moves.py",
    ),
    Fault(
        "pyrannc/show/figures.py",
        "rows / (step_ns / 1e9)",
        "rows / (step_ns / 1e6)",
        "tests/python/show/test_figures.py",
    ),
    Fault(
        "pyrannc/show/record.py",
        "if stages != measured:",
        "if stages < measured:",
        "tests/python/show/test_record.py",
    ),
    Fault(
        "src/plan/lower/compute_order.cpp",
        "stages - 1 - group)",
        "stages - group)",
        "tests/core/plan/lower/lower_test.cpp",
    ),
    Fault(
        "src/util/philox.cpp",
        "x[1][lane] ^ key0",
        "x[1][lane] ^ key1",
        "tests/core/util/philox_test.cpp",
    ),
    Fault(
        "src/util/human.cpp",
        "b[j - 1] ? 0 : 1",
        "b[j - 1] ? 1 : 0",
        "tests/core/util/human_test.cpp",
    ),
    Fault(
        "src/plan/rows.cpp",
        "(first + extra) % parts",
        "extra % parts",
        "tests/core/plan/rows_test.cpp",
    ),
    Fault(
        "src/plan/lower/reductions.cpp",
        "reduction.ranks.size() < 2",
        "reduction.ranks.size() < 1",
        "tests/core/plan/lower/lower_test.cpp",
    ),
    Fault(
        "src/plan/verify/orders.cpp",
        "if (scalar_outputs_ && !reduced_outputs_)",
        "if (scalar_outputs_ && reduced_outputs_)",
        "tests/core/plan/verify/communications_test.cpp",
    ),
    Fault(
        "src/ir/rows/rules/reduce.cpp",
        "return dim < rows.dim;",
        "return dim > rows.dim;",
        "tests/core/ir/rows/infer_rows_test.cpp",
    ),
    Fault(
        "src/ir/cut/drop_dead_nodes.cpp",
        "for (ValueId written : node.writes) is_live = is_live ||",
        "for (ValueId written : node.writes) is_live = is_live &&",
        "tests/core/ir/passes_test.cpp",
    ),
    Fault(
        "src/partition/candidates/micro_batch_numbers.cpp",
        "number) <= 1;",
        "number) < 1;",
        "tests/core/partition/candidates/micro_batch_numbers_test.cpp",
    ),
    Fault(
        "src/partition/score/transfer_times.cpp",
        " / cluster_.links_per_host",
        "",
        "tests/core/partition/score/assessor_test.cpp",
    ),
    Fault(
        "src/comm/all_reduce.cpp",
        "if (round_ >= 0 && round_",
        "if (round_ > 0 && round_",
        "tests/core/comm/all_reduce_test.cpp",
    ),
    Fault(
        "src/predict/bucket_size.cpp",
        "cluster.intra_host : cluster.inter_host",
        "cluster.inter_host : cluster.intra_host",
        "tests/core/predict/bucket_size_test.cpp",
    ),
    Fault(
        "src/cost/accumulation.cpp",
        "if (profile.params[param].trainable) ",
        "",
        "tests/core/cost/accumulation_test.cpp",
    ),
    Fault(
        "src/ops/linear.cpp",
        "grad.sum(0)",
        "grad.sum(1)",
        "tests/torch/ops/test_linear.py",
    ),
    Fault(
        "src/runtime/stage/running_statistics.cpp",
        "*= 1 - statistic.momentum",
        "*= statistic.momentum",
        "tests/torch/runtime/test_executor.py",
    ),
    Fault(
        "src/frontend/written_buffers.cpp",
        'name == "running_mean" || name',
        "name",
        "tests/torch/capture/test_model.py",
    ),
    Fault(
        "src/runtime/call/row_moves.cpp",
        "if (transfer.weight != 1) message",
        "if (transfer.weight > 1) message",
        "tests/torch/runtime/stage/test_keyed_draw.py",
    ),
]


def groups_of(file: str) -> list[list[str]]:
    """The tests for a change of ``file``, those that share a start together, in the order in which
    they are likely to notice it."""
    found, core = affected.affected([file])
    groups = [[test] for test in affected.mirrored_core(file)] if core else []
    for of_file in (True, False):
        for side in affected.ROOM:
            tests = [
                test
                for test, reason in found.items()
                if affected.side_of(test) == side and (reason != "always") == of_file
            ]
            groups += [tests] if tests else []
    return groups


def noticing(tests: list[str]) -> str:
    """The first of these files of tests of which one fails now, or ""."""
    if not tests[0].startswith("tests/core"):
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not all", *tests]
    else:
        text = (ROOT / tests[0]).read_text()
        suites = "|".join(sorted(set(re.findall(r"^TEST\w*\((\w+)", text, re.MULTILINE))))
        command = ["ctest", "--test-dir", "build", "--stop-on-failure", "--no-tests=error"]
        command += ["-R", f"(^|/)({suites})[./]"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) ([^:\s]+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else tests[0]


def build(file: str) -> None:
    if file.startswith("src/"):
        subprocess.run(["cmake", "--build", "build"], cwd=ROOT, check=True, capture_output=True)


def found_by(fault: Fault) -> str:
    """The file of tests that fails with the fault in its file; "" where none does."""
    path = ROOT / fault.file
    before = path.read_text()
    groups = [[fault.test]] if fault.test else groups_of(fault.file)
    path.write_text(before.replace(fault.old, fault.new))
    try:
        build(fault.file)
        return next((test for group in groups if (test := noticing(group))), "")
    finally:
        path.write_text(before)


def main() -> int:
    chosen = [
        fault
        for fault in FAULTS
        if not sys.argv[1:] or any(word in fault.file for word in sys.argv[1:])
    ]
    missed = 0
    for fault in chosen:
        begin = time.monotonic()
        test = found_by(fault)
        missed += not test
        print(f"{fault.file}: {test or 'NOTHING'} ({time.monotonic() - begin:.0f} s)", flush=True)
    for file in {fault.file for fault in chosen}:
        build(file)
    print(f"{missed} of {len(chosen)} were not noticed")
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
