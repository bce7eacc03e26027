"""The guard of what is registered: tensors may be put in the places of others, but another module
computes otherwise."""

from pyrannc.errors import RaNNCError
from pyrannc.running.guards.guard import FixedGuard


class Registered(FixedGuard):
    """The parameters, buffers and modules that the modules of ``model`` had at the first call."""

    def __init__(self, model, modules):
        self._model = model
        registries = [
            (module, registry)
            for module in modules
            for registry in (module._parameters, module._buffers, module._modules)
        ]
        self._contents = [
            (module, registry, name, held)
            for module, registry in registries
            for name, held in registry.items()
            if held is not None or registry is not module._buffers  # which forward() may set
        ]
        self._names = [(*each, frozenset(each[1])) for each in registries]

    def refuse_changed(self):
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
        path = next(path for path, each in self._model.named_modules() if each is module)
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
