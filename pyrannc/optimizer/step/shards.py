"""Steps of the user's optimizer on this rank's part, and the parameters come back whole.

Between steps the optimizer is what it was: its groups hold the parameters of the model, and its
state is theirs. For the time of a step a parameter of which this rank has a range is that range,
and one of which it has none has no gradient, so every optimizer leaves it out.
"""

import contextlib
import weakref

import torch

from pyrannc import _C
from pyrannc.optimizer.state import shard_states
from pyrannc.optimizer.step import step


class ShardedSteps:
    """Those of all optimizers of a deployment's parameters.

    Args:
        shards: :class:`~pyrannc.optimizer.state.shard_layout.Shards`.
    """

    def __init__(self, deployment, shards):
        self.shards = shards
        self._deployment = weakref.ref(deployment)
        self._attached = weakref.WeakKeyDictionary()  # optimizer: its hooks
        self._under_way = []  # optimizers inside around(), the outer one first

    def attach(self, optimizer) -> None:
        """From here on ``optimizer`` keeps what this rank steps, and no more."""
        if optimizer in self._attached:
            return
        own = weakref.ref(self)
        self._attached[optimizer] = [
            optimizer.register_load_state_dict_post_hook(_Loaded(own)),
            optimizer.register_step_post_hook(_AfterUnscopedStep(own)),
        ]
        shard_states.cut(optimizer, self.shards, self._deployment().model)

    def end(self) -> None:
        """Every optimizer has the whole state of its parameters again. Collective."""
        deployment = self._deployment()
        for optimizer, hooks in self._attached.items():
            for hook in hooks:
                hook.remove()
            shard_states.give_all(optimizer, deployment, self.shards)
        self._attached.clear()

    @contextlib.contextmanager
    def around(self, optimizer, closure):
        """The scope of a step, see ``step_scopes``; gives the closure to step with. Collective at
        its end, unless the step raises."""
        self.attach(optimizer)
        *_, unscoped = self._attached[optimizer]
        unscoped.remove()
        outer, lent = [*self._under_way], []

        def take_back():
            while lent:
                lent.pop().take_back()

        @contextlib.contextmanager
        def whole():
            take_back()
            try:
                yield
            finally:
                lent.extend(self._lend(optimizer, outer))

        self._under_way.append(optimizer)
        try:
            lent.extend(self._lend(optimizer, outer))
            yield step.outside(closure, whole)
        finally:
            self._under_way.remove(optimizer)
            take_back()
        self.gather(_stepped(optimizer, outer))

    def loaded(self, optimizer) -> None:
        shard_states.cut(optimizer, self.shards, self._deployment().model)

    def finish_unscoped(self, optimizer) -> None:
        """After the step in whose closure the model was first called: each rank has stepped whole
        parameters. Collective."""
        self.loaded(optimizer)
        self.gather(_stepped(optimizer))

    def _lend(self, optimizer, outer):
        for parameter in _stepped(optimizer, outer):
            piece = self.shards.mine(parameter)
            if piece is not None and piece != (0, parameter.numel()):
                yield _Lent(parameter, *piece)

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


def _stepped(optimizer, outer=()) -> list:
    """Its parameters, without those of ``outer``: optimizers whose steps call the step of this."""
    known = {id(p) for each in outer for group in each.param_groups for p in group["params"]}
    held = (each for group in optimizer.param_groups for each in group["params"])
    return [each for each in held if id(each) not in known]


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


class _AfterUnscopedStep:
    def __init__(self, steps):
        self._steps = steps

    def __call__(self, optimizer, *_):
        if (steps := self._steps()) is not None:
            steps.finish_unscoped(optimizer)


class _Loaded:
    def __init__(self, steps):
        self._steps = steps

    def __call__(self, optimizer):
        if (steps := self._steps()) is not None:
            steps.loaded(optimizer)
