"""Every class of optimizers that steps each parameter by itself steps as in one process."""

import itertools
import json

import mpi
import pytest

FEW = ["adafactor", "by_hand", "adamw_fused", "momentum"]
OTHERS = [
    "adafactor_scaled", "torch_adafactor", "adamw", "adamw_loop", "adamw_foreach", "adam_fused",
    "amsgrad", "sgd", "sgd_fused", "SGD_foreach", "rmsprop", "RMSprop_foreach", "adagrad",
    "adagrad_fused", "Adagrad_foreach", "adadelta", "Adadelta_foreach", "adamax", "Adamax_foreach",
    "asgd", "ASGD_foreach", "nadam", "NAdam_foreach", "radam", "RAdam_foreach", "rprop",
    "Rprop_foreach",
]  # fmt: skip
PLANS = ("2+2", "1+2+1")


def cases(names, plans):
    return [f"steps/{plan}/optimizer={name}" for name, plan in itertools.product(names, plans)]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    """By name of a case, what was wrong in it; of the selected ones, which share one start."""
    names = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == request.path and "case" in getattr(item, "fixturenames", ())
    ]
    path = tmp_path_factory.mktemp("cases") / "cases.json"
    path.write_text(json.dumps(names))
    job = mpi.run([str(mpi.JOBS / "optimizers.py"), str(path)], 4, timeout=600)
    done = path.with_suffix(".found")
    faults = json.loads(done.read_text()) if done.exists() else {}
    return {name: faults.get(name, f"did not run:\n{job.stderr[-3000:]}") for name in names}


@pytest.mark.parametrize(
    "case",
    cases(FEW, PLANS[:1])
    + [
        pytest.param(name, marks=pytest.mark.all)
        for name in cases(FEW, PLANS[1:]) + cases(OTHERS, PLANS)
    ],
)
def test_steps_are_those_of_one_process(found, case):
    assert not found[case], found[case]
