"""What RaNNC has to know of the user's optimizer: whose parameters it holds, and its memory."""

import inspect

import torch
from torch import nn

from pyrannc import log
from pyrannc.errors import ConfigError
from pyrannc.optimizer.state import kept_state, param_names
from pyrannc.ranks import of_rank

# State kept per parameter, in copies of the parameter, by class and group options.
_STATE_COPIES = {
    torch.optim.SGD: lambda group: 1 if group["momentum"] else 0,
    torch.optim.Adam: lambda group: 3 if group["amsgrad"] else 2,
    torch.optim.AdamW: lambda group: 3 if group["amsgrad"] else 2,
    torch.optim.NAdam: lambda group: 2,
    torch.optim.RAdam: lambda group: 2,
    torch.optim.Adamax: lambda group: 2,
    torch.optim.Adadelta: lambda group: 2,
    torch.optim.Adagrad: lambda group: 1,
    torch.optim.ASGD: lambda group: 1,
    torch.optim.Rprop: lambda group: 2,
    torch.optim.RMSprop: lambda group: 1 + bool(group["momentum"]) + bool(group["centered"]),
}


def listed(given) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers that a user gives: none, one, or several that share nothing.

    Raises:
        ConfigError: One is none, one stands there twice, or a parameter is in two of them.
    """
    if given is None:
        return ()
    optimizers = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    holder = {}  # by parameter: position of its optimizer, and group
    for position, optimizer in enumerate(optimizers):
        if isinstance(optimizer, type) or not hasattr(optimizer, "param_groups"):
            what = f"a {type(optimizer).__name__}"
            what = repr(optimizer) if isinstance(optimizer, type | str) else what
            raise ConfigError(
                f"optimizer is {what}: it must be an optimizer over model.parameters(), a "
                "list of such, or None.\n  Make it first: torch.optim.AdamW(model.parameters())."
            )
        if any(optimizer is before for before in optimizers[:position]):
            raise ConfigError(
                f"optimizer {position} of the list, {type(optimizer).__name__}, stands there "
                "twice.\n  Give each optimizer once."
            )
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                before, of_group = holder.setdefault(id(parameter), (position, index))
                if before != position:
                    raise ConfigError(
                        f"optimizers {before} (group {of_group}) and {position} (group {index}) of "
                        f"the list hold the same parameter, of shape {tuple(parameter.shape)}, and "
                        "would step it twice.\n  Give each parameter to one of them."
                    )
    return optimizers


def check(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raises ConfigError for an optimizer that cannot be cut down to the parameters of a rank, and
    one that names the group when a parameter is not one of the model's."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError(
            "LBFGS calls the model several times in a step and needs all parameters in one place, "
            "but they are spread over the ranks.\n  Use Adam, AdamW or SGD."
        )
    known = {id(parameter) for parameter in model.parameters()}
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                raise ConfigError(
                    f"the optimizer holds a parameter that the model does not have: group {index}, "
                    f"position {position}, shape {tuple(parameter.shape)}. Build it from the same "
                    "model.parameters() that is given to RaNNCModule, after any .to() or copy; one "
                    "that steps several wrapped models is given to none of them.\n  "
                    "One of a loss or layer outside of the model sees this rank's rows only: make "
                    "it a part of the model."
                )


def has_modes(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is as the schedule-free ones: train() and eval() exchange parameters with what it
    keeps of them, beside its steps."""
    return all(callable(getattr(type(optimizer), name, None)) for name in ("train", "eval"))


def state_copies(optimizer: torch.optim.Optimizer, factor: float) -> dict[int, float]:
    """For each parameter, by ``id``, its optimizer state in copies of the parameter.

    ``factor`` stands in for classes that are not known here. Parameters that no optimizer holds
    are left out: they have no state.
    """
    copies = {}
    known = _STATE_COPIES.get(type(optimizer))
    if known is None:
        log.info(
            "deploy",
            f"optimizer {type(optimizer).__name__}: counted with {factor} copies of each parameter "
            "(opt_param_factor)",
        )
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            copies[id(parameter)] = known(group) if known else factor
    return copies


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """What its state takes now."""
    return sum(tensor.nbytes for tensor in kept_state.tensors(optimizer))


def leave_out(optimizer: torch.optim.Optimizer, gone: set[int]) -> None:
    """Cuts the parameters in ``gone`` (ids) out of every group and of the state, in place; empty
    groups stay."""
    for group in optimizer.param_groups:
        kept = [each for each in group["params"] if id(each) not in gone]
        param_names.replace(optimizer, group, kept)
    for parameter in kept_state.of_parameters(optimizer):
        if id(parameter) in gone:
            del optimizer.state[parameter]


def begin_again(optimizer: torch.optim.Optimizer) -> None:
    """What a class keeps of each parameter from the start on, as Adagrad does, is made anew where
    it was made of parameters without values, which have got some now."""
    if not any(
        isinstance(value, torch.Tensor) and value.is_meta
        for state in kept_state.of_parameters(optimizer).values()
        for value in state.values()
    ):
        return
    groups = [dict(group) for group in optimizer.param_groups if group["params"]]
    # Some make state by what they were called with, whatever is in the groups.
    takes = inspect.signature(type(optimizer)).parameters
    options = {name: each for name, each in optimizer.defaults.items() if name in takes}
    try:
        made = type(optimizer)(groups, **options)
    except Exception as error:
        raise ConfigError(
            f"{type(optimizer).__name__} was made while its parameters had no values, and cannot "
            f"be made anew ({type(error).__name__}: {error}).\n  Make it after the first call of "
            "the model."
        ) from error
    optimizer.state.update(made.state)


def group_of(optimizer: torch.optim.Optimizer, parameter) -> int | None:
    """The index of the group that holds it."""
    for index, group in enumerate(optimizer.param_groups):
        if any(held is parameter for held in group["params"]):
            return index
    return None


def _on_host(state, device):
    """What is kept of a parameter by name, on the host, and whether it was beside the parameter."""
    if state is None:
        return None
    return {
        name: (value.cpu(), value.device == device)
        if isinstance(value, torch.Tensor)
        else (value, False)
        for name, value in state.items()
    }


def move(optimizer: torch.optim.Optimizer, parameter, comm, root: int, ranks: list[int]) -> None:
    """Lets the optimizers of ``ranks`` hold a parameter that until now that of ``root`` did, if
    any, with its state. Collective."""
    group, state = None, None
    if comm.rank == root:
        group = group_of(optimizer, parameter)
        state = _on_host(optimizer.state.get(parameter), parameter.device)
    group, state = of_rank(root, comm, (group, state))
    if group is None:
        return
    if comm.rank not in ranks:
        held = optimizer.param_groups[group]
        kept = [each for each in held["params"] if each is not parameter]
        param_names.replace(optimizer, held, kept)
        optimizer.state.pop(parameter, None)
    else:
        if group_of(optimizer, parameter) is None:
            held = optimizer.param_groups[group]
            param_names.replace(optimizer, held, [*held["params"], parameter])
        # A group that was added after the first call is held by every rank, and of the states of
        # its parameters each has its own.
        if state is not None and not optimizer.state.get(parameter):
            optimizer.state[parameter] = {
                name: value.to(parameter.device) if with_parameter else value
                for name, (value, with_parameter) in state.items()
            }
