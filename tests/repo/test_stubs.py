"""The committed signatures of the extension are those of the extension that is built."""

import difflib
from pathlib import Path

import pytest
import stubs
import torch

from pyrannc.native import major_minor

ROOT = Path(__file__).parents[2]
PINNED = (ROOT / "third_party" / "torch.txt").read_text().split("torch==")[1].split()[0]


# Signatures are written by torch's pybind11, which is not the same in each release.
@pytest.mark.skipif(
    major_minor(torch.__version__) != major_minor(PINNED), reason=f"stubs are of torch {PINNED}"
)
def test_the_committed_stubs_are_those_of_the_built_extension():
    old, new = stubs.committed(), stubs.generate()
    changes = [
        line
        for name in sorted(old.keys() | new.keys())
        for line in difflib.unified_diff(
            old.get(name, "").splitlines(),
            new.get(name, "").splitlines(),
            name,
            name,
            "",
            "",
            0,
            "",
        )
    ]
    assert not changes, "\n".join(["the extension changed; accept it with: make stubs", *changes])
