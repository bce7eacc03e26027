"""What all ranks do together, agreed on before anything else is sent."""

import dataclasses
import functools
import math
import operator
import zlib

import torch

from pyrannc.errors import CommError, RaNNCError
from pyrannc.job import process, transport
from pyrannc.running.alike.equal_replicas import Sums, is_checked_at
from pyrannc.running.alike.loss_scales import LossScales, loss_seed
from pyrannc.running.alike.preemption import Boundaries
from pyrannc.running.alike.told import Told

(
    _FORWARD, _FORWARD_ONLY, _FORWARD_NO_SYNC, _BACKWARD, _BACKWARD_KEPT, _OTHER, _ASKING, _REFUSED,
    _KINDS,
) = range(9)  # fmt: skip

# Beyond the number of any call: what tells the models apart begins here.
_CALLS = 2**40
# Beyond any number of rows: what rank 0 adds to its own where it wants an audit, and what a rank
# adds that has been told to end.
_AUDIT, _PREEMPTED = 2**48, 2**49


@dataclasses.dataclass(frozen=True)
class AgreedCall:
    """A forward pass that all ranks have agreed on."""

    number: int
    local_rows: list  # [rank]
    no_sync: bool
    loss_seed: float  # see loss_scales.loss_seed
    sizes: list  # [rank], what each has told of its arguments
    audit_is_due: bool = False  # as rank 0 has said
    delayed: bool = False  # by delay_grad_allreduce(), whose state at the backward counts


class CallAgreement:
    """The calls of one deployment, in the order in which every rank makes them.

    Each begins with one message of 32 bytes to all ranks: how many rows this rank has, or which
    outputs have a gradient on it, what it is about to do, and a hash of how losses were scaled
    since the one before. Where ranks are about to do different things, every one of them raises an
    error that says so, instead of waiting for messages that never come; and where they have scaled
    a loss differently, too.

    Args:
        world: All ranks.
        kept: Gradients under ``no_sync()``.
        steps: :class:`~pyrannc.optimizer.step.count.OptimizerSteps`.
        peers: Function that gives the ranks that share a parameter with this one.
        held: Function that gives the model and the ranks that hold each of its tensors, by name.
        device: On which this rank computes; every rank on one of that kind.
        before: Function that is called before each agreement, on all ranks, with a function that
            says in words what they agree on.
    """

    def __init__(self, world, kept, steps, peers, held, device, before):
        self._world, self._kept, self._steps, self._peers = world, kept, steps, peers
        self._held, self._device, self._before = held, device, before
        self._calls = 0
        self._replicas_checked = 0  # at which number of steps
        self._sums = None  # of replicas, on their way from an accelerator
        self.model = process.number_of_model(world)
        self.scales = LossScales()
        self.summoned = None  # state.summon.Summoned, inside summon()
        self._loss_seed = 1.0
        self._boundaries = Boundaries(steps)

    def forward(
        self, rows, kind, no_sync, describe, whole=None, sizes=None, audit_is_due=False
    ) -> AgreedCall:
        """Agrees on the next forward pass.

        Args:
            rows: Of this rank's batch.
            kind: Number of the capture, 0 for a new one.
            no_sync: Whether its backward leaves the gradients of the replicas unsummed.
            describe: Function that says in words what is called, for the error.
            whole: What :class:`~pyrannc.running.alike.whole_arguments.WholeArguments` tell.
            sizes: Of this rank's arguments that are padded, in JSON's types: ranks may differ in
                them.
            audit_is_due: What :class:`~pyrannc.running.audits.Audits` says; rank 0's counts.
        """
        self._refuse_summoned("a forward pass")
        number = self._calls
        self._calls += 1
        grad = torch.is_grad_enabled()
        what, how = _FORWARD_ONLY, "without grad"
        if grad and no_sync:
            what, how = _FORWARD_NO_SYNC, "with grad, under no_sync()"
        elif grad:
            what, how = _FORWARD, "with grad"
        due = audit_is_due and self._world.rank == 0
        all_rows, sizes = self._agree(
            rows + _AUDIT * due + _PREEMPTED * self._boundaries.take(),
            what,
            number,
            kind,
            lambda: f"forward pass {number} {how}, {describe()}",
            whole,
            sizes,
        )
        is_preempted = any(said >= _PREEMPTED for said in all_rows)
        due = all_rows[0] % _PREEMPTED >= _AUDIT
        all_rows = [said % _AUDIT for said in all_rows]
        if not any(all_rows):
            raise RaNNCError("the batch has no rows on any rank, so nothing can run")
        self._check_replicas()
        agreed = AgreedCall(number, all_rows, no_sync, self._loss_seed, sizes, due)
        self._boundaries.heard(is_preempted, grad)
        return agreed

    def backward(self, number, keep_graph, given) -> int:
        """Agrees on the backward of a forward pass, where that communicates.

        Args:
            given: Bit i: this rank has a gradient of output i of the call.

        Returns:
            Bit i: some rank has one.
        """
        how = " with retain_graph=True" if keep_graph else ""
        given_to, _ = self._agree(
            given,
            _BACKWARD_KEPT if keep_graph else _BACKWARD,
            number,
            0,
            lambda: f"backward of forward pass {number}{how}",
        )
        return functools.reduce(operator.or_, given_to)

    @property
    def last_forward(self) -> int:
        """The number of the last forward pass."""
        return self._calls - 1

    def _check_replicas(self) -> None:
        """In some calls; what an accelerator knows then is looked at in the next call."""
        if self._sums is not None:
            sums, self._sums = self._sums, None
            sums.refuse_unequal(self._world)
        if not is_checked_at(self._steps.taken) or self._steps.taken == self._replicas_checked:
            return
        self._replicas_checked = self._steps.taken
        sums = Sums(*self._held(), self._device)
        if sums.waits:
            self._sums = sums
        else:
            sums.refuse_unequal(self._world)

    def check_replicas(self) -> None:
        """At once. Collective, where parameters may have come apart."""
        if self._steps.taken == self._replicas_checked and self._sums is None:
            return
        self._replicas_checked, self._sums = self._steps.taken, None
        Sums(*self._held(), self._device).refuse_unequal(self._world)

    def other(self, what, inside_summon=False) -> None:
        """Agrees on something else that all ranks do together, ``what`` in words.

        Args:
            inside_summon: It may be done while the model is whole.
        """
        if not inside_summon:
            self._refuse_summoned(what)
        try:
            self._agree(0, _OTHER, zlib.crc32(what.encode()), 0, lambda: what)
        except CommError as error:
            raise CommError(f"{what}, which every rank calls: {error}") from error

    def _refuse_summoned(self, what):
        if self.summoned is not None:
            raise RaNNCError(
                f"{what} inside summon(), where this rank has more of the model than it trains.\n"
                "  Leave the block first. Without the pipeline, and on each rank by itself, the "
                "unwrapped model can be called inside, under no_grad()."
            )

    def _agree(self, own, what, number, kind, describe, whole=None, sizes=None):
        """``own``, a number, and sizes of each rank, where all do the same; else an error on
        each."""
        self._before(describe)
        return self._exchange(own, what, number, kind, describe, whole, sizes)

    def asking(self, asks, describe) -> bool:
        """Whether some rank asks something, which is exchanged between two agreements.

        Args:
            asks: Whether this one does.
            describe: Function that says in words what this rank is about to do.
        """
        return any(self._exchange(int(asks), _ASKING, 0, 0, describe)[0])

    def _exchange(self, own, what, number, kind, describe, whole=None, sizes=None):
        # Without gradients, those that are kept do not matter.
        kept = 0 if what == _FORWARD_ONLY else self._kept.passes
        left = what not in (_OTHER, _ASKING) and transport.left_messages(self._world)
        if left:
            what = _REFUSED
        mine = Told(
            model=self.model,
            turn=[what, kept, number, kind],
            steps=self._steps.taken,
            settings=self._steps.take_settings(),
            scales=self.scales.take(_passes_to_compare(what, number)),
            whole=whole or {},
            sizes=sizes,
            is_between=what == _ASKING,
        )
        of_ranks, same = self._world.agree(
            own, what + _KINDS * kept, number + self.model * _CALLS, mine.fingerprint()
        )
        everyone = [mine]
        if not same:
            text = left or describe()
            if self._kept.passes:
                text += f", after {self._kept.passes} backward passes under no_sync()"
            everyone = mine.of_all(self._world, self._peers(), text)
        if left:
            raise RaNNCError(
                f"{left}\n  Messages of that call are left over, and another one could take them "
                "for its own. Save state_dict() if you need it, and start the job again."
            )
        self._loss_seed = loss_seed([each.scales for each in everyone], self._loss_seed)
        return of_ranks, [each.sizes for each in everyone]


def _passes_to_compare(what, number):
    """Of how many forward passes the scales that come from an accelerator are compared now."""
    if what in (_BACKWARD, _BACKWARD_KEPT, _ASKING):
        return 0
    if what in (_OTHER, _REFUSED):
        return math.inf
    # The second pass starts the gradients of float16 where the first one's scale says.
    return number - 1 if number > 1 else number
