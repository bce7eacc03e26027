"""What stands around a model, and its code names: globals of its files and of modules that these
import, variables of the functions that have made its classes, and attributes of these classes.

Like attributes of modules these hold numbers that forward() computes with, and tensors that it
leaves there. Code of libraries is left alone.
"""

import collections
import dataclasses
import dis
import functools
import inspect
import itertools
import os
import types
from collections.abc import Callable

from pyrannc.capture.attributes.user_code import (
    LIBRARIES,
    has_attributes,
    is_class_of_user,
    is_frame,
    is_module_of_user,
    is_of_user,
)

#: Where nothing stands.
ABSENT = object()

# Methods that code calls without naming them.
_WITHOUT_A_NAME = (
    "__bool__", "__call__", "__float__", "__get__", "__getattr__", "__getitem__", "__int__",
)  # fmt: skip
# What reads attributes whose names stand nowhere in the code.
_BY_ANY_NAME = {"__dict__", "__getattribute__", "attrgetter", "getattr", "vars"}
# By these code reads the environment.
_OF_ENVIRONMENT = {"environ", "getenv"}
#: Entries of a list, a dict or an object in which the user's objects are looked for.
#: tuned by: a safety margin: settings have some tens of entries.
#: without it: a list with an entry for each class or token would be gone through.
_MOST_HELD = 64
#: How many containers within one are looked into, as those of `self.config.loss.weights`.
#: tuned by: a safety margin: settings are read from files with two or three levels.
#: without it: all that an object leads to would be gone through in every call.
DEEPEST = 6


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """What a name stands for.

    Attributes:
        path: ``file.NAME``, ``file.Class.name``, or of a variable ``function reads name``.
        read: Gives what stands there now, or ``ABSENT``.
        write: Puts something there, or takes it away for ``ABSENT``.
        of_model: It is an attribute of a module, or of an object that a module holds.
    """

    path: str
    read: Callable
    write: Callable
    of_model: bool = False


def places_around(model) -> list[Place]:
    """Of all names in the code of the modules of ``model``, and of functions of the user's that
    these call; also where nothing stands yet."""
    places = {}
    for kind, methods in _classes(model):
        if is_of_user(kind):
            _add_class(places, kind, {name for each in methods for name in _names(each.__code__)})
    return _with_names_in(_functions(model), places)


def _with_names_in(functions, places):
    for function in functions:
        _add_globals(places, function)
        _add_variables(places, function)
        _add_own(places, function)
    return [Place(path, *both) for path, both in sorted(places.items())]


def read_by_calls(model) -> tuple[list, set]:
    """What a call of ``model`` may read: functions of the user's that it may run, and names of
    attributes and globals.

    The functions are forward(), hooks, and what these call by name. The names stand in their code;
    so do strings, which getattr() may read. What only other methods name, such as a list to which
    training_step() appends, is left out.
    """
    modules = list(model.modules())
    kinds = {kind for module in modules for kind in type(module).__mro__ if not is_frame(kind)}
    of_libraries = [names_in_class(kind) for kind in kinds if not is_of_user(kind)]
    names = {"forward", *_WITHOUT_A_NAME}.union(*of_libraries)
    methods = _methods_of_users(kinds)
    methods += [
        (name, each)
        for module in modules
        for name, each in vars(module).items()
        if isinstance(each, types.FunctionType | types.MethodType | functools.partial)
    ]
    methods += [
        ("__get__", getter)
        for kind in kinds
        if is_of_user(kind)
        for each in vars(kind).values()
        if is_of_user(type(each)) and (getter := vars(type(each)).get("__get__"))
    ]
    in_containers = [
        each
        for module in modules
        for value in vars(module).values()
        if isinstance(value, list | tuple | dict | collections.deque)
        for each in objects_in([value])
        if (found := _function(each)) and is_of_user(found)
    ]
    waiting = in_containers + [
        hook
        for module in modules
        for registry in (module._forward_pre_hooks, module._forward_hooks)
        for hook in registry.values()
    ]
    functions, seen, own = [], set(), set()
    while True:
        waiting = [*filter(None, map(_function, waiting))]
        while waiting:
            function = waiting.pop()
            if function.__code__ not in seen:
                seen.add(function.__code__)
                functions.append(function)
                own.update(_names(function.__code__), _strings(function.__code__))
                waiting += _others(function)
        names |= own
        waiting = [each for name, each in methods if name in names]
        methods = [(name, each) for name, each in methods if name not in names]
        if not waiting:
            break
    if not own.isdisjoint(_BY_ANY_NAME):
        names.update(name for module in modules for name in vars(module))
    frames = {kind for module in modules for kind in type(module).__mro__ if is_frame(kind)}
    for getter in [vars(kind).get(name) for kind in frames for name in names]:
        if isinstance(getter, property) and (function := _function(getter)):
            names.update(_names(function.__code__))  # as Lightning's `hparams`, of `_hparams`
    return functions, names


def places_read(model, functions, names) -> list[Place]:
    """Of :func:`places_around` those that a call may read; see :func:`read_by_calls`."""
    places = {}
    for kind, _ in _classes(model):
        if is_of_user(kind):
            _add_class(places, kind, names.intersection(vars(kind)), own=False)
    if any(not _OF_ENVIRONMENT.isdisjoint(_names(each.__code__)) for each in functions):
        places["os.environ"] = functools.partial(dict, os.environ), _stays
    return _with_names_in(functions, places)


def with_names_in_methods(names, functions, values) -> set[str]:
    """``names``, and those that methods of objects among ``values`` read which the code calls, as
    `self.schedule.value()` or `self.schedule()`; of libraries' objects those that ``functions``,
    which are the user's, call."""
    found = {*names, *_WITHOUT_A_NAME}
    found |= {each.__name__ for each in values if isinstance(each, types.MethodType)}
    kinds = {kind for value in objects_in(values) for kind in type(value).__mro__}
    methods = _methods_of_users(kinds)
    own = {name for each in functions for name in _names(each.__code__)}
    for kind in kinds:
        if not is_of_user(kind):
            called = map(_function, map(vars(kind).get, own & vars(kind).keys()))
            found.update(name for each in filter(None, called) for name in _names(each.__code__))
    while methods:
        called = [
            function for name, each in methods if name in found and (function := _function(each))
        ]
        methods = [(name, each) for name, each in methods if name not in found]
        if not called:
            break
        for function in called:
            found.update(_names(function.__code__), _strings(function.__code__))
    return found


def _methods_of_users(kinds) -> list:
    """Name and content of all that the user's classes among them have; not what only begins."""
    of_users = filter(is_of_user, kinds)
    return [pair for kind in of_users for pair in vars(kind).items() if pair[0] != "__init__"]


def objects_in(values, depth=DEEPEST, seen=None):
    """The objects and functions among them, and in what they, lists and dicts hold."""
    seen = set() if seen is None else seen
    for value in values:
        if isinstance(value, types.MethodType):
            value = value.__self__
        if id(value) in seen:
            continue
        seen.add(id(value))
        held = ()
        if has_attributes(value):
            yield value
            held = vars(value).values()
        elif isinstance(value, types.FunctionType | functools.partial):
            yield value
        elif isinstance(value, dict):
            held = value.values()
        elif isinstance(value, list | tuple | collections.deque):
            held = value
        if depth and len(held) <= _MOST_HELD:
            yield from objects_in([*held], depth - 1, seen)


@functools.cache
def names_in_class(kind) -> frozenset:
    """The same of one class, which may be a library's."""
    functions = filter(None, map(_function, vars(kind).values()))
    codes = [each.__code__ for each in functions]
    return frozenset(name for code in codes for name in (*_names(code), *_strings(code)))


def _classes(model):
    """Of the modules, with the functions in them."""
    for kind in {kind for module in model.modules() for kind in type(module).__mro__}:
        if kind.__module__.partition(".")[0] not in LIBRARIES:  # which scripts leave alone
            yield kind, [each for each in map(_function, vars(kind).values()) if each]


def _functions(model):
    """Those of the classes, and functions of the user's that these call."""
    functions = [each for _, methods in _classes(model) for each in methods]
    seen = set()
    while functions:
        function = functions.pop()
        if function.__code__ not in seen:
            seen.add(function.__code__)
            yield function
            functions += _others(function)


def of_dict(held, name) -> tuple:
    """``read`` and ``write`` of an entry."""
    return functools.partial(held.get, name, ABSENT), functools.partial(_write, held, name)


def _write(held, name, value):
    if value is ABSENT:
        held.pop(name, None)
    else:
        held[name] = value


def _add_globals(places, function):
    for path, held, name in _globals_of(function):
        places[f"{path}.{name}"] = of_dict(held, name)
    for kind, name in _class_attributes(function):
        _add_class(places, kind, {name}, own=False)


def _add_variables(places, function):
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        places[f"{function.__qualname__} reads {name}"] = (
            functools.partial(content, cell),
            functools.partial(_write_cell, cell),
        )


def _add_own(places, function):
    """Its attributes, and defaults of its arguments that are no constants, as `seen=[]`."""
    for name in vars(function):
        if not name.startswith("__"):
            places[f"{function.__qualname__}.{name}"] = of_dict(vars(function), name)
    code, defaults = function.__code__, function.__defaults__ or ()
    arguments = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    by_name = dict(zip(arguments, defaults, strict=True)) | (function.__kwdefaults__ or {})
    for name, default in by_name.items():
        if isinstance(default, list | dict | set):
            path = f"{function.__qualname__}({name}=)"
            places[path] = (lambda default=default: default), _stays


def _stays(value):
    """Of a default what it holds may be put back, and not itself; of the environment nothing."""


def _add_class(places, kind, named, own=True):
    for name in {*(vars(kind) if own else ()), *named}:
        if not name.startswith("__"):
            places[f"{kind.__module__}.{kind.__qualname__}.{name}"] = (
                functools.partial(_of_class, kind, name),
                functools.partial(_write_class, kind, name),
            )


def _others(function) -> list:
    """Functions of the user's that a function may call."""
    named = [held.get(name) for _, held, name in _globals_of(function)]
    named += map(content, function.__closure__ or ())
    return [
        each
        for each in named
        if isinstance(each, types.FunctionType)
        and (each.__module__ == function.__module__ or is_of_user(each))
    ]


def _globals_of(function):
    """The module's path, its dict, and the name, of each global that a function may name: of its
    own file, or as `settings.ALPHA` of a module of the user's."""
    for names in _global_names(function.__code__):
        path, held = function.__module__, function.__globals__
        for name in names:
            value = held.get(name)
            if not is_module_of_user(value):
                yield path, held, name
                break
            path, held = value.__name__, vars(value)


def _class_attributes(function):
    """Each class of the user's, and the name, of `Settings.ALPHA` in a function; where the class
    inherits it, that which has it."""
    for names in _global_names(function.__code__):
        held = function.__globals__
        for name, following in itertools.pairwise(names):
            value = held.get(name)
            if is_class_of_user(value):
                yield next((k for k in value.__mro__ if following in vars(k)), value), following
                break
            if not is_module_of_user(value):
                break
            held = vars(value)


def _function(value):
    if isinstance(value, functools.cached_property | functools.partial):
        value = value.func
    value = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)) or value)
    return value if isinstance(value, types.FunctionType) else None


@functools.lru_cache(maxsize=4096)
def _global_names(code) -> frozenset:
    """Each global with the attributes that are taken of it, as `("settings", "ALPHA")`. From the
    instructions: names of a code are also those of other attributes, such as `data` and `args`."""
    found, names = set(), ()
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_GLOBAL", "STORE_GLOBAL"):
            found.add(names)  # of outer(inner(x)) the first
            names = (each.argval,)
        elif names and each.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"):
            names += (each.argval,)
        else:
            found.add(names)
            names = ()
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(found.union(*map(_global_names, inner)) - {()})


def _names(code):
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _strings(code):
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _strings(constant)
        elif isinstance(constant, str):
            yield constant


def content(cell):
    """Of a closure's variable, or ``ABSENT``."""
    try:
        return cell.cell_contents
    except ValueError:  # is not set yet
        return ABSENT


def _write_cell(cell, value):
    if value is not ABSENT:
        cell.cell_contents = value
    elif content(cell) is not ABSENT:
        del cell.cell_contents


def _of_class(kind, name):
    return vars(kind).get(name, ABSENT)


def _write_class(kind, name, value):
    if value is not ABSENT:
        setattr(kind, name, value)
    elif name in vars(kind):
        delattr(kind, name)
