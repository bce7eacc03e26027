"""A parameter or buffer that other ranks hold says what it is, and nothing can be computed with it.

It is the Python object that the user knows, so optimizer groups, ``model.layers[3].weight`` and
the order of ``parameters()`` stay what they were. Its memory is gone. What torch would silently do
with it (compute on the meta device, save no numbers, pair other tensors) is an error. Operators
that treat each element by itself do nothing (``nothing_done.py``): the ranks that hold it do them.
"""

import collections
import contextlib
import inspect

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from pyrannc.errors import RaNNCError
from pyrannc.state import nothing_done, torch_private
from pyrannc.state.sums import elsewhere as sums_elsewhere

# What is read of the tensor itself, which lies on the meta device and keeps sizes, dtype and flags.
_ATTRIBUTES = """
    shape dtype requires_grad grad is_leaf ndim nbytes itemsize layout is_sparse is_quantized
    is_nested grad_fn retains_grad output_nr is_mkldnn _backward_hooks
    _post_accumulate_grad_hooks
"""
_METHODS = """
    size stride dim numel nelement element_size ndimension is_floating_point is_complex
    is_contiguous is_inference is_signed requires_grad_ storage_offset __hash__ __len__
"""


def _read(name):
    """What torch calls where an attribute of a tensor is read."""
    return getattr(torch.Tensor, name).__get__


_GRAD, _SET_GRAD = _read("grad"), torch.Tensor.grad.__set__
_ALLOWED = {
    *map(_read, _ATTRIBUTES.split()),
    torch.Tensor.requires_grad.__set__,
    *(getattr(torch.Tensor, name) for name in _METHODS.split()),
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
}
# Answered for the device of the model.
_OF_DEVICE = {
    _read("device"): lambda device: device,
    _read("is_meta"): lambda device: device.type == "meta",
    _read("is_cpu"): lambda device: device.type == "cpu",
    _read("is_cuda"): lambda device: device.type == "cuda",
    _read("is_xpu"): lambda device: device.type == "xpu",
    _read("is_mps"): lambda device: device.type == "mps",
}
# Make a tensor with values, of which the released one gives dtype and device alone.
_NEW = {
    getattr(torch.Tensor, name)
    for name in ("new", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")
}
# Are called on the ranks that hold it, as such hooks from before the first call are.
_HOOKS = {torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook}
_TO_ITS_KIND = {torch.Tensor.to, torch.Tensor.type_as}


RELEASED = "that this rank has released"  #: In each error about a use of a released tensor.

# Inside loading().
_loading = [False]


@contextlib.contextmanager
def loading():
    """Inside, modules may write into released tensors, as they load their state in ways of their
    own: it has no effect."""
    before, _loading[0] = _loading[0], True
    try:
        yield
    finally:
        _loading[0] = before


class _Released:
    """Instances have ``place_elsewhere``: their name in the model, the ranks that hold them, and
    the device on which the model is."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function == _SET_GRAD and not _loading[0]:
            return _set_gradient(*args)
        if function in _ALLOWED or _loading[0]:
            with torch_private.without_subclasses():
                found = function(*args, **(kwargs or {}))
            return _gradient_elsewhere(args[0]) if found is None and function == _GRAD else found
        if function in _OF_DEVICE:
            return _OF_DEVICE[function](args[0].place_elsewhere.device)
        if function in _HOOKS:
            return RemovableHandle(collections.OrderedDict())
        if function in _NEW and is_released(args[0]):
            return _new(function, args, kwargs or {})
        if function in _TO_ITS_KIND and not is_released(args[0]):  # x.to(parameter)
            return args[0].to(args[1].place_elsewhere.device, args[1].dtype, **(kwargs or {}))
        kwargs = kwargs or {}
        if nothing_done.is_along_dimensions(function, args, kwargs):
            return _with_step(
                nothing_done.reduce(function, args, kwargs, _like), function, args, kwargs
            )
        whole = sums_elsewhere.is_whole_reduction(function)
        if whole and (found := _number(function, args, kwargs)) is not None:
            return found
        if nothing_done.is_elementwise(function) and not _is_saved(inspect.currentframe().f_back):
            try:
                made = nothing_done.call(function, args, kwargs, is_released, _like, _refuse)
            except RaNNCError:
                made = _beside_constants(function, args, kwargs)
                if made is None:
                    raise
            return _with_step(made, function, args, kwargs)
        raise RaNNCError(_complaint(function, args, kwargs or {}))

    def __repr__(self, **_):
        return f"<{_described(self)}>"

    # Torch's own refusals would say no more than that this is some tensor.
    def __reduce_ex__(self, protocol):
        raise RaNNCError(_complaint(torch.Tensor.__reduce_ex__, (self,), {}))

    def __deepcopy__(self, memo):
        raise RaNNCError(_complaint(torch.Tensor.__deepcopy__, (self,), {}))


# Copies go on with what the parameter has held: no rank could compute them later.
_COPIES = {"clone", "detach", "data", "to", "cpu", "requires_grad_", "contiguous"}


def _with_step(made, function, args, kwargs):
    """``made`` knows how ranks that hold what it is made of can compute it."""
    name = getattr(function, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        if is_released(made) and hasattr(made, "step_elsewhere"):
            made.step_elsewhere = None
        if is_released(made) and made.place_elsewhere.gradients is not None:
            made.place_elsewhere.gradients.owners.questions.parameters_change()
    elif is_released(made) and not any(made is each for each in args):
        copied = name in _COPIES or name == "__get__"
        made.step_elsewhere = None if copied else sums_elsewhere.step_of(function, args, kwargs)
    return made


def _number(function, args, kwargs):
    """A reduction to one number; None where nobody could compute it."""
    step = sums_elsewhere.step_of(function, args, kwargs)
    place = args[0].place_elsewhere if args and is_released(args[0]) else None
    if step is None or place is None or place.gradients is None:
        return None
    if not place.gradients.owners.can_sum():
        return None
    return sums_elsewhere.number(step, place.gradients.owners, args[0].dtype, place.device)


def _beside_constants(function, args, kwargs):
    """What an operator of each element makes of released tensors and others with values, as
    anchors of parameters are; None where it writes, or nobody could compute it."""
    name = getattr(function, "__name__", "")
    step = sums_elsewhere.step_of(function, args, kwargs)
    places = [each.place_elsewhere for each in args if is_released(each)]
    if any(place.gradients is None or not place.gradients.owners.can_sum() for place in places):
        return None
    if step is None or (name.endswith("_") and not name.endswith("__")) or name[:3] == "__i":
        return None
    with torch_private.without_subclasses():
        given = [e.detach().to("meta") if isinstance(e, torch.Tensor) else e for e in args]
        made = function(*given, **kwargs)
    return _like(made, next(each for each in args if is_released(each)))


def _new(function, args, kwargs):
    """Of a hidden state, say: ``next(model.parameters()).new_zeros(2, 8)``."""
    released = args[0]
    kwargs = {"device": released.place_elsewhere.device} | kwargs
    with torch_private.without_subclasses():
        if function == torch.Tensor.new:  # which wants the device of its tensor
            return torch.empty(0, dtype=released.dtype, device=kwargs["device"]).new(*args[1:])
        return function(*args, **kwargs)


def _gradient_elsewhere(tensor):
    """A released gradient of a released parameter, where other ranks have it; else None."""
    place = tensor.place_elsewhere
    if place.gradients is None or not tensor.requires_grad:
        return None
    if not place.gradients.there_are(place.name, place.cleared):
        return None
    with torch_private.without_subclasses():
        made = torch.empty_like(tensor, requires_grad=False)
    made = made.as_subclass(ReleasedBuffer)
    made.place_elsewhere = _Place(place.name, place.ranks, tensor, None)
    made.place_elsewhere.device, made.place_elsewhere.what = place.device, "gradient of parameter"
    return made


def _set_gradient(tensor, gradient):
    """None, or what was made of a released gradient; the ranks that hold it set theirs."""
    place = tensor.place_elsewhere
    if gradient is not None and not (
        is_released(gradient) and gradient.place_elsewhere.name == place.name
    ):
        _refuse(_SET_GRAD, (tensor, gradient), {})
    if gradient is None and place.gradients is not None:
        place.cleared = place.gradients.arrivals


class ReleasedParameter(_Released, nn.Parameter):
    pass


class ReleasedBuffer(_Released, torch.Tensor):
    pass


class _Place:
    def __init__(self, name, ranks, tensor, gradients):
        self.name, self.ranks, self.gradients = name, ranks, gradients
        self.known_numbers = None  # of a small buffer, as a list, where all ranks compare it
        self.cleared = 0  # see GradientsElsewhere.there_are()
        self.what = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        # A model that was built without values is planned for on the host, until its ranks hold it.
        self.device = torch.device("cpu") if tensor.is_meta else tensor.device
        self.kind = type(tensor)


def _is_saved(frame) -> bool:
    """Whether a module's own state_dict() asks, which would be without what is not here."""
    return frame.f_code.co_name == nn.Module._save_to_state_dict.__name__


def is_released(tensor) -> bool:
    return isinstance(tensor, _Released)


def released_of(tensors) -> list:
    return [each for each in tensors if isinstance(each, _Released)]


def release(tensor: torch.Tensor, name: str, ranks: list[int], gradients=None) -> None:
    """Frees the memory of a parameter or buffer; it stays the same object.

    Args:
        name: In the model.
        ranks: Those that hold it.
        gradients: :class:`~pyrannc.state.gradients_elsewhere.GradientsElsewhere` of the model.
    """
    tensor.place_elsewhere = _Place(name, ranks, tensor, gradients)
    _swap(tensor, torch.empty_like(tensor, device="meta", requires_grad=False))
    tensor.grad = None
    tensor.__class__ = ReleasedParameter if isinstance(tensor, nn.Parameter) else ReleasedBuffer


def materialize(tensor: torch.Tensor) -> None:
    """Gives a released tensor memory again; its values are undefined."""
    other = blank(tensor)
    tensor.__class__ = tensor.place_elsewhere.kind
    del tensor.place_elsewhere
    _swap(tensor, other)


def blank(tensor: torch.Tensor, requires_grad=False, device=None) -> torch.Tensor:
    """A tensor like this one, released or not, in memory of the model's or of another device; its
    values are undefined."""
    device = device or ("cpu" if tensor.device.type == "meta" else tensor.device)
    place = getattr(tensor, "place_of_part", None)
    with torch_private.without_subclasses():
        if place is not None:  # of the whole, see parts.py
            return tensor.new_empty(place.shape, device=device, requires_grad=requires_grad)
        return torch.empty_like(tensor, device=device, requires_grad=requires_grad)


def _swap(tensor, other):
    if isinstance(tensor, nn.Parameter):
        other = nn.Parameter(other, requires_grad=tensor.requires_grad)
    # Weak references to it stay right: the Python object remains the same.
    torch_private.swap_tensors(tensor, other)


def _like(made, released):
    """``made``, computed of nothing, is released like another tensor."""
    made = made.as_subclass(ReleasedBuffer)
    made.place_elsewhere, made.step_elsewhere = released.place_elsewhere, None
    return made


def _refuse(function, args, kwargs):
    raise RaNNCError(_complaint(function, args, kwargs))


def _described(tensor) -> str:
    place = tensor.place_elsewhere
    one = len(place.ranks) == 1
    ranks = f"rank{'' if one else 's'} {', '.join(map(str, place.ranks))} hold{'s' if one else ''}"
    return f"{place.what} '{place.name}' {list(tensor.shape)}, which {ranks}"


def _complaint(function, args, kwargs) -> str:
    tensors = [*nothing_done.tensors((args, kwargs))]
    released = next(each for each in tensors if is_released(each))
    name = getattr(function, "__name__", str(function))
    if name in ("__get__", "__set__"):
        name = f"its attribute {getattr(getattr(function, '__self__', None), '__name__', '?')}"
    text = f"{name} of a tensor {RELEASED}: {_described(released)}"
    mine = released.place_elsewhere.name
    others = [each for each in tensors if is_released(each) and each.place_elsewhere.name != mine]
    with_values = [each for each in tensors if not is_released(each)]
    if others:
        text += f"; beside it stands another one, {_described(others[0])}"
    elif with_values:
        kind = "parameter" if isinstance(with_values[0], nn.Parameter) else "tensor"
        text += (
            f"; beside it stands a {kind} with values, {with_values[0].dtype} "
            f"{list(with_values[0].shape)}. To average a model in the loop, copy the wrapped one "
            "before its first call: copy.deepcopy(model) holds the same parts"
        )
    if released.place_elsewhere.what.startswith("gradient"):
        return (
            f"{text}.\n  What is done to each gradient by itself works on every rank. For a norm "
            "of them, or whether one is not finite, use torch.nn.utils.get_total_norm() or "
            "clip_grad_norm_(); for values get_param_grad(name) of the RaNNCModule; all ranks "
            "call them."
        )
    return (
        f"{text}.\n  Its shape, dtype, device and requires_grad can be read on every rank. For its "
        "values use state_dict() of the RaNNCModule, which all ranks call; for this rank's own "
        "parameters parameters(from_global=False). Where a module was called: call the RaNNCModule "
        "instead, on all ranks (trainer.model_wrapped of transformers' Trainer), or enter its "
        "summon()."
    )
