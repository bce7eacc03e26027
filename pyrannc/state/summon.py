"""The whole model on a rank, for a while: whoever saves, generates or looks at it needs no more.

And copies of one parameter, or of its gradient, for all ranks.
"""

import contextlib
import dataclasses
import functools

import torch

from pyrannc import _C
from pyrannc.errors import RaNNCError
from pyrannc.ranks import of_rank
from pyrannc.state import named_tensors, tensor_parts
from pyrannc.state.mover import Mover, shaped
from pyrannc.state.released import is_released, materialize, release


def forward_pass(method):
    """Marks a method of RaNNCModule as that which runs forward passes, in which nothing is
    summoned: the code of the model runs while it is captured, and then for no rank's own call."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        own = self.__dict__  # not by setattr(), which asks the model
        before, own["_in_forward"] = own["_in_forward"], True
        try:
            return method(self, *args, **kwargs)
        finally:
            own["_in_forward"] = before

    return call


def refuse_in_forward(module, what: str) -> None:
    if module._in_forward:
        raise RaNNCError(
            f"{what} inside a forward pass, which runs on the parts that the ranks hold.\n  Call "
            "it between calls of the model."
        )


@contextlib.contextmanager
def of_module(module, writeback: bool, rank0_only: bool):
    """``summon()`` of a RaNNCModule."""
    refuse_in_forward(module, "summon()")
    if module._deployment is None:  # every rank has the whole
        yield
        return
    whole = summoned(module.module, module._deployment, writeback, rank0_only)
    with module._runs.own_attributes(), whole:
        yield


@dataclasses.dataclass(frozen=True)
class Summoned:
    """What is whole now, of one deployment."""

    rank0_only: bool


@contextlib.contextmanager
def summoned(model, deployment, writeback: bool = False, rank0_only: bool = False, undo=True):
    """Inside, the modules hold whole tensors; afterwards every rank has its own part again.

    Collective, and with ``writeback`` its end, too. One tensor travels after the other, so a rank
    that gets none needs no memory for them.

    Args:
        writeback: At the end what rank 0 has in the tensors counts on every rank. Else what was
            changed inside is undone on the ranks that had the whole.
        rank0_only: Only rank 0 gets the whole.
        undo: False: nobody changes anything inside, so rank 0 needs no copy of its own part.

    Raises:
        RaNNCError: Within another one that lets fewer ranks have the whole, or with ``writeback``.
    """
    agreement = deployment.call_agreement
    agreement.other(f"summon(writeback={writeback}, rank0_only={rank0_only})", inside_summon=True)
    outer = agreement.summoned
    if outer is not None:
        if writeback or (outer.rank0_only and not rank0_only):
            raise RaNNCError(
                f"summon(writeback={writeback}, rank0_only={rank0_only}) inside summon(rank0_only="
                f"{outer.rank0_only}), which decides who has the whole and what becomes of "
                "changes.\n  Ask for it in the outer one, or after its end."
            )
        yield
        return
    here = deployment.world.rank == 0 or not rank0_only
    kept = []  # own tensors, and their memory of before
    lent = []  # tensors of others, and how they are called there
    joined = []  # tensors of which this rank has a part, its place, and their memory of before
    agreement.summoned = Summoned(rank0_only)
    try:
        _gather(model, deployment, rank0_only, lent, joined)
        if here and undo and not writeback:
            _step_aside(model, lent, kept)
        yield
        if writeback:
            agreement.other("the end of summon(writeback=True)", inside_summon=True)
            _hand_back(model, deployment)
    finally:
        agreement.summoned = None
        for tensor, place, memory in joined:
            tensor_parts.part_again(tensor, place, memory, changed=writeback)
        for tensor, memory in kept:
            tensor.data = memory
        for tensor, name, ranks in lent:
            release(tensor, name, ranks, deployment.owners.gradients)


def on_rank_0(module, what: str, work):
    """``work()`` on rank 0, with the whole model of a RaNNCModule there, after its first call; None
    on the others, once it is done.

    Collective; ``what`` is to be done, in words. An exception of ``work`` is raised on every rank.
    """
    refuse_in_forward(module, what)
    comm = module._deployment.world
    result, fault, cause = None, "", None
    whole = summoned(module.module, module._deployment, rank0_only=True, undo=False)
    with module._runs.own_attributes(), whole:
        if comm.rank == 0:
            try:
                result = work()
            except Exception as error:  # of the user's code and disk; the others wait for it
                fault, cause = f"{type(error).__name__}: {error}", error
    fault = of_rank(0, comm, fault)
    if cause is not None:
        raise cause
    if fault:
        raise RaNNCError(f"{what} on rank 0: {fault}")
    return result


def _gather(model, deployment, rank0_only, lent, joined):
    """Gives the released tensors memory and values; appends them to ``lent``, and parts, which are
    whole then on all ranks that have one, to ``joined``."""
    comm, owners = deployment.world, deployment.owners
    takers = [0] if rank0_only else range(comm.size)
    with Mover(comm) as mover:
        for name, tensor in named_tensors.once(model):
            start, holders = owners.layout(name), owners.ranks[name]
            missing = [rank for rank in takers if rank not in holders]
            end = _C.plan.Layout.whole(name, start.shape, missing)
            then = None
            if comm.rank in missing:
                materialize(tensor)
                lent.append((tensor, name, holders))
                then = functools.partial(named_tensors.write_flat, tensor)
            mover.add(start, end, tensor, tensor.dtype, then)
    for _, tensor in named_tensors.once(model):
        if tensor_parts.is_part(tensor):
            joined.append((tensor, tensor.place_of_part, tensor_parts.join(tensor)))


def _step_aside(model, lent, kept):
    """Lets copies take the places of the numbers that this rank holds; ``kept`` has these."""
    others = {id(tensor) for tensor, _, _ in lent}
    for _, tensor in named_tensors.once(model):
        if id(tensor) not in others and not is_released(tensor):
            kept.append((tensor, tensor.data))
            tensor.data = tensor.data.clone()


def _hand_back(model, deployment):
    """What rank 0 has, on all ranks that hold it."""
    comm, owners = deployment.world, deployment.owners
    with torch.no_grad(), Mover(comm) as mover:
        for name, tensor in named_tensors.once(model):
            mover.from_rank_0(name, tensor, owners.ranks[name])


def _parameter_named(model, name):
    """Raises RaNNCError that names the closest one where there is none."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if name not in parameters:
        close = _C.util.closest(str(name), sorted(parameters))
        raise RaNNCError(f"the model has no parameter '{name}'; did you mean '{close}'?")
    return parameters[name]


def parameter(model, deployment, name):
    """A copy on the CPU. Collective; before the first call (``deployment`` None) this rank's."""
    own = _parameter_named(model, name)
    if deployment is None:
        return own.detach().cpu().clone()
    return _on_all_ranks(deployment, own, deployment.owners.layout(name))


def gradient(model, deployment, name):
    """The same of its gradient; None where it has none."""
    own = _parameter_named(model, name)
    if deployment is None:
        return None if own.grad is None else own.grad.detach().cpu().clone()
    world, owner = deployment.world, deployment.owners.ranks[name][0]
    # In words of the owner, as the others know nothing of it.
    if not of_rank(owner, world, world.rank == owner and own.grad is not None):
        return None
    start, held = deployment.owners.layout(name), own.grad
    steps = deployment.sharded_steps
    shards = steps.shards if steps else None
    if shards and shards.of(own):  # whose sum has come to each rank for its part alone
        start = shards.layout(own)
        piece = shards.mine(own)
        held = tensor_parts.plain(held).reshape(-1)[slice(*piece)] if piece else None
    return _on_all_ranks(deployment, own, start, held)


def _on_all_ranks(deployment, own, start, held=None):
    """The whole of what lies as ``start`` says: of the parameter, or of what is ``held``."""
    world = deployment.world
    held = own if held is None else held
    found = []
    with Mover(world) as mover:
        end = _C.plan.Layout.whole(start.tensor, start.shape, range(world.size))
        mover.add(start, end, held, own.dtype, found.append)
    return shaped(found[0], own)
