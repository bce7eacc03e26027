"""The kinds of calls of one deployment: each is captured when it first comes."""

import dataclasses

import torch

from pyrannc import log
from pyrannc.capture.arguments.batch_dims import find_batch_dims, input_names
from pyrannc.capture.model import capture
from pyrannc.capture.rows.whole_batch import WholeBatch
from pyrannc.errors import RaNNCError
from pyrannc.job.on_all import on_all
from pyrannc.loop import at_work
from pyrannc.running.alike.whole_arguments import WholeArguments
from pyrannc.running.attributes.left import AttributesLeft
from pyrannc.running.attributes.now import Attributes, changed, difference
from pyrannc.state.model_device import Places

#: Kinds of calls whose captures are kept.
#: tuned by: a bound on memory: train and eval with a few shapes each.
#: without it: a model that is called in changing ways is captured anew at every change; with more,
#: each capture keeps its stages.
MOST_KINDS = 16
#: Calls, one after the other, that were captured because of attributes, or of arguments that are no
#: tensors, until a warning says so.
#: tuned by: when a warning comes; nothing is decided by it.
#: without it: whoever counts steps in an attribute of the model would not learn why each is slow.
OFTEN = 4


@dataclasses.dataclass
class _Kind:
    number: int  # in the order of their captures, which is the same on all ranks
    #: the same for kinds that differ in nothing but rows and the lengths of padded arguments
    family: int
    settings: tuple
    run: object
    rows: set  # of all ranks together, at which the model is known to compute so


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

    def __init__(self, deployment, call, batch_dims, padding):
        first = deployment.first
        self._deployment = deployment
        self._modules = list(deployment.model.modules())  # walking through them takes a while
        self._trained = trained(self._modules)
        registries = [
            (module, registry)
            for module in self._modules
            for registry in (module._parameters, module._buffers, module._modules)
        ]
        self._contents = [
            (module, registry, name, held)
            for module, registry in registries
            for name, held in registry.items()
            if held is not None or registry is not module._buffers  # which forward() may set
        ]
        self._names = [(*each, frozenset(each[1])) for each in registries]
        self._attributes = Attributes(deployment.model)
        self._attributes.leave_out(first.capture.changed_attributes)
        self._hooks = deployment.task.hooks
        device = deployment.task.device
        self._places = Places(device, device)  # where the model is from now on
        self._attributes.leave_out(self._hooks.changed_attributes)
        self._first_attributes = self._attributes.now()
        self._left = AttributesLeft(deployment.model)
        self._left.add(first.capture.tensors_left)
        self._changes = 0  # captures in a row because of attributes, or of constant arguments
        self._batch_dims, self._padding = batch_dims, padding
        self._known = dict(zip(first.capture.input_paths, first.capture.batch_dims, strict=True))
        self._made, self._families = 0, 0
        self._whole = WholeArguments()
        self._kinds = []  # the one used last first
        if call is not None:
            settings = self._settings_of(call), self._first_attributes
            self._add(settings, call, first, sum(deployment.local_rows))

    def __iter__(self):
        return (kind.run for kind in self._kinds)

    def enter(self, call, no_sync):
        """The run of a call, the turn that all ranks have agreed on, and the call as it is padded
        to the longest of them."""
        self._refuse_replaced()
        self._deployment.given_copies.refuse_written()
        self._hooks.refuse_new()
        settings = (self._settings_of(call), self._attributes.now())
        # Before ranks have agreed, each may know another length, and none knows the rows of all.
        relative = self._relative(settings, call)
        dims = relative.run.capture.batch_dims if relative else self._dims(call)
        number = relative.family if relative else 0
        sizes = self._padding.sizes(call, dims) if self._padding else None
        turn = self._deployment.call_agreement.forward(
            call.rows(dims),
            number,
            no_sync,
            lambda: self._describe(call),
            self._whole.told(call, dims),
            sizes,
        )
        if self._padding:
            call = self._padding.apply(self._deployment.model, call, turn.sizes)
        rows = sum(turn.local_rows)
        kind = self._find(settings, call, rows)
        if kind is None:
            with self.own_attributes():
                kind = self._capture(settings, call, rows)
        else:
            self._changes = 0
        self._left.put()
        self._deployment.note_batch(turn.local_rows)
        return kind.run, turn, call

    def _settings_of(self, call):
        device = self._deployment.task.device
        return (*settings_of(self._modules, call, device), self._deployment.dropout)

    def own_attributes(self):
        """A context in which the model runs its own Python."""
        return self._left.taken()

    def end(self):
        """It does so from now on."""
        self._left.take()

    def known_dims(self):
        """The dimension of each input of the first call that holds the rows, by its path."""
        return self._known

    def _find(self, settings, call, rows):
        for position, kind in enumerate(self._kinds):
            if rows in kind.rows and _is_of(kind, settings, call):
                self._kinds.insert(0, self._kinds.pop(position))
                return kind
        return None

    def _of_any_rows(self, settings, call):
        """The kind of a call as it is but for the number of rows of all ranks, if there is one."""
        alike = (kind for kind in self._kinds if _is_of(kind, settings, call))
        return next((kind for kind in alike if not kind.run.capture.alone), None)

    def _relative(self, settings, call):
        """A kind that differs from the call's in nothing but rows and the lengths of padded
        arguments."""
        padded = self._padding.places(self._deployment.model, call) if self._padding else ()
        for kind in self._kinds:
            if _is_of(kind, settings, call, padded):
                return kind
        return None

    def _refuse_replaced(self):
        """Tensors may be put in the places of others, but another module computes otherwise."""
        for module, registry, name, held in self._contents:
            now = registry.get(name)
            if now is held:
                continue
            if held is None:
                self._refuse_new(module, name)
            another = now is not None and registry is not module._modules
            if another and not self._ties_change(now, held):
                continue
            self._refuse(module, name, "replaced or removed", "goes on with what was there")
        for module, registry, names in self._names:
            if len(registry) > len(names):
                self._refuse_new(module, next(name for name in registry if name not in names))

    def _refuse_new(self, module, name):
        self._refuse(module, name, "added", "does not know what is new")

    def _refuse(self, module, name, done, therefore):
        path = next(path for path, each in self._deployment.model.named_modules() if each is module)
        raise RaNNCError(
            f"'{f'{path}.{name}' if path else name}' of the model was {done} after the first call, "
            f"whose plan {therefore}.\n  Wrap the changed model anew."
        )

    def _ties_change(self, now, held) -> bool:
        """Whether a tensor in the place of ``held`` is one that stands elsewhere in the model, or
        ``held`` stands there still: gradients would be summed as they were tied before."""
        before = [each for *_, each in self._contents]
        places = [registry.get(name) for _, registry, name, _ in self._contents]
        return any(now is each for each in before) or any(held is each for each in places)

    def _dims(self, call):
        names = input_names(self._deployment.model, call)
        return find_batch_dims(call, names, self._batch_dims, self._known)

    def _capture(self, settings, call, rows):
        similar = self._of_any_rows(settings, call)
        known = similar.run.capture if similar else None
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
                batch=WholeBatch(rows, True, known),
            )
        if similar and all(on_all(self._deployment.world, lambda: captured is known)):
            similar.rows.add(rows)
            return similar
        log.info("deploy", f"captured again, for a call in {self._describe(call)}")
        if captured.alone and self._deployment.world.rank == 0:
            known_already = any(kind.run.capture.alone for kind in self._kinds)
            (log.info if known_already else log.warn)(
                "deploy",
                f"one replica and one micro-batch for batches of {rows} rows: {captured.alone}",
            )
        self._hooks.refuse_unsent(captured, self._deployment.world.size)
        at_work.forget()
        if not self._deployment.dropout:
            captured = captured.without_dropout()
        self._attributes.leave_out(captured.changed_attributes)
        self._attributes.leave_out(changed(before, self._attributes.now()))
        self._left.add(captured.tensors_left)
        self._warn_of_changes(settings, call)
        settings = settings[0], self._attributes.now()
        return self._add(settings, call, self._deployment.run_of(captured), rows)

    def _warn_of_changes(self, settings, call):
        """Says once that each call is captured anew, as an attribute or an argument that is no
        tensor changes from call to call."""
        if not self._kinds:
            return
        last, found = self._kinds[0], ""
        if last.settings[0] == settings[0]:
            found = difference(last.settings[1], settings[1])
            found = f"attributes of the model change from call to call: {found}" if found else ""
            if argument := last.run.capture.difference_beside_tensors(call):
                found = found or f"arguments change from call to call: {argument}"
        self._changes = self._changes + 1 if found else 0
        if self._changes == OFTEN and self._deployment.world.rank == 0:
            log.warn(
                "deploy",
                f"each of the last {OFTEN} calls was captured anew, because {found}. Pass what "
                "changes as a tensor, or keep it outside of the model and its arguments.",
            )

    def _add(self, settings, call, run, rows):
        self._made += 1
        relative = self._relative(settings, call)
        self._families += relative is None
        family = relative.family if relative else self._families
        self._kinds.insert(0, _Kind(self._made, family, settings, run, {rows}))
        if self._made == MOST_KINDS + 1:
            log.info(
                "deploy",
                f"more than {MOST_KINDS} kinds of calls: the one used longest ago is captured "
                "again when it comes back. Pad sequences to a few lengths, such as multiples of 64",
            )
        del self._kinds[MOST_KINDS:]
        return self._kinds[0]

    def _describe(self, call) -> str:
        model = self._deployment.model
        mode = "training mode" if model.training else "eval mode"
        if (now := trained(self._modules)) != self._trained:
            mode += f", with gradients for {sum(now)} parameters instead of {sum(self._trained)}"
        asked = any(kind.run.capture.grad is not None for kind in self._kinds)
        if asked and not torch.is_grad_enabled():
            mode += ", under no_grad()"
        if not self._deployment.dropout:
            mode += ", after enable_dropout(False)"
        if changed := difference(self._first_attributes, self._attributes.now()):
            mode += f", with {changed}"
        return f"{mode}: {self._deployment.first.capture.difference(call) or 'as the first one'}"


def _is_of(kind, settings, call, any_length=()) -> bool:
    """Whether a call is of this kind; ``any_length``: see ``Capture.difference``."""
    captured = kind.run.capture
    return (
        kind.settings == settings
        and captured.grad in (None, torch.is_grad_enabled())
        and captured.difference(call, any_length) is None
    )


def trained(modules) -> tuple:
    """Whether each parameter takes a gradient, which the user may change: layers are unfrozen."""
    return tuple(
        parameter.requires_grad
        for module in modules
        for parameter in module._parameters.values()
        if parameter is not None
    )


def settings_of(modules, call, device) -> tuple:
    """What a captured graph depends on beside the call's shape; ``device``: of the model."""
    return (
        tuple(module.training for module in modules),
        trained(modules),
        tuple(tensor.requires_grad for tensor in call.tensors),
        *(
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            for kind in sorted(
                {"cpu", device.type, *(tensor.device.type for tensor in call.tensors)}
            )
        ),
    )
