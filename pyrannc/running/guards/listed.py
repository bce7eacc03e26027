"""The list of all guards of a deployed model."""

from pyrannc.running.guards.arguments import Arguments
from pyrannc.running.guards.attributes import Attributes
from pyrannc.running.guards.buffers import Buffers
from pyrannc.running.guards.modes import (
    Autocast,
    Dropout,
    GradMode,
    InputGradients,
    Trained,
    Training,
)
from pyrannc.running.guards.registered import Registered


class Guards:
    """What the calls of a deployment share with a captured one.

    A change that :meth:`refuse_changed` finds is an error. Any other change makes a call of another
    kind, which is captured anew.
    """

    def __init__(self, deployment):
        model = deployment.model
        modules = list(model.modules())  # walking through them takes a while
        self._fixed = (Registered(model, modules), deployment.task.hooks)
        self.attributes = Attributes(model)
        self._arguments = Arguments()
        self._buffers = Buffers(deployment)
        self._changing = (
            Training(model, modules),
            Trained(modules),
            InputGradients(),
            Autocast(deployment.task.device),
            GradMode(),
            Dropout(deployment),
            self._buffers,
            self.attributes,
            self._arguments,
        )

    def refuse_changed(self) -> None:
        """Raises RaNNCError where something has changed that the plan depends on."""
        for guard in self._fixed:
            guard.refuse_changed()

    def now(self, call) -> tuple:
        """The values in a call, one of each guard."""
        return tuple([guard.now(call) for guard in self._changing])

    def captured(self, capture, now) -> tuple:
        """The values that belong to a capture of the call with the values ``now``."""
        pairs = zip(self._changing, now, strict=True)
        return tuple(guard.captured(capture, value) for guard, value in pairs)

    def with_call(self, values, call) -> tuple:
        """The same with the arguments of another call."""
        return (*values[:-1], self._arguments.now(call))

    def same(self, then, now, any_length=()) -> bool:
        """Whether a call with the values ``now`` is of the kind captured with ``then``.

        Args:
            any_length: Indices of tensors of the call that may have other lengths.
        """
        if any_length:
            now = (*now[:-1], (now[-1][0], any_length))
        for guard, old, new in zip(self._changing, then, now, strict=True):
            if not guard.same(old, new):
                return False
        return True

    def differences(self, then, now) -> list[str]:
        """The changes in words; the last one, of the arguments, may be empty."""
        *modes, attributes, arguments = (
            guard.difference(old, new)
            for guard, old, new in zip(self._changing, then, now, strict=True)
        )
        return [*filter(None, modes), *([f"with {attributes}"] if attributes else []), arguments]

    def reason_of_recapture(self, then, now) -> str:
        """What has changed from one call to the next, where that is no mode."""
        pairs = zip(self._changing, then, now, strict=True)
        if not all(guard.name or guard.same(old, new) for guard, old, new in pairs):
            return ""
        for guard, text in (
            (self._buffers, self._buffers.difference(then[-3], now[-3])),
            (self.attributes, self.attributes.difference(then[-2], now[-2])),
            (self._arguments, self._arguments.beside_tensors(then[-1], now[-1])),
        ):
            if text:
                return f"{guard.name} change from call to call: {text}"
        return ""
