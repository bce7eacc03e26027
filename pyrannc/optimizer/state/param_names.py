"""The names beside the parameters of a group, as in ``AdamW(model.named_parameters())``: as many,
and in the same order, whatever part of the group a rank has.

They are those that the user gave, which need not be the model's.
"""

import itertools
import weakref

KEY = "param_names"
_known = weakref.WeakKeyDictionary()  # by optimizer: names by the id of a parameter


def replace(optimizer, group: dict, parameters: list) -> None:
    """Lets ``group``, one of the optimizer's, hold ``parameters``, with the name of each."""
    names = _noted(optimizer, group)
    group["params"] = parameters
    _give(group, parameters, names)


def whole(optimizer, group: dict, parameters: list) -> dict:
    """The options of ``group``; with the names of ``parameters``, of which it holds a part here."""
    options = {key: value for key, value in group.items() if key != "params"}
    _give(options, parameters, _noted(optimizer, group))
    return options


def loaded(optimizer, options: dict, parameters: list) -> None:
    """``options`` of a group of ``parameters`` are loaded, of which it may hold a part here."""
    if len(options.get(KEY, ())) == len(parameters):
        _known.setdefault(optimizer, {}).update(_by_parameter(parameters, options[KEY]))


def beside(group: dict, parameters) -> dict:
    """What a copy of ``group`` has beside stand-ins for ``parameters``, some of its own."""
    options = {}
    if KEY in group:
        options[KEY] = group[KEY]
        _give(options, parameters, _of(group))
    return options


def _of(group):
    if len(group.get(KEY, ())) != len(group["params"]):
        return {}  # changed by the user, who knows what they are
    return _by_parameter(group["params"], group[KEY])


def _by_parameter(parameters, names):
    """Of a tied one, which may stand there twice, the names in their order."""
    found = {}
    for parameter, name in zip(parameters, names, strict=True):
        found.setdefault(id(parameter), []).append(name)
    return found


def _noted(optimizer, group):
    if KEY not in group:
        return {}
    known = _known.setdefault(optimizer, {})
    known |= _of(group)
    return known


def _give(options, parameters, names):
    if KEY in options and all(id(each) in names for each in parameters):
        turns = {id(each): itertools.cycle(names[id(each)]) for each in parameters}
        options[KEY] = [next(turns[id(each)]) for each in parameters]
