"""Records of steps, and where they go."""

import json

import pytest
import torch
from torch import nn

import pyrannc
from pyrannc import Config
from pyrannc.report import metrics, summary

SHARES = {"compute": 0.5, "send": 0.0, "receive": 0.1, "reduce": 0.0, "idle": 0.3, "rest": 0.1}
MIB = 2**20


def plan():
    content = {
        "format": "rannc-plan", "version": 1, "schedule": "gpipe", "micro_batches": 1,
        "iteration_ns": 1.0,
        "stages": [{"nodes": ["a"], "ranks": [0, 1]}, {"nodes": ["b"], "ranks": [2]}],
        "notes": {
            "step_ns": 80_000_000, "step_peak_bytes": [40 * MIB, 20 * MIB],
            "fingerprint": "abc", "step_bubble_ns": [8_000_000] * 3,
        },
    }  # fmt: skip
    return pyrannc._C.plan.Plan.from_json(json.dumps(content))


def found(work=(3e11, None)):
    ranks = [
        [0.1, 50 * MIB, 300 * MIB, SHARES],
        [0.09, 60 * MIB, 310 * MIB, SHARES],
        [0.1, 10 * MIB, 250 * MIB, SHARES],
    ]
    return metrics.record(plan(), [305 * MIB, 240 * MIB], 10, 24, ranks, None, work)


def test_a_record_has_the_slowest_rank_and_the_fullest_of_each_stage():
    record = found()
    assert record == json.loads(json.dumps(record))
    assert record["step_ns"] == 100_000_000 and record["predicted_step_ns"] == 80_000_000
    assert record["rows_per_s"] == pytest.approx(240)
    assert [stage["peak_bytes"] for stage in record["stages"]] == [60 * MIB, 10 * MIB]
    assert [stage["predicted_peak_bytes"] for stage in record["stages"]] == [40 * MIB, 20 * MIB]
    assert [stage["process_bytes"] for stage in record["stages"]] == [310 * MIB, 250 * MIB]
    # 0.4 of the step went to others; the plan's bubble is 0.1 of its own.
    assert record["ranks"][0]["could_be_hidden"] == pytest.approx(0.3)


def test_the_work_of_a_step_is_a_rate_and_where_the_device_is_known_a_share_of_its_peak():
    record = found((3e11, None))
    assert record["flops_per_s"] == pytest.approx(3e12) and record["flops_share"] is None
    assert "3 TFLOP/s in matrix products on all ranks" in summary.text(record)
    assert "flops_share" not in metrics.flat(record)
    # Of three devices, each busy for a tenth of a second.
    record = found((3e9, 0.12))
    assert record["flops_share"] == pytest.approx(0.4)
    assert "30 GFLOP/s in matrix products on all ranks, 40% of the devices' peak" in summary.text(
        record
    )
    assert metrics.flat(record)["flops_share"] == pytest.approx(0.4)


def test_the_summary_fits_eighty_columns():
    text = summary.text(found())
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[0] == (
        "after 10 steps: 100.0 ms a step, predicted 80.0 ms (-20%); 240 rows/s"
    )
    assert "0            0, 1           60.0 MiB" in text and "40.0 MiB (-33%)" in text
    assert "predicted stage 0 305 MiB, measured 310 MiB" in " ".join(text.split())


def test_stages_of_one_rank_share_a_line_of_the_summary():
    record = found()
    record["stages"] = [dict(record["stages"][0], ranks=[stage % 2]) for stage in range(12)]
    text = summary.text(record)
    assert "0, 2, 4,...  0   " in text and "more stages" not in text
    assert max(map(len, text.splitlines())) <= 80


def train(steps, **config):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = pyrannc.RaNNCModule(model, optimizer, Config(**config))
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8, 8)).square().mean().backward()
        optimizer.step()
    return model


def test_metrics_are_there_at_any_time_and_in_a_file_of_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert train(2).metrics()["steps"] == 2
    model = train(26, metrics_file=path, metrics_every=5)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["steps"] for line in lines] == [10, 15, 20, 25]
    for line in lines:
        assert line["format"] == "rannc-run" and line["step_ns"] > 0
        assert line["stages"][0]["peak_bytes"] > 0 and set(SHARES) <= line["ranks"][0].keys()
    assert model.metrics() == lines[-1] | {"steps": 26}
    assert lines[0]["fingerprint"] == model.rannc.plan.made_for.fingerprint


def test_a_file_that_fills_up_costs_a_warning_and_no_step(tmp_path, capfd):
    path = tmp_path / "metrics.jsonl"
    sinks = metrics.Sinks(Config(metrics_file=path))
    path.mkdir()  # what cannot be written any more
    sinks.write(found())
    sinks.write(found())
    assert capfd.readouterr().err.count("no more metrics go to") == 1


def test_numbers_for_tensorboard_have_names_of_their_own():
    flat = metrics.flat(found())
    assert flat["step_ms"] == 100 and flat["memory_mib/stage_0"] == 60
    assert flat["idle/rank_2"] == SHARES["idle"]
