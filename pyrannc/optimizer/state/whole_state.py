"""The state of an optimizer of all ranks: ``state_dict()`` as one process would give it.

After the first call an optimizer holds the parameters of its rank. Its two methods then work
together on all ranks, as those of the model do.
"""

import contextlib
import copy
import functools
import weakref

import torch

from pyrannc import _C, live_deployments
from pyrannc.errors import RaNNCError
from pyrannc.optimizer import around_another
from pyrannc.optimizer.state import kept_state, named_state, shard_states
from pyrannc.ranks import first_fault, gathered, of_rank
from pyrannc.state import tensor_parts
from pyrannc.state.mover import Mover
from pyrannc.state.released import is_released

#: Tensors up to here are sent with what is said of the others: counters of steps.
#: tuned by: what separates counters, of 8 bytes, from states as large as a parameter.
#: without it: each counter is a message of its own; with much more, all ranks hold large states.
_SENT_ALONE_BYTES = 1024


def install(optimizer) -> None:
    """Lets both methods of ``optimizer`` be of all ranks, and take ``from_global``, of RaNNC 0.7:
    with False they are those of this rank's part. ``state_dict(rank0_only=False)`` gives every rank
    the whole."""
    for name, ours in (("state_dict", _state_dict), ("load_state_dict", _load_state_dict)):
        if name not in vars(optimizer):  # else somebody has replaced it, or it is there already
            setattr(optimizer, name, _of_all_ranks(weakref.ref(optimizer), name, ours))


def _of_all_ranks(optimizer, name, ours):
    """``optimizer``: a weak reference, as a method of an object must not keep it."""

    @functools.wraps(getattr(type(optimizer()), name))
    def method(*args, **kwargs):
        return ours(optimizer(), *args, **kwargs)

    return method


def _state_dict(optimizer, *, rank0_only=True, from_global=True):
    own = type(optimizer).state_dict
    _forget_those_asked_for(optimizer)
    deployment = _deployment_of(optimizer, "state_dict()") if from_global else None
    if deployment is None:
        return own(optimizer)
    deployment.call_agreement.other("optimizer.state_dict()", inside_summon=True)
    state = own(optimizer)
    state.pop(named_state.KEY, None)
    return state | _gather(optimizer, deployment, rank0_only)


def _load_state_dict(optimizer, state_dict, *, from_global=True):
    own = type(optimizer).load_state_dict
    # What belongs to one rank says so, and needs no other one.
    alone = not from_global or named_state.KEY in state_dict
    deployment = None if alone else _deployment_of(optimizer, "load_state_dict()")
    if deployment is None:
        if state_dict.get(named_state.ON_RANK_0):
            raise RaNNCError(
                "optimizer.load_state_dict(): state_dict() gave this to a rank other than 0, "
                "without any state, and where the model is not at work each rank loads its own.\n"
                "  Load what state_dict(rank0_only=False) gives, or rank 0's, on every rank."
            )
        return own(optimizer, state_dict)
    deployment.call_agreement.other("optimizer.load_state_dict()", inside_summon=True)
    comm = deployment.world
    given = not state_dict or state_dict.get(named_state.ON_RANK_0)
    waits = gathered(comm, bool(given))
    fault = cause = None
    if waits[0]:
        fault = (
            "optimizer.load_state_dict(): rank 0 has no state, but what state_dict() gave another "
            "rank.\n  Load on rank 0, or on every rank, what state_dict() gave rank 0."
        )
    elif any(waits):
        state_dict = _spread(optimizer, deployment, state_dict, waits)
    if fault is None:
        try:
            with _without_others(optimizer, deployment.model):
                own(optimizer, state_dict)
            for group in optimizer.param_groups:
                for each in filter(tensor_parts.is_part, group["params"]):
                    tensor_parts.cut_state(optimizer, each, each.place_of_part)
        except Exception as error:  # torch's, or the optimizer's own
            fault, cause = f"{type(error).__name__}: {error}", error
    if wrong := first_fault(comm, fault):
        rank, text = wrong
        raise RaNNCError(text if waits[0] else f"rank {rank}: {text}") from cause
    return None


@contextlib.contextmanager
def _without_others(optimizer, model):
    """Inside, what is loaded is cut to what this rank steps, after the hooks of the user."""

    def drop(_, state):
        return _dropped(optimizer, model, state)

    hook = optimizer.register_load_state_dict_pre_hook(drop)
    named_state.cut_last(optimizer)
    try:
        yield
    finally:
        hook.remove()


def _dropped(optimizer, model, state):
    """For an optimizer or a group that came after the first call, which holds parameters of other
    ranks, too: their states would be memory that nobody uses."""
    order = [name for group in named_state.names(optimizer, model) for name in group]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if len(order) != len(numbers):  # a state of other groups, which is refused
        return state
    elsewhere = {name for name, each in model.named_parameters() if is_released(each)}
    gone = {number for number, name in zip(numbers, order, strict=True) if name in elsewhere}
    return {**state, "state": {n: each for n, each in state["state"].items() if n not in gone}}


def _deployment_of(optimizer, what):
    """The one that spreads its parameters over several ranks; None where there is none.

    Raises:
        RaNNCError: There are several, or the optimizer keeps another one's state, too.
    """
    found = [each for each in live_deployments.of_optimizer(optimizer) if each.world.size > 1]
    if len(found) > 1:
        raise RaNNCError(
            f"optimizer.{what}: {type(optimizer).__name__} steps the parameters of {len(found)} "
            "wrapped models, and its whole state is put together for one model only.\n  Give each "
            "of them an optimizer of its own; or save and load each rank's part, with "
            "from_global=False."
        )
    if found:
        around_another.refuse(optimizer, f"optimizer.{what}")
    return found[0] if found else None


def _forget_those_asked_for(optimizer):
    """``optimizer.state[p]`` of a parameter that another rank steps has made an empty entry, for
    which torch has no number."""
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    for parameter, entry in kept_state.of_parameters(optimizer).items():
        if id(parameter) not in held and not entry:
            del optimizer.state[parameter]


class _Blank:
    """A tensor that is still to come."""

    def __init__(self, tensor):
        self.shape, self.dtype = tensor.shape, tensor.dtype


def _is_sent_alone(value):
    return isinstance(value, torch.Tensor) and value.nbytes > _SENT_ALONE_BYTES


def _said(entry):
    """What is said of a parameter's state before its large tensors are sent."""
    return {
        key: _Blank(value) if _is_sent_alone(value) else _on_host(value)
        for key, value in entry.items()
    }


def _on_host(value):
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def _numbered(names):
    """By name the number of each parameter, which is the last of its places; and by group."""
    numbers, groups, first = {}, [], 0
    for group in names:
        numbers |= {name: place for place, name in enumerate(group, first)}
        first += len(group)
        groups.append([numbers[name] for name in group])
    return numbers, groups


def _gather(optimizer, deployment, rank0_only) -> dict:
    """``state`` and ``param_groups`` of one process, on rank 0 or everywhere. Collective."""
    comm, model = deployment.world, deployment.model
    names = named_state.names(optimizer, model)
    kept_state.compare_of_none(optimizer, comm, "optimizer.state_dict()")
    mine = shard_states.whole(optimizer, deployment, everywhere=False)
    first = {name: shard_states.answers(deployment, name) for group in names for name in group}
    told = {name: _said(entry) for name, entry in mine.items() if first.get(name) == comm.rank}
    everyones = {}
    for each in gathered(comm, told):
        everyones |= each
    numbers, groups = _numbered(names)
    content = {key: _on_host(value) for key, value in kept_state.of_none(optimizer).items()}
    takers = [0] if rank0_only else list(range(comm.size))
    with Mover(comm) as mover:
        for name, number in numbers.items():
            if name not in everyones:
                continue
            entry = everyones[name]
            for key, value in entry.items():
                if isinstance(value, _Blank):
                    own = mine[name][key] if comm.rank == first[name] else None
                    _give(mover, comm.rank, entry, key, value, own, first[name], takers)
            content[number] = entry
    found = [
        {**copy.deepcopy(options), "params": params}
        for options, params in zip(named_state.options(optimizer, model), groups, strict=True)
    ]
    if comm.rank == 0 or not rank0_only:
        return {"state": content, "param_groups": found}
    return {"state": {}, "param_groups": found, named_state.ON_RANK_0: True}


def _spread(optimizer, deployment, given, waits) -> dict:
    """What each rank loads, where those in ``waits`` take rank 0's state. Collective."""
    comm, owners = deployment.world, deployment.owners
    names = named_state.names(optimizer, deployment.model)
    numbers, own_groups = _numbered(names)
    told = None
    if comm.rank == 0:
        groups = [group["params"] for group in given["param_groups"]]
        told = {key: each for key, each in given.items() if key not in ("state", named_state.KEY)}
        told |= {"state": {}, "of_none": {}}
        if [len(group) for group in groups] == [len(group) for group in names]:
            # Numbers of whoever saved it, in the order of its groups.
            theirs = (number for group in groups for number in group)
            ours = (number for group in own_groups for number in group)
            told["renumbered"] = renumbered = dict(zip(theirs, ours, strict=True))
            for key, entry in given["state"].items():
                told["state" if key in renumbered else "of_none"][key] = (
                    _said(entry) if key in renumbered else _on_host(entry)
                )
    told = of_rank(0, comm, told)
    renumbered, of_none = told.pop("renumbered", {}), told.pop("of_none")
    of_number = {number: name for name, number in numbers.items()}
    with Mover(comm) as mover:
        for key, entry in told["state"].items():
            holders = owners.ranks[of_number[renumbered[key]]]
            takers = sorted({0, *(rank for rank in holders if waits[rank])})
            for what, value in entry.items():
                if isinstance(value, _Blank):
                    own = given["state"][key][what] if comm.rank == 0 else None
                    _give(mover, comm.rank, entry, what, value, own, 0, takers)
    for entry in [entry for entry in told["state"].values() if _lacks_values(entry)]:
        entry.clear()  # of parameters that other ranks hold
    told["state"] |= of_none
    return told if waits[comm.rank] else given


def _give(mover, here, entry, key, blank, own, root, ranks):
    """Lets ``entry[key]`` be on ``ranks`` what rank ``root`` has of it, which is ``own`` there;
    ``here``: this rank."""

    def keep(numbers):
        entry[key] = numbers.view(blank.shape)

    start, end = (_C.plan.Layout.whole(str(key), blank.shape, each) for each in ([root], ranks))
    mover.add(start, end, own, blank.dtype, keep if here in ranks else None)


def _lacks_values(entry):
    return any(isinstance(value, _Blank) for value in entry.values())
