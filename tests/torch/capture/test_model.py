"""Captured graphs equal eager mode at other batch sizes and on other data, or say why not."""

import collections
import copy
import dataclasses
import functools
import itertools
import random
import re

import numpy
import pytest
import torch
from models import TRANSFORMERS, ZOO, floats
from replay import assert_replay_equals_eager, replay
from torch import nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.nn import functional

from pyrannc import _C, ConfigError, TraceError
from pyrannc.capture.arguments.call import CallMismatch
from pyrannc.capture.model import capture
from pyrannc.state.torch_private import swap_tensors

HERE = re.escape(__file__)


class Free(nn.Module):
    """A linear layer, a buffer and a plain tensor attribute around a function of the test."""

    def __init__(self, function):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.linear = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(8))
        self.plain = torch.ones(8)
        self.list = [1]
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def inputs(rows, seed=0):
    return floats(8)(rows, torch.Generator().manual_seed(seed))


def capture_function(function, rows=4):
    args, kwargs = inputs(rows)
    return capture(Free(function), args, kwargs)


def node_named(captured, name):
    return next(node for node in captured.graph.nodes if node.name == name)


def value_named(captured, name):
    return next(value for value in captured.graph.values if value.name == name)


@pytest.mark.parametrize("name", ZOO)
def test_a_captured_model_equals_eager_at_other_batch_sizes(name):
    entry = ZOO[name]
    captured = capture(entry.build(), *entry.inputs(4), entry.batch_dims)
    assert not captured.changed_attributes
    for rows in (1, 5):
        args, kwargs = entry.inputs(rows, seed=rows)
        assert_replay_equals_eager(captured, entry.build, args, kwargs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_captured_transformers_model_equals_eager_at_another_batch_size(name):
    pytest.importorskip("transformers")
    entry = TRANSFORMERS[name].in_float64()
    captured = capture(entry.build(), *entry.inputs(4))
    assert not captured.changed_attributes
    args, kwargs = entry.inputs(5, seed=1)
    assert_replay_equals_eager(captured, entry.build, args, kwargs, rtol=1e-12, atol=1e-12)


def test_default_caches_of_transformers_come_back_as_their_class():
    transformers = pytest.importorskip("transformers")
    entry = TRANSFORMERS["gpt2"]

    def build():
        model = entry.build()
        model.config.use_cache = True
        return model

    captured = capture(build(), *entry.inputs(4))
    args, kwargs = entry.inputs(3, seed=1)
    expected = build()(*args, **kwargs)
    got = replay(captured, build(), args, kwargs)
    assert isinstance(got.past_key_values, transformers.DynamicCache)
    torch.testing.assert_close(
        got.past_key_values.layers[1].keys, expected.past_key_values.layers[1].keys
    )


FUNCTIONS = {
    "integers from sizes": lambda m, x: m.linear(x) / x.shape[0] / len(x) * x.numel() * x.size(-1),
    "a range over the rows": lambda m, x: m.linear(x) + torch.arange(x.size(0)).unsqueeze(1),
    "floats of sizes": lambda m, x: (
        m.linear(x).sum(0) / (0.0 + 2 * x.shape[0]) * float(len(x))
        + (3.0 - x.size(0))
        + torch.arange(8) / float(len(x))
    ),
    "a quotient of sizes": lambda m, x: m.linear(x).view(
        len(x), torch.div(x.size(1), 4, rounding_mode="trunc"), 4
    ),
    "a tensor of a size": lambda m, x: m.linear(x) / torch.tensor(x.size(0)),
    "a loss averaged by hand": lambda m, x: m.linear(x).sum() / x.size(0),
    "rows that meet": lambda m, x: m.linear(x) @ x.t(),
    "an index list": lambda m, x: m.linear(x)[:, [0, 2, 1]],
    "a number times integers": lambda m, x: m.linear(x) * (torch.arange(8) * 2.5),
    "half stays half": lambda m, x: (m.linear(x).half() * 2.5 + 1).float(),
    "chunks and splits": lambda m, x: sum(m.linear(x).chunk(2, 1)) * sum(x.split([4, 4], 1)),
    "iteration over heads": lambda m, x: sum(t for t in m.linear(x).view(-1, 2, 4).unbind(1)),
    "named tuples of operators": lambda m, x: m.linear(x).max(1),
    "interpolation": lambda m, x: functional.interpolate(
        m.linear(x).view(-1, 2, 2, 2), scale_factor=2, mode="bilinear"
    ),
    "booleans where numbers go": lambda m, x: (
        m.linear(x)
        * (x > 0).masked_fill(x > 1, True)
        * ((x > 0) == False)  # noqa: E712
        * torch.where(x > 0, True, False)
        * torch.full((len(x), 8), True).scatter(1, (x > 0).long(), False)
        + (x > 0).clone().fill_(True)
    ),
    "einsum": lambda m, x: torch.einsum("bi,bj->bij", m.linear(x), x),
    "data": lambda m, x: m.linear(x) * m.linear(x).data,
    "checkpoint": lambda m, x: torch.utils.checkpoint.checkpoint(m.linear, x, use_reentrant=False),
    "reentrant checkpoint": lambda m, x: torch.utils.checkpoint.checkpoint(
        m.linear, m.linear(x), use_reentrant=True
    ),
    "a gradient inside forward": lambda m, x: (
        m.linear(x)
        + torch.autograd.grad(m.linear(x).pow(2).sum(), m.linear.weight, create_graph=True)[0].sum()
    ),
    "inputs and parameters returned": lambda m, x: (x, m.linear.weight, m.linear(x), m.plain),
    "complex numbers": lambda m, x: torch.view_as_real(torch.fft.rfft(m.linear(x))),
    "a convolution in one dimension": lambda m, x: functional.conv1d(
        m.linear(x).unsqueeze(1), torch.ones(2, 1, 3), padding="same"
    ),
}


class Converting(nn.Module):
    """Converts its modules in forward(), as the routers of SwitchTransformers do."""

    def __init__(self, dtype):
        super().__init__()
        self.first, self.last, self.dtype = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 2)), dtype

    def forward(self, x):
        self.first = self.first.to(self.dtype)
        return self.last.float()(self.first.cpu()(x))


def test_conversions_of_modules_in_forward_are_harmless_where_they_change_nothing():
    """They failed with "_apply(): Couldn't swap Linear.weight"."""
    captured = capture(Converting(torch.float32), *inputs(4))
    assert not captured.changed_attributes
    with pytest.raises(TraceError, match=r"'first.weight' from torch.float32 on cpu to .*bfloat16"):
        capture(Converting(torch.bfloat16), *inputs(4))


class OddlyNamed(nn.Module):
    def __init__(self):
        super().__init__()
        keys = ["a:b", "a_b", "user::item", "x y", "a/b", "ä", 'q"', "<b>", "b\\s"]
        self.parts = nn.ModuleDict({key: nn.Linear(8, 8) for key in keys})

    def forward(self, x):
        for part in self.parts.values():
            x = torch.tanh(part(x))
        return x


def test_modules_may_have_any_name():
    """A colon has a meaning in names of nodes, and in the planner's files."""
    model, x = OddlyNamed(), torch.randn(3, 8)
    captured = capture(model, (x,), {})
    assert_replay_equals_eager(captured, lambda: copy.deepcopy(model), (x,), {})
    names = [node.name for node in captured.graph.nodes]
    assert len(set(names)) == len(names) and ":" not in "".join(names)
    assert "parts.a:b" in {node.module for node in captured.graph.nodes}


class Variational(nn.Module):
    """Its loss is made of distributions, which look at their arguments unless told not to."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.encode, self.decode, self.kind = nn.Linear(8, 8), nn.Linear(4, 8), nn.Linear(8, 3)
        self.prior = Normal(0.0, 1.0)

    def forward(self, x):
        mean, log_scale = self.encode(x).chunk(2, -1)
        code = Normal(mean, log_scale.exp())
        distance = kl_divergence(code, self.prior).sum(-1)
        likelihood = Normal(self.decode(code.rsample()), 1.0).log_prob(x).sum(-1)
        return (distance - likelihood).mean(), Categorical(logits=self.kind(x)).entropy()


def test_distributions_with_default_arguments_equal_eager():
    """Their own checks of arguments were refused as branches on values."""
    captured = capture(Variational(), *inputs(4))
    args, kwargs = inputs(6, seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        expected = Variational()(*args)
        torch.manual_seed(3)
        torch.testing.assert_close(replay(captured, Variational(), args, kwargs), expected)
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        Normal(0.0, -1.0)


@pytest.mark.parametrize("what", FUNCTIONS)
def test_equals_eager_with(what):
    captured = capture_function(FUNCTIONS[what])
    args, kwargs = inputs(6, seed=1)
    assert_replay_equals_eager(captured, lambda: Free(FUNCTIONS[what]), args, kwargs)


SQUEEZES = {
    "squeeze()": lambda m, x: m.linear(x).sum(1, keepdim=True).squeeze(),
    "squeeze of a dimension": lambda m, x: m.linear(x).unsqueeze(1).squeeze(0).squeeze(-2),
    "squeeze of dimensions": lambda m, x: m.linear(x).unsqueeze(1).squeeze((0, -2, 2)),
    "squeeze_()": lambda m, x: m.linear(x).sum(1, keepdim=True).squeeze_(),
    "of a number": lambda m, x: m.linear(x).sum(1) + m.linear.weight.sum().squeeze().squeeze(-1),
}


@pytest.mark.parametrize("what", SQUEEZES)
def test_squeeze_keeps_the_rows_of_a_single_one(what):
    """A replica or micro-batch of one row lost the dimension of its rows."""
    captured = capture_function(SQUEEZES[what])
    args, kwargs = inputs(3, seed=1)
    assert_replay_equals_eager(captured, lambda: Free(SQUEEZES[what]), args, kwargs)
    got = replay(captured, Free(SQUEEZES[what]), (args[0][:1],), kwargs)
    torch.testing.assert_close(got, Free(SQUEEZES[what])(*args)[:1])


def test_writes_by_mask_equal_eager():
    def function(m, x):
        y = m.linear(x)
        y[x > 0] = 0.5
        return y

    captured = capture_function(function)
    assert_replay_equals_eager(captured, lambda: Free(function), *inputs(6, seed=1))


def test_a_constant_that_forward_writes_is_fresh_in_every_run():
    def function(m, x):
        total = torch.tensor([1.0] * 8)
        total += x.detach().sum(0)
        return m.linear(x) + total

    captured = capture_function(function)
    for seed in (1, 2):
        assert_replay_equals_eager(captured, lambda: Free(function), *inputs(6, seed=seed))


def test_a_loss_does_not_look_whether_variances_are_negative():
    def function(m, x):
        return nn.GaussianNLLLoss(full=True)(m.linear(x), x.mean(1, keepdim=True), x.square())

    captured = capture_function(function)
    assert_replay_equals_eager(captured, lambda: Free(function), *inputs(6, seed=1))


@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_buffers_that_forward_changes_are_written(how):
    def function(m, x):
        if how == "in place":
            m.count.mul_(0.5).add_(x.detach().mean(0))
        else:
            m.count = m.count * 0.5 + x.detach().mean(0)
        return m.linear(x) + m.count

    captured = capture_function(function)
    assert_replay_equals_eager(captured, lambda: Free(function), *inputs(6, seed=1))


# What a graph says.


def test_parameters_have_their_paths_and_tied_ones_are_one_value():
    captured = capture(ZOO["tied_lm"].build(), *ZOO["tied_lm"].inputs(4))
    embedding = value_named(captured, "embedding.weight")
    assert embedding.kind == "parameter"
    assert embedding.aliases == ["head.weight"]
    assert "head.weight" not in captured.parameter_names


def test_nodes_know_module_line_and_grad_mode():
    captured = capture(ZOO["no_grad"].build(), *ZOO["no_grad"].inputs(4))
    teacher = node_named(captured, "teacher.linear")
    student = node_named(captured, "student.linear")
    assert (teacher.module, teacher.grad_enabled) == ("teacher", False)
    assert (student.module, student.grad_enabled) == ("student", True)
    assert not value_named(captured, "teacher.linear").requires_grad
    assert value_named(captured, "student.linear").requires_grad
    file, line = teacher.source.rsplit(":", 1)
    assert file.endswith("models.py")
    with open(file) as text:
        assert "self.teacher(x)" in text.read().splitlines()[int(line) - 1]


def test_the_second_of_equal_operators_in_a_module_has_a_number():
    captured = capture_function(lambda m, x: m.linear(torch.relu(torch.relu(m.linear(x)))))
    names = [node.name for node in captured.graph.nodes]
    assert names == ["linear.linear", "relu", "relu_1", "linear.linear_1"]


def test_views_and_writes_share_the_storage_of_their_base():
    def function(m, x):
        y = m.linear(x)
        y[:, :4].mul_(2.0)
        return y

    captured = capture_function(function)
    values = list(captured.graph.values)
    base = next(i for i, value in enumerate(values) if value.name == "linear.linear")
    sharing = [value.name for value in values if value.storage == base]
    assert sharing == ["linear.linear", "slice", "slice_1", "mul_"]  # one slice per dimension
    [written] = node_named(captured, "mul_").writes
    assert values[written].name == "slice_1"


def test_a_write_of_something_with_a_gradient_gives_the_written_tensor_one():
    def function(m, x):
        y = torch.zeros_like(x)
        y[:, :4] = m.linear(x)[:, 4:]
        return y, y.detach()

    graph = capture_function(function).graph
    assert [graph.values[value].requires_grad for value in graph.outputs] == [True, False]


def test_batch_norm_writes_its_statistics_in_training_only():
    for training, expected in ((True, {"1.running_mean", "1.running_var"}), (False, set())):
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).train(training)
        captured = capture(model, *inputs(4))
        node = node_named(captured, "1.batch_norm")
        values = list(captured.graph.values)
        assert {values[i].name for i in node.writes} == expected


def test_python_numbers_are_literals_of_the_operator():
    captured = capture_function(lambda m, x: m.linear(x) * 2.5 + x.size(0))
    assert not [value for value in captured.graph.values if value.kind == "constant"]


def test_plain_tensor_attributes_are_constants_with_their_name():
    captured = capture_function(lambda m, x: m.linear(x) + m.plain)
    assert value_named(captured, "plain").kind == "constant"


def test_equal_captures_have_equal_fingerprints():
    first, second = (capture(ZOO["encoder"].build(), *ZOO["encoder"].inputs(r)) for r in (2, 9))
    assert first.graph.fingerprint() == second.graph.fingerprint()


# What capture leaves behind: nothing.


def test_model_and_random_states_are_as_before_also_after_an_error():
    def function(m, x):
        m.count = m.count + 1
        m.list.append(2)
        m.plain = x
        m.new = torch.rand(3)
        m.train(False)
        return m.linear(x) if m.good else m.linear(x)[x > random.random()]

    for good in (True, False):
        model = Free(function)
        model.good = good
        attributes, parameters = dict(vars(model)), list(model.parameters())
        python, state = random.getstate(), torch.get_rng_state()
        if good:
            capture(model, *inputs(4))
        else:
            with pytest.raises(TraceError):
                capture(model, *inputs(4))
        assert vars(model) == attributes
        assert model.list == [1] and model.training
        assert torch.equal(model.count, torch.zeros(8))
        assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
        assert random.getstate() == python
        assert torch.equal(torch.get_rng_state(), state)


class Remembering(nn.Module):
    """Sets and changes attributes while it runs, of all kinds."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.count, self.memory, self.state, self.constant = 0, [], {"h": None}, 2
        self.sizes, self.queue = [8, (1, 2)], collections.deque(maxlen=2)
        self._done = False
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        h = self.linear(x) * self.constant
        self.count += 1
        self.memory.append(h)
        self.state["h"] = h.detach()
        self.queue.append(1)
        self.aux = h.mean()
        # The same again, a mark that something is done, and a buffer, which stays up to date.
        self.constant, self.sizes, self._done = 2, [8, (1, 2)], True
        self.steps = self.steps + 1
        return h


def test_attributes_that_forward_changes_are_known():
    captured = capture(nn.Sequential(Remembering()), *inputs(4))
    assert captured.changed_attributes == ["0.count", "0.memory", "0.state", "0.queue", "0.aux"]


class Annealed(nn.Module):
    """What it computes depends on what an earlier call has left in Python."""

    def __init__(self, name, value, change, use):
        super().__init__()
        self.linear, self.name, self.change, self.use = nn.Linear(8, 4), name, change, use
        self.register_buffer("calls", torch.zeros(()))
        setattr(self, name, value)

    def forward(self, x):
        weight = self.use(getattr(self, self.name))
        setattr(self, self.name, self.change(getattr(self, self.name)))
        self.calls = self.calls + 1  # which is no reason
        return self.linear(x) * weight


@pytest.mark.parametrize(
    ("value", "change", "use"),
    [
        (0, lambda count: count + 1, lambda count: min(1.0, (count + 1) / 3)),
        (0, lambda count: count + 1, lambda count: torch.tensor(0.5 * count)),
        (False, lambda _: True, lambda done: 1.0 if done else 2.0),
        (("a",), lambda seen: (*seen, "b"), len),
        # After a warm-up, and in every hundredth call, counted before and after it is looked at.
        (0, lambda count: count + 1, lambda count: 1.0 if count < 500 else 0.5),
        (0, lambda count: count + 1, lambda count: 1.0 if count % 100 else 0.5),
        (0, lambda count: count + 1, lambda count: 1.0 if (count + 1) % 30 else 0.5),
    ],
)
@pytest.mark.parametrize("name", ["warmth", "_warmth"])
def test_what_a_second_call_computes_otherwise_is_refused(name, value, change, use):
    """It was captured as in the first call, with a warning."""
    with pytest.raises(TraceError, match=f"would compute something else: '0.{name}'"):
        capture(nn.Sequential(Annealed(name, value, change, use)), *inputs(4))
    captured = capture(Annealed(name, value, change, lambda _: 2), *inputs(4))
    assert captured.changed_attributes == ([] if name == "_warmth" and value is False else [name])


def test_a_second_call_may_find_another_module_that_does_the_same():
    """BigBird makes another attention of the same layers when its text is short, and says so in an
    attribute."""

    class Replacing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.kind = nn.Linear(8, 4), "sparse"

        def forward(self, x):
            if self.kind == "sparse":
                other, self.kind = nn.Sequential(nn.Linear(8, 4)), "full"  # whose layer is not used
                other[0], self.layer = self.layer, other
            return self.layer(x)

    assert "kind" in capture(Replacing(), *inputs(4)).changed_attributes


def test_functions_that_cache_tensors_compute_them_again():
    """A mask by length, behind lru_cache: each trace found that of the one before, which it could
    not follow, and the model itself a FakeTensor afterwards."""

    @functools.lru_cache
    def mask(size):
        return torch.tril(torch.ones(size, size))

    @functools.cache
    def masks(size):
        return {"both": (mask(size), mask(size).t())}

    def function(m, x):
        return m.linear(x) @ masks(8)["both"][1] @ mask(8)

    mask(8)
    captured = capture_function(function)
    args, kwargs = inputs(6, seed=1)
    assert_replay_equals_eager(captured, lambda: Free(function), args, kwargs)
    assert mask.cache_info().hits > 0
    assert type(mask(8)) is torch.Tensor


def test_hooks_that_forward_installs_do_not_stay():
    """Each of the traces installed them again, in a dictionary that was not put back: layers
    that record what they return, as transformers do, had recorded more in the second trace."""

    class Recording(nn.Module):
        def __init__(self):
            super().__init__()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(7)
                self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
            self.installed = False

        def forward(self, x):
            self.seen = []
            if not self.installed:
                self.installed = True
                for layer in self.layers:
                    layer.register_forward_hook(lambda _, args, output: self.seen.append(output))
            return self.layers(x), tuple(self.seen)

    model = Recording()
    captured = capture(model, *inputs(4))
    assert not any(module._forward_hooks for module in model.modules())
    args, kwargs = inputs(6, seed=1)
    assert_replay_equals_eager(captured, Recording, args, kwargs)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_hidden_states_of_transformers_can_be_asked_for(name):
    pytest.importorskip("transformers")
    entry = TRANSFORMERS[name].in_float64()
    args, kwargs = entry.inputs(4)
    model = entry.build()
    captured = capture(model, args, {**kwargs, "output_hidden_states": True})
    assert not captured.changed_attributes
    assert not any(module._forward_hooks for module in model.modules())
    args, kwargs = entry.inputs(5, seed=1)
    kwargs["output_hidden_states"] = True
    assert_replay_equals_eager(captured, entry.build, args, kwargs, rtol=1e-12, atol=1e-12)


def test_torch_is_as_before_after_an_error():
    def patched():
        call = torch._C.ScriptFunction.__call__
        return nn.Module.__call__, torch.tensor, torch._C._is_tracing, call

    before = patched()
    with pytest.raises(TraceError):
        capture_function(lambda m, x: x if x.sum() > 0 else m.linear(x))
    assert patched() == before
    assert not torch._C._is_tracing()


def test_the_modes_of_the_caller_hold_in_the_capture():
    with torch.no_grad():
        captured = capture_function(lambda m, x: m.linear(x))
    assert not node_named(captured, "linear.linear").grad_enabled
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captured = capture_function(lambda m, x: m.linear(x))
    assert value_named(captured, "linear.linear").dtype == "bfloat16"


# Models that cannot be captured.

IMPOSSIBLE = {
    "item": lambda m, x: m.linear(x) * x.sum().item(),
    "an if on a tensor": lambda m, x: m.linear(x) if x.sum() > 0 else x,
    "nonzero": lambda m, x: m.linear(x)[x[:, 0].nonzero()],
    "a mask that selects": lambda m, x: m.linear(x)[x > 0].max(),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_control_flow_on_values_is_an_error_that_names_the_line(what):
    with pytest.raises(TraceError, match=rf"{HERE}:\d+.*values of a tensor decide"):
        capture_function(IMPOSSIBLE[what])


def slope(m, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(m.linear(x).sum(), x, create_graph=True)[0]


UNREPEATABLE = {
    "torch.autograd.grad": (slope, r"computes derivatives[^\n]*not allocated yet.\)"),
    "torch.func.grad": (
        lambda m, x: torch.func.grad(lambda z: m.linear(z).sin().sum())(x),
        r"computes derivatives[^\n]*have storage\)",
    ),
    "numpy": (lambda m, x: m.linear(x) + float(x.numpy().mean()), "to numpy.*with torch"),
    "pack_padded_sequence": (
        lambda m, x: (
            nn.utils.rnn.pack_padded_sequence(
                m.linear(x)[..., None], torch.full((x.shape[0],), 2), batch_first=True
            ).data
        ),
        r"depends on the lengths.*h\[torch.arange\(len\(h\)\), lengths - 1\]",
    ),
}


@pytest.mark.parametrize("what", UNREPEATABLE)
def test_what_the_trace_cannot_follow_is_named(what):
    """Messages were those of FakeTensor: "Cannot access data pointer of Tensor", for one."""
    function, message = UNREPEATABLE[what]
    with pytest.raises(TraceError, match=rf"(?s){HERE}:\d+.*{message}"):
        capture_function(function)


def test_a_compiled_function_is_named_and_what_takes_it():
    compiled = torch.compile(torch.sin)
    message = rf"(?s){HERE}:\d+.*a function that torch.compile has made.*frontend=\"export\""
    with pytest.raises(TraceError, match=message):
        capture_function(lambda m, x: compiled(m.linear(x)))


def test_a_hook_on_the_gradient_of_an_activation_is_an_error():
    """It was never called: only the self-check could tell, and only if it changed something."""

    def function(m, x):
        hidden = m.linear(x)
        hidden.register_hook(lambda gradient: None)
        return hidden

    with pytest.raises(TraceError, match=r"register_hook\(\).*does not call"):
        capture_function(function)


class Recomputed(torch.autograd.Function):
    """Trains a module behind autograd's back, as Reformer's reversible layers do."""

    @staticmethod
    def forward(ctx, x, call, *parameters):
        ctx.call = call
        ctx.save_for_backward(x)
        return call(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            ctx.call(x).backward(gradient)
        return x.grad, None


def closure(module):
    return lambda x: module(x)


HIDDEN = {
    "a module": lambda m: m.linear,
    "a method": lambda m: m.linear.forward,
    "a function": lambda m: closure(m.linear),
}


@pytest.mark.parametrize("what", HIDDEN)
def test_a_function_that_trains_modules_past_autograd_is_an_error_that_names_them(what):
    """It passed the self-check, which asks autograd for gradients; ranks did not sum them."""
    told = rf"^the model \({HERE}:\d+\): .*Recomputed is handed a Linear.*'weight'.*past autograd"
    with pytest.raises(TraceError, match=told):
        capture_function(lambda m, x: Recomputed.apply(x + 0, HIDDEN[what](m)))


def test_a_function_that_is_also_handed_the_parameters_is_captured():
    capture_function(lambda m, x: Recomputed.apply(x, m.linear, *m.linear.parameters()))


@pytest.mark.parametrize("module", [random, numpy.random], ids=["random", "numpy.random"])
def test_draws_from_random_numbers_of_python_are_an_error(module):
    """Teacher forcing, LayerDrop: the branch of the first draw stayed for good, without a word when
    the draws of all traces agreed, as they do here."""
    with pytest.raises(TraceError, match=r"(?s)'(numpy\.)?random'.*cannot repeat.*with torch"):
        capture_function(lambda m, x: m.linear(x) if module.random() < 2 else x)


def test_an_error_names_the_module_that_raised_it():
    model = nn.Sequential(nn.Linear(8, 8), Free(lambda m, x: m.linear(x) * x.sum().item()))
    with pytest.raises(TraceError, match=rf"^'1' \({HERE}:\d+\)"):
        capture(model, *inputs(4))


def test_operators_that_depend_on_the_batch_size_are_an_error():
    told = rf"(?s)(?=.*{HERE}).*other operators when the number of rows"
    with pytest.raises(TraceError, match=told):
        capture_function(lambda m, x: m.linear(x) if x.size(0) > 4 else m.linear(x).relu())


def test_a_float_of_the_batch_size_is_an_error_with_advice():
    with pytest.raises(
        TraceError, match=r"(?s)Python float.*batch size.*0\.333333, 0\.2, 0\.142857.*x\.size"
    ):
        capture_function(lambda m, x: m.linear(x) * (1.0 / x.size(0)))
    # As an integer it would give integers.
    with pytest.raises(TraceError, match="Python float given to aten::mul"):
        capture_function(lambda m, x: m.linear(x) * (torch.arange(8) * float(x.size(0))))


def test_a_number_that_python_changes_from_call_to_call_is_better_an_argument():
    numbers = itertools.cycle([0, 1, 1])
    chance = random.Random(3)
    told = r"(?s) at 3, 5, 7 rows.*next number of random\.Random or of an iterator.*an argument of"
    for number in (lambda: next(numbers), chance.random):
        with pytest.raises(TraceError, match=told):
            capture_function(lambda m, x, number=number: m.linear(x) * number())


def test_a_size_that_grows_with_the_square_of_the_batch_is_an_error():
    with pytest.raises(TraceError, match=r"is 9, 25, 49 at 3, 5, 7 rows"):
        capture_function(lambda m, x: (m.linear(x).unsqueeze(0) * x.unsqueeze(1)).reshape(-1, 8))


def test_a_size_that_falls_with_the_batch_is_an_error_that_names_the_line():
    """The queue of a contrastive loss, whose oldest examples go."""
    told = r"test_model.py:\d+\): the size .* is 13, 11, 9 at 3, 5, 7 rows, and .* negative at 17"
    with pytest.raises(TraceError, match=told):
        capture_function(lambda m, x: torch.ones(16, 8)[len(x) :].sum() * m.linear(x))


def test_a_constant_of_the_batch_size_is_an_error():
    with pytest.raises(TraceError, match=r"constant tensor 'constant' depends on the batch size"):
        capture_function(lambda m, x: m.linear(x) / torch.tensor([x.size(0)]))


def test_a_write_to_a_plain_tensor_attribute_is_an_error_that_names_it():
    def function(m, x):
        m.plain.add_(1)
        return m.linear(x)

    with pytest.raises(TraceError, match=r"'plain' in place; register it with register_buffer"):
        capture_function(function)


def test_an_error_of_the_model_itself_is_the_cause():
    with pytest.raises(TraceError, match=HERE) as caught:
        capture_function(lambda m, x: m.linear(x[:, :3]))
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("of_size", [lambda n: n * n, float, lambda n: n > 4, lambda n: [0] * n])
def test_a_result_that_is_no_line_in_the_batch_size_is_an_error(of_size):
    with pytest.raises(TraceError, match=r"result of the model depends on the batch size"):
        capture_function(lambda m, x: (m.linear(x), of_size(x.size(0))))


def test_a_result_may_hold_the_number_of_rows():
    """`return loss, x.shape[0]`"""

    def function(m, x):
        return m.linear(x), {"rows": x.size(0), "ends": [x.numel() - 1, -x.size(0)], "width": 8}

    captured = capture_function(function)
    args, kwargs = inputs(6, seed=1)
    _, counts = replay(captured, Free(function), args, kwargs)
    assert counts == {"rows": 6, "ends": [47, -6], "width": 8}
    assert_replay_equals_eager(captured, lambda: Free(function), args, kwargs)


# Models and arguments of a kind that cannot be captured: how they are made, and what is said.


def compiled_in_place():
    module = nn.Linear(8, 8)
    module.compile()
    return module


KINDS = {
    "scripted": (lambda: torch.jit.script(nn.Linear(8, 8)), "scripted or traced.*made of"),
    "traced": (lambda: torch.jit.trace(nn.Linear(8, 8), torch.ones(2, 8)), "scripted or traced"),
    "lazy": (lambda: nn.LazyLinear(8), "LazyLinear that has not run.*call the model once"),
    "lazy buffers": (lambda: nn.LazyBatchNorm1d(affine=False), "LazyBatchNorm1d that has not"),
    "compiled": (lambda: torch.compile(nn.Linear(8, 8)), "torch.compile.*'_orig_mod'"),
    "compiled in place": (compiled_in_place, r"Linear.compile\(\) was called"),
    "synchronised": (lambda: nn.SyncBatchNorm(8), "SyncBatchNorm.*sync_batch_norm=True"),
    "parallel": (lambda: nn.DataParallel(nn.Linear(8, 8)), "a DataParallel.*'module'"),
}


@pytest.mark.parametrize("what", KINDS)
def test_kinds_of_modules_that_cannot_be_captured_are_named(what):
    make, message = KINDS[what]
    with pytest.raises(TraceError, match=f"^the model is .*{message}"):
        capture(make(), *inputs(4))
    with pytest.raises(TraceError, match=f"^'1' is .*{message}"):
        capture(nn.Sequential(nn.ReLU(), make()), *inputs(4))


def test_a_lazy_module_that_has_run_is_captured():
    model = nn.Sequential(nn.LazyLinear(8))
    model(torch.ones(2, 8))
    capture(model, *inputs(4))


def test_nested_and_sparse_arguments_are_named():
    nested = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)])
    jagged = torch.nested.nested_tensor([torch.ones(3, 8)], layout=torch.jagged)
    for tensor in (nested, jagged):
        with pytest.raises(TraceError, match=r"args\[0\] is a nested tensor.*pad it"):
            capture(nn.Linear(8, 8), (tensor,))
    with pytest.raises(TraceError, match=r"args\[0\] is a sparse tensor.*pass it dense"):
        capture(nn.Linear(8, 8), (torch.eye(8).to_sparse(),))


# Which rows.


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, a, b, *, c=None):
        return self.linear(a) + self.linear(b).sum() + (0 if c is None else c.sum())


def test_inputs_unlike_the_majority_have_no_rows():
    captured = capture(Two(), (torch.ones(4, 8), torch.ones(4, 8)), {"c": torch.ones(3, 8)})
    assert captured.batch_dims == [0, 0, None]
    assert captured.input_paths == ["args[0]", "args[1]", "kwargs['c']"]


def test_an_error_under_a_wrong_guess_says_what_was_guessed():
    """The states of an LSTM outvote its input: their dimension 0 counts layers. torch's own error,
    "Expected hidden[0] size", did not lead there."""

    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 6, 2, batch_first=True)

        def forward(self, x, state):
            return self.lstm(x, state)[0]

    call = torch.ones(4, 3, 8), (torch.ones(2, 4, 6), torch.ones(2, 4, 6))
    with pytest.raises(
        TraceError,
        match=r"(?s)hidden.*args\[0\] none, args\[1\]\[0\] in dimension 0, .*batch_dims",
    ):
        capture(Stateful(), call)
    assert capture(Stateful(), call, None, {"x": 0, "state": 1}).batch_dims == [0, 1, 1]


def test_a_tie_is_an_error_that_names_the_inputs():
    message = r"args\[0\] has shape \[4, 8\], args\[1\] has shape \[5, 8\]"
    with pytest.raises(TraceError, match=message):
        capture(Two(), (torch.ones(4, 8), torch.ones(5, 8)))


@pytest.mark.parametrize("batch_dims", [{"a": 0, "b": None}, {0: 0}, {"args[0]": 0}])
def test_batch_dims_settle_a_tie(batch_dims):
    captured = capture(Two(), (torch.ones(4, 8), torch.ones(5, 8)), None, batch_dims)
    assert captured.batch_dims == [0, None]


def test_batch_dims_of_no_input_name_the_closest():
    with pytest.raises(ConfigError, match=r"'aa', which is no tensor argument.*'a'"):
        capture(Two(), (torch.ones(4, 8), torch.ones(4, 8)), None, {"aa": 0})


# Calls of a capture.


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 1.0


MISFITS = {
    "a constant": (((torch.ones(4, 8), 3.0),), {}, r"args\[0\]\[1\] is 3.0, but was 2.0"),
    "a dtype": (
        ((torch.ones(4, 8).double(), 2.0),),
        {},
        r"args\[0\]\[0\] has dtype torch.float64, but had torch.float32",
    ),
    "a shape": (((torch.ones(4, 9), 2.0),), {}, r"args\[0\]\[0\] has shape \[4, 9\]"),
    "a keyword": (((torch.ones(4, 8), 2.0),), {"z": 1}, r"kwargs has a new 'z'"),
    "a number for a tensor": (((2.0, 2.0),), {}, r"args\[0\]\[0\] is 2.0, but was a tensor"),
}


@pytest.mark.parametrize("what", MISFITS)
def test_a_call_that_differs_names_the_argument(what):
    model = Free(lambda m, pair: m.linear(pair[0]) * pair[1])
    captured = capture(model, ((torch.ones(4, 8), 2.0),))
    args, kwargs, message = MISFITS[what]
    with pytest.raises(CallMismatch, match=message):
        captured.flatten(args, kwargs)


def test_inputs_with_different_numbers_of_rows_are_an_error():
    captured = capture(Two(), (torch.ones(4, 8), torch.ones(4, 8)))
    with pytest.raises(CallMismatch, match=r"args\[1\] has 3 rows, but args\[0\] has 2"):
        captured.flatten((torch.ones(2, 8), torch.ones(3, 8)), {})


def test_dataclasses_are_arguments_too():
    model = Free(lambda m, batch: m.linear(batch.x) * batch.scale)
    captured = capture(model, (Batch(torch.ones(4, 8)),))
    assert captured.batch_size((Batch(torch.ones(6, 8)),), {}) == 6
    with pytest.raises(CallMismatch, match=r"args\[0\].scale is 0.5, but was 1.0"):
        captured.flatten((Batch(torch.ones(4, 8), 0.5),), {})


def test_one_example_without_a_batch_is_told_which_dimension_was_taken_for_it():
    model = nn.Sequential(nn.Linear(6, 2))
    with pytest.raises(TraceError, match=r"rows instead of 6, dimension 0 of input .*x\[None\]"):
        capture(model, (torch.ones(6),), {})


@pytest.mark.skipif(not hasattr(_C.frontend, "Tracer"), reason="this torch has no tracer")
def test_a_tracer_that_is_kept_does_not_keep_parameters_from_being_released():
    model = nn.Linear(4, 4)
    kept = []

    class Kept(_C.frontend.Tracer):
        def __init__(self, *paths):
            super().__init__(*paths)
            kept.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_C.frontend, "Tracer", Kept)
        capture(model, (torch.ones(2, 4),), {})
    assert kept
    for parameter in model.parameters():
        swap_tensors(parameter, nn.Parameter(torch.empty(1)))
