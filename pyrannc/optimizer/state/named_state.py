"""Optimizer states know of which parameters they are.

``optimizer.state_dict()`` numbers the parameters. After the first call of a wrapped model an
optimizer holds those of its rank, so the same number means another parameter on another rank. A
mark in the state says which they are: what belongs to others is refused, and a whole state, as one
process has saved it, is cut to this rank's part.
"""

import weakref

import torch

from pyrannc.errors import RaNNCError
from pyrannc.optimizer.state import param_names
from pyrannc.state.released import is_released

KEY = "rannc_parameters"
#: In the state that ranks other than 0 get where rank 0 alone gets the whole.
ON_RANK_0 = "rannc_on_rank_0"

# By optimizer: its model, and the names of its parameters by group as they were before it was cut.
_model, _whole = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()
_cuts = weakref.WeakKeyDictionary()  # by optimizer: the hook that cuts what is loaded
_UNKNOWN = ""  # in the place of a name: of a parameter that the model does not have


def mark(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Lets the optimizer's states carry names from here on; before it is cut to a rank's part."""
    is_known = optimizer in _whole
    _model[optimizer], _whole[optimizer] = weakref.ref(model), _held(optimizer, model)
    if not is_known:  # else its model was wrapped before
        optimizer.register_state_dict_post_hook(_saved)
        _cuts[optimizer] = optimizer.register_load_state_dict_pre_hook(_loading)


def cut_last(optimizer: torch.optim.Optimizer) -> None:
    """What is loaded is cut after the hooks of the user, which may look for names in it and number
    it otherwise."""
    if optimizer in _cuts:
        _cuts[optimizer].remove()
        _cuts[optimizer] = optimizer.register_load_state_dict_pre_hook(_loading)


def note_groups(optimizer: torch.optim.Optimizer) -> None:
    """Keeps the names of groups that were added since mark(); before the optimizer is cut again."""
    if optimizer in _whole:  # not where it has come out of a file, with a wrapped model
        _whole[optimizer] = _of_all_ranks(optimizer, _model[optimizer]())


def refuse_outer(optimizer: torch.optim.Optimizer, model: torch.nn.Module, what: str) -> None:
    """Raises RaNNCError where the optimizer is that of a wrapped model, and ``model`` is another:
    one around that, as its state has the names of the wrapped one."""
    wrapped = _model[optimizer]() if optimizer in _model else model
    if wrapped is not model and wrapped is not None:
        raise RaNNCError(
            f"{what}: the {type(optimizer).__name__} is that of the {type(wrapped).__name__} that "
            f"was wrapped, and was given with another model, {type(model).__name__}.\n  Give the "
            "RaNNCModule and its optimizer; what is around it may go into extra=."
        )


def _held(optimizer, model, first=0):
    """Names of what it holds now, by group, from the group ``first`` on."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    return [
        [name_of.get(id(each), _UNKNOWN) for each in group["params"]]
        for group in optimizer.param_groups[first:]
    ]


def _of_all_ranks(optimizer, model):
    """The same of what it holds on any rank: each holds the whole of a group that has been added
    since it was cut."""
    whole = _whole.get(optimizer, [])
    if len(optimizer.param_groups) < len(whole):
        raise RaNNCError(
            f"{type(optimizer).__name__} has {len(optimizer.param_groups)} parameter groups, and "
            f"had {len(whole)} when the model was wrapped, so its state is not known by name any "
            "more.\n  Keep the group, with requires_grad_(False) for its parameters; or make a new "
            "optimizer."
        )
    return [*whole, *_held(optimizer, model, len(whole))]


def _saved(optimizer, state):
    model = _model[optimizer]()
    if (mine := _held(optimizer, model)) != _of_all_ranks(optimizer, model):
        state[KEY] = mine


def _loading(optimizer, state):
    model = _model[optimizer]()
    if state["state"] and any(
        each.is_meta
        for group in optimizer.param_groups
        for each in group["params"]
        if not is_released(each)
    ):
        raise RaNNCError(
            f"load_state_dict() of {type(optimizer).__name__}: its parameters have no values yet, "
            "as the model was built on the meta device, and torch would drop those of the state."
            "\n  Use pyrannc.load(), or load after the first call of the model."
        )
    mine, whole = _held(optimizer, model), _of_all_ranks(optimizer, model)
    theirs = state.get(KEY, whole)
    if theirs == mine:
        return state
    if KEY in state:
        raise RaNNCError(_other_part(mine, theirs))
    sizes = [len(group["params"]) for group in state["param_groups"]]
    if sizes != [len(names) for names in whole]:
        raise RaNNCError(
            f"the optimizer state has parameter groups of {sizes} parameters, the optimizer "
            f"that was wrapped had {[len(names) for names in whole]}.\n  Load the whole "
            "state of an optimizer with the same groups."
        )
    by_name = dict(model.named_parameters())
    for group, of_group in zip(state["param_groups"], names(optimizer, model), strict=True):
        param_names.loaded(optimizer, group, [by_name[name] for name in of_group])
    return _cut(state, names(optimizer, model), mine)


def names(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[list[str]]:
    """The names of all parameters that it steps, on any rank, by group and in their order.

    Raises:
        RaNNCError: It holds one that the model does not have.
    """
    found = _of_all_ranks(optimizer, model)
    for index, group in enumerate(found):
        if _UNKNOWN in group:
            raise RaNNCError(
                f"group {index} of {type(optimizer).__name__} holds a parameter that the model "
                "does not have.\n  Give the optimizer of this model; one of a loss or layer "
                "outside of the model needs an optimizer of its own."
            )
    return found


def options(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[dict]:
    """Of each group what it has beside its parameters, as before it was cut."""
    by_name = dict(model.named_parameters())
    return [
        param_names.whole(optimizer, group, [by_name[name] for name in of_group])
        for group, of_group in zip(optimizer.param_groups, names(optimizer, model), strict=True)
    ]


def entries(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, dict]:
    """The state of each parameter that this rank steps, by name; none of those without one."""
    return {
        name: optimizer.state[parameter]
        for name, parameter in model.named_parameters()
        if optimizer.state.get(parameter)
    }


def load(
    optimizer, model, options: list[dict], content: dict[str, dict], of_none=None, exact=()
) -> None:
    """Lets this rank's part of the optimizer have the state ``content``, by name.

    Args:
        options: Of each group; it keeps its own names of parameters.
        content: Of parameters that this rank steps; of others it is left out.
        of_none: State that is of no parameter, by the optimizer's names for it.
        exact: Names of those whose state keeps its dtypes.
    """
    held, numbers, groups, begin = _held(optimizer, model), {}, [], 0
    for group, own, mine in zip(options, optimizer.param_groups, held, strict=True):
        params = [*range(begin, begin + len(mine))]
        numbers |= zip(mine, params, strict=True)
        groups.append({**as_held(group, own), "params": params})
        begin += len(mine)
    state = {
        "state": (of_none or {})
        | {numbers[name]: entry for name, entry in content.items() if name in numbers},
        "param_groups": groups,
        KEY: held,
    }
    type(optimizer).load_state_dict(optimizer, state)
    parameters = dict(model.named_parameters())
    for name in numbers.keys() & content.keys() & set(exact):
        _keep_dtypes(optimizer.state[parameters[name]], content[name])


def as_held(options, group) -> dict:
    """Numbers of those options that are tensors in ``group``, such as a rate or the members of
    ``betas``, are tensors again. Names of parameters, which may stand in another order, are left
    out."""
    return {
        key: _like(value, group.get(key))
        for key, value in options.items()
        if key != param_names.KEY
    }


def _like(value, held):
    if isinstance(value, tuple) and isinstance(held, tuple) and len(value) == len(held):
        return tuple(map(_like, value, held))
    if torch.is_tensor(held) and isinstance(value, int | float):
        return torch.full_like(held, value)
    return value


def _keep_dtypes(entry, saved) -> None:
    """torch gives all of a state the dtype of its parameter, also NAdam's products and ASGD's
    rates, which are of 32 bits whatever that is: steps would not be those without a checkpoint."""
    for key, value in saved.items():
        if torch.is_tensor(value) and entry[key].dtype != value.dtype:
            entry[key] = value.to(entry[key].device, copy=True)


def _cut(state, whole, mine) -> dict:
    """The part of a whole state that belongs to the parameters ``mine``, numbered as they are, with
    what is of no parameter."""
    groups, number = [], 0
    numbered = {each for group in state["param_groups"] for each in group["params"]}
    content = {key: value for key, value in state["state"].items() if key not in numbered}
    for group, names, wanted in zip(state["param_groups"], whole, mine, strict=True):
        place_of = dict(zip(names, group["params"], strict=True))
        numbers, group = [], {**group}
        for name in wanted:
            if place_of[name] in state["state"]:
                content[number] = state["state"][place_of[name]]
            numbers.append(number)
            number += 1
        given = group.pop(param_names.KEY, ())
        if len(given) == len(names):
            given_for = dict(zip(names, given, strict=True))
            group[param_names.KEY] = [given_for[name] for name in wanted]
        groups.append({**group, "params": numbers})
    return {**state, "state": content, "param_groups": groups}


def _other_part(mine, theirs) -> str:
    own, given = (sorted(set().union(*names)) for names in (mine, theirs))
    missing = [name for name in own if name not in given]
    shown = ", ".join(f"'{name}'" for name in missing[:2]) or "no parameter in the same place"
    return (
        f"this optimizer state is of {len(given)} parameters of another rank or plan, and lacks "
        f"{shown} of the {len(own)} that this rank steps.\n  A state that was saved after the "
        "first call is that of its rank, and loads after the first call of a job with that plan "
        "(load_deployment). A whole state, of one process, loads on every rank."
    )
