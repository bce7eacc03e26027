"""The self-check: right captures pass, each kind of wrong capture is found and named."""

import copy
import random

import pytest
import torch
from models import TRANSFORMERS, ZOO
from torch import nn
from torch.nn import functional

from pyrannc import _C
from pyrannc.capture.model import capture
from pyrannc.errors import TraceError
from pyrannc.selfcheck import compare, row_parts
from pyrannc.selfcheck.check import check


class Altered:
    """A capture with another graph."""

    def __init__(self, captured, graph):
        self._captured, self.graph = captured, graph

    def __getattr__(self, name):
        return getattr(self._captured, name)


def altered(captured, *changes):
    """The capture with pieces of its graph's text replaced; each must occur."""
    text = captured.graph.text()
    for old, new in changes:
        assert old in text, text
        text = text.replace(old, new)
    return Altered(captured, _C.ir.parse(text))


def floats(count, *sizes, seed=1):
    return torch.randn(count, *sizes, generator=torch.Generator().manual_seed(seed))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.act = nn.ReLU()
        self.down = nn.Linear(8, 2)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Forward(nn.Module):
    """A module of one linear layer whose forward is a given function of it and the input."""

    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, *args):
        return self.function(self.linear, *args)


def checked(model, *args, change=()):
    """The report on a capture of ``model(*args)``, with changes to its graph."""
    captured = capture(model, args)
    return check(model, altered(captured, *change) if change else captured, args, {})


# Right captures


def check_entry(entry):
    model = entry.build()
    args, kwargs = entry.inputs(4)
    captured = capture(model, args, kwargs, batch_dims=entry.batch_dims)
    report = check(model, captured, args, kwargs)
    report.raise_if_wrong()
    assert report.rows_interact == ""
    if any(reason.startswith("row ranges apart") for reason in report.skipped):
        assert _C.ir.row_mixes(captured.graph) or _C.ir.running_statistics(captured.graph), report
    else:
        assert report.rows_proved
    return report


@pytest.mark.parametrize("name", list(ZOO))
def test_captures_of_the_zoo_pass_and_their_rows_are_proved_apart(name):
    check_entry(ZOO[name])


@pytest.mark.all
@pytest.mark.parametrize("name", list(TRANSFORMERS))
def test_captures_of_transformers_models_pass(name):
    pytest.importorskip("transformers")
    check_entry(TRANSFORMERS[name])


def test_the_model_is_untouched():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[0].weight.grad = torch.full((4, 4), 3.0)
    calls = []
    model[0].weight.register_hook(lambda gradient: calls.append(1))
    x = floats(5, 4)
    captured = capture(model, (x,))
    before = copy.deepcopy(model.state_dict())
    state, python_state = torch.get_rng_state(), random.getstate()
    check(model, captured, (x,), {}).raise_if_wrong()

    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert torch.equal(torch.get_rng_state(), state) and random.getstate() == python_state
    assert torch.equal(model[0].weight.grad, torch.full((4, 4), 3.0))
    assert model[0].bias.grad is None and model.training and not calls
    model(x).sum().backward()
    assert calls == [1]  # the user's hook is back


def test_attributes_that_the_model_changes_are_as_before():
    model = nn.Linear(4, 4)
    model.count, model.seen = 0, []

    def remember(module, args, output):
        module.count += 1
        module.seen.append(output)
        module.register_forward_hook(lambda *_: None)

    model.register_forward_hook(remember)
    x = floats(5, 4)
    check(model, capture(model, (x,)), (x,), {}).raise_if_wrong()
    assert (model.count, model.seen, len(model._forward_hooks)) == (0, [], 1)


def test_it_runs_with_gradients_even_under_no_grad():
    model, x = Model(), floats(5, 4)
    captured = capture(model, (x,))
    with torch.no_grad():
        report = check(model, captured, (x,), {})
    assert report.ok and set(report.largest) == {"outputs", "gradients"}


def test_dropout_draws_the_same_masks_and_rows_are_compared_without_it():
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    report = checked(model, floats(5, 4))
    assert report.ok and report.rows_proved and not report.skipped


def test_a_model_that_draws_random_numbers_is_not_run_in_parts():
    report = checked(Forward(lambda linear, x: linear(x) + torch.rand_like(x)), floats(5, 4))
    assert report.ok and not report.rows_proved
    assert report.skipped == ["row ranges apart, because the model draws random numbers"]


def test_a_frozen_model_has_no_gradients_to_compare():
    model = Model().requires_grad_(False)
    report = checked(model, floats(5, 4))
    assert report.ok and report.skipped == ["gradients, because no output requires one"]


def test_a_model_whose_own_backward_fails_is_checked_without_it():
    def write_what_is_saved(linear, x):
        y = linear(x).sigmoid()
        return y.mul_(2)

    report = checked(Forward(write_what_is_saved), floats(5, 4))
    assert report.ok and report.rows_proved
    assert report.skipped[0].startswith("gradients, because the model's own backward fails: one of")


# Wrong captures: what differs, and where it first does


@pytest.mark.parametrize("write", [lambda w: w.data.mul_(0.9), lambda w: setattr(w, "data", w * 2)])
def test_a_parameter_that_is_written_after_its_use_is_named(write):
    def late(linear, x):
        result = linear(linear(x))
        write(linear.weight)
        return result

    told = r"'linear.weight' is written in forward\(\) after it was computed with"
    with pytest.raises(TraceError, match=told):
        checked(Forward(late), floats(5, 4))


def test_another_operator_is_found_with_its_module_and_line():
    report = checked(Model(), floats(5, 4), change=[("aten::relu", "aten::sigmoid")])
    difference = report.difference
    assert (difference.kind, difference.name, difference.module) == ("outputs", "output", "act")
    assert difference.error > 0.01
    with pytest.raises(
        TraceError, match=r"'output' is off by .* first seen in module 'act', .*\.py"
    ):
        report.raise_if_wrong()


def test_a_gradient_that_is_lost_is_found_although_the_outputs_are_equal():
    report = checked(Model(), floats(5, 4), change=[(" in act", " no_grad in act")])
    assert report.largest["outputs"] == 0
    # down.* is right; what stands before the lost region gets nothing.
    assert (report.difference.kind, report.difference.name) == ("gradients", "up.weight")
    assert report.difference.module == "up"


def test_a_batch_size_frozen_into_the_graph_is_found():
    model = Forward(lambda linear, x: linear(x) * x.shape[0])
    report = checked(model, floats(4, 4), change=[(", B)", ", 4)")])
    # 6 rows: 6 times the layer's output instead of 4 times.
    assert report.difference.kind == "outputs"
    assert report.difference.error == pytest.approx(1 / 3, rel=1e-3)


def test_a_branch_taken_on_the_first_calls_values_is_found():
    # What a trace that runs on real values would give: one side of the branch.
    model = Forward(lambda linear, x: linear(x) if x.sum() > 0 else -linear(x))
    one_side = Forward(lambda linear, x: linear(x))
    one_side.load_state_dict(model.state_dict())
    x = -floats(4, 4).abs()
    report = check(model, capture(one_side, (x,)), (x,), {})
    assert report.difference.kind == "outputs"
    assert report.difference.error == pytest.approx(2)


def test_a_buffer_that_is_not_updated_is_found():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    report = checked(model, floats(5, 4), change=[("true, 0.1, ", "true, 0.2, ")])
    assert (report.difference.kind, report.difference.name) == ("buffers", "1.running_mean")
    assert report.difference.module == "1"


def test_an_output_of_another_shape_is_named_with_both():
    model = Forward(lambda linear, x: {"a": linear(x), "b": linear(x)[:, :2]})
    x = floats(5, 4)
    captured = capture(model, (x,))
    text = captured.graph.text()
    narrow = next(line for line in text.splitlines() if "aten::slice" in line and " 2, " in line)
    graph = _C.ir.parse(text.replace(narrow, narrow.replace(" 2, ", " 3, ")))
    report = check(model, Altered(captured, graph), (x,), {})
    assert report.difference.name == "output['b']"
    assert report.difference.note == "torch.float32 [6, 3] instead of torch.float32 [6, 2]"


def test_random_numbers_drawn_in_another_order_are_named_as_the_cause():
    model = Forward(lambda linear, x: linear(x) + torch.rand_like(x))
    report = checked(model, floats(5, 4), change=[("aten::rand_like", "aten::ones_like")])
    assert "drew other random numbers" in report.difference.note


def test_a_model_that_fails_on_its_batch_says_how_to_name_its_batch_dimension():
    model = Forward(lambda linear, x: linear(x))
    x = floats(5, 4)
    captured = capture(model, (x,))

    def refuse(linear, x):
        raise AssertionError("no rows")

    model.function = refuse
    with pytest.raises(
        TraceError, match=r"(?s)fails on 5 rows of this call: .*no rows.*batch_dims"
    ):
        check(model, captured, (x,), {})


def test_a_model_that_fails_on_rows_in_another_order_is_checked_with_its_batch():
    def in_order(linear, x):
        assert (x[1:, 0] >= x[:-1, 0]).all(), "to be sorted"
        return linear(x)

    x = floats(5, 4).sort(0).values
    for rows in (x, x[:2]):
        report = checked(Forward(in_order), rows)
        assert report.ok and report.rows == len(rows)
        assert "made up, on which the model fails while this batch passes" in report.skipped[0]


# Rows


def test_rows_that_interact_are_named():
    report = checked(Forward(lambda linear, x: linear(x) - linear(x).mean(0)), floats(5, 4))
    assert report.ok and not report.rows_proved
    assert report.skipped[0].startswith("row ranges apart, because aten::sub.Tensor uses a mean")


def test_a_loss_that_is_put_together_in_another_way_is_seen_in_the_parts():
    # Labels of -100 do not count: the parts' losses are summed, not averaged by their rows.
    def loss(linear, x, labels):
        return functional.cross_entropy(linear(x), labels)

    labels = torch.tensor([1, -100, -100, 3, -100])
    assert checked(Forward(loss), floats(5, 4), labels).rows_proved
    result = "result cross_entropy_loss: float32[] "
    change = [(result + "sum", result + "mean")]
    report = checked(Forward(loss), floats(5, 4), labels, change=change)
    assert report.ok and not report.rows_proved
    assert report.rows_interact.startswith("in parts of 2 and 4 rows, outputs: ")


def test_rows_are_taken_and_joined_as_their_layout_says():
    class Layout:
        kind, dim, outer, inner = "apart", 1, 2, 3

    # Dimension 1 holds 2 x B x 3: row b owns (o * B + b) * 3 + i.
    tensor = torch.arange(2 * 4 * 3).reshape(1, -1)
    first = row_parts.take(tensor, Layout, torch.tensor([1]))
    assert first.tolist() == [[3, 4, 5, 15, 16, 17]]
    parts = [row_parts.take(tensor, Layout, torch.arange(*r)) for r in ((0, 1), (1, 4))]
    assert torch.equal(row_parts.join(parts, [1, 3], Layout), tensor)

    Layout.kind = "mean"
    assert row_parts.join([torch.tensor(1.0), torch.tensor(4.0)], [2, 4], Layout).item() == 3
    Layout.kind = "sum"
    assert row_parts.join([torch.tensor(1.0), torch.tensor(4.0)], [2, 4], Layout).item() == 5


def test_the_other_batch_permutes_all_inputs_alike_and_changes_floats_only():
    class Apart:
        kind, dim, outer, inner = "apart", 0, 1, 1

    class Fixed:
        kind = "none"

    x = torch.tensor([0.25, 0.5, 0.75])
    labels, flags, table = torch.tensor([1, 2, 3]), torch.tensor([1.0, 0, 1]), torch.rand(2)
    new = row_parts.other_batch(
        [x, labels, flags, table], [Apart] * 3 + [Fixed], 3, 5, 0, ["x", "labels", "flags", "table"]
    )
    assert [len(t) for t in new] == [5, 5, 5, 2]
    assert set(new[1].tolist()) == {1, 2, 3}
    assert torch.equal(new[2], flags[new[1] - 1])
    ratio = new[0] / x[new[1] - 1]
    assert (ratio > 0.95).all() and (ratio <= 1).all() and (ratio < 1).any()


# Comparing


def test_errors_are_shares_of_the_largest_entry_of_all_tensors():
    expected = {"a": torch.tensor([100.0, 0.0]), "b": torch.tensor([1e-6])}
    found = {"a": torch.tensor([100.0, 0.5]), "b": torch.tensor([2e-6])}
    # b is off by all of itself, but that is 1e-8 of 100; a is off by 0.5 of 100.
    worst, first = compare.tensors("gradients", expected, found, 1e-4)
    assert worst == pytest.approx(0.005)
    assert (first.name, first.error) == ("a", pytest.approx(0.005))


def test_what_fills_a_mask_does_not_hide_errors():
    low = torch.finfo(torch.float32).min
    expected, found = torch.tensor([low, 1.0]), torch.tensor([low, 1.5])
    worst, _ = compare.tensors("outputs", {"a": expected}, {"a": found}, 1e-4)
    assert worst == 0.5


def test_nan_and_infinity_must_stand_in_the_same_places():
    nan, inf = float("nan"), float("inf")
    same = {"a": torch.tensor([nan, inf, 1.0])}
    assert compare.tensors("outputs", same, same, 1e-4) == (0.0, None)
    _, difference = compare.tensors("outputs", same, {"a": torch.tensor([0.0, inf, 1.0])}, 1e-4)
    assert difference.note == "NaN or infinity on one side only"
