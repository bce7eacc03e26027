"""From a model and the arguments of one call to a graph that runs at any batch size."""

import contextvars
import threading

import torch

from pyrannc import _C
from pyrannc.capture import random_states
from pyrannc.capture.arguments.batch_dims import find_batch_dims, input_names
from pyrannc.capture.arguments.call import Call
from pyrannc.capture.arguments.refusals import refuse_model
from pyrannc.capture.attributes.caches import UserCaches
from pyrannc.capture.captured import Capture, Choices
from pyrannc.capture.rows.whole_batch import UNKNOWN
from pyrannc.capture.traced import joined
from pyrannc.capture.traced.joined import trace_rows
from pyrannc.capture.values.grad_mode import GradMode


def capture(
    model,
    args=(),
    kwargs=None,
    batch_dims=None,
    exact_loss=False,
    known=None,
    explicit_draws=False,
    sync_batch_norm=False,
    hooks=None,
    places=None,
    front_end=None,
    grad=True,
    batch=UNKNOWN,
) -> Capture:
    """Captures ``model(*args, **kwargs)`` without running it: no memory, no computation.

    Args:
        model: Any ``nn.Module``. It is unchanged afterwards.
        args, kwargs: Of one call. Tensors are inputs of the graph; all else is constant.
        batch_dims: Which dimension of an input holds the rows, where it is not dimension 0: an int
            for all of them, or a dict from argument name or position to an int, or None for an
            input without rows. An input whose dimension 0 differs from the majority has none.
        exact_loss: Leaves what is not linear in means over the batch as it is. Else, where nothing
            else makes rows interact, each share of the batch computes it from its own rows.
        known: ``batch_dims`` of an earlier capture by the path of the input; they count.
        explicit_draws: Every random number can be told from seed, step, node and sample: attention
            with dropout inside becomes products, softmax and dropout.
        hooks: :class:`ModuleHooks` that ranks have agreed on; without it all hooks are part of the
            forward pass.
        places: :class:`~pyrannc.state.model_device.Places`; where the model moves, it is captured
            as on its new device. Default: where it is.
        front_end: "torchscript", torch's tracer, or "export", torch.export; default: the tracer,
            where this build has it.
        grad: What code of the user's is told where it asks torch.is_grad_enabled().
        batch: :class:`~pyrannc.capture.rows.whole_batch.WholeBatch`: at which number of rows the
            model is looked at, too, and what to do where it computes otherwise.
        sync_batch_norm: Batch normalisations in training take the statistics of the whole batch.

    Raises:
        TraceError: The model's Python code depends on tensor values, or on the batch size in
            another way than ``a + b * rows``, or an operator is none that ``explicit_draws`` or
            ``sync_batch_norm`` can do; names module and source line.
        ConfigError: ``batch_dims`` names no input.
    """
    refuse_model(model)
    if front_end is None:
        front_end = "torchscript" if hasattr(_C.frontend, "Tracer") else "export"
    call = Call(args, kwargs or {})
    names = input_names(model, call)
    dims = find_batch_dims(call, names, batch_dims, known)
    states = _states(model)
    choices = Choices(exact_loss, explicit_draws, sync_batch_norm, hooks)
    result, mode = {}, GradMode(grad)
    state = _C.frontend.ThreadState()
    cache = torch.is_autocast_cache_enabled()

    def work():
        try:
            with state:
                torch.set_autocast_cache_enabled(cache)
                if places and places.device.type != "cpu":
                    torch.accelerator.set_device_index(places.device.index)
                # Before anything is replaced: the compiler keeps what it finds in torch.
                captured = _exporting() if front_end == "export" else joined.captured
                with mode.answered(model):
                    made = captured(model, call, names, dims, states, choices, places, batch)
                if made is not batch.known:
                    made.grad = mode.told
                result["capture"] = made
        except BaseException as error:
            result["error"] = error

    # A thread of its own: a trace that failed leaves state in its thread that spoils later ones.
    with random_states.kept(places.device if places else None):
        context = contextvars.copy_context()  # forward() may read those of the caller
        thread = threading.Thread(target=context.run, args=(work,), name="rannc-capture")
        thread.start()
        thread.join()
    if "error" in result:
        raise result["error"]
    return result["capture"]


def _exporting():
    from pyrannc.capture.exported import program  # takes seconds: it imports a compiler

    def captured(model, call, names, dims, states, choices, places, batch):
        with UserCaches() as caches:
            rows = trace_rows(call, dims)
            made, alone = program.export(
                model, call, names, dims, states, places, rows, batch, caches, choices.hooks
            )
        if made is None:
            return batch.known
        return Capture(made, call, dims, made.outputs, states, choices, made.probes, made, alone)

    return captured


def _states(model):
    """``(names, tensor, kind)`` of every parameter and buffer, tied ones once."""
    found = {}
    for kind, named in (
        ("parameter", model.named_parameters(remove_duplicate=False)),
        ("buffer", model.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in named:
            found.setdefault(id(tensor), ([], tensor, kind))[0].append(name)
    return list(found.values())
