"""``with DistributeModelParams():`` of RaNNC 0.7, which builds models that no host can hold."""

import contextlib
import weakref

from torch import nn

from pyrannc.job import process


class DistributeModelParams:
    """Modules that are built inside have parameters without memory; buffers have their values.

    The first call of the wrapped model gives each rank the parameters that it uses: read from
    ``RaNNCModule(weights=...)``, or initialised by ``reset_parameters()`` of the modules and the
    model's ``_init_weights()``. What a constructor does to parameters beside these is lost. As with
    ``torch.device("meta")``, in which buffers have no values either; one parameter at a time has
    memory while a module is built.

    Args:
        enable: With False models are built as usual.

    >>> with pyrannc.DistributeModelParams():
    ...     model = torch.nn.Linear(4, 2)
    >>> model.weight.device
    device(type='meta')
    >>> pyrannc.RaNNCModule(model)(torch.ones(8, 4)).shape
    torch.Size([8, 2])
    """

    def __init__(self, enable=True):
        self._enable, self._inside = enable, contextlib.ExitStack()

    def __enter__(self):
        if self._enable:
            known = {}  # by id of a parameter: the parameter, and the one in its place
            self._inside.enter_context(
                process.each_registered_parameter(lambda each: _without_memory(each, known))
            )
        return self

    def __exit__(self, *_):
        self._inside.close()


def _without_memory(parameter, known):
    if parameter.is_meta:
        return parameter
    before, twin = known.get(id(parameter), (None, None))
    if before is None or before() is not parameter:  # else it is tied
        twin = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        twin.__dict__.update(parameter.__dict__)
        known[id(parameter)] = weakref.ref(parameter), twin
    return twin
