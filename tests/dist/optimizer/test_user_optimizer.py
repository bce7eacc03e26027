"""Every class of optimizers that steps each parameter by itself steps as in one process, alone or
in a list; others are refused."""

import itertools

import pytest
import selected_cases

FEW = ["adafactor", "adafactor_relative", "by_hand", "adamw_fused", "momentum"]
OTHERS = [
    "adafactor_scaled", "torch_adafactor", "adamw", "adamw_loop",
    "adamw_foreach", "adam_fused",
    "amsgrad", "sgd", "sgd_fused", "SGD_foreach", "rmsprop", "RMSprop_foreach", "adagrad",
    "adagrad_fused", "Adagrad_foreach", "adadelta", "Adadelta_foreach", "adamax", "Adamax_foreach",
    "asgd", "ASGD_foreach", "nadam", "NAdam_foreach", "radam", "RAdam_foreach", "rprop",
    "Rprop_foreach",
]  # fmt: skip
PLANS = ("2+2", "1+2+1")


LISTS = ["lists/2+2", "lists/2+2/when=late"]
OTHER_LISTS = ["lists/1+2+1", "lists/1+2+1/when=late"]
ERRORS = ["not_finite/2+2", "refused/1+2+1"]


def cases(names, plans):
    return [f"steps/{plan}/optimizer={name}" for name, plan in itertools.product(names, plans)]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    return selected_cases.found("optimizers.py", request, tmp_path_factory)


@pytest.mark.parametrize(
    "case",
    cases(FEW, PLANS[:1])
    + LISTS
    + ERRORS
    + [
        pytest.param(name, marks=pytest.mark.all)
        for name in cases(FEW, PLANS[1:]) + cases(OTHERS, PLANS) + OTHER_LISTS
    ],
)
def test_steps_are_those_of_one_process(found, case):
    assert not found[case], found[case]
