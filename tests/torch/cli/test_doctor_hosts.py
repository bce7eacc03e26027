"""What differs between hosts, with what mends it."""

from types import SimpleNamespace

from pyrannc.cli import doctor_hosts


def test_versions_that_differ_are_named_with_their_hosts():
    facts = {"python": "3.11.2", "mpirun": "mpirun (Open MPI) 4.1.4"}
    found = SimpleNamespace(names=["a", "b"], facts=[facts, facts | {"python": "3.12.1"}])
    packages = [({"torch": "2.13.0", "pyrannc": "0.8.0"}, []),
                ({"torch": "2.12.0", "pyrannc": "0.8.0"}, [])]  # fmt: skip
    problems = []
    doctor_hosts._versions(problems, found, packages)
    python, torch = problems
    assert "different versions of python: 3.11 on a, 3.12 on b" in python
    assert "different versions of torch: 2.13.0 on a, 2.12.0 on b" in torch
    assert "ssh b" in torch and "-m pip install torch==2.13.0" in torch


def test_a_clock_counts_that_is_further_ahead_than_an_answer_takes():
    assert doctor_hosts.clock_ahead(100.0, 101.5, 101.0) == 0.0
    assert doctor_hosts.clock_ahead(100.0, 160.5, 101.0) == 60.0
    assert doctor_hosts.clock_ahead(100.0, 103.0, 108.0) == 0.0  # halfway, on a slow way
