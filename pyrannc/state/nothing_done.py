"""Operators on released tensors that the ranks which hold them do, each on its own part.

An average of a model in the loop goes through all parameters of two: ``shadow.lerp_(p, 0.1)``.
Where both are released and the same ranks hold them, nothing is to be done here, and what comes
out is released, too. torch's ``AveragedModel`` works so, averages by hand, and a target within the
model.
"""

import torch

from pyrannc import operators
from pyrannc.operators import Trait
from pyrannc.state import torch_private

# Methods of Python that compute each element from those in the same place.
_METHODS = """
    float double half bfloat16 __rsub__ __rdiv__ __rtruediv__ __radd__ __rmul__ __pow__ __rpow__
    __eq__ __ne__
"""
# Where a number in the place of the second tensor, or a third, is a factor and not what is paired.
_FACTORS = operators.of(Trait.scales) | {"__rmul__", "__rdiv__"}
# Of one tensor, along some of its dimensions, as gradients are centred.
_ALONG = "mean sum norm amax amin var std"


def _reductions():
    return {
        function: 2 if name == "norm" else 1
        for name in _ALONG.split()
        for place in (torch.Tensor, torch)
        if (function := getattr(place, name, None))
    }


def _functions():
    found = {torch.Tensor.data.__get__: "data", torch.Tensor.data.__set__: "data_"}
    for name in sorted(operators.of(Trait.released)) + _METHODS.split():
        for spelled in (name, f"{name}_"):
            for place in (torch.Tensor, torch):
                if function := getattr(place, spelled, None):
                    found[function] = spelled
        for spelled in (f"_foreach_{name}", f"_foreach_{name}_"):
            if function := getattr(torch, spelled, None):
                found[function] = spelled
    return found


_FUNCTIONS, _REDUCTIONS = _functions(), _reductions()


def is_elementwise(function) -> bool:
    return function in _FUNCTIONS


def are_together(one, other) -> bool:
    """Whether two released tensors are held by the same ranks, which compute with both."""
    one, other = one.place_elsewhere, other.place_elsewhere
    return one.name == other.name or list(one.ranks) == list(other.ranks)


def is_along_dimensions(function, args, kwargs) -> bool:
    """Whether it reduces some dimensions, which are named. A number of the whole tensor would be
    missing in a sum over all of them, and is told where it is asked for."""
    place = _REDUCTIONS.get(function)
    if place is None:
        return False
    dims = kwargs["dim"] if "dim" in kwargs else (args[place] if len(args) > place else None)
    return isinstance(dims, int | tuple | list) and dims is not True


def reduce(function, args, kwargs, like):
    with torch_private.without_subclasses():
        made = function(*args, **kwargs)
    return like(made, args[0])


def call(function, args, kwargs, is_released, like, refuse):
    """What ``function`` of tensors of which some are released gives.

    Args:
        is_released: Function that tells a tensor that is.
        like: Function that makes a tensor on the meta device a released one like another.
        refuse: Function that raises the error of a released tensor beside another one.
    """
    name = _FUNCTIONS[function]
    if name == "where" and len(args) + len(kwargs) < 3:  # where they are, and how many
        refuse(function, args, kwargs)
    if name.startswith("_foreach_"):
        return _for_each(function, args, kwargs, is_released, like, refuse)
    released = next(each for each in tensors((args, kwargs)) if is_released(each))
    factors = () if released.dim() else _factors(name, args, kwargs)
    for each in tensors((args, kwargs)):
        if is_released(each):
            fits = are_together(each, released)
        else:  # one number counts for all elements
            fits = not each.dim() and (released.dim() or any(each is one for one in factors))
        if not fits:
            refuse(function, args, kwargs)
    if name == "data_":
        return None
    if name in operators.of(Trait.draws):
        _draw_as_elsewhere(function, released, args[1:], kwargs)
    if name.endswith("_") and not name.endswith("__"):
        return _in_place(args, is_released, lambda: refuse(function, args, kwargs))
    with torch_private.without_subclasses():
        if name in ("to", "cpu"):
            made = _converted(released, args[1:], kwargs)
        else:
            kwargs = {key: value for key, value in kwargs.items() if key != "device"}
            made = function(*_numbers(args, is_released), **_numbers(kwargs, is_released))
    return released if made is released else like(made, released)


def _draw_as_elsewhere(function, released, args, kwargs):
    """This rank's generator goes on as those of the ranks that hold it, so that with one seed
    noise of the next parameter is what it is in one process."""
    device = released.place_elsewhere.device
    with torch_private.without_subclasses():
        function(torch.empty_like(released, device=device), *args, **kwargs)


def _in_place(args, is_released, refuse):
    """Writes nothing into the first argument, and returns it."""
    if not is_released(args[0]):  # a tensor with values
        refuse()
    with torch_private.without_subclasses():
        args[0].mul_(1)  # raises what torch has against writing into it
    return args[0]


def _for_each(function, args, kwargs, is_released, like, refuse):
    """The others of the lists are computed with."""
    lists = [each for each in (*args, *kwargs.values()) if isinstance(each, list | tuple)]
    count = len(lists[0])
    gone = {i for each in lists for i, one in enumerate(each) if is_released(one)}
    for index in gone:
        these = [each[index] for each in lists if isinstance(each[index], torch.Tensor)]
        first, *second = these[:2]
        for one in second:
            if not (is_released(first) and is_released(one) and are_together(first, one)):
                refuse(function, these, {})
    rest = [index for index in range(count) if index not in gone]

    def cut(value):
        whole = isinstance(value, list | tuple) and len(value) == count
        return [value[index] for index in rest] if whole else value

    made = []
    if rest:
        made = function(*map(cut, args), **{key: cut(value) for key, value in kwargs.items()})
    if made is None or function.__name__.endswith("_"):
        return None
    by_index = dict(zip(rest, made, strict=True))
    with torch_private.without_subclasses():
        blanks = {index: torch.empty_like(lists[0][index], device="meta") for index in gone}
    for index, blank in blanks.items():
        released = next(each[index] for each in lists if is_released(each[index]))
        by_index[index] = like(blank, released)
    return [by_index[index] for index in range(count)]


def _factors(name, args, kwargs):
    base = name.removesuffix("_")
    if base in _FACTORS:
        return [*args, *kwargs.values()]
    if base == "lerp":
        return [*args[2:], *([kwargs["weight"]] if "weight" in kwargs else [])]
    return []


def _converted(tensor, args, kwargs):
    """``tensor.to(...)`` or ``cpu()``; the device of a released tensor is only a word."""
    wanted = [*args, *kwargs.values()]
    dtypes = [each for each in wanted if isinstance(each, torch.dtype)]
    dtypes += [each.dtype for each in wanted if isinstance(each, torch.Tensor)]
    return tensor.to(dtypes[0]) if dtypes and dtypes[0] != tensor.dtype else tensor


def _numbers(values, is_released):
    """With a number of Python for each tensor that holds one, as it may be on another device."""
    if isinstance(values, dict):
        return {key: _numbers([value], is_released)[0] for key, value in values.items()}
    return [
        (1 if each.is_meta else each.item())
        if isinstance(each, torch.Tensor) and not is_released(each)
        else each
        for each in values
    ]


def tensors(tree):
    """Those in nested arguments."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        yield from tensors(list(tree.values()))
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from tensors(each)
