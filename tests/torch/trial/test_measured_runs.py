"""Running a plan before the first step: it predicts, and nothing else is different afterwards."""

import json

import pytest
import torch
from torch import nn

from pyrannc import Config, RaNNCModule
from pyrannc.trial import measured_runs


def first_step(**config):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = RaNNCModule(model, optimizer, Config(pipeline_num=2, self_check=False, **config))
    model(torch.randn(6, 8)).square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return model, gradients, torch.get_rng_state()


def test_numbers_are_the_same_with_and_without():
    model, gradients, random = first_step(calibrate=True)
    twin, twin_gradients, twin_random = first_step(calibrate=False)
    assert torch.equal(random, twin_random)
    for name, gradient in twin_gradients.items():
        assert torch.equal(gradients[name], gradient), name
    for name, value in twin.state_dict().items():  # running statistics, too
        assert torch.equal(model.state_dict()[name], value), name


def test_both_predictions_are_kept():
    step = first_step(calibrate=True)[0].plan.step
    assert step.ns > 0 and step.from_operators_ns > 0
    assert step.ns != step.from_operators_ns
    step = first_step(calibrate=False)[0].plan.step
    assert step.ns > 0 and step.from_operators_ns is None


def test_the_prediction_follows_the_speed_of_the_ranks():
    model, *_ = first_step(calibrate=True)
    step_ns = model.plan.step.ns
    predict = model._deployment.speed._predict
    assert predict([1.0])["step_ns"] == pytest.approx(step_ns, abs=2)
    slower = [predict([factor])["step_ns"] - step_ns for factor in (2.0, 3.0)]
    # All but what the runs took beyond what follows from their parts.
    assert slower[0] > 0 and slower[1] == pytest.approx(2 * slower[0], abs=4)
    assert first_step(calibrate=False)[0]._deployment.speed is None


# One stage on two ranks, three micro-batches; the last one has no rows on rank 1.
PROGRAM = {
    "stage_ranks": [[0, 1]],
    "shares": [[[[0, 2], [0, 2], [0, 1]], [[0, 2], [0, 2], [1, 1]]]],
    "transfers": [],
    "actions": [
        [
            ["forward", 0, 0],
            ["forward", 0, 1],
            ["forward", 0, 2],
            ["return_outputs"],
            ["reduce_gradients", 0],
        ]
    ]
    * 2,
}


def run(times, one_thread=True, hosts="ab", paging=0.0):
    """``times[rank][action]``: (passed, of the thread)."""
    return [
        {
            "around": 5 + rank,
            "optimizer": 7,
            "factor": 2,
            "compute": 20 + rank,
            "paging": paging,
            "one_thread": one_thread,
            "host": host,
            "actions": [[index, *pair, 0] for index, pair in zip((0, 1, 2, 4), spent, strict=True)],
        }
        for rank, (host, spent) in enumerate(zip(hosts, times, strict=False))
    ]


def test_equal_actions_count_with_their_median_and_collectives_with_their_shortest_wait():
    # Rank 1 comes late to the reduction, so rank 0 waits for 90: the reduction itself takes 10.
    runs = [run([[(9, 8), (40, 30), (4, 4), (93, 3)], [(9, 9), (9, 9), (0, 0), (14, 4)]])]
    found = measured_runs.summarize(PROGRAM, runs)
    # The first forward is alone; the others have another number of rows.
    assert [work for work, _ in found["measured"][0]] == [8, 30, 4, 0, 3]
    assert [wait for _, wait in found["measured"][0]] == [0, 0, 0, 0, 10]
    assert [wait for _, wait in found["measured"][1]] == [0, 0, 0, 0, 10]
    assert found["around_ns"] == [5, 6]
    assert found["compute_ns"] == [20, 21]
    assert found["optimizer_ns"] == [7, 7] and found["optimizer_factor"] == [2, 2]

    runs += [run([[(9, 8), (9, 9), (4, 4), (93, 3)], [(9, 9), (9, 9), (0, 0), (14, 4)]])] * 2
    assert measured_runs.summarize(PROGRAM, runs)["measured"][0][1] == (9, 0)


def test_replicas_of_one_host_are_expected_to_take_equally_long():
    runs = [run([[(9, 8), (9, 9), (4, 4), (13, 3)], [(9, 6), (9, 5), (0, 0), (14, 4)]], hosts="aa")]
    found = measured_runs.summarize(PROGRAM, runs)
    # The third has rows on rank 0 only. What each adds to a reduction is its own.
    assert [work for work, _ in found["measured"][0]] == [7, 7, 4, 0, 3]
    assert [work for work, _ in found["measured"][1]] == [7, 7, 0, 0, 4]
    assert found["around_ns"] == [5.5, 5.5]


def test_computing_counts_without_the_time_for_new_memory():
    runs = [run([[(8, 8), (8, 6), (4, 4), (9, 3)]] * 2, paging=5e-9)]
    found = measured_runs.summarize(PROGRAM, runs)
    # Rank 0 computes for 20 ns, a quarter of them for new memory; the reduction stays as it is.
    assert [work for work, _ in found["measured"][0]] == pytest.approx([6, 4.5, 3, 0, 3])
    assert found["compute_ns"] == pytest.approx([15, 16])


def test_of_several_runs_a_collective_counts_with_the_median_of_its_waits():
    runs = [
        run([[(9, 8), (9, 9), (4, 4), (93, 3)], [(9, 9), (9, 9), (0, 0), (4 + wait, 4)]])
        for wait in (50, 10, 30)
    ]
    assert measured_runs.summarize(PROGRAM, runs)["measured"][0][4] == (3, 30)


def test_several_threads_count_with_the_time_that_passes():
    runs = [run([[(9, 8)] * 4] * 2, one_thread=False)]
    measured = measured_runs.summarize(PROGRAM, runs)["measured"]
    assert measured[0][0] == (9, 0) and measured[0][4] == (8, 1)


def test_a_message_that_is_waited_for_says_how_long_it_is_on_its_way():
    program = {
        "stage_ranks": [[0], [1]],
        "shares": [[[[0, 1]]], [[[0, 1]]]],
        "transfers": [{"value": 3, "from_stage": 0, "to_stage": 1, "from": 0, "to": 1}],
        "actions": [[["send", 0, "forward"]], [["receive", 0, "forward"]]],
    }

    within = {**program, "transfers": [{**program["transfers"][0], "to": 0}]}
    within["actions"] = [[["send", 0, "forward"], ["receive", 0, "forward"]], []]

    def found(receive, host="a"):
        ends = [[0, 5_000, 5_000, 100_000], [0, *receive]]
        hosts = ["a", host]
        ranks = [
            {**run([[(0, 0)] * 4])[0], "host": host, "actions": [end]}
            for host, end in zip(hosts, ends, strict=True)
        ]
        return measured_runs.summarize(program, [ranks])["measured"]

    # Sent at 100 us, there at 160 us, after which the receiver works for 10 us.
    assert found((90_000, 10_000, 170_000)) == [[(5_000, 60_000)], [(10_000, 0)]]
    # It was there before: the link must say.
    assert found((11_000, 10_000, 170_000))[0] == [(5_000, -1)]
    # It left before its receiver came, who then waited for something: it was not long on its way.
    assert found((50_000, 10_000, 170_000))[0] == [(5_000, -1)]
    # Clocks of two hosts.
    assert found((90_000, 10_000, 170_000), host="b")[0] == [(5_000, -1)]
    # A rank's message to itself is never on its way, however late it gets to it.
    rank = {**run([[(0, 0)] * 4])[0], "actions": [[0, 5, 5, 100_000], [1, 90_000, 10_000, 170_000]]}
    ranks = [rank, {**rank, "actions": []}]
    assert measured_runs.summarize(within, [ranks])["measured"][0] == [(5, -1), (10_000, 0)]


class OneRank:
    host = "a"

    def all_gather(self, item):
        return [item]


class Actions:
    def to_json(self):
        return json.dumps(PROGRAM | {"actions": [[]]})


def measured(monkeypatch, seconds, paging, patience):
    """Of runs that take ``seconds``, of which the system takes ``paging`` for new memory."""
    left = [
        {**run([[(0, 0)] * 4])[0], "actions": [], "seconds": passed, "paging": system}
        for passed, system in zip(seconds, paging, strict=True)
    ]
    monkeypatch.setattr(measured_runs, "_run", lambda *_: left.pop(0))
    found = measured_runs.measure(None, ([], [], []), [], Actions(), [1], OneRank(), None, patience)
    assert not left
    return [round(found[name] / 1e6) for name in ("run_ns", "shortest_ns", "all_ns")]


def test_long_runs_count_without_the_time_for_new_memory(monkeypatch):
    # The second run of a plan that holds more: 1.3 s, of which it waits 0.4 s for pages.
    two = measured_runs.Patience(least=2, most=7, enough_s=1)
    assert measured(monkeypatch, [1.5, 1.3], [0.5, 0.4], two) == [900, 900, 2800]
    # Of short ones that time is not known well, and there are others.
    three = measured_runs.Patience(least=3, most=3, enough_s=0)
    assert measured(monkeypatch, [0.4, 0.3, 0.2], [0.2, 0.2, 0], three) == [250, 200, 900]


def test_quick_plans_run_more_often(monkeypatch):
    patience = measured_runs.Patience(least=2, most=7, enough_s=1)
    assert measured(monkeypatch, [0.1] * 7, [0] * 7, patience) == [100, 100, 700]
    assert measured(monkeypatch, [0.3] * 4, [0] * 4, patience) == [300, 300, 1200]
    # After one of more than two seconds there is no other; the first may be longer.
    assert measured(monkeypatch, [3], [1], patience) == [2000, 2000, 3000]
    patience = measured_runs.Patience(least=3, most=7, enough_s=1, first_s=20)
    assert measured(monkeypatch, [3, 2.5], [0, 0], patience) == [2500, 2500, 5500]
