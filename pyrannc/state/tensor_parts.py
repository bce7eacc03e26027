"""Parameters and buffers of which this rank has a part, as the ranks of a group compute layers
together.

Such a tensor is the Python object that the user knows, with the memory of its part. It says what
the whole one is: shape, number of elements, device. What treats each element by itself acts on the
part; whatever would give another number for a part than for the whole is an error that names
``pyrannc.full()``.
"""

import dataclasses
import itertools
import math
import weakref

import torch
from torch import nn

from pyrannc import _C
from pyrannc.errors import RaNNCError
from pyrannc.state import nothing_done, torch_private
from pyrannc.state.mover import Mover


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a part lies in the whole tensor.

    Attributes:
        name: In the model.
        shape: Of the whole.
        dim: That is cut.
        stretches: ``[place]``, of each rank of the group: begin and size of what it has of ``dim``,
            side by side.
        ranks: ``[place]``, the ranks that hold the whole together with this one.
        world: The communicator of all ranks.
        what: "parameter", "buffer", or "gradient of parameter".
        summed_in_ranges: Each replica has the sum of gradients for a range of its part alone.
    """

    name: str
    shape: torch.Size
    dim: int
    stretches: tuple
    ranks: tuple
    world: object
    what: str
    summed_in_ranges: bool = False

    @property
    def number(self) -> int:
        """Of this rank's place in the group."""
        return self.ranks.index(self.world.rank)

    @property
    def mine(self) -> tuple:
        """This rank's stretches."""
        return self.stretches[self.number]

    def cut(self, whole):
        """The part of a tensor of the whole shape, in memory of its own."""
        return torch.cat([whole.narrow(self.dim, b, n) for b, n in self.mine], self.dim)

    def is_like(self, other) -> bool:
        """Whether tensors of both places are cut alike, so that their elements are pairs."""
        return (self.shape, self.dim, self.stretches) == (other.shape, other.dim, other.stretches)

    def is_of(self, tensor) -> bool:
        """Whether a tensor has the shape of this rank's part."""
        return tuple(tensor.shape) == self.part_shape(self.number)

    def part_shape(self, place) -> tuple:
        shape = list(self.shape)
        shape[self.dim] = sum(size for _, size in self.stretches[place])
        return tuple(shape)

    def side_by_side(self, part):
        """Its numbers as a layout counts them, one stretch after the other."""
        return side_by_side(part, self.dim, self.mine)

    def gather(self, part):
        """The whole on the CPU, of this rank's part. Collective over the group."""
        holders = [
            ([rank], boxes(self.shape, self.dim, each), None)
            for rank, each in zip(self.ranks, self.stretches, strict=True)
        ]
        start = _C.plan.Layout(self.name, self.shape, holders)
        end = _C.plan.Layout.whole(self.name, self.shape, self.ranks)
        found = []
        with Mover(self.world, self.ranks) as mover:
            mover.add(start, end, as_part(plain(part), self), part.dtype, found.append)
        return found[0].view(self.shape)


def side_by_side(part, dim: int, stretches):
    """The numbers of a part as a layout counts them, one stretch after the other."""
    return torch.cat([each.reshape(-1) for each in part.split([n for _, n in stretches], dim)])


def joined(numbers, shape, dim: int, stretches):
    """The other way round, of a tensor whose whole has this shape."""
    sizes = [(*shape[:dim], size, *shape[dim + 1 :]) for _, size in stretches]
    pieces = numbers.split([math.prod(size) for size in sizes])
    return torch.cat([each.view(size) for each, size in zip(pieces, sizes, strict=True)], dim)


def boxes(shape, dim: int, stretches) -> list:
    """The parts of a tensor that are these stretches of a dimension, as a layout has them."""
    before, after = [0] * dim, [0] * (len(shape) - dim - 1)
    return [
        ([*before, begin, *after], [*shape[:dim], size, *shape[dim + 1 :]])
        for begin, size in stretches
    ]


def row_major_boxes(shape, dim: int, stretches) -> list:
    """The same, in the order of the part's own numbers, row by row over all stretches."""
    if len(stretches) == 1:
        return boxes(shape, dim, stretches)
    return [
        ([*before, begin, *[0] * (len(shape) - dim - 1)], [*[1] * dim, size, *shape[dim + 1 :]])
        for before in itertools.product(*map(range, shape[:dim]))
        for begin, size in stretches
    ]


def part_numel(shape, part) -> int:
    """How many numbers a part has; ``part``: dimension and stretches, None: the whole."""
    if part is None:
        return shape.numel()
    dim, stretches = part
    return math.prod((*shape[:dim], sum(size for _, size in stretches), *shape[dim + 1 :]))


def _read(name):
    return getattr(torch.Tensor, name).__get__


# What is read of the tensor itself, which has the memory of the part.
_ATTRIBUTES = """
    dtype device requires_grad is_leaf ndim itemsize layout is_sparse is_quantized is_nested is_meta
    is_cpu is_cuda is_xpu is_mps grad_fn retains_grad output_nr is_mkldnn _backward_hooks
    _post_accumulate_grad_hooks _version grad_dtype
"""
_METHODS = """
    dim element_size ndimension is_floating_point is_complex is_inference is_signed requires_grad_
    __hash__ register_post_accumulate_grad_hook
"""
_OF_TENSOR = {
    *map(_read, _ATTRIBUTES.split()),
    torch.Tensor.requires_grad.__set__,
    torch.Tensor.grad_dtype.__set__,
    torch.is_floating_point,
    torch.is_complex,
    torch_private.unscale_each,  # in place; whether one is not finite is told to all ranks
    *(getattr(torch.Tensor, name) for name in _METHODS.split()),
}
_GRAD, _SET_GRAD = _read("grad"), torch.Tensor.grad.__set__
_DATA, _SET_DATA = _read("data"), torch.Tensor.data.__set__


def _size(tensor, dim=None):
    shape = tensor.place_of_part.shape
    return shape if dim is None else shape[dim]


def _stride(tensor, dim=None):
    shape = tensor.place_of_part.shape
    strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
    return strides if dim is None else strides[dim]


_OF_WHOLE = {
    _read("shape"): _size,
    torch.Tensor.size: _size,
    torch.Tensor.__len__: lambda tensor: tensor.place_of_part.shape[0],
    _read("nbytes"): lambda tensor: tensor.place_of_part.shape.numel() * tensor.element_size(),
    **dict.fromkeys(
        (torch.Tensor.numel, torch.Tensor.nelement, torch.numel),
        lambda tensor: tensor.place_of_part.shape.numel(),
    ),
    torch.Tensor.stride: _stride,
    torch.Tensor.is_contiguous: lambda tensor, **_: True,
}
_NEW = {
    getattr(torch.Tensor, name)
    for name in ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")
}


class _Part:
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in _OF_WHOLE:
            return _OF_WHOLE[function](*args, **kwargs)
        with torch_private.without_subclasses():
            if function in _OF_TENSOR or function in _NEW:
                return function(*args, **kwargs)
            if function == torch.Tensor.register_hook:
                return function(args[0], _HookOfPart(args[0], *args[1:], **kwargs))
            if function == _GRAD:
                found = function(*args)
                return None if found is None else as_part(found, _gradient_place(args[0]))
            if function in (_SET_GRAD, _SET_DATA):
                return function(args[0], _given(function, *args))
            if nothing_done.is_elementwise(function):
                return _on_parts(function, args, kwargs)
        raise RaNNCError(_complaint(function, args[0] if args else None, args, kwargs))

    def __repr__(self, **_):
        return f"<{_described(self)}>"

    def __reduce_ex__(self, protocol):
        raise RaNNCError(_complaint(torch.Tensor.__reduce_ex__, self, (self,), {}))

    def __deepcopy__(self, memo):
        raise RaNNCError(_complaint(torch.Tensor.__deepcopy__, self, (self,), {}))


class PartParameter(_Part, nn.Parameter):
    pass


class PartTensor(_Part, torch.Tensor):
    pass


def is_part(tensor) -> bool:
    return isinstance(tensor, _Part)


def as_part(tensor, place):
    """The same object, which then is a part."""
    if not is_part(tensor):
        tensor.__class__ = PartParameter if isinstance(tensor, nn.Parameter) else PartTensor
        tensor.place_of_part = place
    return tensor


def as_tensor(tensor):
    """The same object, which then is one of torch's, of the part's shape."""
    if is_part(tensor):
        tensor.__class__ = nn.Parameter if isinstance(tensor, nn.Parameter) else torch.Tensor
        del tensor.place_of_part
    return tensor


def plain(tensor):
    """Another tensor of the part's shape, which shares its memory."""
    with torch_private.without_subclasses():
        return tensor.detach().as_subclass(torch.Tensor)


def number(tensor) -> int:
    """Of the part among those of its tensor; 0 of a whole one."""
    return tensor.place_of_part.number if is_part(tensor) else 0


def as_tensors(tensors) -> list:
    """Lets those that are parts, and their gradients, be tensors of torch's, of the parts' shapes;
    returns what as_parts() takes."""
    parts = [each for each in tensors if isinstance(each, _Part)]
    if not parts:
        return []
    places = [each.place_of_part for each in parts]
    with torch_private.without_subclasses():
        for tensor in parts:
            gradient = tensor.grad
            as_tensor(tensor)
            if gradient is not None:
                as_tensor(gradient)
    return [*zip(parts, places, strict=True)]


def as_parts(changed) -> None:
    for tensor, place in changed:
        as_part(tensor, place)


class _HookOfPart:
    """A hook of the user's on the gradient of a tensor: while that is a part, the gradient is one,
    too, and its numbers are not taken for those of the whole."""

    def __init__(self, tensor, hook):
        self._tensor, self._hook = weakref.ref(tensor), hook

    def __call__(self, gradient):
        tensor = self._tensor()
        if not is_part(tensor):
            return self._hook(gradient)
        made = self._hook(as_part(gradient.detach(), _gradient_place(tensor)))
        return plain(made) if is_part(made) else made


def cut(tensor, place) -> None:
    """Lets a whole parameter or buffer keep the part of this rank alone."""
    with torch.no_grad():
        gradient, tensor.grad = tensor.grad, None
        tensor.data = place.cut(tensor.detach())
        if gradient is not None:
            tensor.grad = place.cut(gradient)
    hooks = tensor._backward_hooks or {}
    hooks.update({key: _HookOfPart(tensor, hook) for key, hook in hooks.items()})
    as_part(tensor, place)


def cut_entry(entry, place) -> dict:
    """Of an optimizer's whole state of a parameter, that of this rank's part."""
    return {
        key: place.cut(value)
        if isinstance(value, torch.Tensor) and value.shape == place.shape
        else value
        for key, value in entry.items()
    }


def cut_state(optimizer, parameter, place) -> None:
    """Lets an optimizer keep the part of its state of a parameter that was whole."""
    entry = optimizer.state.get(parameter, {}) if parameter in optimizer.state else {}
    for key, value in entry.items():
        if isinstance(value, torch.Tensor) and value.shape == place.shape:
            entry[key] = place.cut(value)


def whole_state(entry, place) -> dict:
    """What an optimizer keeps of a part, of the whole. Collective over the group."""
    return {
        key: place.gather(value)
        if isinstance(value, torch.Tensor) and place.is_of(value)
        else value
        for key, value in entry.items()
    }


def join(tensor):
    """Lets a part be the whole tensor for a while, which is one of torch's then; returns the memory
    of the part. Collective over the group."""
    place = tensor.place_of_part
    with torch_private.without_subclasses():
        before, gradient = tensor.data, tensor.grad
        content = place.gather(before).to(before.device)
        tensor.grad = None
        as_tensor(tensor)
        tensor.data = content
    return before, gradient


def join_for_good(tensor, optimizers) -> None:
    """Lets a part be the whole tensor, which ``optimizers`` step then. Collective in the group."""
    place = tensor.place_of_part
    join(tensor)
    for optimizer in optimizers:
        if tensor in optimizer.state:
            whole = whole_state(optimizer.state[tensor], place)
            optimizer.state[tensor].update(
                {k: v.to(tensor.device) if isinstance(v, torch.Tensor) and v.dim() else v
                 for k, v in whole.items()}
            )  # fmt: skip


def part_again(tensor, place, memory, changed) -> None:
    """The other way round; ``changed``: what the whole is now counts."""
    before, gradient = memory
    with torch.no_grad():
        if changed:
            before.copy_(place.cut(tensor.detach()))
        tensor.grad = None
        tensor.data = before
        as_part(tensor, place)
        with torch_private.without_subclasses():
            tensor.grad = gradient


def whole(tensor):
    """A copy on the CPU of the whole of a part. Collective over the ranks that have the others."""
    with torch_private.without_subclasses():
        return tensor.place_of_part.gather(tensor)


def _gradient_place(tensor):
    return dataclasses.replace(tensor.place_of_part, what="gradient of parameter")


def _given(function, tensor, value):
    place = tensor.place_of_part
    if value is None or (is_part(value) and value.place_of_part.name == place.name):
        return value
    if tuple(value.shape) == tuple(place.shape) and place.part_shape(0) != tuple(place.shape):
        return place.cut(value)
    raise RaNNCError(_complaint(function, tensor, (tensor, value), {}))


def _on_parts(function, args, kwargs):
    """What treats each element by itself, on the parts of this rank. Tensors of the whole's shape
    beside them are cut alike, but not written: the part would go to a copy."""
    if function.__name__.startswith("_foreach_"):
        return _on_each(function, args, kwargs)
    parts = [each for each in nothing_done.tensors((args, kwargs)) if is_part(each)]
    place = parts[0].place_of_part

    def refuse():
        raise RaNNCError(_complaint(function, parts[0], args, kwargs))

    name = function.__name__
    writes = name.endswith("_") and not name.endswith("__")
    if (writes and not is_part(args[0])) or kwargs.get("out") is not None:
        refuse()
    if name == "where" and len(args) + len(kwargs) < 3:  # where they are, and how many
        refuse()
    if any(not place.is_like(each.place_of_part) for each in parts):
        refuse()
    if name in ("rand_like", "randn_like"):  # as one process would draw it
        return as_part(place.cut(function(parts[0].new_empty(place.shape), **kwargs)), place)

    def of_part(each):
        if not isinstance(each, torch.Tensor) or is_part(each) or not each.dim():
            return each
        if tuple(each.shape) != tuple(place.shape):
            refuse()
        return place.cut(each)

    kwargs = {key: of_part(each) for key, each in kwargs.items()}
    made = function(*map(of_part, args), **kwargs)
    if not isinstance(made, torch.Tensor) or any(made is each for each in parts):
        return made
    return as_part(made, place)


def _on_each(function, args, kwargs):
    """The same of lists of tensors, in which parts stand beside parts."""
    lists = [each for each in (*args, *kwargs.values()) if isinstance(each, list | tuple)]
    for beside in zip(*lists, strict=False):
        tensors = [each for each in beside if isinstance(each, torch.Tensor) and each.dim()]
        parts = [each for each in tensors if is_part(each)]
        if parts and (
            len(parts) < len(tensors)
            or any(not parts[0].place_of_part.is_like(each.place_of_part) for each in parts)
        ):
            raise RaNNCError(_complaint(function, parts[0], args, kwargs))
    made = function(*args, **kwargs)
    if not isinstance(made, list | tuple):
        return made
    return type(made)(
        as_part(each, one.place_of_part) if is_part(one) else each
        for each, one in zip(made, args[0], strict=True)
    )


def _described(tensor) -> str:
    place = tensor.place_of_part
    ranks = ", ".join(map(str, place.ranks))
    return f"{place.what} '{place.name}' {list(place.shape)}, of which ranks {ranks} hold parts"


def _complaint(function, tensor, args, kwargs) -> str:
    part = next(filter(is_part, nothing_done.tensors((args, kwargs))), tensor)
    name = getattr(function, "__name__", str(function))
    if name in ("__get__", "__set__"):
        name = f"its attribute {getattr(getattr(function, '__self__', None), '__name__', '?')}"
    return (
        f"{name} of a tensor of which this rank has a part: {_described(part)}.\n  Its shape, "
        "dtype, device and requires_grad are those of the whole, and what treats each element by "
        "itself works. For anything else pyrannc.full(tensor) gives the whole, a copy without "
        "gradient; all ranks that have a part call it. A penalty in the loss, such as "
        "p.square().sum(), belongs into forward() of the model."
    )
