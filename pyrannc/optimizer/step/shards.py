"""Steps of the user's optimizer on this rank's part, and the parameters come back whole.

Between steps the optimizer is what it was: its groups hold the parameters of the model, and its
state is theirs. For the time of a step a parameter of which this rank has a range is that range,
and one of which it has none has no gradient, so every optimizer leaves it out.
"""

import dataclasses
import weakref

import torch

from pyrannc import _C
from pyrannc.optimizer.state import shard_states
from pyrannc.optimizer.step.participant import Lender
from pyrannc.state import tensor_parts


class ShardedSteps:
    """Those of all optimizers of a deployment's parameters.

    Args:
        shards: :class:`~pyrannc.optimizer.state.shard_layout.Shards`.
    """

    def __init__(self, deployment, shards):
        self.shards = shards
        self._deployment = weakref.ref(deployment)
        self._attached = weakref.WeakKeyDictionary()  # optimizer: its hook
        self._stepping = set()  # ids of the parameters of steps under way
        for parameter in deployment.model.parameters():
            if tensor_parts.is_part(parameter) and shards.mine(parameter) is not None:
                place = parameter.place_of_part
                parameter.place_of_part = dataclasses.replace(place, summed_in_ranges=True)

    def attach(self, optimizer) -> None:
        """From here on ``optimizer`` keeps what this rank steps, and no more."""
        if optimizer in self._attached:
            return
        own = weakref.ref(self)
        self._attached[optimizer] = optimizer.register_load_state_dict_post_hook(_Loaded(own))
        shard_states.cut(optimizer, self.shards, self._deployment().model)

    def end(self) -> None:
        """Every optimizer has the whole state of its parameters again. Collective."""
        deployment = self._deployment()
        for optimizer, hook in self._attached.items():
            hook.remove()
            shard_states.give_all(optimizer, deployment, self.shards)
        self._attached.clear()

    def lend(self, step, lent) -> None:
        """Appends the parameters that no outer step has, and what of them is lent."""
        self.attach(step.optimizer)
        mine = [each for each in step.held if id(each) not in self._stepping]
        self._stepping |= set(map(id, mine))
        pieces = []
        lent.append((self, mine, pieces))
        for parameter in mine:
            piece = self.shards.mine(parameter)
            if piece is not None and piece != (0, parameter.numel()):
                pieces.append(_Lent(parameter, *piece))

    def take_back(self, mine, pieces) -> None:
        while pieces:
            pieces.pop().take_back()
        self._stepping -= set(map(id, mine))

    def loaded(self, optimizer) -> None:
        shard_states.cut(optimizer, self.shards, self._deployment().model)

    @torch.no_grad()
    def gather(self, stepped) -> None:
        """The ranges that all ranks have stepped come to all of them. Collective."""
        deployment = self._deployment()
        held = set(map(id, stepped))
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


class _Loaded:
    def __init__(self, steps):
        self._steps = steps

    def __call__(self, optimizer):
        if (steps := self._steps()) is not None:
            steps.loaded(optimizer)


class Shards(Lender):
    """The step is of this rank's ranges; then the parameters come whole to all ranks."""

    def lend(self, step, lent):
        for deployment in step.deployments:
            if deployment.sharded_steps is not None:
                deployment.sharded_steps.lend(step, lent)

    def take_back(self, step, lent):
        for steps, mine, pieces in reversed(lent):
            steps.take_back(mine, pieces)

    def after(self, step, begun):
        """Collective."""
        self.take_back(step, begun)
        for steps, mine, _ in begun:
            steps.gather(mine)
