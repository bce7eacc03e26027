"""Other threads get torch's own answers while a model is captured.

A capture replaces functions and properties of torch, which all threads see. In torch 2.11 to 2.13
another thread's torch.any(torch.ones(4)) was False while a model with gaussian_nll_loss was
captured, and Normal(0, -1) was accepted: what was replaced there did not ask which thread calls.
"""

import contextlib
import io
import itertools
import logging
import sys
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.distributions import Distribution, Normal
from torch.nn import functional

from pyrannc import _C
from pyrannc.capture import replaced as home
from pyrannc.capture import torch_private
from pyrannc.capture.exported import program  # noqa: F401  imports all modules of the front end
from pyrannc.capture.fake_mode import FakeMode
from pyrannc.capture.model import capture
from pyrannc.capture.torch_private import FakeTensorMode
from pyrannc.generation.whole_draws import WholeDraws

FRONT_ENDS = ["torchscript", "export"] if hasattr(_C.frontend, "Tracer") else ["export"]
SHOWN = []  # warnings, by the function that stands in for Python's
_NUMBERS = itertools.count()


class Positive(nn.Module):
    """Looks for elements, so that each call is one node."""

    def forward(self, x):
        (places,) = torch.where(x.flatten() > 0)
        return torch.zeros_like(x).flatten().index_add(0, places, x.flatten()[places]).view_as(x)


class Model(nn.Module):
    def __init__(self, ask):
        super().__init__()
        self.ask, self.layer, self.positive = ask, nn.LSTM(2, 2, batch_first=True), Positive()

    def forward(self, x):
        self.ask()
        mean, _ = self.layer(x)
        return functional.gaussian_nll_loss(self.positive(mean), mean, mean.exp())


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def custom_function():
    x = torch.ones(2, requires_grad=True)
    y = Doubled.apply(x)
    y.sum().backward()
    return y.tolist(), x.grad.tolist()


def fake(rows=2):
    with FakeTensorMode():
        return torch.zeros(rows, 3, requires_grad=True)


def on_fake(look):
    """The answer for a tensor of two rows, and of three."""
    return lambda: [str(look(fake(rows))) for rows in (2, 3)]


def written(tensor):
    tensor = tensor.detach()
    tensor[0] = tensor[1]
    return tensor.shape


def ones():
    return torch.ones(2, 3)


def mask():
    return ones() > 0


def recurrent(name):
    def call():
        x = torch.full((1, 2, 1), 0.5)
        state = torch.zeros(1, 1, 1)
        gates = {"lstm": 4, "gru": 3}.get(name, 1)
        weights = [torch.ones(gates, 1), torch.ones(gates, 1)]
        state = [state, state] if name == "lstm" else state
        function = getattr(torch_private.RECURRENT, name)
        return function(x, state, weights, False, 1, 0.0, False, False, True)[0].tolist()

    return call


def warned():
    before = len(SHOWN)
    warnings.showwarning("The tensor attribute x", UserWarning, __file__, 1)
    return len(SHOWN) - before


def warned_by_warn():
    before = len(SHOWN)
    warnings.warn(f"The tensor attribute {next(_NUMBERS)}", stacklevel=1)  # each is shown once
    return len(SHOWN) - before


def printed():
    text = io.StringIO()
    getattr(torch_private.export_trace(), "print", print)("a", file=text)
    return text.getvalue()


def drawn():
    torch.manual_seed(0)
    return torch.multinomial(torch.ones(2, 50), 3).tolist()


def converted():
    return str(nn.Linear(2, 2)._apply(fn=torch.Tensor.double).weight.dtype)


def of_other_mode():
    with FakeMode():
        return str((torch.ones(2) + 1).shape)


def logged(name):
    """Whether a handler gets an error."""
    records, handler, logger = [], logging.Handler(), logging.getLogger(name)
    handler.emit = records.append
    logger.addHandler(handler)
    try:
        logger.error("a")
    finally:
        logger.removeHandler(handler)
    return len(records)


def accepted(make):
    """A call that says whether ``make`` is refused: from torch 2.15 on by another error during an
    export, in all threads."""

    def call():
        try:
            return make() is not None
        except (ValueError, RuntimeError):
            return False

    return call


#: Replaced of custom autograd functions where apply() is a method of C.
FROM_TORCH_2_14 = {"Function.forward", "Function.setup_context", "BackwardCFunction.__init__"}
#: By class or module, and attribute, what uses the attribute as another thread may.
CASES = {
    "FakeMode.overwritten": of_other_mode,
    "FakeTensor.__format__": on_fake(lambda x: f"{x.sum()}"),
    "Logger.handle": lambda: logged("of.another.thread"),
    "builtins.print": lambda: print(end=""),
    "FakeTensor.__bool__": on_fake(lambda x: bool(x.sum())),
    "FakeTensor.__getitem__": on_fake(lambda x: x[:1].shape),
    "FakeTensor.__len__": on_fake(len),
    "FakeTensor.__setitem__": on_fake(written),
    "FakeTensor.data": on_fake(lambda x: (x.data.shape, x.data.requires_grad)),
    "FakeTensor.dim": on_fake(lambda x: x.dim()),
    "FakeTensor.element_size": on_fake(lambda x: x.element_size()),
    "FakeTensor.grad": on_fake(lambda x: x.grad),
    "FakeTensor.item": on_fake(lambda x: x.sum().item()),
    "FakeTensor.itemsize": on_fake(lambda x: x.itemsize),
    "FakeTensor.masked_scatter": on_fake(lambda x: x.masked_scatter(x > 0, x).grad_fn.name()),
    "FakeTensor.masked_select": on_fake(lambda x: x.masked_select(mask=x > 0)),
    "FakeTensor.nbytes": on_fake(lambda x: x.nbytes),
    "FakeTensor.ndim": on_fake(lambda x: x.ndim),
    "FakeTensor.nelement": on_fake(lambda x: x.nelement()),
    "FakeTensor.new_tensor": on_fake(lambda x: x.new_tensor(data=[1]).dtype),
    "FakeTensor.numel": on_fake(lambda x: x.numel()),
    "FakeTensor.register_hook": on_fake(lambda x: type(x.register_hook(print))),
    "FakeTensor.set_": on_fake(lambda x: x.detach().set_(x.detach()).shape),
    "FakeTensor.shape": on_fake(lambda x: x.shape),
    "FakeTensor.size": on_fake(lambda x: x.size(dim=0)),
    "FakeTensor.storage_offset": on_fake(lambda x: x.storage_offset()),
    "FakeTensor.stride": on_fake(lambda x: x.stride()),
    "FakeTensor.unbind": on_fake(lambda x: len(x.unbind(dim=0))),
    "Positive.forward": lambda: Positive().forward(ones()).tolist(),
    "Distribution._validate_args": accepted(lambda: Normal(0.0, torch.tensor(-1.0))),
    "Module.__call__": lambda: list(nn.Linear(3, 2)(ones()).shape),
    "Module._apply": converted,
    "ScriptFunction.__call__": lambda: scripted(ones()).tolist(),
    "Function.apply": custom_function,
    **dict.fromkeys(FROM_TORCH_2_14, custom_function),
    "torch.any": lambda: bool(torch.any(torch.ones(4))),
    "torch.as_tensor": lambda: torch.as_tensor(data=[1, 2]).tolist(),
    "torch.asarray": lambda: torch.asarray(obj=[1, 2]).tolist(),
    "torch.cat": lambda: torch.cat(tensors=[*ones()], dim=0).tolist(),
    "torch.concat": lambda: torch.concat(tensors=[*ones()], dim=0).tolist(),
    "torch.div": lambda: torch.div(7, 2).tolist(),
    "torch.is_grad_enabled": lambda: torch.is_grad_enabled(),
    "torch.masked_select": lambda: torch.masked_select(input=ones(), mask=mask()).tolist(),
    "torch.multinomial": drawn,
    "torch.stack": lambda: torch.stack(tensors=[*ones()], dim=0).tolist(),
    "torch.tensor": lambda: torch.tensor(data=[1, 2]).tolist(),
    "torch.unbind": lambda: [each.tolist() for each in torch.unbind(input=ones())],
    f"torch.{torch_private.CHECK_OF_VALUES}": lambda: torch._check_tensor_all(~mask()),
    "torch._C._get_tracing_state": lambda: torch_private.NATIVE._get_tracing_state(),
    "torch._C._is_tracing": lambda: torch_private.NATIVE._is_tracing(),
    "torch._VF.gru": recurrent("gru"),
    "torch._VF.lstm": recurrent("lstm"),
    "torch._VF.rnn_relu": recurrent("rnn_relu"),
    "torch._VF.rnn_tanh": recurrent("rnn_tanh"),
    "torch._export.non_strict_utils.FakeTensorMode": lambda: (
        type(torch_private.exporting().FakeTensorMode()).__name__
    ),
    "torch.backends.mha.get_fastpath_enabled": lambda: torch.backends.mha.get_fastpath_enabled(),
    "torch.export._trace.print": printed,
    "torch.nn.functional.gaussian_nll_loss": lambda: functional.gaussian_nll_loss(
        ones(), ones(), -ones()
    ).tolist(),
    "torch.nn.modules.transformer._detect_is_causal_mask": lambda: (
        nn.modules.transformer._detect_is_causal_mask(
            mask=nn.Transformer.generate_square_subsequent_mask(3)
        )
    ),
    "warnings.showwarning": warned,
}
#: What a capture changes otherwise.
FURTHER_CASES = {
    f"logger {name}": lambda name=name: logged(name) for name in torch_private.LOGGERS
} | {
    "default of validate_args": lambda: Distribution._validate_args,
    "validation of a sample": accepted(lambda: Normal(0.0, 1.0).log_prob(torch.tensor(torch.nan))),
    "fused encoder": lambda: torch.backends.mha._is_fastpath_enabled,
    "warnings of this thread": warned_by_warn,
}


def name_of(owner, attribute):
    custom = isinstance(owner, type) and issubclass(owner, torch_private.SingleLevelFunction)
    return f"{'Function' if custom else owner.__name__}.{attribute}"


def answered(names):
    """What a new thread gets in each case, as text; of an error its type."""
    found = {}

    def ask():
        for name in names:
            try:
                found[name] = str((CASES | FURTHER_CASES)[name]())
            except Exception as error:
                found[name] = type(error).__name__

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found


class Watch:
    """Stands in for ``replaced`` in all modules that have it, and asks another thread."""

    def __init__(self, monkeypatch):
        self._torchs = answered((*CASES, *FURTHER_CASES))
        self._now, self._runs = [], False
        self.replaced, self.wrong, self.users, self.called = set(), {}, set(), set()
        original = home.replaced
        for name, module in [*sys.modules.items()]:
            is_ours = name.startswith("pyrannc.") and module is not home
            if is_ours and vars(module).get("replaced") is original:
                self.users.add(name)
                monkeypatch.setattr(module, "replaced", self._replaced(original, name))

    def _replaced(self, original, module):
        @contextlib.contextmanager
        def replaced(owner, **attributes):
            names = [name_of(owner, each) for each in attributes]
            self.replaced.update(names)
            self.called.add(module)
            with original(owner, **attributes):
                self._now.append(names)
                if self._runs:
                    self._ask(names)
                try:
                    yield
                finally:
                    self._now.remove(names)

        return replaced

    def _ask(self, names):
        known = [name for name in names if name in CASES or name in FURTHER_CASES]
        for name, answer in answered(known).items():
            if answer != self._torchs[name]:
                self.wrong[name] = f"{answer} instead of {self._torchs[name]}"

    def ask(self):
        """Called by a model that is being captured."""
        self._runs = True
        self._ask([*(name for names in self._now for name in names), *FURTHER_CASES])


@pytest.fixture
def watch(monkeypatch):
    # torch's default, which importing torch._dynamo switches off for the process.
    monkeypatch.setattr(Distribution, "_validate_args", True)
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: SHOWN.append(message))
    return Watch(monkeypatch)


def test_other_threads_get_torchs_answers_while_a_model_is_captured(watch):
    model = Model(watch.ask)
    for front_end in FRONT_ENDS:
        capture(model, (torch.randn(4, 3, 2),), front_end=front_end, grad=False)
        assert not watch.wrong, (front_end, watch.wrong)
    draws = WholeDraws()
    draws.of([3, 3], 1)
    with draws.instead_of_own():
        watch.ask()
    assert not watch.wrong
    assert not watch.replaced - CASES.keys(), "replaced, and no case here asks for it"
    assert watch.users == watch.called, "replaces something that no capture here comes to"
    if len(FRONT_ENDS) == 2:
        assert not CASES.keys() - watch.replaced - FROM_TORCH_2_14, "replaced no more"
