"""Other numbers of devices, batches and memory, and what they cost."""

import json
import re

import pytest

from pyrannc import planner
from pyrannc.planner import PlannerInputError
from pyrannc.show import advise

CLUSTER = {
    "format": "rannc-cluster", "version": 1, "hosts": 2, "devices_per_host": 2,
    "device_memory_bytes": 1e9,
    "intra_host": {"bandwidth_bytes_per_s": 1e12, "latency_ns": 10},
    "inter_host": {"bandwidth_bytes_per_s": 1e12, "latency_ns": 10},
}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    """Four operators of 1 ms a row with 0.4 GB of parameters in all, which scale perfectly."""
    nodes = [
        {
            "name": f"n{i}", "op": "linear", "inputs": [f"n{i - 1}" if i else "x"],
            "params": [f"w{i}"], "outputs": [{"bytes_per_row": 100}], "forward_ns": [1e6],
            "backward_ns": [2e6], "saved_bytes": [100],
        }
        for i in range(4)
    ]  # fmt: skip
    graph = {
        "format": "rannc-graph-profile", "version": 1, "rows": [1],
        "inputs": [{"name": "x", "bytes_per_row": 100}],
        "params": [{"id": f"w{i}", "bytes": 1e8} for i in range(4)], "nodes": nodes,
    }  # fmt: skip
    (tmp_path / "g.json").write_text(json.dumps(graph))
    (tmp_path / "c.toml").write_text(planner._toml(CLUSTER))
    return tmp_path


def rows(files, **options):
    graphs = {"as given": files / "g.json"}
    return advise.table(graphs, files / "c.toml", [64], **options)


def test_the_fewest_devices_and_the_knee_are_found(files):
    found = rows(files)
    # Parameters, gradients and optimizer take 1.6 GB: one device holds 1 GB.
    assert [(case["devices"], case["feasible"]) for case in found] == [
        (1, False), (2, True), (4, True),
    ]  # fmt: skip
    assert max(map(len, advise.text(found).splitlines())) <= 80
    two, four = found[1:]
    # 64 rows of 12 ms on two devices, without messages that count.
    assert two["iteration_ns"] == pytest.approx(64 * 12e6 / 2, rel=0.05)
    assert two["device_s_per_row"] == pytest.approx(0.012, rel=0.05)
    assert four["iteration_ns"] < two["iteration_ns"] / 1.5
    assert [case["knee"] for case in found] == [False, False, True]
    text = advise.text(found, price=3.6)
    assert "does not fit" in text and "<- knee" in text and "cost of 1e6 rows" in text
    assert "The fewest devices that hold it are 2." in text
    assert advise.cost_of(two, 3.6) == pytest.approx(12, rel=0.05)


def test_how_far_it_is_is_heard_over_all_curves(files):
    heard = []
    rows(files, memory=(1, 2), progress=heard.append)
    assert heard == sorted(heard) and 0 < heard[0] < 0.2 and 0.7 < heard[-1] <= 1


def test_the_fewest_devices_are_found_between_powers_of_two_too(files):
    (files / "c.toml").write_text(planner._toml(CLUSTER | {"hosts": 1, "devices_per_host": 8}))
    graph = json.loads((files / "g.json").read_text())
    (files / "g.json").write_text(json.dumps(graph | {"nodes": graph["nodes"][:3]}))
    # Of three operators, each of which takes 0.4 GB, a device of 0.7 GB holds one.
    found = rows(files, memory=(0.7,))
    assert [(case["devices"], case["feasible"]) for case in found] == [
        (1, False), (2, False), (3, True), (4, True), (8, True),
    ]  # fmt: skip
    assert "The fewest devices that hold it are 3." in advise.text(found)
    found = rows(files, memory=(0.7,), devices=[2, 4])
    assert [case["devices"] for case in found] == [2, 4]  # as asked for


def test_a_price_is_one_of_the_cluster_too_and_goes_into_the_json(files):
    (files / "c.toml").write_text(
        planner._toml(CLUSTER | {"version": 2, "price_per_device_hour": 3.6})
    )
    assert advise.price_in(files / "c.toml") == 3.6
    found = json.loads(advise.as_json(rows(files), 3.6))
    assert "price_per_row" not in found[0]  # it does not fit
    assert found[1]["price_per_row"] == pytest.approx(12e-6, rel=0.05)
    (files / "c.toml").write_text(planner._toml(CLUSTER))
    assert advise.price_in(files / "c.toml") == 0


def test_memory_and_recompute_have_curves_of_their_own(files):
    found = rows(files, memory=(2, 0.1), recompute=("auto", "never"), devices=[1])
    assert [(case["memory_gb"], case["recompute"], case["feasible"]) for case in found] == [
        (2, "auto", True), (2, "never", True), (0.1, "auto", False), (0.1, "never", False),
    ]  # fmt: skip
    assert "Nothing fits: no plan fits" in advise.text(found[2:])
    found = rows(files, memory=(2, 1), devices=[1, 2, 4])
    assert "are 1, or up to 2 in other lines of the table." in " ".join(advise.text(found).split())


def test_a_chart_is_a_file_without_anything_from_elsewhere(files):
    advise.write_chart(files / "p.html", rows(files))
    text = (files / "p.html").read_text()
    assert text.count("<circle") == 2 and "http" not in text
    # A legend of the curves' own colours, which a rule of the page would override as an attribute.
    (color,) = re.findall(r'stroke="(hsl[^"]*)"', text)
    assert f'style="fill: {color}">64 rows, as given<' in text
    with pytest.raises(PlannerInputError, match="cannot be written"):
        advise.write_chart("/no/folder/p.html", rows(files))


def test_numbers_that_the_cluster_cannot_have_are_said(files):
    with pytest.raises(PlannerInputError, match=r"3 devices cannot be made .* 2 hosts of 2"):
        rows(files, devices=[3])
    (files / "c.toml").write_text("hosts = 2\n")
    with pytest.raises(PlannerInputError, match=r"c\.toml: is no cluster: 'devices_per_host'"):
        rows(files)
