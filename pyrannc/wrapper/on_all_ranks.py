"""Methods of a model of which somebody else, such as a Trainer, has the RaNNCModule."""

#: Those that a RaNNCModule runs with all ranks; they find no values in the model alone.
_NAMES = ("generate", "push_to_hub", "save_pretrained")


def lend(wrapper) -> None:
    """``model.save_pretrained(...)`` and the like of a wrapped model are from here on those of
    its ``wrapper``, which the user does not have."""
    model = wrapper.module
    for name in _NAMES:
        if callable(getattr(type(model), name, None)):
            vars(model)[name] = OnAllRanks(wrapper, name)


class OnAllRanks:
    """A method of a model, called as that of its wrapper; every rank calls it.

    It keeps the wrapper alive, which alone finds what the other ranks hold: the Trainer may be
    gone by then.
    """

    __slots__ = ("_name", "_wrapper")  # no attributes that a capture would compare

    def __init__(self, wrapper, name):
        self._wrapper, self._name = wrapper, name

    def __call__(self, *args, **kwargs):
        deployment = self._wrapper._deployment
        if deployment is None or deployment.call_agreement.summoned is not None:
            return self.of_model(*args, **kwargs)
        return getattr(self._wrapper, self._name)(*args, **kwargs)

    @property
    def of_model(self):
        """The model's own."""
        model = self._wrapper.module
        return getattr(type(model), self._name).__get__(model)

    def __reduce__(self):
        """A copy of the model has a method of its own."""
        return getattr, (self._wrapper.module, self._name)
