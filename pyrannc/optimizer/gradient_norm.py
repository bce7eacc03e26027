"""Norms of gradients over the whole model, where torch computes that of one rank's part.

``torch.nn.utils.clip_grad_norm_``, ``get_total_norm`` and what is built on them (Accelerate,
Trainer and Lightning among it) see the gradients that this rank holds; see
:mod:`pyrannc.wrapper.replaced_for_good`.
"""

import functools

import numpy as np
import torch

from pyrannc import live_deployments
from pyrannc.ranks import gathered
from pyrannc.state import tensor_parts, torch_private
from pyrannc.state.released import is_released

WHAT = "the norm of gradients"


def total_norm(torchs, tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """``get_total_norm(tensors, ...)`` over all ranks, each parameter once.

    Collective where ``tensors`` holds a gradient of a wrapped model on several ranks, or is empty:
    then it is that of the last backward, as a rank may have none of the parameters.

    Args:
        torchs: torch's function, for all others.
        tensors: Gradients.
    """
    tensors = [each for each in _listed(tensors) if not is_released(each)]
    deployments = _deployments(tensors)
    if not deployments:
        return torchs(tensors, norm_type, error_if_nonfinite, foreach)
    return _total(deployments, tensors, norm_type, error_if_nonfinite)


def clip(torchs, parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """``clip_grad_norm_(parameters, ...)`` with the norm over all ranks; see :func:`total_norm`."""
    parameters = _listed(parameters)
    deployments = _deployments(parameters)
    if not deployments:
        return torchs(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    gradients = _gradients(parameters)
    norm = _total(deployments, gradients, norm_type, error_if_nonfinite)
    torch_private.clip_with_norm(parameters, max_norm, norm, foreach)
    return norm


def own_only(torchs, parameters, *args, **kwargs):
    """A function of torch that changes each gradient by itself, of those that this rank holds."""
    parameters = _listed(parameters)
    own = [each for each in parameters if not is_released(each)]
    if not _gradients(own) and _of_other_ranks(parameters):
        return None  # torch fails where there is none
    return torchs(own, *args, **kwargs)


def _of_other_ranks(parameters) -> bool:
    """Whether another rank may have gradients of them: where none is left, they may be those of an
    optimizer, which has but this rank's part."""
    last = live_deployments.last_backward()
    found = [] if last is None else [last]
    if parameters:
        found = live_deployments.of_tensors(parameters)
    return any(each.world.size > 1 for each in found)


def of_model(deployment) -> float:
    """The norm of all gradients of a model. Collective."""
    deployment.unsummed.check(WHAT)
    gradients = _gradients(deployment.model.parameters())
    return _total([deployment], gradients, 2.0, False).item()


def _gradients(parameters) -> list:
    own = [each for each in parameters if not is_released(each)]
    return [each.grad for each in own if each.grad is not None]


def _listed(parameters):
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _deployments(tensors) -> list:
    """Those of several ranks that have part in a norm of ``tensors``.

    Raises:
        RaNNCError: Gradients of one are kept under ``no_sync()``, or were lost.
    """
    if tensors:
        found = live_deployments.of_tensors(tensors)
    else:
        last = live_deployments.last_backward()
        found = [] if last is None else [last]
    for each in found:
        each.unsummed.check(WHAT)
    return [each for each in found if each.world.size > 1]


def _to(device, number):
    """A copy there, for which nobody waits."""
    try:
        number = number.pin_memory()
    except RuntimeError:  # there is none to be had
        return number.to(device)
    return number.to(device, non_blocking=True)


def _part(deployment, name, parameter):
    """What this rank answers for of a parameter's gradient: all of it, the numbers of which the
    sum has come to it, or None."""
    steps = deployment.sharded_steps
    piece = steps.shards.mine(parameter) if steps else None
    if piece is None:
        first, rank = deployment.owners.ranks[name][0], deployment.world.rank
        if tensor_parts.is_part(parameter):  # each rank of the first group answers for its part
            return (
                tensor_parts.plain(parameter.grad)
                if first in parameter.place_of_part.ranks
                else None
            )
        return parameter.grad if first == rank else None
    begin, end = piece
    if not tensor_parts.is_part(parameter) and deployment.world.rank != deployment.group[0]:
        return None  # each place of a group shares out the same gradient
    return tensor_parts.plain(parameter.grad).reshape(-1)[begin:end] if begin < end else None


def _of_all_ranks(deployment, others, norm_type):
    """The norms of a model's gradients in the order of its parameters, so that their sum is the
    same on every rank, and their dtypes. ``others``, by id, loses those that belong to it."""
    places, norms, world = [], [], deployment.world
    for place, (name, parameter) in enumerate(deployment.model.named_parameters()):
        gradient = None if is_released(parameter) else parameter.grad
        if gradient is None or others.pop(id(gradient), None) is None:
            continue
        if (part := _part(deployment, name, parameter)) is not None:
            places.append(place)
            norms.append(torch.linalg.vector_norm(part, norm_type))
    # An accelerator is waited for once.
    own = torch.stack([norm.double() for norm in norms]).cpu().numpy() if norms else np.empty(0)
    # After the numbers: what the backward has left to be read is there then, without a wait.
    deployment.call_agreement.other(WHAT)
    found = gathered(world, (np.array(places, dtype=np.int64), own, {norm.dtype for norm in norms}))
    places, numbers, dtypes = zip(*found, strict=True)
    order = np.argsort(np.concatenate(places), kind="stable")
    return np.concatenate(numbers)[order], set().union(*dtypes)


def _total(deployments, gradients, norm_type, error_if_nonfinite):
    norm_type = float(norm_type)
    others = {id(gradient): gradient for gradient in gradients}
    numbers, dtypes = [], set()
    for deployment in deployments:
        found, dtypes_of_ranks = _of_all_ranks(deployment, others, norm_type)
        numbers.append(found)
        dtypes |= dtypes_of_ranks
    device = gradients[0].device if gradients else deployments[0].task.device
    own = [torch.linalg.vector_norm(gradient, norm_type) for gradient in others.values()]
    dtypes |= {norm.dtype for norm in own}
    if not dtypes:
        return torch.tensor(0.0)
    wide = functools.reduce(torch.promote_types, dtypes)
    norms = torch.from_numpy(np.concatenate(numbers)).to(wide)
    if device.type != "cpu":
        norms = _to(device, norms)
    total = torch.linalg.vector_norm(
        torch.cat([norms, *(norm.to(wide).reshape(1) for norm in own)]), norm_type
    )
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, "
            "so it cannot be clipped. To disable this error and scale the gradients by the "
            "non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total
