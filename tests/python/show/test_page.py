"""The page of a plan: what is in it, and, in a browser, what it shows."""

import base64
import gzip
import json
import re
import shutil
import time
from pathlib import Path

import pytest

import pyrannc
from pyrannc import planner
from pyrannc.planner import PlannerInputError
from pyrannc.show import page

CLUSTER = {
    "format": "rannc-cluster", "version": 1, "hosts": 2, "devices_per_host": 2,
    "device_memory_bytes": 7000,
    "intra_host": {"bandwidth_bytes_per_s": 1e9, "latency_ns": 10},
    "inter_host": {"bandwidth_bytes_per_s": 1e8, "latency_ns": 100},
}  # fmt: skip
REQUEST = {"format": "rannc-plan-request", "version": 1, "global_batch": 8}
EVIL = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 1'>"


def graph(name="blocks", length=8, module="blocks"):
    """Blocks of two operators, of which each has a parameter; all numbers differ."""
    names = [f"{module}.{i // 2}.{'up' if i % 2 == 0 else 'down'}" for i in range(length)]
    nodes = [
        {
            "name": f"{each}.linear", "op": "aten::linear", "params": [f"{each}.weight"],
            "inputs": [f"{names[i - 1]}.linear" if i else "x"], "module": each,
            "outputs": [{"bytes_per_row": 100}], "forward_ns": [1000 + i],
            "backward_ns": [2000 + i], "saved_bytes": [100], "source": f"model.py:{i + 1}",
        }
        for i, each in enumerate(names)
    ]  # fmt: skip
    return {
        "format": "rannc-graph-profile", "version": 2, "name": name, "rows": [1],
        "inputs": [{"name": "x", "bytes_per_row": 100}],
        "params": [{"id": f"{each}.weight", "bytes": 400 + i} for i, each in enumerate(names)],
        "nodes": nodes,
    }  # fmt: skip


@pytest.fixture
def files(tmp_path):
    (tmp_path / "g.json").write_text(json.dumps(graph()))
    plan = pyrannc.plan(graph(), CLUSTER, REQUEST)
    assert plan["feasible"] and len(plan["stages"]) > 1
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    return tmp_path


def data_of(text):
    """What the page's scripts get."""
    (found,) = re.findall(
        r'<script type="application/json" id="data">\n(.*?)\n</script>', text, re.S
    )
    return json.loads(found)


def test_a_page_holds_the_plan_and_the_graph_as_they_are_and_nothing_from_elsewhere(files):
    text = page.page([files / "plan.json"], files / "g.json")
    (found,) = data_of(text)["plans"]
    assert found["plan"] == json.loads((files / "plan.json").read_text())
    assert json.loads(gzip.decompress(base64.b64decode(found["packed_graph"]))) == graph()
    assert not re.search(r"""(src|href)=["']|https?://|url\(|@import""", text)
    assert text == page.page([files / "plan.json"], files / "g.json"), "equal files, another page"


def test_names_are_text(files):
    evil = graph(module=EVIL)
    plan = pyrannc.plan(evil, CLUSTER, REQUEST)
    (files / "evil.json").write_text(json.dumps(plan))
    text = page.page([files / "evil.json"])
    assert EVIL not in text and "<img" not in text
    assert data_of(text)["plans"][0]["plan"] == plan


def long_plan(stages, ranks, nodes):
    """A plan as the planner writes it, of a model of so many operators."""
    per = nodes // stages
    predicted = dict.fromkeys(
        ("rows", "forward_ns", "backward_ns", "reduce_ns", "param_bytes", "gradient_bytes",
         "optimizer_bytes", "activation_bytes", "buffer_bytes", "workspace_bytes", "peak_bytes"),
        1000,
    )  # fmt: skip
    each = ranks // stages
    return {
        "format": "rannc-plan", "version": 1, "schedule": "1f1b", "micro_batches": 128,
        "iteration_ns": 300000,
        "stages": [
            {"nodes": [f"transformer.layers.{s}.attention.operator_{n}" for n in range(per)],
             "ranks": list(range(s * each, (s + 1) * each)), "predicted": predicted}
            for s in range(stages)
        ],
    }  # fmt: skip


def test_a_model_of_many_operators_on_many_devices_has_a_page_of_less_than_5_mb(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(long_plan(64, 1024, 6400)))
    text = page.page([tmp_path / "plan.json"])
    assert len(text) < 5 * 2**20
    packed = data_of(text)["plans"][0]["packed"]
    assert len(json.loads(gzip.decompress(base64.b64decode(packed)))["stages"]) == 64


def test_a_page_that_cannot_be_written_is_an_error_before_the_work_begins(files):
    (files / "plan.json").write_text("no plan")  # which nobody comes to see
    with pytest.raises(PlannerInputError, match=r"^/no/folder/p.html: cannot be written: No such"):
        page.write("/no/folder/p.html", [files / "plan.json"])
    with pytest.raises(PlannerInputError, match=r"cannot be written: Is a directory"):
        page.write(files, [files / "plan.json"])


def test_a_graph_of_another_model_is_an_error_that_says_what_differs(files):
    (files / "other.json").write_text(json.dumps(graph(name="other", length=10)))
    with pytest.raises(
        PlannerInputError, match="2 nodes of the graph 'other' are on no stage, one"
    ):
        page.page([files / "plan.json"], files / "other.json")
    (files / "other.json").write_text(json.dumps(graph(name="other", length=6)))
    with pytest.raises(PlannerInputError, match=r"has 'blocks\.3\.\w+\.linear', which the graph"):
        page.page([files / "plan.json"], files / "other.json")
    (files / "other.json").write_text(json.dumps(graph() | {"version": 9}))
    with pytest.raises(PlannerInputError, match=r"^\S*other.json: \$\.version: .*9"):
        page.page([files / "plan.json"], files / "other.json")


# -- in a browser ---------------------------------------------------------------------------------

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
# `make test-all` installs them: third_party/browser.sh.
BROWSER = not (CHROMIUM and DRIVER), "needs Debian's chromium and chromium-driver"


def in_browser(test):
    return pytest.mark.all(pytest.mark.skipif(BROWSER[0], reason=BROWSER[1])(test))


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, from PyPI")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1600"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def opened(browser, path):
    """Opens the page, waits until it is drawn, and returns the browser's own seconds for it."""
    browser.get(f"file://{path}")
    deadline = time.monotonic() + 60
    while not browser.execute_script("return document.documentElement.dataset.ready"):
        assert time.monotonic() < deadline, browser.get_log("browser")
        time.sleep(0.02)
    assert browser.get_log("browser") == []
    return browser.execute_script("return performance.now()") / 1e3


def texts(browser, selector):
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector
    )


def number(browser, name):
    return texts(browser, f'[data-number="{name}"] b')[0]


@in_browser
def test_the_numbers_on_the_page_are_those_of_the_plan(browser, files):
    page.write(files / "p.html", [files / "plan.json"], files / "g.json")
    opened(browser, files / "p.html")
    plan = json.loads((files / "plan.json").read_text())
    as_text = planner.show(plan, width=200)
    assert number(browser, "stages") == str(len(plan["stages"]))
    assert number(browser, "micro-batches") == str(plan["micro_batches"])
    assert f"iteration {number(browser, 'iteration')}\n" in as_text
    for row in texts(browser, '[aria-label="Stages"] tbody tr'):
        assert row
    for stage in plan["stages"]:
        assert stage["notes"]["modules"] in texts(browser, "td.name")


@in_browser
@pytest.mark.parametrize(
    "schedule, interleave, stages", [("gpipe", 1, 4), ("1f1b", 1, 4), ("interleaved", 2, 8)]
)
def test_the_clock_of_the_page_is_that_of_the_planner(browser, files, schedule, interleave, stages):
    forced = {
        "schedule": schedule, "stages": stages, "micro_batches": 8, "interleave": interleave,
        "replicas": [1] * stages,
    }  # fmt: skip
    request = REQUEST | {"schedules": [schedule], "max_interleave": interleave, "force": forced}
    plan = pyrannc.plan(graph(), CLUSTER | {"device_memory_bytes": 1e9}, request)
    assert (plan["schedule"], len(plan["stages"])) == (schedule, stages), plan.get("reason")
    (files / "plan.json").write_text(json.dumps(plan))
    page.write(files / "p.html", [files / "plan.json"])
    opened(browser, files / "p.html")
    groups = browser.execute_script("return computeTimes(arguments[0]).groups", plan)
    last = max(group[-1]["end"] for group in groups)
    # No stage has replicas, so nothing is reduced at the end.
    assert last == pytest.approx(plan["iteration_ns"], rel=1e-6, abs=2)


@in_browser
def test_a_click_on_a_module_shows_its_operators_parameters_and_lines(browser, files):
    page.write(files / "p.html", [files / "plan.json"], files / "g.json")
    opened(browser, files / "p.html")
    browser.execute_script("document.querySelector('[title=\"blocks.2\"]').click()")
    assert texts(browser, ".detail h2") == ["blocks.2"]
    held = texts(browser, ".detail tbody tr")
    assert len(held) == 2 and "blocks.2.up.linear" in held[0] and "model.py:5" in held[0]
    assert texts(browser, '[data-detail="parameters"]') == ["2 of 809 B"]  # 404 and 405
    page.write(files / "p.html", [files / "plan.json"])
    opened(browser, files / "p.html")
    browser.execute_script(
        'document.querySelector(\'[title="blocks.2.up"], [title="blocks.2"]\').click()'
    )
    assert "With --graph" in "".join(texts(browser, ".detail"))


@in_browser
def test_markup_in_names_is_shown_and_not_run(browser, files):
    evil = graph(module=EVIL)
    (files / "evil.json").write_text(json.dumps(pyrannc.plan(evil, CLUSTER, REQUEST)))
    (files / "g.json").write_text(json.dumps(evil))
    page.write(files / "p.html", [files / "evil.json"], files / "g.json")
    opened(browser, files / "p.html")
    browser.execute_script("for (const e of document.querySelectorAll('.unit')) e.click()")
    assert browser.execute_script("return window.evil") is None
    assert EVIL in "".join(texts(browser, ".detail"))


@in_browser
def test_a_page_of_a_thousand_devices_opens_at_once_on_any_screen(browser, tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(long_plan(64, 1024, 6400)))
    page.write(tmp_path / "p.html", [tmp_path / "plan.json"])
    print(f"opened in {opened(browser, tmp_path / 'p.html'):.2f} s")
    for width in (1280, 390):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        found = browser.execute_script("return document.documentElement.scrollWidth")
        assert found <= width, "the page scrolls sideways"
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    for key in ("+", "ArrowRight", "0", "Enter"):  # the keyboard zooms, moves, unfolds
        browser.execute_script(
            "document.querySelector('.view canvas').dispatchEvent("
            "new KeyboardEvent('keydown', {key: arguments[0]}))",
            key,
        )
    assert browser.get_log("browser") == []


@in_browser
@pytest.mark.parametrize("stages", [8, 16, 88])
def test_the_strip_shows_every_stage_and_cuts_no_label_and_two_pages_are_printed(
    browser, tmp_path, stages
):
    (tmp_path / "plan.json").write_text(json.dumps(long_plan(stages, 8 * stages, 40 * stages)))
    page.write(tmp_path / "p.html", [tmp_path / "plan.json"])
    opened(browser, tmp_path / "p.html")
    found = browser.execute_script(
        "const strip = document.querySelector('.strip'), frame = strip.parentElement;"
        "const labels = [...strip.querySelectorAll('small')];"
        "return [strip.children.length, frame.scrollWidth - frame.clientWidth,"
        " labels.filter((each) => each.scrollWidth > each.clientWidth).length,"
        " strip.lastChild.getBoundingClientRect().width >= 6]"
    )
    assert found == [stages, 0, 0, True]
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    assert len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed))) <= 2


@in_browser
def test_on_a_phone_what_is_beyond_the_edge_makes_no_row_higher(browser, files):
    page.write(files / "p.html", [files / "plan.json"], files / "g.json")
    size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    opened(browser, files / "p.html")
    heights = browser.execute_script(
        "return [...document.querySelectorAll('[aria-label^=\"The best plan\"] tbody tr')]"
        ".map((row) => row.offsetHeight)"
    )
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(heights) > 1 and max(heights) < 2 * 18  # less than two lines


@in_browser
def test_what_does_not_fit_and_two_plans_have_pages(browser, files):
    small = pyrannc.plan(graph(), CLUSTER | {"device_memory_bytes": 100}, REQUEST)
    (files / "small.json").write_text(json.dumps(small))
    page.write(files / "p.html", [files / "small.json"])
    opened(browser, files / "p.html")
    shown = "".join(texts(browser, ".plan"))
    assert small["reason"] in shown and "too much" in shown
    page.write(files / "p.html", [files / "plan.json", files / "plan.json"])
    opened(browser, files / "p.html")
    assert Path(files / "plan.json").name in texts(browser, "h1")[0]
    assert texts(browser, ".plan") and len(texts(browser, ".plan")) == 2
    assert "differs" not in "".join(texts(browser, '[aria-label="What differs"] td'))
