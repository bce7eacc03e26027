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


def mark(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Lets the optimizer's states carry names from here on; before it is cut to a rank's part."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    whole = [[name_of[id(each)] for each in group["params"]] for group in optimizer.param_groups]
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


def _cut(state, whole, mine) -> dict:
    """The part of a whole state that belongs to the parameters ``mine``, numbered as they are."""
    groups, content, number = [], {}, 0
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
