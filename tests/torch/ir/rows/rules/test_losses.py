"""Losses in parts of a batch: sums over what the whole batch divides by."""

import random

import pytest
import torch
from loss_models import LANGUAGE_LOSSES, LOSSES, ROOT, LossModel, inputs
from replay import replay
from torch.nn import functional

from pyrannc import _C
from pyrannc.capture.model import capture
from pyrannc.selfcheck.check import check


def captured_and_checked(entry, exact_loss=False):
    model = entry.build()
    args, kwargs = entry.inputs(8)
    captured = capture(model, args, kwargs, exact_loss=exact_loss)
    report = check(model, captured, args, kwargs)
    report.raise_if_wrong()
    return captured, report


@pytest.mark.parametrize("name", [*LOSSES, *LANGUAGE_LOSSES])
def test_parts_of_a_batch_give_the_loss_of_the_whole(name):
    captured, report = captured_and_checked({**LOSSES, **LANGUAGE_LOSSES}[name])
    assert report.rows_proved, report
    loss = captured.graph.values[captured.graph.outputs[0]]
    assert loss.rows.kind == ("mean" if name == "standardised" else "sum")


def test_what_is_not_linear_is_averaged_unless_the_loss_must_be_exact():
    captured, report = captured_and_checked(ROOT)
    (node,) = [node for node in captured.graph.nodes if node.by_share]
    assert node.op == "aten::sqrt" and "loss_models.py" in node.source
    assert not _C.ir.row_mixes(captured.graph)
    assert "is not linear in a mean over the batch" in report.skipped[0]

    captured, _ = captured_and_checked(ROOT, exact_loss=True)
    assert not any(node.by_share for node in captured.graph.nodes)
    assert len(_C.ir.row_mixes(captured.graph)) == 1


def test_a_batch_without_any_label_gives_nan_and_no_gradient_as_in_torch():
    model = LossModel(lambda model, scores, labels, mask: functional.cross_entropy(
        scores.reshape(-1, 6), labels.reshape(-1)
    ))  # fmt: skip
    (x, labels, mask), _ = inputs(4, torch.Generator().manual_seed(1))
    call = (x, torch.full_like(labels, -100), mask)
    report = check(model, capture(model, (x, labels, mask)), call, {})
    report.raise_if_wrong()
    assert model(*call).isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_loss_in_16_bits_does_not_overflow(dtype):
    # 5000 losses of about 20 are 100,000; float16 ends at 65,504.
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.full((), 10.0))

        def forward(self, x, labels):
            return functional.cross_entropy((x * self.scale).flatten(0, 1), labels.flatten())

    model, reference = Model().to(dtype), Model()
    x = torch.zeros(4, 2500, 3)
    x[..., 0] = 2
    labels = torch.ones(4, 2500, dtype=torch.int64)
    captured = capture(model, (x.to(dtype), labels))
    loss = replay(captured, model, (x.to(dtype), labels), {})
    loss.backward()
    expected = reference(x, labels)
    expected.backward()
    assert loss.dtype == dtype
    torch.testing.assert_close(loss.float(), expected, rtol=1e-2, atol=0)
    torch.testing.assert_close(model.scale.grad.float(), reference.scale.grad, rtol=1e-2, atol=0)


class RandomLoss:
    """A loss of random terms, each made of reductions over the batch."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, model, scores, labels, mask):
        choose = random.Random(self.seed)
        kept = labels != -100
        per_token = (scores - 1).square().mean(-1)

        def count():
            """Without gradient, from arguments alone."""
            made = choose.choice([
                lambda: mask.sum(),
                lambda: kept.sum(),
                lambda: mask.mean(),
                lambda: (mask * model.weights[0]).sum(),
                lambda: kept.float().sum(1).mean(),
            ])()  # fmt: skip
            return choose.choice([
                lambda: made,
                lambda: made.clamp(min=1),
                lambda: made + 0.5,
                lambda: made.float().sqrt() + count(),
                lambda: torch.where(made > 2, made, made.float() + 1),
            ])()  # fmt: skip

        def term():
            return choose.choice([
                lambda: functional.cross_entropy(scores.flatten(0, 1), labels.flatten()),
                lambda: (per_token * mask).sum() / count(),
                lambda: per_token.mean(),
                lambda: per_token.mean(1).sum(),
                lambda: (per_token * (mask - mask.mean())).mean(),
                lambda: sum(p.square().sum() for p in model.parameters()) * 0.01,
                lambda: torch.where(count() > 0, term(), 0.0),
                lambda: term() * 0.3,
                lambda: term() / (count() + 1),
                lambda: torch.stack([term(), term()]).mean(),
            ])()  # fmt: skip

        loss = [term() + term()]
        for _ in range(choose.randrange(3)):
            more = choose.choice([term(), -term(), torch.tensor(0.25), loss[-1]])
            loss.append(loss[-1] + more)
        return loss[-1]


def test_random_losses_are_the_same_in_parts():
    exact = 0
    for seed in range(24):
        model = LossModel(RandomLoss(seed)).double()
        args, _ = inputs(8, torch.Generator().manual_seed(seed))
        args = tuple(value.double() if value.is_floating_point() else value for value in args)
        captured = capture(model, args, exact_loss=True)
        report = check(model, captured, args, {})
        report.raise_if_wrong()
        assert report.rows_interact == "", (seed, report)
        assert report.rows_proved == (not _C.ir.row_mixes(captured.graph)), (seed, report)
        exact += report.rows_proved
    assert exact == 24
