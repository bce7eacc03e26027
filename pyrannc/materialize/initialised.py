"""Values as the modules of a model make them, one tensor at a time.

Which method of which module writes a tensor is found without memory: all of them run on the meta
device, and every operator that writes is looked at. A tensor is then made by those that write it,
in their order, with nothing else in memory and random numbers that begin anew for its name. So its
values depend on that name alone, and neither on the plan nor on the number of ranks.
"""

import contextlib
import dataclasses
import hashlib
import inspect
import math

import torch
from torch import nn

from pyrannc.capture import random_states
from pyrannc.capture.session import substituted
from pyrannc.errors import RaNNCError
from pyrannc.state import named_tensors
from pyrannc.state.released import blank
from pyrannc.state.torch_private import TorchDispatchMode
from pyrannc.stored import adapters

# Methods without arguments by which a module sets what it holds; torch's MultiheadAttention and
# Transformer have the second one.
_OF_ITSELF = ("reset_parameters", "_reset_parameters")
# A method of a model that sets what the module that it is given holds, as transformers has it, and
# many others that took it over.
_OF_A_MODULE = "_init_weights"
# What no initialiser gives: where a number of this kind is left, something has not been set.
_NOT_SET = {torch.int64: -(2**62) - 12347, torch.int32: -(2**30) - 12347}


class Initialisers:
    """What the modules of ``model`` can set.

    Raises:
        RaNNCError: A method of a module cannot run without values; it is named.
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._names_of = {}
        for name, tensor in named_tensors.tensors(model).items():
            self._names_of.setdefault(id(tensor), []).append(name)
        self._calls_of = {}  # name of a tensor -> the calls that write it
        with _all_on_meta(model) as places:
            written = _Written(places)
            for call in _calls(model):
                for name in written.by(call):
                    self._calls_of.setdefault(name, []).append(call)

    def can_make(self, name: str) -> bool:
        return name in self._calls_of

    @contextlib.contextmanager
    def at_work(self):
        """Inside, ``make(name, tensor, seed)`` gives a tensor like ``tensor``, on the host."""
        with _all_on_meta(self._model) as places, random_states.kept():
            yield lambda name, tensor, seed: self._made(name, tensor, seed, places)

    def _made(self, name, tensor, seed, places):
        made = torch.empty_like(tensor, device="cpu", requires_grad=False)
        not_set = _NOT_SET.get(made.dtype, math.nan if made.is_floating_point() else None)
        if not_set is not None:
            made.fill_(not_set)
        names = self._names_of[id(tensor)]
        random_states.seed(_seed_of(seed, min(names)))
        made = self._by_calls(name, _like(tensor, made), [places[each] for each in names])
        calls = self._calls_of[name]
        if made.device.type != "cpu" or made.shape != tensor.shape:
            raise RaNNCError(
                f"'{name}' is {list(tensor.shape)}, and what {_shown(calls)} make of it is "
                f"{list(made.shape)} on {made.device}"
            )
        if not_set is not None and _holds(made, not_set):
            raise RaNNCError(
                f"{_shown(calls)} leave{'s' * (len(calls) == 1)} a part of '{name}' without a "
                "value, or need another tensor of the model for it.\n  Give RaNNCModule(weights="
                "...) a folder or file that has it."
            )
        return made.to(tensor.dtype)

    def _by_calls(self, name, made, at):
        """``made`` with its values, or what the calls have put in its place."""
        before = [registry[key] for registry, key in at]
        for registry, key in at:
            registry[key] = made
        try:
            for call in self._calls_of[name]:
                _run(call)
            registry, key = at[0]
            return registry[key].detach()
        finally:
            for (registry, key), twin in zip(at, before, strict=True):
                registry[key] = twin


@contextlib.contextmanager
def refuse_writes(model: nn.Module, what: str):
    """Inside, what has no values must not be written to: nothing would come of it.

    Raises:
        RaNNCError: At the end; names ``what`` did so, and one of the tensors.
    """
    names = {
        tensor.untyped_storage()._cdata: name
        for name, tensor in named_tensors.tensors(model).items()
        if tensor.is_meta
    }
    if not names:
        yield
        return
    with _Writes() as writes:
        yield
    written = sorted(names[at] for at in writes.storages if at in names)
    if written:
        raise RaNNCError(
            f"{what} has written to '{written[0]}', which has no values yet: the model was built "
            "on the meta device.\n  Let a reset_parameters() of the module, or an _init_weights() "
            "of the model, set it; or read it by RaNNCModule(weights=...)."
        )


class _Written:
    """Which tensors of a model, all of them on the meta device, a call writes.

    Args:
        places: Where they are kept, by name.
    """

    def __init__(self, places):
        self._name_of = {(id(registry), key): name for name, (registry, key) in places.items()}
        self._names_at = {}
        for name, (registry, key) in places.items():
            at = registry[key].untyped_storage()._cdata
            self._names_at.setdefault(at, []).append(name)

    def by(self, call) -> list[str]:
        held = [
            (registry, key, registry[key])
            for module in call.module.modules()
            for registry in (module._parameters, module._buffers)
            for key in registry
            if (id(registry), key) in self._name_of
        ]
        with _Writes() as writes:
            _run(call)
        found = {name for at in writes.storages for name in self._names_at.get(at, ())}
        for registry, key, tensor in held:
            if registry.get(key) is not tensor:  # another one was put there
                found.add(self._name_of[id(registry), key])
                registry[key] = tensor
        return sorted(found)


class _Writes(TorchDispatchMode):
    """The storages that operators inside write to."""

    def __init__(self):
        super().__init__()
        self.storages = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for argument, value in zip(func._schema.arguments, args, strict=False):
            self._note(argument, value)
        for argument in func._schema.arguments:
            if argument.name in kwargs:
                self._note(argument, kwargs[argument.name])
        return func(*args, **kwargs)

    def _note(self, argument, value):
        if argument.alias_info is None or not argument.alias_info.is_write:
            return
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, torch.Tensor):
                self.storages.add(each.untyped_storage()._cdata)


@contextlib.contextmanager
def _all_on_meta(model):
    """Inside, all tensors of ``model`` are others, on the meta device; gives where they are."""
    twins = {}
    for tensor in named_tensors.tensors(model).values():
        twins[id(tensor)] = _like(tensor, blank(tensor, device="meta"))
    with torch.no_grad(), substituted(model, twins):
        held = named_tensors.tensors(model)
        yield {name: at for name, at in named_tensors.places(model).items() if name in held}


@dataclasses.dataclass(frozen=True)
class _Call:
    """Of a method that sets what ``module`` holds."""

    method: object
    arguments: tuple
    module: nn.Module
    what: str


def _calls(model):
    """In the order in which a model is built: each module after what is in it, then the model's own
    method for each of them, then what is put into a model that is there."""
    order = list(_children_first(model, "", None))
    for path, module, _ in order:
        for name in (*_OF_ITSELF, _OF_A_MODULE):
            method = getattr(module, name, None)
            if callable(method) and _takes(method) == 0:
                yield _Call(method, (), module, f"{name}() of {_named(path, module)}")
    for path, module, giver in order:
        if giver is not None:
            method = getattr(giver, _OF_A_MODULE)
            what = f"{_OF_A_MODULE}() for {_named(path, module)}"
            yield _Call(method, (module,), module, what)
    for method, arguments, path, module in adapters.resets(model):
        yield _Call(method, arguments, module, f"{method.__name__}() of {_named(path, module)}")


def _children_first(module, path, giver):
    method = getattr(module, _OF_A_MODULE, None)
    if callable(method) and _takes(method) == 1:
        giver = module
    for name, child in module.named_children():
        yield from _children_first(child, f"{path}.{name}" if path else name, giver)
    yield path, module, giver


def _takes(method):
    """How many arguments it must get; -1 where that cannot be known."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return -1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in kinds and each.default is each.empty for each in parameters)


def _run(call):
    try:
        call.method(*call.arguments)
    except Exception as error:
        raise RaNNCError(
            f"{call.what} cannot run while the model has no values ({type(error).__name__}: "
            f"{error}).\n  Give RaNNCModule(weights=...) a folder or file that has all of them, or "
            "build the model with values."
        ) from error


def _named(path, module):
    return f"'{path}' ({type(module).__name__})" if path else type(module).__name__


def _shown(calls):
    return " and ".join(call.what for call in calls)


def _holds(tensor, value):
    return bool((tensor.isnan() if math.isnan(value) else tensor == value).any())


def _like(tensor, other):
    """``other`` as a parameter where ``tensor`` is one."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(other, requires_grad=tensor.requires_grad)
    return other


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
