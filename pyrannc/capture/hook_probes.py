"""Probes, from which full-backward hooks of the model's modules learn gradients.

The gradient of what a module takes, or gives, is that of a probe: a further argument of the model,
zeros, that is added to it. So it comes back as gradients of arguments do, each rank's rows to that
rank, under every plan and schedule; and what is sent of it is in the graph that is planned.
"""

import dataclasses

import torch

from pyrannc.errors import TraceError


@dataclasses.dataclass(frozen=True)
class Probe:
    """An argument of zeros, with another gradient than that of the model's own arguments.

    Attributes:
        name: Of the input of the graph.
        shape: With any number in the dimension of the rows.
        dim: That dimension.
    """

    name: str
    shape: tuple
    dim: int
    dtype: torch.dtype
    device: torch.device

    def zeros(self, rows):
        shape = list(self.shape)
        shape[self.dim] = rows
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


@dataclasses.dataclass
class ModuleCall:
    """One call of a module that has backward hooks.

    Attributes:
        arguments: The number of its positional arguments.
        inputs: For each of them its probe, or None; None where no gradient goes into
            any of them.
        outputs: The same of what the module returns.
    """

    path: str
    arguments: int
    inputs: list | None
    outputs: list | None = None


class ModuleCalls:
    """What backward hooks would look at, in one run of the model inside ``watched()``.

    Args:
        kinds: By the path of a module whether it has hooks that want the gradients of its inputs.
        probes: Tensors, in the order in which the run comes to where they are added; None adds
            nothing.

    Attributes:
        ends: Calls in the order in which they begin and end: ``(ModuleCall, whether it ends)``.
        seen: Names, shapes, dtypes and devices of what probes are added to.
    """

    def __init__(self, kinds, probes=None):
        self._kinds, self._probes = kinds, probes
        self._open = []  # calls under way, with the arguments that a probe was added to
        self.ends, self.seen = [], []

    def watch(self, model) -> list:
        """Handles of hooks, which run after the user's that compute something."""
        handles = []
        for path in self._kinds:
            module = model.get_submodule(path)
            begin, end = self._begin(path), self._end(path)
            handles.append(module.register_forward_pre_hook(begin, with_kwargs=True))
            handles.append(module.register_forward_hook(end))
        return handles

    def _begin(self, path):
        def begin(_module, args, kwargs):
            places, args = self._probed(path, "input", args) if self._kinds[path] else (None, args)
            call = ModuleCall(path, len(args), places)
            versions = [(each, each._version) for each in args if isinstance(each, torch.Tensor)]
            self._open.append((call, versions if places else []))
            self.ends.append((call, False))
            return args, kwargs

        return begin

    def _end(self, path):
        def end(_module, _args, output):
            call, versions = self._open.pop()
            if any(tensor._version != version for tensor, version in versions):
                raise TraceError(
                    f"{named(path)} has a full backward hook and changes its argument in place, "
                    "which eager PyTorch refuses, too.\n  Let it compute out of place "
                    "(inplace=False), or hook a module around it."
                )
            several = isinstance(output, tuple)
            call.outputs, found = self._probed(path, "output", output if several else (output,))
            self.ends.append((call, True))
            if call.outputs is None:
                return None
            if not several:
                return found[0]
            return type(output)(*found) if hasattr(output, "_fields") else found

        return end

    def _probed(self, path, what, values):
        """The probes of what requires a gradient, by place, and ``values`` with them added."""
        wanted = [isinstance(each, torch.Tensor) and each.requires_grad for each in values]
        if not any(wanted):
            return None, values
        places, found = [], []
        for number, (value, wants) in enumerate(zip(values, wanted, strict=True)):
            places.append(len(self.seen) if wants else None)
            if wants:
                name = f"{path or 'model'}.{what}{number}"
                if self._probes is not None:
                    value = value + self._probes[len(self.seen)]
                self.seen.append((name, path, tuple(value.shape), value.dtype, value.device))
            found.append(value)
        return places, tuple(found)


def find(one, other, rows, other_rows) -> list[Probe]:
    """Those that a capture needs, after what was seen (ModuleCalls.seen) in two runs of the model
    with other numbers of rows.

    Raises:
        TraceError: No rank's rows can be told apart in something; names the module.
    """
    made = []
    for number, (seen, again) in enumerate(zip(one, other, strict=True)):
        name, path, shape, dtype, device = seen
        differing = [dim for dim, (a, b) in enumerate(zip(shape, again[2], strict=True)) if a != b]
        if [(shape[dim], again[2][dim]) for dim in differing] != [(rows, other_rows)]:
            raise TraceError(
                f"{named(path)} has a full backward hook, but in its {name.rpartition('.')[2]}, "
                f"{_read(shape, differing)}, no dimension holds the rows of the batch by "
                "themselves, so no rank's can be told apart.\n  Leave this module out, hook one "
                "around it, or use register_hook() of a parameter."
            )
        made.append(Probe(f"hooked.{number}.{name}", shape, differing[0], dtype, device))
    return made


def _read(shape, differing) -> str:
    if not shape:
        return "which is one number"
    sizes = ["*" if dim in differing else str(size) for dim, size in enumerate(shape)]
    return f"of shape [{', '.join(sizes)}]"


def named(path) -> str:
    """Of a module, in a message."""
    return f"'{path}'" if path else "the model"
