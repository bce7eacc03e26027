"""The kinds of calls of one deployment: each is captured when it first comes."""

import dataclasses
import functools

import torch

from pyrannc import live_deployments, log
from pyrannc.capture.arguments.batch_dims import find_batch_dims, input_names
from pyrannc.capture.arguments.call import Call
from pyrannc.capture.model import capture
from pyrannc.capture.rows.whole_batch import WholeBatch
from pyrannc.ranks import on_all
from pyrannc.running.alike.whole_arguments import WholeArguments
from pyrannc.running.attributes_left import AttributesLeft
from pyrannc.running.audits import ChangedAttributes
from pyrannc.running.guards.attributes import changed
from pyrannc.running.guards.listed import Guards
from pyrannc.running.guards.recaptures import Recaptures
from pyrannc.state.model_device import Places

#: Kinds of calls whose captures are kept.
#: tuned by: a bound on memory: train and eval with a few shapes each.
#: without it: a model that is called in changing ways is captured anew at every change; with more,
#: each capture keeps its stages.
MOST_KINDS = 16


@dataclasses.dataclass
class _Kind:
    number: int  # in the order of their captures, which is the same on all ranks
    #: the same for kinds that differ in nothing but rows and the lengths of padded arguments
    family: int
    guarded: tuple  # values of the guards
    run: object
    state: ChangedAttributes
    is_plain: bool  # was not captured in generate()
    captured_at: int  # rows of all ranks together
    rows: set  # the same, at which the model is known to compute so
    sound: int = 0  # number of the last forward pass that is known to be right
    calls: int = 0


class CallKinds:
    """One :class:`~pyrannc.running.run.Run` per kind of call.

    Calls are of one kind when they differ in nothing but the number of rows and what the tensors
    hold: modes and plain attributes of the modules, which parameters take a gradient, shapes,
    dtypes and constant arguments are in the captured graph. Where forward() asks for the grad mode,
    that is in it, too. A number of rows that is new on all ranks together is traced once; where the
    model computes otherwise with it, it is another kind.

    Args:
        call: The first one, which the deployment was made for; None where the model is a copy.
    """

    def __init__(self, deployment, call, batch_dims):
        first = deployment.first
        self._deployment = deployment
        self._hooks = deployment.task.hooks
        device = deployment.task.device
        self._places = Places(device, device)  # where the model is from now on
        self._guards = Guards(deployment)
        self._attributes = self._guards.attributes
        self._attributes.leave_out(first.capture.changed_attributes)
        self._attributes.leave_out(self._hooks.changed_attributes)
        self._recaptures = Recaptures()
        self._left = AttributesLeft(deployment.model)
        self._left.add(first.capture.tensors_left)
        self._batch_dims, self._padding = batch_dims, deployment.task.padding
        self._known = dict(zip(first.capture.input_paths, first.capture.batch_dims, strict=True))
        self._made, self._families = 0, 0
        self._whole = WholeArguments()
        self._kinds = []  # the one used last first
        values = self._guards.now(call or Call((), {}))
        self._first_values = self._guards.captured(first.capture, values)
        if call is not None:
            self._add(values, call, first, sum(deployment.local_rows))

    def __iter__(self):
        return (kind.run for kind in self._kinds)

    def enter(self, call, no_sync):
        """The run of a call, the turn that all ranks have agreed on, and the call as it is padded
        to the longest of them."""
        self._guards.refuse_changed()
        self._deployment.given_copies.refuse_written()
        values = self._guards.now(call)
        # Before ranks have agreed, each may know another length, and none knows the rows of all.
        relative = self._relative(values, call)
        dims = relative.run.capture.batch_dims if relative else self._dims(call)
        number = relative.family if relative else 0
        pads = bool(self._padding)
        sizes = self._padding.sizes(call, dims) if pads else None
        audits = self._deployment.audits
        turn = self._deployment.call_agreement.forward(
            call.rows(dims),
            number,
            no_sync,
            lambda: self._describe(values),
            self._whole.told(call, dims),
            sizes,
            audits.is_due(),
        )
        if pads:
            call = self._padding.apply(self._deployment.model, call, turn.sizes)
            values = self._guards.with_call(values, call)
        rows = sum(turn.local_rows)
        kind = self._find(values, rows, None if pads else relative)
        if kind is None:
            with self.own_attributes():
                kind = self._capture(values, call, rows)
            kind.sound, kind.calls = turn.number, max(kind.calls, 1)
        else:
            self._recaptures.add()
            if audits.is_wanted(kind.calls, turn.audit_is_due):
                self._audit(kind, call, turn.number)
            kind.calls += 1
        self._left.put()
        self._deployment.note_batch(turn.local_rows)
        return kind.run, turn, call

    def audit(self) -> int:
        """Audits the kinds of calls that may come now, and returns how many. Collective.

        Instead of a call there are tensors like those of the captured one.
        """
        pairs = [(kind, kind.run.capture.example()) for kind in self._kinds if kind.is_plain]
        now = [
            (kind, call)
            for kind, call in pairs
            if self._guards.same(kind.guarded, self._guards.now(call))
        ]
        for kind, call in now:
            self._audit(kind, call, self._deployment.call_agreement.last_forward)
        return len(now)

    def _audit(self, kind, call, number):
        """``number``: of the last forward pass."""
        captured, keyed = kind.run.capture, self._deployment.task.config.draws_by_key
        with self.own_attributes(), kind.state.as_captured():
            batch = WholeBatch(kind.captured_at, True)
            again = functools.partial(self._captured, call, batch)
            self._deployment.audits.run(captured, again, keyed, kind.sound)
        kind.sound = number

    def own_attributes(self):
        """A context in which the model runs its own Python."""
        return self._left.taken()

    def end(self):
        """It does so from now on."""
        self._left.take()

    def known_dims(self):
        """The dimension of each input of the first call that holds the rows, by its path."""
        return self._known

    def _find(self, values, rows, known):
        """``known``: the first kind that is of these values, if that is known."""
        for position, kind in enumerate(self._kinds):
            if rows in kind.rows and (kind is known or self._guards.same(kind.guarded, values)):
                self._kinds.insert(0, self._kinds.pop(position))
                return kind
        return None

    def _of_any_rows(self, values):
        """The kind of a call as it is but for the number of rows of all ranks, if there is one."""
        alike = (kind for kind in self._kinds if self._guards.same(kind.guarded, values))
        return next((kind for kind in alike if not kind.run.capture.alone), None)

    def _relative(self, values, call):
        """A kind that differs from the call's in nothing but rows and the lengths of padded
        arguments."""
        padded = self._padding.places(self._deployment.model, call) if self._padding else ()
        for kind in self._kinds:
            if self._guards.same(kind.guarded, values, padded):
                return kind
        return None

    def _dims(self, call):
        names = input_names(self._deployment.model, call)
        return find_batch_dims(call, names, self._batch_dims, self._known)

    def _capture(self, values, call, rows):
        similar = self._of_any_rows(values)
        known = similar.run.capture if similar else None
        captured = self._captured(call, WholeBatch(rows, True, known))
        if similar and all(on_all(self._deployment.world, lambda: captured is known)):
            similar.rows.add(rows)
            return similar
        self._advise_padding(values, call)
        log.info("deploy", f"captured again, for a call in {self._describe(values)}")
        if captured.alone and self._deployment.world.rank == 0:
            known_already = any(kind.run.capture.alone for kind in self._kinds)
            (log.info if known_already else log.warn)(
                "deploy",
                f"one replica and one micro-batch for batches of {rows} rows: {captured.alone}",
            )
        self._left.add(captured.tensors_left)
        self._warn_of_changes(values)
        return self._add(self._guards.now(call), call, self._deployment.run_of(captured), rows)

    def _advise_padding(self, values, call):
        """Says once that calls are captured anew for their lengths alone."""
        lengths = range(len(call.tensors))
        like = (k for k in self._kinds if self._guards.same(k.guarded, values, lengths))
        kind = next(like, None)
        if kind is None or self._guards.same(kind.guarded, values):
            return
        sizes, found = kind.run.capture.sizes(), []
        names = input_names(self._deployment.model, call)
        for path, tensor, name in zip(call.paths, call.tensors, names, strict=True):
            then = sizes[path]
            if any(s is not None and s != n for s, n in zip(then, tensor.shape, strict=True)):
                found.append(name)
        advice = self._recaptures.add_length(found)
        if advice and self._deployment.world.rank == 0:
            log.warn("deploy", advice)

    def _captured(self, call, batch):
        config, before = self._deployment.task.config, self._attributes.now()
        grad = torch.is_grad_enabled()
        with torch.enable_grad():  # grad mode of the call is not that of the model
            captured = capture(
                self._deployment.model,
                *call.arguments(),
                self._batch_dims,
                exact_loss=config.exact_loss,
                known=self._known,
                explicit_draws=config.draws_by_key,
                sync_batch_norm=config.sync_batch_norm,
                hooks=self._hooks,
                places=self._places,
                front_end=self._deployment.task.front_ends.used,
                grad=grad,
                batch=batch,
            )
        if captured is batch.known:
            return captured
        self._hooks.refuse_unsent(captured, self._deployment.world.size)
        live_deployments.forget()
        if not self._deployment.dropout:
            captured = captured.without_dropout()
        self._attributes.leave_out(captured.changed_attributes)
        self._attributes.leave_out(changed(before, self._attributes.now()))
        return captured

    def _warn_of_changes(self, values):
        """Says once that calls are captured anew, as an attribute or an argument that is no tensor
        changes from call to call."""
        then = self._kinds[0].guarded if self._kinds else None
        reason = self._guards.reason_of_recapture(then, values) if then else ""
        warning = self._recaptures.add(reason)
        if warning and self._deployment.world.rank == 0:
            log.warn("deploy", warning)

    def _add(self, values, call, run, rows):
        self._made += 1
        relative = self._relative(values, call)
        self._families += relative is None
        family = relative.family if relative else self._families
        values = self._guards.captured(run.capture, values)
        state = ChangedAttributes(self._deployment.model, run.capture)
        is_plain = not self._deployment.audits.pauses
        self._kinds.insert(0, _Kind(self._made, family, values, run, state, is_plain, rows, {rows}))
        if self._made == MOST_KINDS + 1:
            log.info(
                "deploy",
                f"more than {MOST_KINDS} kinds of calls: the one used longest ago is captured "
                "again when it comes back. Pad sequences to a few lengths, such as multiples of 64",
            )
        del self._kinds[MOST_KINDS:]
        return self._kinds[0]

    def _describe(self, values) -> str:
        *others, arguments = self._guards.differences(self._first_values, values)
        return f"{', '.join(others)}: {arguments or 'as the first one'}"
