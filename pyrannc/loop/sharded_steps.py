"""Steps of the user's optimizer on this rank's part, and the parameters come back whole.

Between steps the optimizer is what it was: its groups hold the parameters of the model, and its
state is theirs. For the time of a step a parameter of which this rank has a range is that range,
and one of which it has none has no gradient, so every optimizer leaves it out.
"""

import functools
import weakref

import torch

from pyrannc import _C
from pyrannc.job import process
from pyrannc.loop import at_work, closures, master_steps
from pyrannc.shards import states
from pyrannc.state import torch_private


class ShardedSteps:
    """Those of all optimizers of a deployment's parameters.

    Args:
        shards: :class:`~pyrannc.shards.layout.Shards`.
    """

    def __init__(self, deployment, shards):
        self.shards = shards
        self._deployment = weakref.ref(deployment)
        self._attached = weakref.WeakKeyDictionary()  # optimizer: its hooks
        self._begun = None  # optimizer, during a step
        self._lent = []
        process.before_optimizer_steps(self, ShardedSteps._arrange)

    def attach(self, optimizer) -> None:
        """From here on ``optimizer`` keeps what this rank steps, and no more."""
        if optimizer in self._attached:
            return
        own, hooks = weakref.ref(self), []
        before, after = _Before(own), _After(own)
        hooks.append(optimizer.register_step_pre_hook(before))
        hooks.append(optimizer.register_step_post_hook(after))
        hooks.append(optimizer.register_load_state_dict_post_hook(_Loaded(own)))
        self._attached[optimizer] = hooks
        _settle_before_zero_grad(weakref.ref(optimizer), own)
        states.cut(optimizer, self.shards, self._deployment().model)

    def end(self) -> None:
        """Every optimizer has the whole state of its parameters again. Collective."""
        self.settle()
        deployment = self._deployment()
        for optimizer, hooks in self._attached.items():
            for hook in hooks:
                hook.remove()
            states.give_all(optimizer, deployment, self.shards)
        self._attached.clear()

    def settle(self) -> None:
        """After a step that has failed: the parameters are whole again."""
        for optimizer in self._attached:
            master_steps.settle(optimizer)
        while self._lent:
            self._lent.pop().take_back()

    def _arrange(self, optimizer):
        """First of all hooks before a step: ours is the last of the optimizer's before the step,
        but for that which looks at the tensors to be stepped; and the first after it."""
        if self._deployment() not in at_work.of_optimizer(optimizer):
            return
        self.attach(optimizer)
        self.settle()
        before, after, _ = self._attached[optimizer]
        pre_hooks, post_hooks = torch_private.step_hooks(optimizer)
        pre_hooks.move_to_end(before.id)
        post_hooks.move_to_end(after.id, last=False)
        master_steps.arrange(optimizer)  # of the part that is stepped

    def loaded(self, optimizer) -> None:
        states.cut(optimizer, self.shards, self._deployment().model)

    def begin(self, optimizer) -> None:
        self._begun = weakref.ref(optimizer)
        self.lend(optimizer)

    def finish(self, optimizer) -> None:
        """Collective."""
        self.settle()
        if self._begun is not None and self._begun() is optimizer:
            self._begun = None
        else:  # the first call was in a closure of this step: each rank has stepped its shard, too
            self.loaded(optimizer)
        self.gather(optimizer)

    def lend(self, optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                piece = self.shards.mine(parameter)
                if piece is not None and piece != (0, parameter.numel()):
                    self._lent.append(_Lent(parameter, *piece))

    @torch.no_grad()
    def gather(self, optimizer) -> None:
        """The ranges that all ranks have stepped come to all of them. Collective."""
        deployment = self._deployment()
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        parameters = dict(deployment.model.named_parameters())
        stream = _C.runtime.device_stream(str(deployment.task.device))
        under_way = None  # one bucket travels while another one is copied
        for bucket in self.shards.buckets:
            inside = [parameters[name] for name in bucket.names]
            if deployment.world.rank in bucket.ranks and any(id(each) in held for each in inside):
                following = _Gather(bucket, inside, deployment.comm, stream)
                if under_way is not None:
                    under_way.finish()
                under_way = following
        if under_way is not None:
            under_way.finish()


def _settle_before_zero_grad(optimizer, steps):
    """What a failed step has left is made whole before gradients are dropped, not after."""
    if "zero_grad" in vars(optimizer()):
        return

    @functools.wraps(type(optimizer()).zero_grad)
    def zero_grad(*args, **kwargs):
        if steps() is not None:
            steps().settle()
        return type(optimizer()).zero_grad(optimizer(), *args, **kwargs)

    optimizer().zero_grad = zero_grad


class _Gather:
    """The shards of a bucket's parameters go to all its ranks, in an array."""

    def __init__(self, bucket, parameters, comm, stream):
        self._bucket, self._parameters, self._stream = bucket, parameters, stream
        first = parameters[0]
        self._array = torch.empty(
            bucket.share * len(bucket.ranks), dtype=first.dtype, device=first.device
        )
        self._rank = comm.rank
        for number, (begin, parameter) in enumerate(zip(bucket.begins, parameters, strict=False)):
            piece = bucket.pieces(number).get(comm.rank)
            if piece is not None:
                first, last = piece
                self._array[begin + first : begin + last] = parameter.reshape(-1)[first:last]
        flat = torch.view_as_real(self._array) if self._array.is_complex() else self._array
        ranks = list(bucket.ranks)
        self._operation = _C.runtime.start_all_gather(flat.view(-1), comm, stream, ranks)

    def finish(self):
        self._stream.wait(self._operation)
        for number, parameter in enumerate(self._parameters):
            begin, end = self._bucket.begins[number : number + 2]
            if [*self._bucket.pieces(number)] != [self._rank]:  # else it is this rank's alone
                parameter.copy_(self._array[begin:end].view(parameter.shape))


class _Lent:
    """A parameter during a step."""

    def __init__(self, parameter, begin, end):
        self._parameter, self._whole, self._gradient = parameter, parameter.data, parameter.grad
        parameter.grad = None
        self._part = None
        if begin == end:
            return
        self._flat = self._whole.reshape(-1)  # a copy where it does not lie one after the other
        self._part = self._flat[begin:end]
        parameter.data = self._part
        if self._gradient is not None:
            parameter.grad = self._gradient.reshape(-1)[begin:end]

    def take_back(self):
        parameter = self._parameter
        parameter.grad = None
        if self._part is not None:
            if parameter.data_ptr() != self._part.data_ptr():  # the optimizer has put another there
                self._part.copy_(parameter.data)
            parameter.data = self._whole
            if self._flat.data_ptr() != self._whole.data_ptr():
                self._whole.copy_(self._flat.view(self._whole.shape))
        parameter.grad = self._gradient


class _Before:
    """Before a step; a closure of the user's runs on whole parameters."""

    def __init__(self, steps):
        self._steps = steps

    def __call__(self, optimizer, args, kwargs):
        steps = self._steps()
        if steps is None:
            return None
        steps.begin(optimizer)
        return closures.between(args, kwargs, steps.settle, lambda: steps.lend(optimizer))


class _After:
    def __init__(self, steps):
        self._steps = steps

    def __call__(self, optimizer, *_):
        if (steps := self._steps()) is not None:
            steps.finish(optimizer)


class _Loaded:
    def __init__(self, steps):
        self._steps = steps

    def __call__(self, optimizer):
        if (steps := self._steps()) is not None:
            steps.loaded(optimizer)
