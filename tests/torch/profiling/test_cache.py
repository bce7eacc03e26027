"""Measured costs on disk: found again, kept apart by machine, and never in the way."""

import json
from types import SimpleNamespace

import pytest
import torch

from pyrannc import _C
from pyrannc.profiling import operators
from pyrannc.profiling.cache import ProfileCache, environment_of_process
from pyrannc.profiling.kept_file import user_folder

GRAPH = """graph g(%x) -> (%z)
  input x: float32[B, 8] apart(0)
  parameter w: float32[8, 8] grad
  node up = aten::linear(%x, %w, none) -> %y
    result y: float32[B, 8] apart(0) grad
  node act = aten::tanh(%y) -> %z
    result z: float32[B, 8] apart(0) grad
"""
ROWS = [2, 4]
COSTS = {"linear": [[10, 20, 0], [11, 21, 64]]}


@pytest.fixture
def warnings(capfd):
    def read():
        return [line for line in capfd.readouterr().err.splitlines() if "warn" in line.lower()]

    return read


def only_file(folder):
    (path,) = folder.iterdir()
    return path


def test_what_was_measured_is_found_again_on_the_same_machine_only(tmp_path):
    ProfileCache(tmp_path, {"torch": "2.13"}).add(COSTS)
    assert ProfileCache(tmp_path, {"torch": "2.13"}).read(["linear", "tanh", ""]) == COSTS
    assert ProfileCache(tmp_path, {"torch": "2.14"}).read(["linear"]) == {}
    ProfileCache(tmp_path, {"torch": "2.13"}).add({"tanh": [[1, 2, 3]]})
    found = ProfileCache(tmp_path, {"torch": "2.13"}).read(["linear", "tanh"])
    assert found == COSTS | {"tanh": [[1, 2, 3]]}


def test_only_the_user_may_read_what_was_measured(tmp_path):
    folder = tmp_path / "new"
    ProfileCache(folder, {}).add(COSTS)
    assert [each.stat().st_mode & 0o777 for each in (folder, only_file(folder))] == [0o700, 0o600]


ACCELERATOR = {"name": "Slate 5", "total_memory": 64, "L2_cache_size": 8}


def environment(monkeypatch, **properties):
    """Of a process that computes on an accelerator with these properties, too."""
    found = SimpleNamespace(**ACCELERATOR | properties)
    module = SimpleNamespace(get_device_properties=lambda device: found)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    return environment_of_process(torch.device("meta"))


@pytest.fixture
def switches():
    """As they were before."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    places = [
        (cuda.matmul, "fp32_precision"), (cudnn.conv, "fp32_precision"),
        (cuda.matmul, "allow_fp16_reduced_precision_reduction"),
        (cuda.matmul, "allow_bf16_reduced_precision_reduction"), (cudnn, "benchmark"),
    ]  # fmt: skip
    before = [getattr(*place) for place in places]
    flash = cuda.flash_sdp_enabled()
    yield
    for place, value in zip(places, before, strict=True):
        setattr(*place, value)
    cuda.enable_flash_sdp(flash)
    torch.use_deterministic_algorithms(False)


def test_costs_are_those_of_one_kind_of_device_and_its_driver(monkeypatch):
    before = environment(monkeypatch)
    assert before == environment(monkeypatch)
    for name, other in (("name", "Slate 6"), ("total_memory", 65), ("L2_cache_size", 9)):
        assert environment(monkeypatch, **{name: other}) != before, name
    for place, other in (
        ("pyrannc.profiling.cache._driver", lambda: "999.1"),
        ("torch.__version__", "9.9.0"),
        ("torch.version.cuda", "99.1"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, other)
            assert environment(monkeypatch) != before, place


@pytest.mark.parametrize(
    "change",
    [
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
        "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False",
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False",
        "torch.backends.cudnn.benchmark = True",
        "torch.backends.cuda.enable_flash_sdp(False)",
        "torch.use_deterministic_algorithms(True)",
    ],
)
def test_costs_are_those_of_one_set_of_precisions_and_choices(monkeypatch, switches, change):
    before = environment(monkeypatch)
    exec(change)
    assert environment(monkeypatch) != before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"format": ', "Expecting value"),
        ("[]", "it is no rannc-profile-cache"),
        ('{"format": "rannc-profile-cache", "version": 9}', "its version is 9, not 1"),
        (
            '{"format": "rannc-profile-cache", "version": 1, "environment": {},'
            ' "costs": {"a": [[1, -2, 3]]}}',
            "its costs are malformed",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_ignored_with_one_line_and_written_anew(
    tmp_path, warnings, text, reason
):
    cache = ProfileCache(tmp_path, {})
    cache.add(COSTS)
    path = only_file(tmp_path)
    path.write_text(text)
    assert cache.read(["linear"]) == {}
    (line,) = warnings()
    assert str(path) in line and reason in line
    cache.add(COSTS)
    assert cache.read(["linear"]) == COSTS
    assert only_file(tmp_path) == path  # nothing else is left


def test_a_file_of_the_first_format_is_still_read(tmp_path):
    cache = ProfileCache(tmp_path, {})
    cache.add({"other": COSTS["linear"]})
    path = only_file(tmp_path)
    content = {
        "format": "rannc-profile-cache",
        "version": 1,
        "environment": {},
        # The first 32 digits of the SHA-256 of "linear".
        "costs": {"7f2fe580edb35154041fa3d4b41dd6d3": [[10, 20, 0], [11, 21, 64]]},
    }
    path.write_text(json.dumps(content))
    assert cache.read(["linear"]) == COSTS


def test_off_and_a_folder_that_cannot_be_written(tmp_path, warnings, monkeypatch):
    off = ProfileCache("off")
    off.add(COSTS)
    assert off.read(["linear"]) == {}
    (tmp_path / "file").write_text("")
    ProfileCache(tmp_path / "file" / "folder", {}).add(COSTS)
    (line,) = [line for line in warnings() if "not kept" in line]
    assert "measured costs are not kept for the next run" in line
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_folder() == tmp_path / "rannc"


def test_a_second_run_times_nothing(tmp_path, monkeypatch):
    graph = _C.ir.parse(GRAPH)
    traced = operators.trace(graph, [], ROWS)
    world = _C.comm.make_local(1)[0]
    first = operators.time_operators(graph, [], traced, world, ROWS, tmp_path)
    path = only_file(tmp_path)
    content = json.loads(path.read_text())
    assert len(content["costs"]) == 2
    # Costs that nothing could have measured: they are taken as they are.
    for rows in content["costs"].values():
        rows[0][0] = 12_345_678_901
    path.write_text(json.dumps(content))
    second = operators.time_operators(graph, [], traced, world, ROWS, tmp_path)
    assert first.to_json() != second.to_json()
    assert second.to_json().count("12345678901") == 2


def test_what_is_estimated_is_estimated_again():
    graph = _C.ir.parse(GRAPH.replace("aten::tanh", "aten::no_such_operator"))
    _, measured = _C.profile.measure(graph, [], [], _C.comm.make_local(1)[0], ROWS)
    assert [key.split("(")[0] for key in measured] == ["aten::linear"]


def test_functions_of_the_user_are_measured_every_time(tmp_path):
    text = """graph g(%x) -> (%y)
  input x: float32[B] apart(0)
  node own = Own(%x) -> %y python #0
    result y: float32[B] apart(0)
"""
    graph = _C.ir.parse(text)
    assert _C.profile.keys(graph, ROWS) == [""]
    _, measured = _C.profile.measure(graph, [torch.relu], [], _C.comm.make_local(1)[0], ROWS)
    assert measured == {}
