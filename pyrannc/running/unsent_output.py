"""What stands in the place of an output that a training step did not send."""

from pyrannc.errors import RaNNCError

_USES = """
    getitem setitem iter len contains call bool int float complex index array round enter
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul
    and rand or ror xor rxor neg pos abs invert lt le gt ge eq ne
"""


class UnsentOutput:
    """Says what it is when it is printed, and raises RaNNCError when it is used.

    Any use counts: an attribute, an index, arithmetic, a torch function, ``float()``. It may be
    stored, copied and pickled, so that containers of outputs are built as ever.
    """

    def __init__(self, path: str, schedule: str, dealt_out: bool):
        self._path, self._schedule, self._dealt_out = path, schedule, dealt_out

    def __repr__(self) -> str:
        how = '; RaNNCModule(..., outputs="all") sends it' if self._dealt_out else ""
        return f"<{self._path} was not sent{how}>"

    def __getattr__(self, name):
        # Probes by the language and by libraries, such as __deepcopy__, are no use.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise self._error()

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise _first([args, kwargs or {}])._error()

    def _error(self) -> RaNNCError:
        path, schedule = self.__dict__.get("_path", "an output"), self.__dict__.get("_schedule")
        if not self.__dict__.get("_dealt_out", True):
            return RaNNCError(
                f"{path} was not sent: its size depends on the batch, but its rows interact, so no "
                "rank's rows can be told apart in it.\n  Compute what you need of it in forward(), "
                "down to a size that does not depend on the batch."
            )
        return RaNNCError(
            f"{path} was not sent: under the schedule '{schedule}' the backward of a training step "
            "runs before its outputs are returned, and only the loss is.\n"
            '  RaNNCModule(..., outputs="all") sends the others, too, without a gradient. After '
            "eval() and under no_grad() they are always sent. Config(schedule='gpipe') sends them "
            "with their gradients."
        )


def _raise(self, *_, **__):
    raise self._error()


for _name in _USES.split():
    setattr(UnsentOutput, f"__{_name}__", _raise)


def _first(tree):
    """The first placeholder among the arguments of a torch function."""
    if isinstance(tree, UnsentOutput):
        return tree
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        for item in tree:
            if (found := _first(item)) is not None:
                return found
    return None
