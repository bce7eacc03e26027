"""Five scripts that users have, with the one added line: none trains wrong without a word."""

import compatibility
import pytest
import torch
from scripts import toy

pytestmark = pytest.mark.usefixtures("audits")


@pytest.fixture(scope="module")
def found():
    return compatibility.reports("scripts.py", compatibility.RANKS, *compatibility.SCRIPTS)


@pytest.fixture(scope="module")
def expected():
    """The losses of one process with the batches of all ranks."""
    model = toy.new_model()
    optimizer = toy.new_optimizer(model)
    losses = []
    for step in range(toy.STEPS):
        rows = [toy.Rows()[step * toy.GLOBAL_BATCH + row] for row in range(toy.GLOBAL_BATCH)]
        optimizer.zero_grad()
        loss = model(*(torch.stack([row[name] for row in rows]) for name in ("x", "labels")))[
            "loss"
        ]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", compatibility.SCRIPTS)
def test_a_script_trains_as_one_process_or_says_why_not(name, found, expected):
    reports, done = found
    mine = [report for report in reports if report["script"] == name]
    assert len(mine) == compatibility.RANKS, done.stderr[-3000:]
    for report in mine:
        if not report["error"]:
            assert report["losses"] == pytest.approx(expected, rel=1e-5)
        else:
            assert not report["losses"] and report["line"] > 0


def test_the_page_says_what_came_of_them(found):
    assert compatibility.scripts_section(found[0]) in compatibility.PAGE.read_text(), (
        "run `make compatibility`, and read the difference"
    )
