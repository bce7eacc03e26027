"""Whether a step of the user's optimizer treats each parameter by itself.

After the first call each rank's optimizer holds the parameters of its own stages. A step that
computes something of all parameters, such as a norm (SAM, LAMB with clipping) or a common step size
(Prodigy), would take that of one rank's part, and train another model without a word.
"""

import collections
import copy
import dataclasses
import itertools
import math

import torch

from pyrannc.errors import ConfigError
from pyrannc.optimizer import user_optimizer
from pyrannc.optimizer.state import constructed_state, param_names

# Of torch, whose steps go over the parameters one by one.
_KNOWN = (
    torch.optim.ASGD, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam,
    torch.optim.Adamax, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam,
    torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD, torch.optim.SparseAdam,
)  # fmt: skip

#: Steps of a probe, and the scale of the gradients in each of them.
#: tuned by: tests/torch/optimizer/test_elementwise.py. Clipping shows where some norms are above
#: any usual limit and others are below; an estimated step size (Prodigy) moves after a few steps.
#: without it: with one scale, Adam's step hides what the gradients were multiplied with.
_SCALES = 2 * (1.0, 1e-3, 30.0, 1.0, 1e2, 0.1, 3.0, 1.0)
#: Learning rate of a probe.
#: tuned by: tests/torch/optimizer/test_elementwise.py.
#: without it: where a schedule begins with 0 nothing moves, and every class would pass.
_RATE = 1.0
#: Of each dimension of a parameter that a stand-in has.
#: tuned by: a bound on the memory of a probe, not on what it finds.
#: without it: a probe would copy the model.
_MOST_SIZE = 4
#: Parameters of which a probe has stand-ins, at most two of a group.
#: tuned by: a bound on the time of a probe, as said below.
#: without it: a group for each of 100 parameters takes two seconds.
_MOST_PARAMETERS = 8
#: The dtype of a probe, and from which part of the way that a parameter has gone two ends differ.
#: Not all classes take float64.
#: tuned by: tests/torch/optimizer/test_elementwise.py: torch's own differ in no bit.
#: without it: implementations that go through many parameters at once, and round otherwise, fail.
_PRECISIONS = ((torch.float64, 1e-9), (torch.float32, 1e-5))


@dataclasses.dataclass
class _Run:
    """Steps of a copy.

    Attributes:
        begins, ends: The stand-ins before and after, by the id of the parameter.
        numbers: What the copy's groups and attributes hold and have changed, by their names.
        states: What the copy keeps of each of them.
    """

    begins: dict
    ends: dict
    numbers: dict
    states: dict


def check(optimizer: torch.optim.Optimizer, declared: bool) -> None:
    """Raises ConfigError that names a class whose steps on parameters together are others than
    apart, or which cannot be tried.

    Args:
        optimizer: Neither it nor its parameters and state change.
        declared: The user says that it treats each parameter by itself.
    """
    if declared or type(optimizer) in _KNOWN:
        return
    chosen = _chosen(optimizer)
    if len(chosen) < 2:
        return
    name = type(optimizer).__name__
    try:
        end_equal = _end_equal(optimizer, chosen)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"{name} may need all parameters in one place, but they are spread over the ranks: "
            f"its step could not be tried on small copies of a few parameters ({reason}).\n  If it "
            "treats each parameter by itself, say RaNNCModule(..., elementwise_optimizer=True); "
            "else use Adam, AdamW or SGD."
        ) from error
    if not end_equal:
        raise ConfigError(
            f"{name} computes something of all parameters together, such as a norm, but they are "
            "spread over the ranks, and each would take that of its own part: small copies of two "
            "parameters do not end equal when they are stepped together and apart.\n  Use Adam, "
            "AdamW or SGD, with clip_grad_norm_() before the step for a norm of the gradients. If "
            "you know that it treats each parameter by itself (as one that draws random numbers "
            "may), say RaNNCModule(..., elementwise_optimizer=True)."
        )


def fault_of_halves(optimizer: torch.optim.Optimizer) -> str:
    """Why parameters cannot be stepped as two flat halves: they do not end as they do when they are
    whole, or of what is kept of them nobody knows which half it is about. Empty if they can."""
    chosen = _chosen(optimizer, least=2)
    if not chosen:
        return ""  # there is nothing to cut
    halves = (lambda flat: flat[: len(flat) // 2], lambda flat: flat[len(flat) // 2 :])
    failure = None
    for closure, (dtype, equal) in itertools.product((False, True), _PRECISIONS):
        try:
            whole, *parts = (
                _run(optimizer, chosen, chosen, dtype, closure, cut) for cut in (None, *halves)
            )
        except Exception as error:
            failure = failure or error
            continue
        for key in whole.ends:
            for field in ("begins", "ends"):
                joined = torch.cat([getattr(part, field)[key] for part in parts])
                getattr(parts[0], field)[key] = joined.view_as(whole.ends[key])
        if _differ(whole, dataclasses.replace(parts[0], numbers={}), equal):
            return "its step needs the whole of a parameter, as norms, factors and products do"
        return _uncut(whole) or _uncut(parts[1])
    raise failure


def _uncut(run) -> str:
    """What is kept of a stand-in that is neither one number nor one for each of the stand-in's."""
    for key, entry in run.states.items():
        for name, value in entry.items():
            if torch.is_tensor(value) and value.shape != run.ends[key].shape and value.numel() != 1:
                return (
                    f"its state '{name}' has {value.numel()} numbers for a parameter of "
                    f"{run.ends[key].numel()}"
                )
            if not torch.is_tensor(value) and _has_tensors(value):
                return f"its state '{name}' is a {type(value).__name__} with tensors in it"
    return ""


def _has_tensors(value) -> bool:
    inside = value.values() if isinstance(value, dict) else value
    if isinstance(inside, list | tuple | type({}.values())):
        return any(map(_has_tensors, inside))
    return torch.is_tensor(value)


def _end_equal(optimizer, chosen) -> bool:
    """Whether ``chosen`` end equal when they are stepped together and apart."""
    failure = None
    for closure, (dtype, equal) in itertools.product((False, True), _PRECISIONS):
        try:
            together, *apart = (
                _run(optimizer, chosen, part, dtype, closure)
                for part in (chosen, chosen[::2], chosen[1::2])
            )
        except Exception as error:
            failure = failure or error
            continue
        return not any(_differ(together, each, equal) for each in apart)
    raise failure


def _chosen(optimizer, least=1) -> list:
    """The first two parameters of each of the first groups, of ``least`` numbers."""
    return [
        parameter
        for group in optimizer.param_groups
        for parameter in [p for p in group["params"] if p.requires_grad and p.numel() >= least][:2]
    ][:_MOST_PARAMETERS]


def _differ(together, apart, equal) -> bool:
    for key, end in apart.ends.items():
        way = (end - apart.begins[key]).abs().max().item()
        gap = (end - together.ends[key]).abs().max().item()
        if not gap <= equal * way:  # also where it is not a number
            return True
    return any(
        not math.isclose(number, together.numbers.get(name, number), rel_tol=equal)
        for name, number in apart.numbers.items()
    )


def _run(optimizer, chosen, part, dtype, closure, cut=None) -> _Run:
    """Some steps of a copy that holds stand-ins for those of ``part``, some of ``chosen``.

    ``closure``: a step gets one, which some classes need. Others would compute gradients anew after
    what they have done to them. ``cut``: a function of the flat stand-in that gives a part of it.
    """
    kept = set(map(id, part))
    stand_ins = {
        id(parameter): _stand_in(parameter, number, dtype)
        for number, parameter in enumerate(chosen)
        if id(parameter) in kept
    }
    if cut is not None:
        stand_ins = {
            key: cut(tensor.detach().flatten()).clone().requires_grad_()
            for key, tensor in stand_ins.items()
        }
    begins = {key: tensor.detach().clone() for key, tensor in stand_ins.items()}
    copied = _copied(optimizer, stand_ins)
    if user_optimizer.has_modes(copied):
        copied.train()  # a loop may do so after the model was wrapped
    before = _numbers(copied)
    for scale in _SCALES:

        def loss(scale=scale):
            """The sum of a number of each, whose gradient depends on where the parameter is."""
            with torch.enable_grad():
                total = torch.zeros((), dtype=dtype)
                for tensor in stand_ins.values():
                    tensor.grad = None
                    size = tensor.abs()
                    total = total + scale * (size.square() + size).sum()
                total.backward()
            return total.detach()

        loss()
        type(optimizer).step(copied, *([loss] if closure else []))
    numbers = {
        name: number for name, number in _numbers(copied).items() if number != before.get(name)
    }
    ends = {key: tensor.detach() for key, tensor in stand_ins.items()}
    states = {key: dict(copied.state.get(tensor, {})) for key, tensor in stand_ins.items()}
    return _Run(begins, ends, numbers, states)


def _numbers(optimizer) -> dict:
    """Those that its groups and attributes hold, by name: estimates of all parameters are there."""
    places = [vars(optimizer), *optimizer.param_groups]
    found = {}
    for number, place in enumerate(places):
        for name, value in place.items():
            if torch.is_tensor(value) and value.numel() == 1 and value.is_floating_point():
                value = value.item()
            if isinstance(value, float):
                found[number, name] = value
    return found


def _stand_in(parameter, number, dtype):
    """A small tensor with as many dimensions: the same numbers whatever is stepped with it."""
    shape = [min(size, _MOST_SIZE) for size in parameter.shape]
    dtype = dtype.to_complex() if parameter.dtype.is_complex else dtype
    count = torch.Size(shape).numel()
    values = torch.linspace(0.2 + number / 7, 1.1 + number, count)
    return values.reshape(shape).to(dtype).requires_grad_()


def _copied(optimizer, stand_ins):
    """The optimizer and those that it keeps as attributes, as they are before the first step, with
    ``stand_ins`` by the id of a parameter in the places of the parameters, and without hooks.

    Not copy.copy(), which leaves out what Optimizer.__getstate__ does, nor deepcopy() alone, which
    would copy the parameters and their states.
    """
    none = torch.empty(0)
    memo = {}
    optimizers, found = [optimizer], {id(optimizer)}
    for each in optimizers:
        memo[id(each)] = object.__new__(type(each))
        memo[id(each.state)] = collections.defaultdict(dict)
        for group in each.param_groups:
            held = group["params"]
            chosen = [p for p in held if id(p) in stand_ins]
            memo[id(held)] = [stand_ins[id(p)] for p in chosen]
            for key, names in param_names.beside(group, chosen).items():
                memo[id(group[key])] = names
            memo |= {id(p): stand_ins.get(id(p), none) for p in held}
        for value in vars(each).values():
            if isinstance(value, torch.optim.Optimizer) and id(value) not in found:
                found.add(id(value))
                optimizers.append(value)
    for each in optimizers:
        for name, value in vars(each).items():
            if name.startswith("_optimizer_") and name.endswith("_hooks"):
                copied = collections.OrderedDict()
            elif name == "step":  # what a learning-rate scheduler puts there
                continue
            else:
                copied = copy.deepcopy(value, memo)
            vars(memo[id(each)])[name] = copied
        memo[id(each)].is_tried = True
    for each in optimizers:
        for group in memo[id(each)].param_groups:
            if "lr" in group:
                rate = group["lr"]
                group["lr"] = torch.full_like(rate, _RATE) if torch.is_tensor(rate) else _RATE
        constructed_state.give(memo[id(each)])
    return memo[id(optimizer)]
