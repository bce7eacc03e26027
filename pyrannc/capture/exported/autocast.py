"""The casts of autocast, which torch.export leaves out: it records operators as the model calls
them, and autocast looks at their operands only after that.

What an operator returned says what autocast did: operators on its lists compute in the dtype of
their result, to which all floating-point operands but those of 64 bits are cast.
"""

import contextlib

import torch

from pyrannc.capture import torch_private
from pyrannc.errors import TraceError

_CAST = (torch.float16, torch.bfloat16, torch.float32)


class Autocast:
    """What is cast around the operator at hand.

    Args:
        devices: Types of the devices for which the caller may have turned it on.
    """

    def __init__(self, devices):
        self._on = {device: torch.is_autocast_enabled(device) for device in devices}
        self._keeps = torch.is_autocast_cache_enabled()
        self._kept = {}  # casts of parameters, by value and dtype

    @contextlib.contextmanager
    def region(self, device, enabled):
        """Inside of ``torch.autocast(device, enabled=enabled)``."""
        outermost, before = not any(self._on.values()), self._on.get(device, False)
        self._on[device] = enabled
        try:
            yield
        finally:
            self._on[device] = before
            if outermost:
                self._kept.clear()

    def dtype(self, target, result):
        """That to which the operands of ``target`` are cast, of which ``result`` has come; None
        where none is."""
        first = _first(result)
        if first is None or not self._on.get(first.device.type):
            return None
        return first.dtype if torch_private.autocast_has(target, first.device.type) else None

    def refuse_within(self, target, node, result, place) -> None:
        """Raises TraceError where autocast reaches operators inside of ``target``.

        Args:
            node: Of torch.fx, whose operands have FakeTensors.
        """
        first = _first(result)
        if first is None or not self._on.get(first.device.type):
            return
        if not torch_private.is_made_of_others(target):
            return
        fakes = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
        with first.fake_mode, torch.autocast(first.device.type, enabled=False):
            try:
                alone = _first(target(*fakes[0], **fakes[1]))
            except RuntimeError:  # without the casts inside, it is given two dtypes
                alone = None
        if alone is None or alone.dtype != first.dtype:
            raise TraceError(
                f"{place}: torch.export does not say what autocast casts inside of {target}.\n  "
                "Use Config(frontend='torchscript'), or leave this operator out of autocast."
            )

    def cast(self, value, now, dtype, is_parameter, make):
        """``value`` in ``dtype``.

        Args:
            now: The dtype that it has.
            is_parameter: Its cast is kept.
            make: Adds a cast of it to the graph, and returns what that gives.
        """
        if now not in _CAST or now == dtype:
            return value
        if not (self._keeps and is_parameter and now == torch.float32):
            return make()
        if (value, dtype) not in self._kept:
            self._kept[value, dtype] = make()
        return self._kept[value, dtype]


def _first(result):
    """The first floating-point tensor of what an operator returned."""
    items = result if isinstance(result, list | tuple) else [result]
    found = (each for each in items if isinstance(each, torch.Tensor) and each.is_floating_point())
    return next(found, None)
