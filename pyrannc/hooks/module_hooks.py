"""Hooks of the model's modules: those that compute something for it are part of the capture, those
that observe are called after each call, with what this rank's rows gave.

What an observing hook sees leaves the graph as further outputs: copies, through which no gradient
comes back, that each rank gets for its own rows.
"""

import contextlib
import operator
import types

import torch
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from pyrannc import _C
from pyrannc.capture import random_states
from pyrannc.capture.arguments import pytree
from pyrannc.capture.attributes import module_attributes
from pyrannc.capture.attributes.around import content
from pyrannc.capture.hook_probes import named
from pyrannc.capture.seen_by_hooks import recorder
from pyrannc.errors import RaNNCError, TraceError
from pyrannc.hooks.seen_copies import refusing
from pyrannc.ranks import gathered
from pyrannc.state import mover, named_tensors, torch_private

_COMPUTE = (WeightNorm, SpectralNorm, BasePruningMethod)  # torch's own: they set a weight
# Of transformers and PEFT: they let inputs of checkpoints require gradients, and neither compute
# nor look at anything.
_OF_CHECKPOINTS = ("make_inputs_require_grads", "make_inputs_require_grad")
_PRE, _FORWARD = "pre", "forward"
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")


class ModuleHooks:
    """The hooks that the modules of ``model`` have at its first call.

    Attributes:
        observed: Pairs of a module's path and "pre" or "forward": what is sent to observing hooks
            of any rank.
        watched: By the path of a module with full-backward hooks on any rank, whether they want
            the gradients of its inputs, too.
        changed_attributes: Paths of what the hooks set on modules.
    """

    def __init__(self, model):
        self._model = model
        self._registries = [  # path of a module, kind of its hooks, they by their number
            (path, kind, registry)
            for path, module in model.named_modules()
            for kind, registry in (
                (_PRE, module._forward_pre_hooks),
                (_FORWARD, module._forward_hooks),
                *(("backward", getattr(module, name)) for name in _BACKWARD),
            )
        ]
        self._known = {
            (id(registry), key): hook
            for *_, registry in self._registries
            for key, hook in registry.items()
        }
        self._computing = {
            (id(registry), key)
            for _, _, registry in self._registries
            for key, hook in registry.items()
            if isinstance(hook, _COMPUTE)
        }
        self.observed, self.watched = [], {}
        self.changed_attributes = set()
        self._called = False  # in the first call, before anything is captured

    def _observing(self):
        """``(path, kind, registry, key, hook, its place)`` of those not known to compute."""
        for path, kind, registry in self._registries:
            if kind == "backward":
                continue
            for place, (key, hook) in enumerate(registry.items()):
                one = id(registry), key
                if one in self._known and one not in self._computing:  # forward() may add its own
                    yield path, kind, registry, key, hook, place

    def _of_backward(self):
        """``[path, whether its backward hooks are full ones, whether one sees its inputs]``."""
        return [
            [path, module._is_full_backward_hook is not False, bool(module._backward_hooks)]
            for path, module in self._model.named_modules()
            if module._backward_hooks or module._backward_pre_hooks
        ]

    def of_copy(self, model):
        """Those of a copy of the model, of which the same is known."""
        copied = ModuleHooks(model)
        copied.observed, copied.watched = self.observed, self.watched
        copied.changed_attributes = self.changed_attributes
        copied._computing = {
            (id(registry), key)
            for (*_, own), (*_, registry) in zip(self._registries, copied._registries, strict=True)
            for key in registry
            if (id(own), key) in self._computing
        }
        return copied

    def agree(self, world, call, sync_params) -> None:
        """Lets all ranks know what is observed on any of them. Collective, once.

        Where there are hooks of which it is not known whether they compute something, the model
        runs once with this rank's rows, without a gradient, and calls them: that is their first
        call. It changes nothing else of the model.

        Raises:
            RaNNCError: A module has a hook by register_backward_hook(); on every rank.
        """
        unknown = [
            [path, kind, place]
            for path, kind, _, _, hook, place in self._observing()
            if not _is_of_checkpoints(hook)
        ]
        of_all = any(torch_private.HOOKS_OF_ALL)
        mine = [unknown, self._of_backward(), of_all]
        everyones, backward, of_all = zip(*gathered(world, mine), strict=True)
        if any(of_all):
            _refuse_hooks_of_all(of_all.index(True))
        for rank, found in enumerate(backward):
            for path, full, inputs in found:
                if not full:
                    raise RaNNCError(
                        f"{named(path)} has a backward hook on rank {rank} that is none for its "
                        "full backward.\n  Use register_full_backward_hook()."
                    )
                self.watched[path] = self.watched.get(path, False) or inputs
        if not any(everyones):
            return
        if any(tensor.is_meta for tensor in named_tensors.tensors(self._model).values()):
            path, *_ = next(filter(None, everyones))[0]
            raise RaNNCError(
                f"{named(path)} has a hook, and whether it computes something for the model is "
                "found in a run of it, which has no values yet.\n  Register the hook in forward(), "
                "or build the model with values."
            )
        if sync_params and world.size > 1:  # as what follows does
            mover.all_of_rank_0(world, self._model)
        computing = []
        if unknown and all(tensor.numel() for tensor in call.tensors):
            computing = self._first_call(*call.arguments())
        computing = {tuple(each) for rank in gathered(world, computing) for each in rank}
        for path, kind, registry, key, _, place in list(self._observing()):
            if (path, kind, place) in computing:
                self._computing.add((id(registry), key))
                self._refuse_before(path, kind, registry)
        observed = {tuple(each) for rank in everyones for each in rank} - computing
        self.observed = sorted({(path, kind) for path, kind, _ in observed})

    def _refuse_before(self, path, kind, registry):
        """An observing hook would see what a later one has computed."""
        computes = [(id(registry), key) in self._computing for key in registry]
        if computes != sorted(computes, reverse=True):
            raise RaNNCError(
                f"{named(path)} has a hook that only looks before one that computes something, "
                "and would see what that returns.\n  Register the one that computes first "
                f"(prepend=True)."
            )

    def _first_call(self, args, kwargs) -> list:
        """Calls all hooks in a run of the model; returns those that compute something for it."""
        computing, set_by_hooks = [], {}
        modules = dict(self._model.named_modules())
        weights = {
            (path, name)
            for path, module in modules.items()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        }

        def watch(path, kind, hook, place):
            def watching(module, *seen):
                tensors, _ = pytree.flatten(
                    [*seen, dict(module._parameters), dict(module._buffers)]
                )
                held, versions = dict(vars(module)), [tensor._version for tensor in tensors]
                result = hook(module, *seen)
                changed = {n: v for n, v in vars(module).items() if held.get(n, held) is not v}
                if (
                    result is not None
                    or versions != [tensor._version for tensor in tensors]
                    or any((path, name) in weights for name in changed)
                ):
                    computing.append([path, kind, place])
                else:
                    set_by_hooks.update({(path, name): value for name, value in changed.items()})
                return result

            return watching

        homes = [
            (module._buffers, name, buffer, buffer.detach().clone())
            for module in modules.values()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

        def run():
            with torch.no_grad(), module_attributes.kept(self._model), random_states.kept():
                try:
                    return pytree.flatten(self._model(*args, **kwargs))
                finally:
                    torch.clear_autocast_cache()  # it holds casts of weights by weak references
                    for owner, name, buffer, content in homes:
                        owner[name] = buffer
                        named_tensors.write(buffer, content)

        unknown = list(self._observing())
        for path, kind, registry, key, hook, place in unknown:
            registry[key] = watch(path, kind, hook, place)
        try:
            with_hooks = run()
        finally:
            for _, _, registry, key, hook, _ in unknown:
                registry[key] = hook
        for (path, name), value in set_by_hooks.items():
            vars(modules[path])[name] = value
            self.changed_attributes.add(f"{path}.{name}" if path else name)
        # Others may hand something to forward() behind its back, as transformers' hooks do.
        self._computing |= {
            (id(registry), key)
            for path, kind, registry, key, _, place in unknown
            if [path, kind, place] in computing
        }
        try:
            with self.recorded():
                same = _equal(with_hooks, run())
        except Exception:
            # forward() has missed what hooks hand to it, so they are part of the model. An error of
            # the model itself comes again when it is captured with them.
            same = False
        if not same:
            return [[path, kind, place] for path, kind, *_, place in unknown]
        self._called = True
        return computing

    @contextlib.contextmanager
    def recorded(self, watching=None):
        """While the model runs inside, no observing hook is called; the list has what each module
        call would have shown them. ``watching``: the same for those of the backward, a
        :class:`~pyrannc.capture.hook_probes.ModuleCalls`."""
        calls, handles = [], []
        saved = [(registry, dict(registry)) for *_, registry in self._registries if registry]
        for _, kind, registry in self._registries:
            if kind == "backward":
                registry.clear()
        for _, _, registry, key, *_ in list(self._observing()):
            del registry[key]
        for path, kind in self.observed:
            module = self._model.get_submodule(path)
            if kind == _PRE:
                handles.append(
                    module.register_forward_pre_hook(recorder(calls, path, kind), with_kwargs=True)
                )
            else:
                handles.append(
                    module.register_forward_hook(recorder(calls, path, kind), with_kwargs=True)
                )
        if watching is not None:
            handles += watching.watch(self._model)
        try:
            yield calls
        finally:
            for handle in handles:
                handle.remove()
            for registry, hooks in saved:
                registry.clear()
                registry.update(hooks)

    def refuse_unsent(self, capture, ranks) -> None:
        """Raises TraceError that names a module of which the ranks cannot get their rows."""
        if ranks == 1 or not self.observed:
            return
        for where, value in zip(capture.seen_in(), capture.graph.outputs, strict=True):
            if where is not None and not _C.plan.can_be_dealt_out(capture.graph.values[value]):
                raise TraceError(
                    f"no rank's rows can be told apart in what a hook of {named(where)} sees, as "
                    "its rows interact.\n  Remove the hook, or return what you need of it from "
                    "forward(), down to a size that does not depend on the batch."
                )

    def refuse_changed(self) -> None:
        """Raises RaNNCError that names a module with a hook that the first call has not seen."""
        if any(torch_private.HOOKS_OF_ALL):
            _refuse_hooks_of_all()
        for path, _, registry in self._registries:
            for key, hook in registry.items():
                if (id(registry), key) in self._known:
                    continue
                if self._is_there_again(registry, hook):
                    self._known[id(registry), key] = hook
                    continue
                raise RaNNCError(
                    f"a hook of {named(path)} was added after the first call, whose plan "
                    "sends nothing for it.\n  Register it before the first call, or wrap the "
                    "model anew."
                )

    def _is_there_again(self, registry, hook) -> bool:
        """Whether a hook that only looks was registered once more, as those are that
        gradient_checkpointing_enable() of transformers makes in each call."""
        return any(
            one == id(registry) and (one, key) not in self._computing and _is_the_same(known, hook)
            for (one, key), known in self._known.items()
        )

    def call(self, seen) -> None:
        """Calls the observing hooks with what their modules have shown; once, for each call."""
        if self._called:  # in the first call they were before
            self._called = False
            return
        for path, kind, args, kwargs, output, requiring in seen:
            args, kwargs, output = refusing([args, kwargs, output], path, requiring)
            module = self._model.get_submodule(path)
            registry = module._forward_pre_hooks if kind == _PRE else module._forward_hooks
            with_kwargs = (
                module._forward_pre_hooks_with_kwargs
                if kind == _PRE
                else module._forward_hooks_with_kwargs
            )
            outputs = [] if kind == _PRE else [output]
            for key, hook in list(registry.items()):
                if (id(registry), key) in self._computing:
                    continue
                tensors, _ = pytree.flatten([args, kwargs, outputs])
                versions = [tensor._version for tensor in tensors]
                extra = [kwargs] if key in with_kwargs else []
                result = hook(module, args, *extra, *outputs)
                if result is not None or versions != [tensor._version for tensor in tensors]:
                    raise RaNNCError(
                        f"a hook of {named(path)} returned or changed a value, which it did not "
                        "do in the first call: the plan does not know it.\n  Let it do so in every "
                        "call, or in none."
                    )


def _is_of_checkpoints(hook) -> bool:
    library = getattr(hook, "__module__", None) or ""
    return getattr(hook, "__name__", "") in _OF_CHECKPOINTS and library.partition(".")[0] in (
        "transformers",
        "peft",
    )


def _refuse_hooks_of_all(rank=None):
    where = "" if rank is None else f" on rank {rank}"
    raise RaNNCError(
        f"there is a hook for all modules{where} (of torch.nn.modules.module, as FLOP counters use "
        "them), and a captured model does not go through its modules.\n  Remove it, register hooks "
        "of the modules before the first call, or look at model.module inside summon()."
    )


def _equal(one, other) -> bool:
    """Whether two runs returned the same."""
    (tensors, shape), (others, other_shape) = one, other
    return pytree.difference(shape, other_shape, "") is None and all(
        torch.equal(a, b) or torch.allclose(a, b, equal_nan=True)
        for a, b in zip(tensors, others, strict=True)
    )


def _is_the_same(one, other) -> bool:
    """Also of functions that were made anew by the same code, and know the same."""
    if not (isinstance(one, types.FunctionType) and isinstance(other, types.FunctionType)):
        return one == other
    if one.__code__ is not other.__code__:
        return False
    reads = [
        [each.__globals__, *map(content, each.__closure__ or ()), *(each.__defaults__ or ())]
        for each in (one, other)
    ]
    return all(map(operator.is_, *reads))
