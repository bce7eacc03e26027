"""Unmodified models train in groups of ranks as in one process: losses, gradients, parameters."""

import pytest
import torchrun

pytest.importorskip("transformers")

from groups_of_models import MODELS

MESHES = {
    "(1, 2)": (2, {"tensor_parallel": 2}),
    "(1, 2), the sequence": (2, {"tensor_parallel": 2, "sequence_parallel": True}),
    "(1, 4), the sequence": (4, {"tensor_parallel": 4, "sequence_parallel": True}),
    "(1, 3)": (3, {"tensor_parallel": 3}),
    "(1, 4)": (4, {"tensor_parallel": 4}),
    "2 x (1, 2)": (4, {"tensor_parallel": 2, "partition_num": 1, "replica_nums": [2]}),
    "two stages of (1, 2)": (4, {"tensor_parallel": 2, "partition_num": 2, "pipeline_num": 2}),
}
#: They share two starts, of 2 ranks and of 4.
SHORT = {
    ("t5", "(1, 2)"), ("resnet", "(1, 2)"), ("lora", "(1, 2)"), ("gpt2", "two stages of (1, 2)"),
    ("vit", "(1, 2), the sequence"),
}  # fmt: skip


def case(name, mesh):
    number, settings = MESHES[mesh]
    code = f"from groups_of_models import trains_alike\ntrains_alike({name!r}, **{settings!r})\n"
    marks = [pytest.mark.ranks(code, number=number)]
    marks += [] if (name, mesh) in SHORT else [pytest.mark.all]
    return pytest.param(name, mesh, marks=marks)


@pytest.mark.usefixtures("done")
@pytest.mark.parametrize(("name", "mesh"), [case(name, mesh) for mesh in MESHES for name in MODELS])
def test_a_model_trains_in_groups_as_in_one_process(name, mesh):
    pass


@pytest.mark.all
def test_ranks_of_torchrun_form_a_group(tmp_path):
    code = "from groups_of_models import trains_alike\ntrains_alike('gpt2', tensor_parallel=2)\n"
    done = torchrun.run(code, 2, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
