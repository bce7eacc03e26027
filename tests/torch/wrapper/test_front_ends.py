"""Which front end captures a model."""

import copy
import sys
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from pyrannc import _C, Config, RaNNCError, RaNNCModule, TraceError


class TracerRefuses(nn.Linear):
    def forward(self, x):
        if isinstance(x, FakeTensor) and not torch.compiler.is_exporting():
            raise ValueError("not by the tracer")
        return super().forward(x)


class OnlyEager(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum().item() > 0 else x


class TracerIsWrong(nn.Linear):
    def forward(self, x):
        x = super().forward(x)
        return x if torch.compiler.is_exporting() or type(x) is torch.Tensor else 2 * x


def run(model, frontend, **settings):
    model = RaNNCModule(model, None, Config(frontend=frontend, log_level="info", **settings))
    x = torch.ones(4, 4)
    found = model(x)
    torch.testing.assert_close(found, model.module(x))
    return model._deployment.task.front_ends.used


@pytest.mark.parametrize("frontend", ["torchscript", "export"])
def test_the_one_that_is_set_is_used(frontend):
    assert run(nn.Linear(4, 4), frontend) == frontend


@pytest.mark.parametrize("frontend", ["torchscript", "export"])
def test_that_torchscript_is_deprecated_is_not_shown(frontend):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # what torch 2.14 gives for torch.jit.trace
        assert run(nn.Linear(4, 4), frontend) == frontend


def test_auto_begins_with_the_tracer_and_says_so(capfd):
    assert run(nn.Linear(4, 4), "auto") == "torchscript"
    assert "captured by the front end torchscript" in capfd.readouterr().err


@pytest.mark.parametrize(
    "model, reason", [(TracerRefuses, "not by the tracer"), (TracerIsWrong, "does not compute")]
)
def test_auto_falls_back_and_says_why(model, reason, capfd):
    assert run(model(4, 4), "auto") == "export"
    line = next(
        line for line in capfd.readouterr().err.splitlines() if "as torchscript could not" in line
    )
    assert "captured by the front end export" in line and reason in line
    with pytest.raises(TraceError, match=reason):
        run(model(4, 4), "torchscript")


def test_where_none_can_each_says_why():
    with pytest.raises(TraceError, match=r"no front end can(.|\n)*torchscript: (.|\n)*export: "):
        run(OnlyEager(4, 4), "auto")


def test_later_captures_are_of_the_same_front_end():
    model = RaNNCModule(TracerRefuses(4, 4), None, Config(frontend="auto"))
    model(torch.ones(4, 4))
    model.eval()
    with torch.no_grad():
        assert model(torch.ones(4, 4)).shape == (4, 4)


def take_away(frontend, monkeypatch):
    """As in a torch without torch.export, or a build without torch's tracer."""
    if frontend == "export":
        monkeypatch.setitem(sys.modules, "torch.export", None)
    else:
        monkeypatch.delattr(_C.frontend, "Tracer")


# It was the ImportError of a line of RaNNC's, which named no remedy; and under auto, too.
@pytest.mark.parametrize("frontend, other", [("export", "torchscript"), ("torchscript", "export")])
def test_one_that_is_not_installed_is_an_error_that_names_the_other(frontend, other, monkeypatch):
    monkeypatch.setenv("RANNC_FRONTEND", frontend)
    take_away(frontend, monkeypatch)
    model = RaNNCModule(nn.Linear(4, 4))
    told = rf"front end '{frontend}' is not installed: (.|\n)*RANNC_FRONTEND={other} "
    with pytest.raises(RaNNCError, match=told):
        model(torch.ones(4, 4))


def test_auto_passes_over_one_that_is_not_installed(monkeypatch, capfd):
    take_away("torchscript", monkeypatch)
    assert run(nn.Linear(4, 4), "auto") == "export"
    assert "the front end 'torchscript' is not installed" in capfd.readouterr().err
    take_away("export", monkeypatch)
    with pytest.raises(TraceError, match=r"'torchscript' is not (.|\n)*'export' is not installed"):
        run(nn.Linear(4, 4), "auto")


@pytest.mark.parametrize("frontend", ["torchscript", "export"])
def test_tensors_in_place_of_parameters(frontend):
    model = RaNNCModule(nn.Linear(4, 4), None, Config(frontend=frontend))
    weight, bias = torch.ones(4, 4, requires_grad=True), torch.ones(4)
    found = torch.func.functional_call(
        model, {"weight": 2 * weight, "bias": bias}, torch.ones(2, 4)
    )
    torch.testing.assert_close(found, torch.full((2, 4), 9.0))
    found.sum().backward()
    torch.testing.assert_close(weight.grad, torch.full((4, 4), 4.0))
    assert isinstance(model.module.weight, nn.Parameter)


@pytest.mark.parametrize("frontend", ["torchscript", "export"])
def test_hooks_of_the_backward_see_what_they_see_in_eager(frontend):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    twin, seen, expected = copy.deepcopy(plain), [], []
    for model, found in ((plain, seen), (twin, expected)):
        for name, module in model.named_children():

            def look(_module, inputs, outputs, name=name, found=found):
                found.append([name, *(each for each in (*inputs, *outputs) if each is not None)])

            module.register_full_backward_hook(look)
    wrapped = RaNNCModule(plain, None, Config(frontend=frontend, pipeline_num=2))
    x = torch.randn(6, 4, requires_grad=True)
    wrapped(x).square().mean().backward()
    twin(x).square().mean().backward()
    assert [name for name, *_ in seen] == [name for name, *_ in expected]
    torch.testing.assert_close([each[1:] for each in seen], [each[1:] for each in expected])
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(parameter.grad, twin.get_parameter(name).grad)
