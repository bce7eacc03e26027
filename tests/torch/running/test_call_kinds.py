"""Calls after the first one: other batches, shapes, constants, modes, in one process."""

import copy
import types

import numpy as np
import pytest
import torch
from torch import nn

from pyrannc import _C, Config, ConfigError, RaNNCError, RaNNCModule, log
from pyrannc.capture.arguments.call import CallMismatch
from pyrannc.running import call_kinds
from pyrannc.running.audits import Audits

pytestmark = pytest.mark.usefixtures("audits")


class Tagger(nn.Module):
    """Tokens to scores; ``mask`` may be left out, and ``scale`` is a constant of the graph."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 5)
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens, mask=None, scale=1.0):
        h = self.embed(tokens) * scale
        if mask is not None:
            h = h * mask.unsqueeze(-1)
        h = torch.tanh(self.body(h))
        if not self.training:
            h = self.dropout(h) + 1
        return self.head(h)


def tokens(rows, length, seed=0):
    return torch.randint(11, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def pair():
    torch.manual_seed(0)
    plain = Tagger()
    twin = copy.deepcopy(plain)
    return RaNNCModule(plain, config=Config(pipeline_num=3, calibrate=False)), twin


def check(pair, *args, **kwargs):
    """Output and gradients of one call, as those of the twin."""
    model, twin = pair
    for one in pair:
        one.zero_grad()
    output, expected = (one(*args, **kwargs) for one in pair)
    torch.testing.assert_close(output, expected)
    for result in (output, expected):
        result.sin().square().mean().backward()
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(
            dict(model.named_parameters())[name].grad, parameter.grad, msg=name
        )


def test_what_a_loop_has_written_to_an_argument_counts():
    # The same object stood in the shape of the captured call, and was equal to itself: the graph
    # went on with what it had held then.
    class Weights:
        def __init__(self):
            self.weight = 1.0

    class Weighted(nn.Linear):
        def forward(self, x, args, table, tags, weights):
            factor = args.alpha * float(table[0]) * weights.weight
            return super().forward(x) * (-factor if "negative" in tags else factor)

    args, table, tags, weights = types.SimpleNamespace(alpha=1.0), np.ones(3), set(), Weights()
    plain = Weighted(4, 2)
    model = RaNNCModule(copy.deepcopy(plain), config=Config(calibrate=False))
    for write in (
        lambda: None,
        lambda: setattr(args, "alpha", 2.0),
        lambda: table.fill(3.0),
        lambda: tags.add("negative"),
        lambda: setattr(weights, "weight", 5.0),
        lambda: None,
    ):
        write()
        given = torch.ones(3, 4), args, table, tags, weights
        torch.testing.assert_close(model(*given), plain(*given))
    assert len(list(model._runs)) == 5


class Counted(nn.Linear):
    def forward(self, x, args):
        return super().forward(x) * args.scale


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        (range(5), "each of the last 4 calls was captured anew, because arguments change from "),
        ([0, 0, 1, 1, 2, 2, 3, 4], "4 of the last 8 calls were captured anew, because arguments "),
    ],
)
def test_a_count_among_the_arguments_that_calls_change_is_a_warning_once(counts, told, capfd):
    args = types.SimpleNamespace(scale=1.0, step=0)
    model = RaNNCModule(Counted(4, 2), config=Config(calibrate=False))
    for args.step in counts:
        assert "captured anew" not in capfd.readouterr().err
        model(torch.ones(3, 4), args)
    err = capfd.readouterr().err
    assert told in err and "args[1].step is 4, but was 3. Pass what" in err
    for args.step in range(10, 16):
        model(torch.ones(3, 4), args)
    assert "captured anew" not in capfd.readouterr().err


def test_three_captures_in_twenty_calls_are_no_reason_for_one(capfd):
    args = types.SimpleNamespace(scale=1.0, step=0)
    model = RaNNCModule(Counted(4, 2), config=Config(calibrate=False))
    for call in range(60):
        args.step = call // 7
        model(torch.ones(3, 4), args)
    assert "captured anew" not in capfd.readouterr().err


def test_a_list_that_only_the_loop_appends_to_is_no_reason_for_a_capture():
    # Lightning's training_step_outputs: each step of a small model took 68 x as long.
    class Logging(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.losses, self.best = nn.Linear(4, 2), [], {"loss": 9.0}

        def forward(self, x):
            return self.linear(x)

        def training_step(self, x):
            return sum(self.losses[:0]) + self(x).mean()

    model = RaNNCModule(Logging(), config=Config(calibrate=False))
    for _ in range(6):
        model(torch.ones(3, 4))
        model.losses.append(0.5)
        model.module.best["loss"] -= 1
    assert len(list(model._runs)) == 1


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("front_end", ["torchscript", "export"])
def test_a_model_that_asks_for_the_grad_mode_is_told_that_of_the_call(front_end, begins):
    # Every call took the branch of the capture, which is made with gradients: probabilities in
    # evaluation under no_grad() were logits.
    if front_end == "torchscript" and not hasattr(_C.frontend, "Tracer"):
        pytest.skip("needs torch's tracer")

    class Asking(nn.Linear):
        def forward(self, x):
            scores = super().forward(x)
            with torch.no_grad():
                assert not torch.is_grad_enabled()
            return scores if torch.is_grad_enabled() else scores.softmax(-1)

    plain = Asking(4, 3)
    config = Config(calibrate=False, frontend=front_end)
    model = RaNNCModule(copy.deepcopy(plain), config=config)
    for grad in (begins, not begins, begins, not begins):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(model(torch.ones(3, 4)), plain(torch.ones(3, 4)))
    with torch.inference_mode():
        torch.testing.assert_close(model(torch.ones(3, 4)), plain(torch.ones(3, 4)))
    assert len(list(model._runs)) == 2


def test_every_batch_size_uses_the_first_capture(pair, monkeypatch):
    for _ in range(2):  # the second one is audited
        check(pair, tokens(7, 4))
    for rows in (7, 2, 1, 30, 3):  # fewer rows than micro-batches, too
        check(pair, tokens(rows, 4, seed=rows))
    assert len(list(pair[0]._runs)) == 1
    monkeypatch.setattr(call_kinds, "capture", None)
    monkeypatch.setattr(Audits, "is_wanted", lambda *_: False)  # which capture
    for rows in (7, 2, 1, 30, 3):
        check(pair, tokens(rows, 4, seed=rows))


def test_other_shapes_constants_and_arguments_are_captured_once_each(pair, monkeypatch):
    monkeypatch.setattr(Audits, "is_wanted", lambda *_: False)
    captured = []
    original = call_kinds.capture
    monkeypatch.setattr(
        call_kinds, "capture", lambda *a, **k: captured.append(a) or original(*a, **k)
    )
    calls = [
        ((tokens(4, 6),), {}),
        ((tokens(3, 9),), {}),
        ((tokens(3, 9),), {"scale": 2.0}),
        ((tokens(5, 9),), {"mask": torch.ones(5, 9)}),
    ]
    for _ in range(2):
        for args, kwargs in calls:
            check(pair, *args, **kwargs)
    assert len(captured) == 3  # beside the first call
    assert len(list(pair[0]._runs)) == 4


def test_which_dimension_holds_the_rows_is_what_it_was(pair):
    # Of a batch as large as its sequences are long, shapes alone would not tell.
    class Scaled(nn.Module):
        def forward(self, x, weight, scale):
            return x * weight.unsqueeze(1) * scale

    model = RaNNCModule(Scaled(), config=Config(pipeline_num=2))
    for rows, width in ((3, 4), (4, 4), (2, 5), (5, 5)):
        x, weight, scale = torch.randn(rows, width), torch.randn(rows), torch.randn(width)
        torch.testing.assert_close(model(x, weight, scale), Scaled()(x, weight, scale))


def test_a_later_call_may_lack_an_argument_that_batch_dims_names():
    class Optional(nn.Module):
        def forward(self, x, y=None):
            return x if y is None else x + y

    model = RaNNCModule(Optional(), config=Config(), batch_dims={"x": 0, "y": 0})
    x = torch.randn(4, 3)
    torch.testing.assert_close(model(x, y=x), 2 * x)
    torch.testing.assert_close(model(x), x)
    with pytest.raises(ConfigError, match="batch_dims names 'y'"):
        RaNNCModule(Optional(), config=Config(), batch_dims={"y": 0})(x)


def test_inputs_that_begin_to_require_a_gradient_get_one():
    layer = nn.Linear(3, 2)
    model = RaNNCModule(copy.deepcopy(layer), config=Config())
    x = torch.randn(4, 3)
    model(x).sum().backward()
    x.requires_grad_()
    model(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.detach().sum(0).expand(4, 3))


def test_parameters_that_begin_to_require_a_gradient_are_captured_again(pair):
    pair[1].embed.requires_grad_(False)
    pair[0].embed.requires_grad_(False)
    check(pair, tokens(5, 4))
    for flag, kinds in ((True, 2), (False, 3), (True, 3)):
        for one in pair:
            one.requires_grad_(flag)
            one.head.requires_grad_()
        check(pair, tokens(5, 4))
        assert len(list(pair[0]._runs)) == kinds


@pytest.mark.parametrize(
    "change, name",
    [
        (lambda m: setattr(m, "head", nn.Linear(6, 5)), "head"),
        (lambda m: delattr(m, "head"), "head"),
        (lambda m: delattr(m.head, "bias"), "head.bias"),
        (lambda m: setattr(m.head, "bias", None), "head.bias"),
    ],
)
def test_modules_that_are_replaced_and_tensors_that_are_removed_later_are_an_error(change, name):
    plain = Tagger()
    model = RaNNCModule(plain, config=Config(calibrate=False))
    model(tokens(3, 4))
    change(plain)
    with pytest.raises(RaNNCError, match=f"'{name}' of the model was replaced or removed"):
        model(tokens(3, 4))


def test_autocast_of_a_later_call_counts():
    layer = nn.Linear(3, 2)
    model = RaNNCModule(copy.deepcopy(layer), config=Config())
    x = torch.randn(4, 3)
    assert model(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
    assert model(x).dtype == torch.float32


def test_only_the_captures_used_last_are_kept(pair, monkeypatch):
    monkeypatch.setattr(call_kinds, "MOST_KINDS", 3)
    for length in (2, 3, 4, 5, 2):  # the first kind has to go, and comes back
        check(pair, tokens(3, length))
    assert len(list(pair[0]._runs)) == 3


def test_two_live_forwards_of_other_sizes_are_independent(pair):
    results = []
    for one in pair:
        one.zero_grad()
        losses = [one(tokens(rows, length)).square().mean() for rows, length in ((5, 3), (2, 6))]
        (losses[0] * 2 + losses[1]).backward()
        results.append({name: p.grad for name, p in one.named_parameters()})
    for name, gradient in results[1].items():
        torch.testing.assert_close(results[0][name], gradient, msg=name)


def test_inputs_with_different_numbers_of_rows_are_an_error(pair):
    model, _ = pair
    model(tokens(4, 3), torch.ones(4, 3))
    message = r"args\[1\] has 3 rows, but args\[0\] has 4"
    with pytest.raises(CallMismatch, match=message):
        model(tokens(4, 3), torch.ones(3, 3))


def test_a_batch_without_rows_is_an_error(pair):
    model, _ = pair
    model(tokens(4, 3))
    with pytest.raises(RaNNCError, match="no rows on any rank"):
        model(tokens(0, 3))


def test_larger_and_smaller_batches_than_planned_are_said_once(pair, capfd):
    log.configure("info")
    try:
        for rows in (4, 3, 2, 6, 9):
            pair[0](tokens(rows, 3))
    finally:
        log.configure("warn")
    err = capfd.readouterr().err
    assert err.count("a batch has 3 rows on all ranks together, the plan was made for 4") == 1
    assert err.count("the plan was made for 4 and stays") == 1
    assert err.count("a batch has 6 rows on all ranks together, but the plan was made for 4") == 1
    assert err.count("it may not fit in memory") == 1
