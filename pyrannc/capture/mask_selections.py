"""What a boolean mask selects, while a model is traced: ``F.mse_loss(y[mask], target[mask])``.

How many elements that is, depends on the data, so it cannot be part of a graph. But where each of
them is computed for itself, and then comes into a sum or a mean, all elements may be computed, and
those that are not selected left out of the sum. The mean is then a sum over a number of elements
that the data say, which is exact under every plan like those of torch's own losses. Everything
else that Python does with a selection is refused.
"""

import contextlib
import inspect
import threading

import torch

from pyrannc import operators
from pyrannc.capture import torch_private
from pyrannc.capture.arguments import pytree
from pyrannc.capture.torch_private import DynamicOutputShapeException, FakeTensor
from pyrannc.operators import Trait

# What computes each element by itself; also the operators, as `__radd__`.
_POINTWISE = operators.in_python(operators.of(Trait.selected)) | {"softsign", "tanhshrink"}
# Along a dimension, which must not be the one of the selected elements: where its argument stands,
# and what it is where it is left out.
_ALONG = {
    "softmax": (1, None),
    "log_softmax": (1, None),
    "logsumexp": (1, None),
    "cumsum": (1, None),
    "gather": (1, None),
    "argmax": (1, None),
    "argmin": (1, None),
    "amax": (1, None),
    "amin": (1, None),
    "max": (1, None),
    "min": (1, None),
    "prod": (1, None),
    "std": (1, None),
    "var": (1, None),
    "sort": (1, -1),
    "topk": (2, -1),
    "chunk": (2, 0),
    "split": (2, 0),
    "linalg_vector_norm": (2, None),
    "squeeze": (1, None),
    "unsqueeze": (1, None),
    "select": (1, None),
    "narrow": (1, None),
    "normalize": (2, 1),
    "cosine_similarity": (2, 1),
    "norm": (2, None),
}
_LOSSES = operators.of(Trait.loss)
# Operators of which a mask is made that give equal results for equal operands.
SAME = operators.of(Trait.mask)
_SAME_IN_TRACES = operators.in_graphs(SAME) | {"prim::ListConstruct"}
# This stands in the places that are not selected, so that no operator meets what it cannot take
# there: a label -100, a target that is not a number. Derivatives of common functions are finite.
_HARMLESS = 0.5
_current = threading.local()  # session: whose masks select in this thread


class Selection:
    """Stands for ``rows[mask]``, a tensor of which nobody knows the first dimension.

    Attributes:
        rows: ``[elements, ...]``, all of them.
        mask: ``[elements]``; one object for all selections by it.
    """

    __slots__ = ("mask", "rows")

    def __init__(self, rows, mask):
        self.rows, self.mask = rows, mask

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = func.__name__.strip("_")
        kwargs = kwargs or {}
        if name in _POINTWISE:
            return _of_each(func, args, kwargs)
        if name in _ALONG:
            return _along(func, *_ALONG[name], args, kwargs)
        if name in _LOSSES:
            return _loss(func, args, kwargs)
        rule = _RULES.get(name)
        return refuse() if rule is None else rule(func, *args, **kwargs)

    def __getattr__(self, name):
        method = getattr(torch.Tensor, name, None)
        if callable(method) and not name.startswith("__"):
            return lambda *args, **kwargs: self.__torch_function__(
                method, (), (self, *args), kwargs
            )
        if name in ("dtype", "device", "layout", "ndim", "requires_grad", "is_meta"):
            return getattr(self.rows, name)
        return refuse()

    def dim(self):
        return self.rows.dim()

    def is_floating_point(self):
        return self.rows.is_floating_point()

    def size(self, dim=None):
        if dim is None:
            return _Sizes(self.rows.size())
        return _Sizes(self.rows.size())[dim]

    @property
    def shape(self):
        return _Sizes(self.rows.size())

    def __getitem__(self, index):
        if isinstance(index, Selection):  # of the selected ones
            if index.dim() > 1 or index.dtype != torch.bool or index.mask is not self.mask:
                refuse()
            return Selection(_harmless(self.rows, index.rows), self.mask & index.rows)
        parts = index if isinstance(index, tuple) else (index,)
        whole = parts[0] is Ellipsis and len(parts) <= self.dim()
        if (whole or parts[0] == slice(None)) and not any(
            isinstance(part, (torch.Tensor, Selection)) for part in parts
        ):
            return Selection(self.rows[index], self.mask)
        return refuse()

    def __bool__(self):
        refuse()

    def __len__(self):
        refuse()

    def __iter__(self):
        refuse()

    __hash__ = object.__hash__


def _operator(name):
    method = getattr(torch.Tensor, name)
    return lambda *args: Selection.__torch_function__(method, (), args)


for _name in (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"),
    *("__rtruediv__", "__floordiv__", "__mod__", "__pow__", "__rpow__", "__matmul__", "__neg__"),
    *("__abs__", "__invert__", "__and__", "__or__", "__xor__", "__eq__", "__ne__", "__lt__"),
    *("__le__", "__gt__", "__ge__"),
):
    setattr(Selection, _name, _operator(_name))


class _Sizes:
    """The sizes of a selection: all but the first."""

    def __init__(self, sizes):
        self._sizes = list(sizes)

    def __getitem__(self, index):
        dims = range(len(self._sizes))[index]
        if dims == 0 or (isinstance(index, slice) and 0 in dims):
            refuse()
        return self._sizes[index]

    def __len__(self):
        return len(self._sizes)

    def __iter__(self):
        refuse()


def refuse():
    """Raises what torch raises where a size depends on the data."""
    raise DynamicOutputShapeException(torch.ops.aten.nonzero.default)


def refuse_in(shape) -> None:
    """Refuses a selection in what :func:`pytree.flatten` has left of arguments or results."""
    if isinstance(shape, pytree.Constant) and isinstance(shape.value, Selection):
        refuse()
    for child in getattr(shape, "children", ()):
        refuse_in(child)


@contextlib.contextmanager
def allowed(session, replaced):
    """Masks of the traced model may select."""
    masks = []  # (value in the trace, the mask that stands for all equal ones)

    def the_mask(mask):
        value = session.value_of(mask)
        for other, found in masks:
            if session.are_same(value, other):
                return found
        flat = mask.reshape(-1)
        masks.append((value, flat))
        return flat

    def selected(tensor, mask):
        flat = the_mask(mask)
        rows = tensor.flatten(0, mask.dim() - 1) if mask.dim() > 1 else tensor
        return Selection(_harmless(rows, flat), flat)

    def selects(tensor, index):
        return (
            session.here()
            and isinstance(index, torch.Tensor)
            and index.dtype == torch.bool
            and 0 < index.dim() <= tensor.dim()
            and index.shape == tensor.shape[: index.dim()]
        )

    def only(index):
        """The mask in `x[mask, :]`."""
        if isinstance(index, tuple) and index:
            mask, *others = index
            if all(other is Ellipsis or other == slice(None) for other in others):
                return mask
        return index

    get, put = FakeTensor.__getitem__, FakeTensor.__setitem__
    masked_select = torch.masked_select

    def getitem(tensor, index):
        if isinstance(index, Selection) and session.here():
            refuse()
        mask = only(index) if session.here() else None
        return selected(tensor, mask) if selects(tensor, mask) else get(tensor, index)

    def setitem(tensor, index, value):
        if not isinstance(value, Selection) or not session.here():
            put(tensor, index, value)
            return
        mask = only(index)
        if not selects(tensor, mask) or the_mask(mask) is not value.mask:
            refuse()
        rows = value.rows.reshape(tensor.shape)
        tensor.copy_(torch.where(_beside(mask, tensor), rows, tensor))

    def select(*args, **kwargs):
        if not session.here():
            return masked_select(*args, **kwargs)
        return traced_select(*args, **kwargs)

    def traced_select(input, mask, **_):  # named as torch's
        tensor = input
        if tensor.shape != mask.shape:
            shape = torch.broadcast_shapes(tensor.shape, mask.shape)
            tensor, mask = tensor.expand(shape), mask.expand(shape)
        return selected(tensor, mask)

    _current.session = session
    try:
        with (
            replaced(FakeTensor, __getitem__=getitem, __setitem__=setitem, masked_select=select),
            replaced(torch, masked_select=select),
        ):
            yield
    finally:
        _current.session = None


def are_same(value, other) -> bool:
    """Whether two values of a trace are computed alike from the same."""
    if value.debugName() == other.debugName():
        return True
    node, another = value.node(), other.node()
    if node.kind() != another.kind():
        return False
    if node.kind() == "prim::Constant":
        return pytree.equal(value.toIValue(), other.toIValue())
    pairs = list(zip(node.inputs(), another.inputs(), strict=False))
    return (
        node.kind() in _SAME_IN_TRACES
        and node.inputsSize() == another.inputsSize()
        and all(are_same(*pair) for pair in pairs)
    )


def _beside(mask, rows):
    """The mask with as many dimensions."""
    return mask.reshape(*mask.shape, *[1] * (rows.dim() - mask.dim()))


def _harmless(rows, mask):
    if rows.dtype == torch.bool:
        return rows
    fill = _HARMLESS if rows.dtype.is_floating_point or rows.dtype.is_complex else 0
    return torch.where(_beside(mask, rows), rows, fill)


def _check(values):
    """The mask of all selections among ``values``, and that nothing else goes element by element
    with them."""
    found = [value for value in values if isinstance(value, Selection)]
    mask, dims = found[0].mask, max(value.dim() for value in found)
    if any(value.mask is not mask for value in found):
        refuse()
    if len({value.dim() for value in found}) > 1:  # they would meet in other dimensions
        refuse()
    for value in values:
        plain = isinstance(value, torch.Tensor)
        if plain and value.dim() >= dims and value.shape[: value.dim() - dims + 1].numel() > 1:
            refuse()
    return mask


def _rows(value):
    return value.rows if isinstance(value, Selection) else value


def _of_each(func, args, kwargs):
    mask = _check([*args, *kwargs.values()])
    result = func(*map(_rows, args), **{name: _rows(value) for name, value in kwargs.items()})
    return Selection(result, mask)


def _along(func, place, default, args, kwargs):
    mask = _check([*args, *kwargs.values()])
    dims = next(value.dim() for value in (*args, *kwargs.values()) if isinstance(value, Selection))
    dim = kwargs.get("dim", args[place] if len(args) > place else default)
    # A new dimension may come before the first.
    room = dims + (func.__name__ == "unsqueeze")
    if not isinstance(dim, int) or dim % room == 0:
        refuse()
    result = func(*map(_rows, args), **{name: _rows(value) for name, value in kwargs.items()})
    if isinstance(result, (tuple, list)):  # values and indices, or parts
        return type(result)([Selection(part, mask) for part in result])
    return Selection(result, mask)


def _sum(func, input, dim=None, keepdim=False, *, dtype=None, mean=False):
    dims = [dim] if isinstance(dim, int) else list(dim or range(input.dim()))
    dims = [each % input.dim() for each in dims]
    if 0 not in dims:
        return Selection(func(input.rows, dims, keepdim, dtype=dtype), input.mask)
    kept = torch.where(_beside(input.mask, input.rows), input.rows, 0)
    total = kept.sum(dtype=dtype) if dim is None else kept.sum(dims, keepdim, dtype=dtype)
    if not mean:
        return total
    count = input.mask.sum()
    others = 1
    for each in dims:
        others *= input.rows.shape[each] if each else 1
    return total / (count * others if others > 1 else count)


def _mean(func, input, dim=None, keepdim=False, *, dtype=None):
    return _sum(func, input, dim, keepdim, dtype=dtype, mean=True)


def _reduced(losses, reduction):
    if reduction == "none":
        return losses
    if reduction == "batchmean":
        return losses.sum() / losses.mask.sum()
    return losses.mean() if reduction == "mean" else losses.sum()


def _loss(func, args, kwargs):
    given = inspect.signature(func).bind(*args, **kwargs).arguments
    if given.get("size_average") is not None or given.get("reduce") is not None:
        refuse()
    reduction = given.pop("reduction", "mean")
    return _reduced(_of_each(func, (), {**given, "reduction": "none"}), reduction)


def _classified(func, *args, **kwargs):
    """Cross-entropy and the like: what is not selected has the label that is ignored."""
    given = inspect.signature(func).bind(*args, **kwargs).arguments
    if given.get("size_average") is not None or given.get("reduce") is not None:
        refuse()
    input, target = given.pop("input"), given.pop("target")
    reduction = given.pop("reduction", "mean")
    if not isinstance(input, Selection) or not isinstance(target, Selection):
        refuse()
    mask = input.mask if target.mask is input.mask else refuse()
    if target.dtype.is_floating_point:  # probabilities
        losses = func(input.rows, target.rows, reduction="none", **given)
        return _reduced(Selection(losses, mask), reduction)
    ignored = given.get("ignore_index", -100)
    labels = torch.where(_beside(mask, target.rows), target.rows, ignored)
    result = func(input.rows, labels, reduction=reduction, **given)
    return Selection(result, mask) if reduction == "none" else result


def _of_rows(func, input, weight, *args, **kwargs):
    """Products of the last dimension with weights: linear, and matmul with a matrix."""
    if not isinstance(input, Selection) or input.dim() < 2:
        refuse()
    if any(isinstance(value, Selection) for value in (weight, *args, *kwargs.values())):
        refuse()
    if weight.dim() != 2:
        refuse()
    return Selection(func(input.rows, weight, *args, **kwargs), input.mask)


def _layer_norm(func, input, normalized_shape, *args, **kwargs):
    if not isinstance(input, Selection) or len(normalized_shape) >= input.dim():
        refuse()
    return Selection(func(input.rows, normalized_shape, *args, **kwargs), input.mask)


def _embedding(func, input, weight, *args, **kwargs):
    if not isinstance(input, Selection) or isinstance(weight, Selection):
        refuse()
    return Selection(func(input.rows, weight, *args, **kwargs), input.mask)


def _reshape(func, input, *sizes):
    """`x[mask].view(-1, 4)`: of what belongs to each element."""
    if len(sizes) == 1 and not isinstance(sizes[0], int):
        sizes = sizes[0]
    if not isinstance(input, Selection) or not sizes or sizes[0] != -1:
        refuse()
    if input.rows.shape[1:].numel() != torch.Size(sizes[1:]).numel():
        refuse()
    return Selection(input.rows.reshape(input.rows.shape[0], *sizes[1:]), input.mask)


def _ctc_loss(func, log_probs, targets, input_lengths, target_lengths, *args, **kwargs):
    """Targets of all rows one after the other: here a row has its own, in front of what the mask
    leaves out. Nothing reads beyond the row's length."""
    others = (log_probs, input_lengths, target_lengths, *args, *kwargs.values())
    if not isinstance(targets, Selection) or any(isinstance(each, Selection) for each in others):
        refuse()
    if not isinstance(target_lengths, FakeTensor):
        refuse()
    if not _current.session.are_counts(target_lengths, targets.mask):
        refuse()
    rows = targets.rows.reshape(target_lengths.size(0), -1)
    places = (~targets.mask.reshape(rows.shape)).to(torch.uint8).argsort(dim=1, stable=True)
    return func(log_probs, rows.gather(1, places), input_lengths, target_lengths, *args, **kwargs)


def are_counts(lengths, flat) -> bool:
    """Whether they are ``mask.sum(-1)`` of the matrix that has become ``flat``."""
    whole, node = torch_private.value_in_trace(flat).node(), _uncast(lengths)
    if whole.kind() != "aten::reshape" or node.kind() != "aten::sum":
        return False
    mask, dims, keep, *_ = node.inputs()
    if not are_same(mask, next(whole.inputs())) or len(mask.type().sizes() or ()) != 2:
        return False
    return dims.node().kind() == "prim::ListConstruct" and (
        [each.toIValue() for each in dims.node().inputs()] in ([-1], [1]) and not keep.toIValue()
    )


def _uncast(tensor):
    """The node that has computed it, before it got another dtype or device."""
    node = torch_private.value_in_trace(tensor).node()
    while node.kind() in ("aten::to", "aten::_to_copy"):
        node = next(node.inputs()).node()
    return node


def _flatten(func, input, start_dim=0, end_dim=-1):
    if not isinstance(input, Selection) or start_dim == 0:
        refuse()
    return Selection(input.rows.flatten(start_dim, end_dim), input.mask)


_RULES = {
    "reshape": _reshape,
    "view": _reshape,
    "flatten": _flatten,
    "sum": _sum,
    "mean": _mean,
    "cross_entropy": _classified,
    "ctc_loss": _ctc_loss,
    "nll_loss": _classified,
    "linear": _of_rows,
    "matmul": _of_rows,
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
    "embedding": _embedding,
}
