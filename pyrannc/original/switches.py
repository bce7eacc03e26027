"""What three functions of RaNNC 0.7 switch for the whole process.

``model.no_sync()``, ``backward(retain_graph=True)`` and the setting ``sync_params_on_init`` say the
same of one model or one call.
"""

_on = {"delay_grad_allreduce": False, "keep_graph": False, "sync_params_on_init": True}


def delay_grad_allreduce(delay: bool) -> None:
    """With True, backwards from here on leave the sum of gradients over the replicas for later.

    As :meth:`RaNNCModule.no_sync`, for every model. The sum comes with the first backward after
    ``delay_grad_allreduce(False)``, or with ``model.allreduce_grads()``. Every rank calls it.
    """
    _on["delay_grad_allreduce"] = bool(delay)


def keep_graph(keep: bool) -> None:
    """With True, every backward through a wrapped model may be repeated, as with
    ``retain_graph=True``. Every rank calls it."""
    _on["keep_graph"] = bool(keep)


def sync_params_on_init(sync: bool) -> None:
    """With False, models that are called for the first time from here on keep each rank's own
    parameters, instead of rank 0's: they have to be equal already. Every rank calls it."""
    _on["sync_params_on_init"] = bool(sync)


def is_on(name: str) -> bool:
    """Whether what the function ``name`` switches is on."""
    return _on[name]
