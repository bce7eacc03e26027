"""Methods of the model that write it as a whole: save_pretrained() of Hugging Face, and PEFT's."""

import contextlib
import functools

from pyrannc.state import summon

#: Methods that need the whole model, and are called by every rank through the wrapper.
_WRITERS = ("save_pretrained", "push_to_hub")


def for_all_ranks(module, name: str, found):
    """What ``module.name`` is, of a RaNNCModule, where its model has ``found``.

    A method that writes the model runs on rank 0, with the whole model there. Every rank calls it,
    and it returns on the others when rank 0 is done; arguments of the others do not count.
    """
    if name not in _WRITERS or module._deployment is None or not callable(found):
        return found

    @functools.wraps(found)
    def write(*args, **kwargs):
        def work():
            with same_config(module.module):
                return found(*args, **kwargs)

        return summon.on_rank_0(module, f"{name}()", work)

    return write


@contextlib.contextmanager
def same_config(model):
    """Leaves the configuration of a model of Hugging Face as it was: what is written notes its
    class and dtype there, on the rank that writes, and ranks that differ cannot go on."""
    kept = [
        (config, dict(vars(config)))
        for config in {id(each): each for each in map(_config, model.modules())}.values()
        if config is not None
    ]
    try:
        yield
    finally:
        for config, before in kept:
            vars(config).clear()
            vars(config).update(before)


def _config(module):
    config = getattr(module, "config", None)
    return config if hasattr(config, "to_json_string") else None
