"""Links of a job: measured by what messages travel by, and known to the next job of its kind."""

import json
import pickle
from types import SimpleNamespace

import pytest
import torch

from pyrannc import Config
from pyrannc.job import device_facts, transport
from pyrannc.profiling import links

DEVICE = torch.device("meta")  # no test computes on it
INTRA, INTER = (1500.5, 2.5e10), (20_000.0, 1.25e9)
TWO_HOSTS = ["a", "a", "b"]


class World:
    """Of one process, which is rank 0 of as many as ``names`` of their devices."""

    rank, host = 0, "a"

    def __init__(self, names):
        self.names = names

    def all_gather(self, item):
        return [pickle.dumps(name) for name in self.names]

    def broadcast(self, message, root):
        return message


class Job:
    """What was measured is INTRA and INTER; it may be changed."""

    def __init__(self, monkeypatch, folder):
        self.measured, self.by = 0, "staged"
        self.speeds = {"intra_host": INTRA, "inter_host": INTER}
        self.folder = folder
        properties = SimpleNamespace(name="Slate 5", total_memory=64, L2_cache_size=8)
        module = SimpleNamespace(get_device_properties=lambda device: properties)
        monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
        monkeypatch.setattr(transport, "measure_links", self._measure)
        monkeypatch.setattr(transport, "name", lambda world, device, config: self.by)

    def _measure(self, world, device, config):
        self.measured += 1
        return SimpleNamespace(
            **{name: each and links.Speed(*each) for name, each in self.speeds.items()}
        )

    def links(self, hosts=TWO_HOSTS, names=None, device=DEVICE, **settings):
        config = Config(profile_cache=str(self.folder), **settings)
        world = World(names or ["Slate 5"] * len(hosts))
        found = links.measure_links(
            SimpleNamespace(world=world, device=device, config=config), hosts
        )
        return [each and (each.latency_ns, each.bandwidth_bytes_per_s)
                for each in (found.intra_host, found.inter_host)]  # fmt: skip


@pytest.fixture
def job(monkeypatch, tmp_path):
    return Job(monkeypatch, tmp_path)


def test_a_second_job_of_the_same_kind_measures_nothing(job):
    assert job.links() == [INTRA, INTER]
    job.speeds = {}
    assert job.links() == [INTRA, INTER]
    assert job.measured == 1
    (path,) = job.folder.iterdir()
    assert json.loads(path.read_text())["links"] == {
        "intra_host": [*INTRA], "inter_host": [*INTER],
    }  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        {"hosts": ["a", "a", "c"]},
        {"names": ["Slate 5", "Slate 5", "Slate 6"]},
        {"pinned_memory_mib": 64},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_kind_of_job_measures_its_own(job, other):
    job.links()
    job.links(**other)
    assert job.measured == 2


@pytest.mark.parametrize("changed", ["transport", "version", "driver", "float32"])
def test_other_transports_and_versions_measure_their_own(job, monkeypatch, changed):
    job.links()
    if changed == "transport":
        job.by = "another"
    elif changed == "version":
        monkeypatch.setattr(torch, "__version__", "9.9.0")
    elif changed == "driver":
        monkeypatch.setattr("pyrannc.profiling.cache._driver", lambda: "999.1")
    else:
        monkeypatch.setattr(device_facts, "float32_precisions", lambda: ["tf32"] * 3)
    job.links()
    assert job.measured == (1 if changed == "float32" else 2)


def test_a_class_of_links_that_is_not_known_is_measured(job):
    """As where a job of the same hosts has two ranks on one of them for the first time."""
    job.speeds["intra_host"] = None
    assert job.links(["a", "b"]) == [None, INTER]
    job.speeds["intra_host"] = INTRA
    assert job.links(["a", "b", "b"]) == [INTRA, INTER]
    assert job.measured == 2
    assert job.links(["a", "b"]) == [None, INTER]
    assert job.measured == 2


def test_a_job_of_one_rank_has_no_links(job):
    assert job.links(["a"]) == [None, None]
    assert job.measured == 0


def test_of_the_host_they_are_measured_every_time(job):
    for times in (1, 2):
        assert job.links(device=torch.device("cpu")) == [INTRA, INTER]
        assert job.measured == times
    assert not list(job.folder.iterdir())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"format": ', "Expecting value"),
        ("[]", "it is no rannc-link-cache"),
        ('{"format": "rannc-link-cache", "version": 9}', "its version is 9, not 1"),
        (
            '{"format": "rannc-link-cache", "version": 1, "environment": 5}',
            "of another machine or job",
        ),
        ({"intra_host": [1, 0]}, "its links are malformed"),
        ({"intra_host": [1]}, "its links are malformed"),
    ],
)
def test_a_file_that_cannot_be_read_is_ignored_with_one_line_and_written_anew(
    job, capfd, text, reason
):
    job.links()
    (path,) = job.folder.iterdir()
    if isinstance(text, dict):
        text = json.dumps(json.loads(path.read_text()) | {"links": text})
    path.write_text(text)
    assert job.links() == [INTRA, INTER]
    (line,) = [line for line in capfd.readouterr().err.splitlines() if str(path) in line]
    assert reason in line
    assert job.links() == [INTRA, INTER]
    assert job.measured == 2


def test_a_folder_that_cannot_be_written_is_one_line(job, tmp_path, capfd):
    (tmp_path / "file").write_text("")
    job.folder = tmp_path / "file" / "folder"
    assert job.links() == [INTRA, INTER]
    assert "measured links are not kept for the next run" in capfd.readouterr().err
    job.folder = "off"
    assert job.links() == [INTRA, INTER]
    assert job.measured == 2
