"""The arguments of one call, and how a later call may differ from them."""

import torch

from pyrannc.capture.arguments import pytree
from pyrannc.capture.arguments.refusals import refuse_arguments
from pyrannc.errors import TraceError, shown_as


@shown_as(TraceError)
class CallMismatch(TraceError):
    """A call that does not fit the captured one: another structure, shape, dtype or constant."""


class Call:
    """The arguments of a call, flattened.

    Attributes:
        tensors: All of them, in the order of the containers that hold them.
        shape: What is left without them.
        given_sizes: Of the tensors before they were padded; None where nothing was.
    """

    def __init__(self, args, kwargs):
        tree = {"args": tuple(args), "kwargs": dict(kwargs)}
        self.tensors, self.shape = pytree.flatten(tree)
        self.given_sizes = None
        refuse_arguments(self.tensors, lambda: self.paths)

    @property
    def paths(self) -> list[str]:
        """Where each of the tensors stands: ``kwargs['labels']``."""
        return [_readable(path) for path in pytree.paths(self.shape)]

    def arguments(self) -> tuple:
        """Those of the call: positional ones, and those with keywords."""
        tree = pytree.unflatten(self.shape, self.tensors)
        return tree["args"], tree["kwargs"]

    def written(self, tensors, versions) -> list[str]:
        """The paths of those of ``tensors``, one for each of the call's, that were written since
        they had ``versions``."""
        pairs = zip(self.paths, tensors, versions, strict=True)
        return [path for path, tensor, version in pairs if tensor._version != version]

    def rows(self, batch_dims) -> int:
        """The number of rows, with the dimension of each tensor that holds them, or None.

        Raises:
            CallMismatch: Two tensors have different numbers of rows.
        """
        first = None  # index of the first tensor with rows, and these
        for index, (tensor, dim) in enumerate(zip(self.tensors, batch_dims, strict=True)):
            if dim is None:
                continue
            rows = tensor.shape[dim]
            if first is None:
                first = index, rows
            elif rows != first[1]:
                raise CallMismatch(
                    f"{self.paths[index]} has {rows} rows, but {self.paths[first[0]]} has "
                    f"{first[1]}"
                )
        return first[1]


def _readable(path: str) -> str:
    return path.replace("['args']", "args", 1).replace("['kwargs']", "kwargs", 1)


class Like:
    """What a tensor argument must look like."""

    def __init__(self, tensor, dim):
        self.dtype, self.device_type, self.dim = tensor.dtype, tensor.device.type, dim
        self.shape = list(tensor.shape)
        self._strides, self._device = tensor.stride(), tensor.device
        self._requires_grad = tensor.requires_grad

    def empty(self):
        """Such a tensor, without numbers in it."""
        made = torch.empty_strided(self.shape, self._strides, dtype=self.dtype, device=self._device)
        return made.requires_grad_(self._requires_grad)

    def difference(self, tensor, any_length=False) -> str | None:
        """``any_length``: in all dimensions."""
        if tensor.dtype != self.dtype:
            return f"has dtype {tensor.dtype}, but had {self.dtype}"
        if tensor.device.type != self.device_type:
            return f"is on {tensor.device.type}, but was on {self.device_type}"
        shape = list(tensor.shape)
        if len(shape) == len(self.shape):
            expected = list(self.shape)
            if self.dim is not None:
                expected[self.dim] = shape[self.dim]
            if any_length or shape == expected:
                return None
        rows = "" if self.dim is None else f" (any number of rows in dimension {self.dim})"
        return f"has shape {shape}, but had {self.shape}{rows}"

    def fake(self, real, rows):
        """A tensor like ``real`` with ``rows`` rows and the same order of dimensions in memory;
        called under FakeTensorMode."""
        shape = list(real.shape)
        if self.dim is not None:
            shape[self.dim] = rows
        order = sorted(range(len(shape)), key=lambda d: (-real.stride(d), d))
        made = torch.empty([shape[d] for d in order], dtype=real.dtype, device=real.device)
        made = made.permute([order.index(d) for d in range(len(shape))])
        return made.requires_grad_(real.requires_grad)
