"""Arguments that are padded to those of the longest rank."""

import copy
import inspect
import operator

import torch

from pyrannc.capture.arguments.batch_dims import input_names, keys_of, no_argument
from pyrannc.errors import ConfigError

#: What ``pad_to`` may be beside a number.
POWERS = "powers of two"


class Padding:
    """What the user's ``pad`` says.

    Args:
        pad: A number for each argument that is padded, by its name, its position or its path; that
            of a container counts for all tensors in it that have none of their own. Or None.
        side: "right" or "left" of what is there.
        to: A number of which lengths become multiples, so that few of them are captured, or
            "powers of two": of each padded tensor the first dimension beside that of the rows. Or
            None.

    Raises:
        ConfigError: Another side, a value that is no number, or ``to`` without ``pad``.
    """

    def __init__(self, pad, side, to=None):
        if side not in ("left", "right"):
            raise ConfigError(f"pad_side is {side!r}; it must be 'left' or 'right'")
        for key, value in (pad or {}).items():
            if not isinstance(value, (bool, int, float)):
                raise ConfigError(f"pad[{key!r}] is {value!r}; it must be a number")
        is_grid = to in (None, POWERS) or (type(to) is int and to > 0)
        if not is_grid or (to is not None and not pad):
            raise ConfigError(
                f"pad_to is {to!r}; it must be a number such as 64, of which lengths become "
                f"multiples, or {POWERS!r}, beside pad={{'its name': 0}} with the arguments that "
                "are padded"
            )
        self._values, self._side, self._to = dict(pad or {}), side, to
        self._last = []  # of each tensor padded in the last call: given and padded sizes

    def __bool__(self):
        return bool(self._values)

    def said(self) -> list:
        """In JSON's types; the same on all ranks."""
        return [
            self._side,
            sorted((str(key), value) for key, value in self._values.items()),
            self._to,
        ]

    def unknown(self, model, call) -> str:
        """What is wrong where a key is no argument of this first call, and could be none of a later
        one."""
        keys = self._keys(model, call)
        parameters = inspect.signature(model.forward).parameters
        roots = {key for these in keys for key in these[-1:]}
        for wanted in self._values:
            later = wanted in parameters and wanted not in roots
            if later or any(wanted in these for these in keys):
                continue
            return no_argument("pad", wanted, call, input_names(model, call), parameters)
        return ""

    @staticmethod
    def sizes(call, dims) -> dict[str, list]:
        """Of each tensor by its path; None for its rows, in the dimension that ``dims`` has."""
        return {
            path: [None if d == dim else size for d, size in enumerate(tensor.shape)]
            for tensor, path, dim in zip(call.tensors, call.paths, dims, strict=True)
        }

    def apply(self, model, call, everyones):
        """``call`` with tensors of the largest of ``everyones`` sizes, those of all ranks; the same
        object where nothing is to be done.

        Raises:
            ConfigError: Sizes differ of a tensor that is not padded; on every rank.
        """
        tensors, self._last = list(call.tensors), []
        given = call.given_sizes or [tuple(tensor.shape) for tensor in tensors]
        values = self._of_tensors(model, call)
        for index, (path, value) in enumerate(zip(call.paths, values, strict=True)):
            ranks = {rank: sizes[path] for rank, sizes in enumerate(everyones) if path in sizes}
            each = list(ranks.values())
            if value is None and all(sizes == each[0] for sizes in each):
                continue
            if value is None or not _alike(each):
                _refuse(path, ranks)
            longest = [None if n[0] is None else max(n) for n in zip(*each, strict=True)]
            for dim in _lengths(longest) if self._to else ():
                longest[dim] = self._on_grid(longest[dim])
            self._last.append((given[index], longest))
            tensors[index] = self._padded(path, tensors[index], value, longest)
        if all(map(operator.is_, tensors, call.tensors)):
            return call
        padded = copy.copy(call)
        padded.tensors, padded.given_sizes = tensors, given
        return padded

    def places(self, model, call) -> set[int]:
        """Which of the tensors are padded."""
        values = self._of_tensors(model, call)
        return {index for index, value in enumerate(values) if value is not None}

    def widths_like(self, shape) -> set[tuple]:
        """As ``torch.nn.functional.pad`` takes them, for a tensor beside the last call that begins
        with the rows and lengths of a tensor that was padded in it; of each such tensor."""
        found = set()
        for own, longest in self._last:
            common = min(len(own), len(shape))
            lengths = [most for most in longest[:common] if most is not None]
            alike = all(
                most is None or size == given
                for size, given, most in zip(own, shape, longest, strict=False)
            )
            if lengths and alike:
                kept = [None] * (len(shape) - common)
                found.add(tuple(self._widths(shape, [*longest[:common], *kept])))
        return found

    def _on_grid(self, length) -> int:
        if self._to == POWERS:
            return 1 << max(length - 1, 0).bit_length()
        return -(-length // self._to) * self._to

    def _widths(self, shape, longest) -> list[int]:
        widths = []
        for size, most in zip(reversed(shape), reversed(longest), strict=True):
            more = 0 if most is None else most - size
            widths += [more, 0] if self._side == "left" else [0, more]
        return widths

    def _padded(self, path, tensor, value, longest):
        widths = self._widths(tensor.shape, longest)
        if not any(widths):
            return tensor
        whole = not tensor.is_floating_point() and not tensor.is_complex()
        if whole and not float(value).is_integer():
            raise ConfigError(f"pad says {value} for {path}, whose dtype is {tensor.dtype}")
        # Also under no_grad(), as a captured graph depends on which inputs need a gradient.
        with torch.set_grad_enabled(tensor.requires_grad):
            return torch.nn.functional.pad(tensor, widths, value=value)

    def _of_tensors(self, model, call) -> list:
        """The number for each tensor of ``call``, or None; that of the longest key that fits."""
        return [
            next((self._values[key] for key in these if key in self._values), None)
            for these in self._keys(model, call)
        ]

    @staticmethod
    def _keys(model, call):
        names = input_names(model, call)
        return [keys_of(path, name) for path, name in zip(call.paths, names, strict=True)]


def _alike(each) -> bool:
    """Whether sizes have the same dimensions, and the rows in the same."""
    return len({tuple(size is None for size in sizes) for sizes in each}) == 1


def _lengths(sizes) -> list[int]:
    """The dimensions of a length: the first beside that of the rows, or both of a mask
    ``[rows, 1, length, length]``."""
    found = [dim for dim, size in enumerate(sizes) if size is not None]
    while len(found) > 2 and sizes[found[0]] == 1:
        found = found[1:]
        if sizes[found[0]] == sizes[found[-1]] > 1:
            return found
    return found[:1]


def _refuse(path, ranks):
    first, *others = ranks
    other = next(rank for rank in others if ranks[rank] != ranks[first])
    raise ConfigError(
        f"{path} has sizes {_shown(ranks[first])} on rank {first}, but {_shown(ranks[other])} on "
        f"rank {other}, and pad does not name it, or cannot mend that.\n"
        "  Add it: RaNNCModule(..., pad={'its name': 0})."
    )


def _shown(sizes) -> str:
    return f"[{', '.join('rows' if size is None else str(size) for size in sizes)}]"
