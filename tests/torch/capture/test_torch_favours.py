"""Each favour to a spot of torch's library is needed in this release: without it, capture fails."""

import logging

import pytest
import torch
from torch import nn
from torch.distributions import Distribution, Normal
from torch.nn import functional

from pyrannc.capture import torch_favours
from pyrannc.capture.model import capture
from pyrannc.capture.replaced import replaced
from pyrannc.errors import TraceError


class WithMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6))

    def forward(self, x):
        return self.transformer(x, x, tgt_mask=self.mask)


class Likelihood(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.layer, self.loss = nn.Linear(8, 8), loss

    def forward(self, x):
        return self.loss(self.layer(x), x)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 8, 8))

    def forward(self, x):
        ends = torch.tensor([3, 6], dtype=torch.int32)
        return torch._grouped_mm(x[0], self.weight, ends)


class Transcribing(nn.Module):
    def forward(self, x):
        scores, lengths = x.transpose(0, 1).log_softmax(-1), torch.full((len(x),), 2)
        targets = torch.ones(len(x), 3, dtype=torch.long)
        return functional.ctc_loss(scores, targets, lengths + 4, lengths)


class Checked(nn.Module):
    def forward(self, x):
        torch._check_tensor_all(x > -100)
        return 2 * x


class Refused(nn.Module):
    def forward(self, x):
        return x + x.new_ones(3)  # no such shape


def normal(mean, x):
    return -Normal(mean, torch.ones_like(mean)).log_prob(x).mean()


def gaussian(mean, x):
    return functional.gaussian_nll_loss(mean, x, mean.exp())


def batch():
    return (torch.randn(4, 6, 8),)


def captures(model):
    capture(model, batch())


def is_encoder_taken_apart(model):
    ops = {node.op for node in capture(model.eval(), batch()).graph.nodes}
    assert "aten::linear" in ops and "aten::_transformer_encoder_layer_fwd" not in ops


def logs_no_stack(model):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(handler)
    try:
        with pytest.raises(TraceError):
            capture(model, batch())
    finally:
        logger.removeHandler(handler)
    assert not records


def is_called_without_cudnn(model):
    """Which is what matters on CUDA, where a layer with cuDNN looks at a number that it draws."""
    lstm, enabled = torch._VF.lstm, []

    def watched(*arguments):
        enabled.append(torch.backends.cudnn.enabled)
        return lstm(*arguments)

    with replaced(torch._VF, lstm=watched):
        graph = capture(model, batch()).graph
    assert enabled and not any(enabled)
    assert torch.backends.cudnn.enabled
    assert "aten::lstm.input" in {node.op for node in graph.nodes}


CASES = {
    "torch.nn.modules.transformer._detect_is_causal_mask": (WithMask, captures),
    "torch.distributions.Distribution": (lambda: Likelihood(normal), captures),
    "torch.nn.functional.gaussian_nll_loss": (lambda: Likelihood(gaussian), captures),
    "torch's check that all of a tensor is true": (Checked, captures),
    "torch.nn.TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).requires_grad_(False),
        is_encoder_taken_apart,
    ),
    "torch.nn.LSTM, GRU and RNN on CUDA": (
        lambda: nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True),
        is_called_without_cudnn,
    ),
    "the logs of torch's FakeTensors and of torch.export": (Refused, logs_no_stack),
    "aten::_grouped_mm on FakeTensors": (Experts, captures),
    "aten::_ctc_loss.Tensor on FakeTensors": (Transcribing, captures),
}


@pytest.fixture(params=torch_favours.FAVOURS, ids=lambda favour: favour.spot)
def favour(request):
    return request.param


def test_with_the_favour_it_works(favour):
    build, check = CASES[favour.spot]
    check(build())


def is_of_this_release(favour):
    last = favour.releases.removeprefix("2.11 to 2.").split(",")[0]
    return int(torch.__version__.split(".")[1]) <= int(last)


def test_without_the_favour_it_does_not(favour, monkeypatch):
    if not is_of_this_release(favour):
        pytest.skip(f"torch needs it in {favour.releases} only; this is {torch.__version__}")
    build, check = CASES[favour.spot]
    others = [each for each in torch_favours.FAVOURS if each is not favour]
    monkeypatch.setattr(torch_favours, "FAVOURS", others)
    # torch's default, which importing torch._dynamo in another test switches off for the process.
    monkeypatch.setattr(Distribution, "_validate_args", True)
    if favour.patch is None:
        monkeypatch.setattr("pyrannc.capture.fake_mode.FAKE_KERNELS", {})
    with pytest.raises((TraceError, AssertionError)):
        check(build())


def test_every_favour_has_a_case_and_says_why():
    assert set(CASES) == {favour.spot for favour in torch_favours.FAVOURS}
    assert all(favour.releases and favour.reason for favour in torch_favours.FAVOURS)
