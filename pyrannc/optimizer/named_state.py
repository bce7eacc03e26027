"""Optimizer states know of which parameters they are.

``optimizer.state_dict()`` numbers the parameters. After the first call of a wrapped model an
optimizer holds those of its rank, so the same number means another parameter on another rank. A
mark in the state says which they are: what belongs to others is refused, and a whole state, as one
process has saved it, is cut to this rank's part.
"""

import weakref

import torch

from pyrannc.errors import RaNNCError

KEY = "rannc_parameters"
#: In the state that ranks other than 0 get where rank 0 alone gets the whole.
ON_RANK_0 = "rannc_on_rank_0"

# By optimizer: the names of its parameters, by group, as they were before it was cut.
_whole = weakref.WeakKeyDictionary()


def mark(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Lets the optimizer's states carry names from here on; before it is cut to a rank's part."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    whole = [[name_of[id(each)] for each in group["params"]] for group in optimizer.param_groups]
    _whole[optimizer] = whole
    model = weakref.ref(model)

    def held(optimizer):
        now = {id(parameter): name for name, parameter in model().named_parameters()}
        return [
            [now.get(id(each), "") for each in group["params"]] for group in optimizer.param_groups
        ]

    def saved(optimizer, state):
        if (names := held(optimizer)) != whole:
            state[KEY] = names

    def loading(optimizer, state):
        mine, theirs = held(optimizer), state.get(KEY, whole)
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
        return _cut(state, whole, mine)

    optimizer.register_state_dict_post_hook(saved)
    optimizer.register_load_state_dict_pre_hook(loading)


def names(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[list[str]]:
    """The names of all parameters that it steps, on any rank, by group and in their order.

    Raises:
        RaNNCError: It holds one that the model does not have.
    """
    whole = _whole.get(optimizer, [])
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    later = []
    for index, group in enumerate(optimizer.param_groups[len(whole) :], len(whole)):
        later.append([name_of.get(id(each)) for each in group["params"]])
        if None in later[-1]:
            raise RaNNCError(
                f"group {index} of {type(optimizer).__name__} holds a parameter that the model "
                "does not have.\n  Give the optimizer of this model."
            )
    return [*whole, *later]


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
        options: Of each group.
        content: Of parameters that this rank steps; of others it is left out.
        of_none: State that is of no parameter, by the optimizer's names for it.
        exact: Names of those whose state keeps its dtypes.
    """
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    held = [[name_of[id(each)] for each in group["params"]] for group in optimizer.param_groups]
    numbers = {name: number for number, name in enumerate(each for group in held for each in group)}
    state = {
        "state": (of_none or {})
        | {numbers[name]: entry for name, entry in content.items() if name in numbers},
        "param_groups": [
            {**_as_held(group, own), "params": [numbers[name] for name in mine]}
            for group, own, mine in zip(options, optimizer.param_groups, held, strict=True)
        ],
        KEY: held,
    }
    type(optimizer).load_state_dict(optimizer, state)
    parameters = dict(model.named_parameters())
    for name in numbers.keys() & content.keys() & set(exact):
        _keep_dtypes(optimizer.state[parameters[name]], content[name])


def _as_held(options, group) -> dict:
    """Numbers of those options that are tensors in ``group``, such as a rate or the members of
    ``betas``, are tensors again."""
    return {key: _like(value, group.get(key)) for key, value in options.items()}


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
        numbers = []
        for name in wanted:
            if place_of[name] in state["state"]:
                content[number] = state["state"][place_of[name]]
            numbers.append(number)
            number += 1
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
