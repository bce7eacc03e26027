"""Favours to single spots of torch's library, which do what no capture can follow, and need not.

Each is one entry of FAVOURS: the spot, in which releases the favour was needed, and why. Favours
act while a model is traced, in the thread that traces it. tests/torch/capture/test_torch_favours.py
shows for each what works with it and does not without: one that torch no longer needs fails there,
and goes.
"""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable

import torch
from torch.distributions import Distribution
from torch.nn import functional
from torch.nn.modules import transformer

from pyrannc.capture import torch_private
from pyrannc.capture.replaced import in_this_thread, replaced


@dataclasses.dataclass(frozen=True)
class Favour:
    """One spot of torch's library, and what stands in its place."""

    spot: str
    releases: str
    reason: str
    patch: Callable | None = None
    """A context manager of a session; None for kernels of FakeTensors, which FAKE_KERNELS holds."""


def no_look_into_masks(session):
    """nn.Transformer takes its masks for causal only where it is told so."""
    detect = transformer._detect_is_causal_mask

    def is_causal(mask, is_causal=None, size=None):
        return is_causal is True if session.here() else detect(mask, is_causal, size)

    return replaced(transformer, _detect_is_causal_mask=is_causal)


class _ValidateArgs:
    """``Distribution._validate_args``: False in the thread that makes it, torch's value in others.

    It has no ``__set__``: a distribution that is made with ``validate_args=`` keeps its own value.
    """

    def __init__(self):
        self._get = in_this_thread(lambda: False, lambda value=Distribution._validate_args: value)

    def __get__(self, distribution, kind):
        return self._get()


def no_validation_of_distributions(_session):
    return replaced(Distribution, _validate_args=_ValidateArgs())


def no_look_at_variances(session):
    """gaussian_nll_loss does not look whether a variance is negative."""
    loss = functional.gaussian_nll_loss

    def gaussian_nll_loss(*args, **kwargs):
        if not session.here():
            return loss(*args, **kwargs)
        with replaced(torch, any=in_this_thread(lambda negative: False, torch.any)):
            return loss(*args, **kwargs)

    return replaced(functional, gaussian_nll_loss=gaussian_nll_loss)


def no_checks_of_values(session):
    """What checks that all elements of a tensor are true leaves it alone."""
    name = torch_private.CHECK_OF_VALUES
    check = getattr(torch, name)

    def unless_traced(*args, **kwargs):
        return None if session.here() else check(*args, **kwargs)

    return replaced(torch, **{name: unless_traced})


def no_fused_encoder(_session):
    """Replaces the function that reads the flag: the flag itself is that of all threads."""
    backend = torch.backends.mha
    enabled = in_this_thread(lambda: False, backend.get_fastpath_enabled)
    return replaced(backend, get_fastpath_enabled=enabled)


@contextlib.contextmanager
def no_stacks_in_the_log(_session):
    """Drops what this thread logs below level critical; a level would be that of all threads."""
    thread = threading.get_ident()

    def shows(record):
        return record.levelno >= logging.CRITICAL or threading.get_ident() != thread

    # A filter of a logger does not see what is logged to those below it.
    names = tuple(f"{name}." for name in torch_private.LOGGERS)
    below = [name for name in [*logging.root.manager.loggerDict] if name.startswith(names)]
    loggers = [logging.getLogger(name) for name in (*torch_private.LOGGERS, *below)]
    for logger in loggers:
        logger.addFilter(shows)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(shows)


@contextlib.contextmanager
def without_cudnn():
    """Lets torch choose no kernel of cuDNN inside. Operators whose arguments say whether they may
    use cuDNN, such as convolutions, are not affected.

    torch has one flag for all threads, which its C++ code reads. Another thread that chooses a
    kernel meanwhile gets one of torch's own, which computes the same up to rounding.
    """
    backend = torch.backends.cudnn
    before = backend.enabled
    backend.enabled = False
    try:
        yield
    finally:
        backend.enabled = before


def no_draws_of_cudnn(session):
    """Recurrent layers are traced as without cuDNN; what is written down is the whole layer."""
    functions = torch_private.RECURRENT

    def unless_traced(function):
        def call(*args, **kwargs):
            with without_cudnn() if session.here() else contextlib.nullcontext():
                return function(*args, **kwargs)

        return call

    names = "lstm", "gru", "rnn_tanh", "rnn_relu"
    return replaced(functions, **{name: unless_traced(getattr(functions, name)) for name in names})


_ALIGNMENT_BYTES = 16


def grouped_mm(a, b, offs=None, bias=None, out_dtype=None):
    """What the operator returns, empty: its rows begin at multiples of 16 bytes."""
    if a.dim() == 2 and b.dim() == 2:
        sizes = [offs.size(0), a.size(0), b.size(1)]
    elif a.dim() == 2 or b.dim() == 2:
        sizes = [a.size(-2), b.size(-1)]
    else:
        sizes = [a.size(0), a.size(1), b.size(2)]
    dtype = out_dtype or a.dtype
    per_line = _ALIGNMENT_BYTES // dtype.itemsize
    line = -(-sizes[-1] // per_line) * per_line
    strides = [sizes[1] * line, line, 1][-len(sizes) :]
    return torch.empty_strided(sizes, strides, dtype=dtype, device=a.device)


def ctc_loss(log_probs, targets, *_args, **_kwargs):
    """What the operator returns, empty: its second result is kept for the backward alone, and as
    long as the longest target, which no more than all of them can be."""
    steps, rows = log_probs.size(0), log_probs.size(1)
    losses = torch.empty([rows], dtype=log_probs.dtype, device=log_probs.device)
    alphas = [rows, steps, 2 * targets.size(-1) + 1]
    return losses, torch.empty(alphas, dtype=log_probs.dtype, device=log_probs.device)


#: What stands in for torch's own kernels of FakeTensors, by operator.
FAKE_KERNELS = {torch_private.GROUPED_MM: grouped_mm, torch_private.CTC_LOSS: ctc_loss}

FAVOURS = (
    Favour(
        "torch.nn.modules.transformer._detect_is_causal_mask",
        "2.11 to 2.15",
        "compares the values of a mask with those of a causal one, only to pick a kernel",
        no_look_into_masks,
    ),
    Favour(
        "torch.distributions.Distribution",
        "2.11 to 2.15",
        "looks at the values of its arguments, only to raise an error for invalid ones",
        no_validation_of_distributions,
    ),
    Favour(
        "torch.nn.functional.gaussian_nll_loss",
        "2.11 to 2.15",
        "looks at the values of variances, only to raise an error for negative ones",
        no_look_at_variances,
    ),
    Favour(
        "torch's check that all of a tensor is true",
        "2.11 to 2.15",
        "looks at the values of a tensor, only to raise an error where one is not true",
        no_checks_of_values,
    ),
    Favour(
        "torch.nn.TransformerEncoderLayer",
        "2.11 to 2.15",
        "calls in eval mode one fused operator for inference, which has no gradient",
        no_fused_encoder,
    ),
    Favour(
        "torch.nn.LSTM, GRU and RNN on CUDA",
        "2.11 to 2.15, by its sources: no GPU has run it",
        "look at a random number of the device where there is dropout between their layers",
        no_draws_of_cudnn,
    ),
    Favour(
        "the logs of torch's FakeTensors and of torch.export",
        "2.11 to 2.15",
        "shows a stack at error level for mistakes that the TraceError then reports",
        no_stacks_in_the_log,
    ),
    Favour(
        "aten::_grouped_mm on FakeTensors",
        "2.11 to 2.14",
        "refuses float32 and float16, which its kernel on the CPU takes: no mixture of experts "
        "could be traced",
    ),
    Favour(
        "aten::_ctc_loss.Tensor on FakeTensors",
        "2.11 to 2.15",
        "has no kernel there, as the memory for its backward depends on the longest target",
    ),
)


@contextlib.contextmanager
def done(session):
    """All patches of FAVOURS."""
    with contextlib.ExitStack() as stack:
        for favour in FAVOURS:
            if favour.patch is not None:
                stack.enter_context(favour.patch(session))
        yield
